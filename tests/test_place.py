"""Tests of places: what a path is, the scenes it holds, and what `info` shows of it."""

import pickle
import re
import shutil

import pytest
from commands import SCENES, TEST, TRAIN, VAL, edit_json, raw_file, repeat_groups, run_main, succeed

from scannet_prep import ScanNet
from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.processed.scene import encode_processed
from scannet_prep.release.files import MESH
from scannet_prep.source.place import find_kind, open_place, open_processed
from scannet_prep.synthetic import write_release


@pytest.fixture(scope="module")
def root(whole_dir, packed_dir, tmp_path_factory):
    """Places of all kinds, and other folders and files; not to be changed."""
    root = tmp_path_factory.mktemp("places")
    for folder in (whole_dir, packed_dir):
        for path in folder.iterdir():
            (root / path.name).symlink_to(path)
    write_release(root / "streams", [TRAIN], vertices=600, frames=2)
    succeed("frames", root / "streams", "-o", root / "frames")
    succeed("export", root / "processed", "--format", "ply", "-o", root / "export")
    return root


KINDS = {
    "raw": "raw",
    "raw/scans": "raw",
    f"raw/scans/{TRAIN}": "raw",
    "processed": "processed",
    "frames": "frames",
    "processed.tar.zst": "archive",
    "raw.tar.zst": "archive",
}


@pytest.mark.parametrize("name", KINDS)
def test_place_is_found_by_its_names_and_lists_its_scenes(root, name):
    place = pickle.loads(pickle.dumps(open_place(root / name)))

    assert find_kind(root / name)[0] == place.kind == KINDS[name]
    assert place.name == str(root / name)
    parts = {"frames": [TRAIN], "raw/scans": [TRAIN, VAL], f"raw/scans/{TRAIN}": [TRAIN]}
    expected = parts.get(name, sorted(SCENES))
    assert list(place.scenes) == expected
    assert place.scenes[TRAIN].split == "train"
    assert place.scenes[TRAIN].size_bytes > 1000
    if name.startswith("processed"):
        assert place.scenes[TRAIN].vertex_count == 600
    assert place.verify(TRAIN) == []
    assert place.verify_rest() == []


REFUSALS = [
    (open_place, "nowhere", MissingFileError, "no such file or folder"),
    (open_place, "processed/manifest.json/a", FileError, "cannot be read: Not a directory"),
    (open_place, "processed/train", MissingFileError, "holds neither raw .*whole folder"),
    (open_place, "export", MissingFileError, "holds neither raw nor processed scenes"),
    (open_processed, "raw", MissingFileError, "holds raw scenes or extracted frames, expected"),
    (open_processed, "raw.tar.zst", MissingFileError, "have to be unpacked and processed"),
]


@pytest.mark.parametrize(("function", "name", "error", "message"), REFUSALS)
def test_what_holds_no_usable_scenes_is_refused(root, function, name, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        function(root / name)
    assert run_main("info", root / name).status == (1 if function is open_place else 0)


def test_folder_archive_and_raw_tree_hold_the_same_scenes(root):
    folder = open_processed(root / "processed")

    for name in ("processed.tar.zst", "raw"):
        place = open_place(root / name)
        for scene_id in SCENES:
            data = b"".join(encode_processed(place.read(scene_id)))
            assert data == folder.open_arrays(scene_id).data


def test_file_in_the_wrong_place_is_refused(out_dir, whole_dir, tmp_path):
    edit_json(out_dir / "manifest.json", lambda value: value["scenes"][VAL].update(split="train"))
    place = open_processed(out_dir)
    for split, scene_id in (("train", TRAIN), ("val", VAL)):
        shutil.copy(out_dir / f"{split}/{scene_id}.npz", place.file_path(VAL))
        with pytest.raises(FileError, match=f"'{scene_id}' of {split}, expected {VAL} of train"):
            place.read(VAL)
    other_dir = tmp_path / "faces"
    run_main("process", whole_dir / "raw", "-o", other_dir, "--faces")
    shutil.copy(other_dir / f"train/{TRAIN}.npz", place.file_path(TRAIN))
    with pytest.raises(FileError, match=r"was made with .*--faces.*, expected .*--no-faces"):
        place.read(TRAIN)


@pytest.mark.parametrize("name", ["processed", "a.tar.zst"])
def test_failed_scenes_are_a_warning_where_the_dataset_is_made(raw_dir, tmp_path, name):
    raw_file(raw_dir, MESH.suffix, VAL).write_bytes(b"")
    assert run_main("process", raw_dir, "-o", tmp_path / "processed").status == 3
    run_main("pack", tmp_path / "processed", "-o", tmp_path / "a.tar.zst")
    outcome = run_main("verify", tmp_path / name, "--json")
    [finding] = outcome.json["findings"]
    assert (outcome.status, finding["severity"], finding["scene_id"]) == (3, "error", VAL)
    assert re.search("this scene failed.*empty", finding["message"])

    succeed("verify", tmp_path / name, "--splits", "train")

    with pytest.warns(UserWarning, match=f"scenes that failed .* are missing: {VAL}") as caught:
        dataset = ScanNet(tmp_path / name, split="train")

    assert caught[0].filename == __file__
    with pytest.raises(KeyError, match=f"(?s)has no train scene '{VAL}'.*lists those that failed"):
        dataset[VAL]
    no_scenes = pytest.raises(ValueError, match="holds no val scenes")
    with pytest.warns(UserWarning, match=VAL), no_scenes:
        ScanNet(tmp_path / name, split=["train", "val"])


# What `info` shows.


def info(path, *words):
    outcome = run_main("info", path, "--json", *words)
    assert (outcome.status, len(outcome.stdout.splitlines())) == (0, 1)
    return outcome.json


def test_info_counts_processed_scenes_without_opening_them(raw_dir, tmp_path):
    out_dir = tmp_path / "processed"
    raw_file(raw_dir, MESH.suffix, VAL).write_bytes(b"")
    assert run_main("process", raw_dir, "-o", out_dir, "--scannet200").status == 3
    sizes = {}
    for path in out_dir.glob("*/*.npz"):
        sizes[path.stem] = path.stat().st_size
        path.write_bytes(b"")

    value = info(out_dir)
    text = run_main("info", out_dir).stdout

    assert value["scene_ids"] == [TRAIN, TEST]
    assert value["splits"] == {
        "train": {"scenes": 1, "vertices": 600, "size_bytes": sizes[TRAIN]},
        "test": {"scenes": 1, "vertices": 600, "size_bytes": sizes[TEST]},
        "all": {"scenes": 2, "vertices": 1200, "size_bytes": sum(sizes.values())},
    }
    assert [failure["scene_id"] for failure in value["facts"]["failures"]] == [VAL]
    assert "options: --scannet200 --no-align-axis --no-faces --labels-from aggregation" in text
    # Every oddity of the raw files comes once, with the number of its scenes.
    write_release(tmp_path / "odd", [TRAIN], vertices=600)
    edit_json(raw_file(tmp_path / "odd", ".aggregation.json"), repeat_groups)
    run_main("process", tmp_path / "odd", "-o", tmp_path / "out")
    [warning] = info(tmp_path / "out")["facts"]["warnings"]
    assert "repeat an earlier group exactly" in warning
    assert "(scenes: 1)" in warning


def test_info_lists_ten_entries_or_all(tmp_path):
    raw_dir = tmp_path / "raw"
    write_release(raw_dir, [TRAIN], vertices=600)
    for number in range(12):
        (raw_dir / f"scans/scene{100 + number:04d}_00").mkdir()
    assert run_main("process", raw_dir, "-o", tmp_path / "out").status == 3

    text = succeed("info", tmp_path / "out").stdout
    assert f"\nfailures: 12\n  {raw_dir}/scans/scene0100_00/" in text
    assert "scene0110_00" not in text
    assert text.endswith("\n  ... and 2 more; all of them with -v\n")
    assert "/scene0111_00/" in succeed("info", tmp_path / "out", "-v").stdout


def test_info_describes_each_kind_of_place(root):
    archive = info(root / "processed.tar.zst")
    assert archive["splits"]["all"]["vertices"] == 1800
    assert archive["facts"] == info(root / "processed")["facts"]
    raw = info(root / "raw")
    sizes = [path.stat().st_size for path in root.glob("raw/scans*/*/*")]
    assert raw["splits"]["all"] == {"scenes": 3, "size_bytes": sum(sizes)}
    assert info(root / "frames")["facts"]["frames"] == 1
    for name in KINDS:
        assert set(info(root / name)["scene_ids"]) <= set(SCENES)
        _, *lines = run_main("info", root / name).stdout.splitlines()
        assert max(len(line) for line in lines if "  " in line) <= 60
