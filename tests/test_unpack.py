"""`unpack`: whole and damaged archives, into new and into existing folders."""

import os
import random
import resource
import shutil
import subprocess
import time

import pytest
from commands import (
    COMMAND,
    TEST,
    TRAIN,
    TREE,
    VAL,
    edit_json,
    fail,
    flip,
    flip_scene,
    limited,
    pack_tree,
    read_tree,
    run_main,
    span,
    succeed,
    unpack_file,
    unpack_pipe,
    write_tree,
)

from scannet_prep import ScanNet
from scannet_prep.errors import FileError
from scannet_prep.source.place import open_place

WAYS = pytest.mark.parametrize("unpack", [unpack_file, unpack_pipe])


@WAYS
@pytest.mark.parametrize("kind", ["processed", "raw"])
def test_unpacked_folder_equals_the_packed_one_and_a_second_run_keeps_it(
    kind, unpack, whole_dir, packed_dir, tmp_path
):
    archive = packed_dir / f"{kind}.tar.zst"
    out_dir = tmp_path / "data" / {"processed": "processed", "raw": "ScanNet"}[kind]
    outcome = succeed(archive, "--json", cwd=tmp_path, run=unpack)
    expected = read_tree(whole_dir / kind)
    assert read_tree(out_dir) == expected
    assert outcome.json["scenes"] == [TRAIN, VAL, TEST]

    changed = f"val/{VAL}.npz" if kind == "processed" else f"scans/{VAL}/{VAL}.txt"
    times = {name: (out_dir / name).stat().st_mtime_ns for name in expected}
    flip(out_dir / changed, 50).with_name(".x.1-0123abcd.tmp").touch()
    assert unpack(archive, "-o", out_dir).status == 0
    assert read_tree(out_dir) == expected
    written = {name for name in expected if (out_dir / name).stat().st_mtime_ns != times[name]}
    assert written - {"manifest.json"} == {changed}


@WAYS
def test_parts_of_a_processed_archive_add_up(unpack, whole_dir, packed_dir, tmp_path):
    archive = packed_dir / "processed.tar.zst"
    out_dir = tmp_path / "out"
    words = (archive, "-o", out_dir, "--scenes", "scene0001_00", VAL)
    fail(2, "has no scene scene0001_00", *words, run=unpack)
    assert not out_dir.exists()
    assert unpack(archive, "-o", out_dir, "--splits", "val").status == 0
    assert len(ScanNet(out_dir, split="val")) == 1
    assert not (out_dir / "train").exists()
    assert unpack(archive, "-o", out_dir, "--scenes", TRAIN).status == 0
    assert unpack(archive, "-o", out_dir, "--splits", "test").status == 0
    assert read_tree(out_dir) == read_tree(whole_dir / "processed")


def test_scene_that_failed_and_kept_its_file_is_no_failure_of_a_part(out_dir, tmp_path):
    def keep_file(manifest):
        manifest["failures"] = {VAL: {"message": "lies twice", "scene_id": VAL}}

    edit_json(out_dir / "manifest.json", keep_file)
    archive = tmp_path / "a.tar.zst"
    assert run_main("pack", out_dir, "-o", archive).status == 0
    assert unpack_file(archive, "-o", tmp_path / "out", "--scenes", TRAIN).status == 0
    assert open_place(tmp_path / "out").failures == {}
    assert not (tmp_path / "out/failed.txt").exists()


def test_raw_folder_keeps_its_own_lock_and_label_map(tree, tmp_path):
    write_tree(tree, {"scannet.lock": b"# of the archive\n"})
    pack_tree(tree, tmp_path / "a.tar.zst")
    unpack_file(tmp_path / "a.tar.zst", "-o", tmp_path / "out", "--scenes", VAL)
    assert set(read_tree(tmp_path / "out")) == {
        "scannetv2-labels.combined.tsv",
        "empty",
        "scannet.lock",
        f"scans/{VAL}/{VAL}_vh_clean_2.ply",
    }
    write_tree(tmp_path / "out", {"scannet.lock": b"# of the folder\n"})
    assert unpack_file(tmp_path / "a.tar.zst", "-o", tmp_path / "out").status == 0
    own = TREE | {"scannet.lock": b"# of the folder\n"}
    assert read_tree(tmp_path / "out") == own
    # With rows for own categories.
    own["scannetv2-labels.combined.tsv"] = b"of the folder"
    write_tree(tmp_path / "out", own)
    problem = "out/scannetv2-labels.combined.tsv: differs from that of the archive"
    fail(1, problem, tmp_path / "a.tar.zst", "-o", tmp_path / "out", run=unpack_file)
    assert read_tree(tmp_path / "out") == own


def change_manifest(**facts):
    return lambda folder: edit_json(folder / "manifest.json", lambda value: value.update(facts))


REFUSALS = {
    "other options": ("processed", lambda _: None, "--align-axis"),
    "other label map": ("processed", change_manifest(label_map="0" * 64), "00000000"),
    "raw scenes": ("raw", lambda _: None, "raw"),
    "other files": ("empty", lambda path: (path / "a/b/thesis.tex").touch(), "another folder"),
}


@WAYS
@pytest.mark.parametrize("name", REFUSALS)
def test_folder_that_does_not_match_is_refused_before_anything_is_written(
    name, unpack, whole_dir, packed_dir, tmp_path
):
    kind, change, message = REFUSALS[name]
    out_dir = tmp_path / "out"
    if name == "other options":
        run_main("process", whole_dir / "raw", "-o", out_dir, "--align-axis")
    elif kind == "empty":
        (out_dir / "a/b").mkdir(parents=True)
    else:
        shutil.copytree(whole_dir / kind, out_dir)
    change(out_dir)
    before = read_tree(out_dir)
    fail(1, message, packed_dir / "processed.tar.zst", "-o", out_dir, run=unpack)
    assert read_tree(out_dir) == before


def test_links_and_folders_in_the_way_cost_their_scene_and_nothing_is_written_outside(
    packed_dir, raw_dir, tmp_path
):
    outside = tmp_path / "outside"
    shutil.move(raw_dir / "scans", outside)
    (raw_dir / "scans").symlink_to(outside)
    (outside / f"{VAL}/{VAL}.txt").write_bytes(b"mine")
    mesh_path = raw_dir / f"scans_test/{TEST}/{TEST}_vh_clean_2.ply"
    mesh_path.unlink()
    mesh_path.mkdir()
    outcome = fail(
        3, f"scans: {VAL}: is a link", "unpack", packed_dir / "raw.tar.zst", "-o", raw_dir
    )
    assert f"{mesh_path}: is not a regular file" in outcome.stderr
    assert (outside / f"{VAL}/{VAL}.txt").read_bytes() == b"mine"


# The scenes that are lost from a file and from a pipe; None if nothing can be unpacked.
DAMAGE = {
    "scene": (flip_scene, {VAL}, {VAL, TEST}),
    "first frame": (lambda path: flip_scene(path, ""), None, None),
    "seek table": (lambda path: flip(path, -20), None, set()),
    "end": (lambda path: os.truncate(path, sum(span(path, TEST)) // 2), None, {TEST}),
}


@WAYS
@pytest.mark.parametrize("kind", ["processed", "raw"])
@pytest.mark.parametrize("name", DAMAGE)
def test_intact_scenes_of_a_damaged_archive_are_unpacked_and_the_others_named(
    name, kind, unpack, whole_dir, packed_dir, tmp_path
):
    change, *lost = DAMAGE[name]
    path = tmp_path / "a.tar.zst"
    shutil.copy(packed_dir / f"{kind}.tar.zst", path)
    change(path)
    out_dir = tmp_path / "out"
    outcome = unpack(path, "-o", out_dir)
    missing = lost[unpack is unpack_pipe]
    if missing is None:
        assert outcome.status == 1
        assert not out_dir.exists()
        assert "hint: copy the archive again" in outcome.stderr
        return
    assert outcome.status == (3 if missing else 0)
    assert all(f"{scene_id}: is damaged" in outcome.stderr for scene_id in missing)
    # What is unpacked later leaves the others in the records.
    unpack(packed_dir / f"{kind}.tar.zst", "-o", out_dir, "--scenes", TRAIN)
    expected = read_tree(whole_dir / kind)
    found = read_tree(out_dir)
    whole = [name for name in expected if not any(scene_id in name for scene_id in missing)]
    assert found.keys() - {"failed.txt"} == {*whole}
    assert all(found[name] == expected[name] for name in whole if "/" in name)
    if kind == "processed":
        assert open_place(out_dir).failures.keys() == missing
        assert all(scene_id in found["failed.txt"].decode() for scene_id in missing)

    # An intact copy completes the folder, which the damaged one leaves as it is.
    for archive, status in ((packed_dir / f"{kind}.tar.zst", 0), (path, outcome.status)):
        assert unpack(archive, "-o", out_dir).status == status
        assert read_tree(out_dir) == expected


@WAYS
@pytest.mark.parametrize("is_new", [True, False])
def test_folder_of_a_run_that_stopped_is_refused_until_it_is_complete(
    is_new, unpack, whole_dir, packed_dir, tmp_path
):
    archive = packed_dir / "processed.tar.zst"
    out_dir = tmp_path / "out"
    if not is_new:
        shutil.copytree(whole_dir / "processed", out_dir)
        flip(out_dir / f"train/{TRAIN}.npz", 50)
    with limited(resource.RLIMIT_FSIZE, 10_000):
        fail(1, "File too large", archive, "-o", out_dir, run=unpack)
    with pytest.raises(FileError, match=r"not finished; missing scenes: 3\n.*unpack command"):
        ScanNet(out_dir, split="train")
    # Parts of other runs stay unfinished, too.
    assert unpack(archive, "-o", out_dir, "--splits", "val").status == 0
    with pytest.raises(FileError, match="not finished; missing scenes: 2"):
        ScanNet(out_dir, split="val")
    assert unpack(archive, "-o", out_dir).status == 0
    assert read_tree(out_dir) == read_tree(whole_dir / "processed")


def test_run_that_waits_for_a_scene_can_be_ended(packed_dir, tmp_path):
    data = (packed_dir / "processed.tar.zst").read_bytes()
    unpack = [*COMMAND, "unpack", "-", "-o", tmp_path]
    reader, writer = os.pipe()
    # As some programs leave it.
    os.set_blocking(reader, False)
    with subprocess.Popen(unpack, stdin=reader) as process:
        os.write(writer, data[: len(data) // 4])
        while not (tmp_path / "manifest.json").exists():
            time.sleep(0.1)
        process.terminate()
        assert process.wait(60) == 130


def test_archive_that_follows_another_in_a_pipe_is_named(packed_dir, tmp_path):
    path = tmp_path / "a.tar.zst"
    path.write_bytes(2 * (packed_dir / "processed.tar.zst").read_bytes())
    problem = "standard input: is followed by another archive"
    fail(3, problem, path, "-o", tmp_path / "out", "--limit", "1", run=unpack_pipe)


def test_pack_through_ssh_like_pipe_gives_the_same_folder(tmp_path):
    names = [f"scans/scene000{number}_00/scene000{number}_00.txt" for number in range(5)]
    files = {name: random.Random(name).randbytes(400_000) for name in names}
    tree = write_tree(tmp_path / "tree", files)
    reader, writer = os.pipe()
    # As some programs leave it.
    os.set_blocking(writer, False)
    pack = subprocess.Popen([*COMMAND, "pack", tree, "-o", "-"], stdout=writer)
    os.close(writer)
    # As on a disk that is empty but for its bin.
    write_tree(tmp_path / "out", {".Trash/a": b""})
    unpack = [*COMMAND, "unpack", "-", "-o", tmp_path / "out", "--limit", "1"]
    assert subprocess.run(unpack, stdin=reader, check=False).returncode == 0
    # What is not selected was read, too, so that the other program does not fail.
    os.close(reader)
    assert pack.wait() == 0
    assert read_tree(tmp_path / "out") == {names[0]: files[names[0]], ".Trash/a": b""}
