"""The command `process`: what it writes, keeps, makes again, and says."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from commands import digests, run_command

from scannet_prep import Split, official_scenes, read_processed
from scannet_prep.processed.manifest import read_manifest
from scannet_prep.synthetic import make_scene, write_label_map, write_release, write_scene

TRAIN, TRAIN_2, VAL, TEST, UNLISTED = "scene0000_00", "scene0001_00", "scene0011_00", "scene0707_00", "scene9000_00"


@pytest.fixture(scope="module")
def pristine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw_dir = tmp_path_factory.mktemp("pristine") / "ScanNet"
    write_release(raw_dir, [TRAIN, TRAIN_2, VAL, TEST], vertices=800)
    return raw_dir


@pytest.fixture
def raw_dir(pristine_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine_dir, tmp_path / "ScanNet"))


@pytest.fixture
def out_dir(tmp_path: Path) -> Path:
    return tmp_path / "processed"


def mesh_path(raw_dir: Path, scene_id: str) -> Path:
    return next(raw_dir.rglob(f"{scene_id}_vh_clean_2.ply"))


def test_a_run_writes_scenes_manifest_terms_and_lists(raw_dir: Path, out_dir: Path) -> None:
    outcome = run_command("process", raw_dir, "-o", out_dir, "--scannet200", "--align-axis", "--json")
    assert outcome.status == 0, outcome.stderr
    assert outcome.json["made"] == [TRAIN, TRAIN_2, VAL, TEST]
    assert sorted(digests(out_dir)) == [
        "TERMS.txt", "manifest.json", "scannetv2_test.txt", "scannetv2_test_npz.txt", "scannetv2_train_npz.txt",
        "scannetv2_val_npz.txt", f"test/{TEST}.npz", f"train/{TRAIN}.npz", f"train/{TRAIN_2}.npz", f"val/{VAL}.npz",
    ]  # fmt: skip
    order = sorted([TRAIN, TRAIN_2], key=official_scenes(Split.TRAIN).index)
    assert (out_dir / "scannetv2_train_npz.txt").read_text() == "".join(f"train/{name}.npz\n" for name in order)
    assert (out_dir / "scannetv2_val_npz.txt").read_text() == f"val/{VAL}.npz\n"
    assert (out_dir / "scannetv2_test.txt").read_text() == f"test/{TEST}.npz\n"
    assert "Terms of Use" in (out_dir / "TERMS.txt").read_text()
    manifest = json.loads((out_dir / "manifest.json").read_text())
    assert manifest["complete"] is True
    assert {name: entry["vertices"] for name, entry in manifest["scenes"].items()} == dict.fromkeys(
        [TRAIN, TRAIN_2, VAL, TEST], 800
    )


def test_a_second_run_keeps_everything_and_touches_nothing(raw_dir: Path, out_dir: Path) -> None:
    run_command("process", raw_dir, "-o", out_dir)
    before = digests(out_dir), {path: path.stat().st_mtime_ns for path in out_dir.rglob("*.npz")}
    outcome = run_command("process", raw_dir, "-o", out_dir, "--json")
    assert (outcome.json["made"], outcome.json["kept"]) == ([], [TRAIN, TRAIN_2, VAL, TEST])
    assert before == (digests(out_dir), {path: path.stat().st_mtime_ns for path in out_dir.rglob("*.npz")})


def test_the_bytes_do_not_depend_on_jobs_or_on_an_earlier_run(raw_dir: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "forced")]
    for folder, words in zip(folders, (["--jobs", "1"], ["--jobs", "2"], ["--force"]), strict=True):
        assert run_command("process", raw_dir, "-o", folder, *words).status == 0
    assert run_command("process", raw_dir, "-o", folders[2], "--force", "--json").json["made"] == [
        TRAIN,
        TRAIN_2,
        VAL,
        TEST,
    ]
    assert digests(folders[0]) == digests(folders[1]) == digests(folders[2])


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign", "flipped"])
def test_a_damaged_or_foreign_file_under_a_final_name_is_made_again(raw_dir: Path, out_dir: Path, damage: str) -> None:
    run_command("process", raw_dir, "-o", out_dir)
    whole = digests(out_dir)
    path = out_dir / f"train/{TRAIN}.npz"
    data = path.read_bytes()
    if damage == "foreign":
        np.savez(path, points=np.zeros((800, 3), np.float32))
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"truncated": data[:-100], "empty": b"", "flipped": flipped}[damage])
    outcome = run_command("process", raw_dir, "-o", out_dir, "--json")
    assert (outcome.status, outcome.json["made"], len(outcome.json["kept"])) == (0, [TRAIN], 3)
    assert digests(out_dir) == whole


def test_a_changed_input_of_the_same_size_and_time_is_found_where_bytes_are_compared(
    raw_dir: Path, out_dir: Path
) -> None:
    run_command("process", raw_dir, "-o", out_dir)
    path = mesh_path(raw_dir, TRAIN)
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[data.index(b"end_header\n") + 11 + 12] ^= 1  # red of vertex 0
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert run_command("process", raw_dir, "-o", out_dir, "--json").json["made"] == []
    assert run_command("process", raw_dir, "-o", out_dir, "--json", "--checksum").json["made"] == [TRAIN]
    assert read_processed(out_dir / f"train/{TRAIN}.npz").colors[0, 0] == data[data.index(b"end_header\n") + 23]


def test_a_label_map_that_says_something_else_makes_annotated_scenes_again(raw_dir: Path, out_dir: Path) -> None:
    run_command("process", raw_dir, "-o", out_dir)
    path = raw_dir / "scannetv2-labels.combined.tsv"
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\r\r\n"))  # says the same
    assert run_command("process", raw_dir, "-o", out_dir, "--json").json["made"] == []
    path.write_text("raw_category\tid\tnyu40id\nwall\t1\t1\n")
    outcome = run_command("process", raw_dir, "-o", out_dir, "--json")
    assert outcome.json["made"] == [TRAIN, TRAIN_2, VAL]
    assert (
        "raw category 'floor' is missing in the label map, but ScanNet id 3, nyu40 id 2 in the built-in one"
        in outcome.stderr
    )


def test_other_options_are_announced_and_made_again(raw_dir: Path, out_dir: Path) -> None:
    run_command("process", raw_dir, "-o", out_dir)
    outcome = run_command("process", raw_dir, "-o", out_dir, "--align-axis", "--dry-run")
    assert (outcome.status, "made with other options, and made again: 4 scenes" in outcome.stdout) == (0, True)
    outcome = run_command("process", raw_dir, "-o", out_dir, "--align-axis")
    assert "made with other options, and made again: 4 scenes (align_axis: False -> True)" in outcome.stderr
    assert read_processed(out_dir / f"train/{TRAIN}.npz").meta.options.align_axis


def test_a_dry_run_writes_nothing(raw_dir: Path, out_dir: Path) -> None:
    outcome = run_command("process", raw_dir, "-o", out_dir, "--dry-run", "--json")
    assert set(outcome.json["scenes"]) == {TRAIN, TRAIN_2, VAL, TEST}
    assert not out_dir.exists()


def test_a_bad_scene_stops_no_other_and_can_be_tried_again_from_the_list(raw_dir: Path, out_dir: Path) -> None:
    path = mesh_path(raw_dir, VAL)
    whole = path.read_bytes()
    path.write_bytes(whole[:-500])
    outcome = run_command("process", raw_dir, "-o", out_dir, "--json")
    assert (outcome.status, outcome.json["made"]) == (3, [TRAIN, TRAIN_2, TEST])
    (failure,) = outcome.json["failures"]
    assert failure["scene_id"] == VAL
    assert failure["message"].startswith(f"{path}: is damaged or truncated ({len(whole) - 500:,} bytes): ")
    assert "scannetv2_val_npz.txt" in digests(out_dir)
    path.write_bytes(whole)
    outcome = run_command("process", raw_dir, "-o", out_dir, "--scenes", f"@{out_dir / 'failed.txt'}", "--json")
    assert (outcome.status, outcome.json["made"]) == (0, [VAL])
    assert not (out_dir / "failed.txt").exists()
    manifest = read_manifest(out_dir)
    assert manifest is not None
    assert (sorted(manifest.scenes), dict(manifest.failures)) == ([TRAIN, TRAIN_2, VAL, TEST], {})


def test_a_good_result_outlives_damage_to_its_input_but_leaves_the_lists(raw_dir: Path, out_dir: Path) -> None:
    run_command("process", raw_dir, "-o", out_dir)
    before = digests(out_dir)[f"val/{VAL}.npz"]
    mesh_path(raw_dir, VAL).write_bytes(b"<html>")
    assert run_command("process", raw_dir, "-o", out_dir).status == 3
    assert digests(out_dir)[f"val/{VAL}.npz"] == before
    assert (out_dir / "scannetv2_val_npz.txt").read_text() == ""
    manifest = read_manifest(out_dir)
    assert manifest is not None
    assert (VAL in manifest.scenes, VAL in manifest.failures) == (False, True)


def test_scene_folders_directly_below_are_found_and_stray_files_ignored(raw_dir: Path, out_dir: Path) -> None:
    for stray in ("._scene0002_00", "tmp1234"):
        (raw_dir / "scans" / stray).write_bytes(b"")
    (raw_dir / f"scans/{TRAIN}/._{TRAIN}_vh_clean_2.ply").write_bytes(b"Mac OS X")
    (raw_dir / "scans" / TEST).mkdir()  # the official download script leaves such empty folders
    assert run_command("process", raw_dir, "-o", out_dir, "--json").json["made"] == [TRAIN, TRAIN_2, VAL, TEST]
    outcome = run_command("process", raw_dir / "scans_test", "-o", out_dir, "--json")
    assert (outcome.status, outcome.json["kept"]) == (0, [TEST])


def test_a_scene_in_no_official_list_needs_a_split(raw_dir: Path, out_dir: Path) -> None:
    write_scene(make_scene(UNLISTED, vertices=600), raw_dir)
    outcome = run_command("process", raw_dir, "-o", out_dir)
    assert outcome.status == 3
    assert f"{UNLISTED} is in none of the official split lists" in outcome.stderr
    outcome = run_command("process", raw_dir, "-o", out_dir, "--scenes", UNLISTED, "--splits", "val", "--json")
    assert (outcome.status, outcome.json["made"]) == (0, [UNLISTED])
    assert f"in no official list, and put into val as asked: 1 scene ({UNLISTED})" in outcome.stderr
    assert (out_dir / f"val/{UNLISTED}.npz").exists()


def test_splits_scenes_and_limit_choose(raw_dir: Path, out_dir: Path, tmp_path: Path) -> None:
    def chosen(*words: str) -> list[str]:
        return sorted(run_command("process", raw_dir, "-o", out_dir, "--dry-run", "--json", *words).json["scenes"])

    listed = tmp_path / "list.txt"
    listed.write_text(f"# a comment\n{VAL}  # another\n\n")
    assert chosen("--splits", "train") == [TRAIN, TRAIN_2]
    assert chosen("--splits", "val", "test") == [VAL, TEST]
    assert chosen("--scenes", TRAIN, f"@{listed}") == [TRAIN, VAL]
    assert chosen("--limit", "3") == [TRAIN, TRAIN_2, VAL]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--scenes", "scene1_1"], 2, "'scene1_1' is not a scene id"),
        (["--splits", "trian"], 2, "trian"),
        (["--limit", "0"], 2, "'0' is not a positive whole number"),
        (["--jobs", "-1"], 2, "'-1' is not a positive whole number"),
        (["--scenes", TEST, "--splits", "train"], 2, f"{TEST} is in the split test, but only train was asked for"),
        (["--scenes", "@nowhere.txt"], 1, "nowhere.txt: no such file"),
        (["--scenes", "scene0002_00"], 3, "has no folder scene0002_00"),
    ],
)
def test_wrong_requests_are_told_from_each_other(
    raw_dir: Path, out_dir: Path, words: list[str], status: int, message: str
) -> None:
    outcome = run_command("process", raw_dir, "-o", out_dir, "--json", *words)
    assert (outcome.status, outcome.json["exit_status"]) == (status, status)
    assert message in outcome.stderr
    assert not list(out_dir.rglob("*.npz"))


def test_no_raw_scenes_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    outcome = run_command("process", cwd=tmp_path)
    assert (outcome.status, outcome.stdout) == (1, "")
    assert outcome.stderr.startswith("error: data/ScanNet: no such folder\nhint: ")
    assert list(tmp_path.iterdir()) == []


def test_strict_makes_doubts_failures_and_counts_each_unknown_name_once(raw_dir: Path, out_dir: Path) -> None:
    path = raw_dir / f"scans/{TRAIN}/{TRAIN}.aggregation.json"
    document = json.loads(path.read_text())
    for group in document["segGroups"][:2]:
        group["label"] = "trashcan"
    path.write_text(json.dumps(document))
    outcome = run_command("process", raw_dir, "-o", out_dir)
    assert outcome.status == 0
    assert outcome.stderr.count("'trashcan'") == 1
    assert "groups left unlabeled: 2" in outcome.stderr
    for _ in range(2):  # an up-to-date file does not excuse it
        outcome = run_command("process", raw_dir, "-o", out_dir, "--strict", "--json")
        assert (outcome.status, [item["scene_id"] for item in outcome.json["failures"]]) == (3, [TRAIN])


def test_without_a_label_map_beside_the_scenes_the_built_in_one_gives_the_same(raw_dir: Path, tmp_path: Path) -> None:
    run_command("process", raw_dir, "-o", tmp_path / "with")
    (raw_dir / "scannetv2-labels.combined.tsv").unlink()
    outcome = run_command("process", raw_dir, "-o", tmp_path / "without")
    assert "label map: the built-in label map" in outcome.stderr
    assert digests(tmp_path / "with") == digests(tmp_path / "without")
    write_label_map(raw_dir)
    assert run_command("process", raw_dir / "scans", "-o", tmp_path / "with", "--json").json["made"] == []


def test_files_are_readable_by_whom_the_umask_allows(raw_dir: Path, out_dir: Path) -> None:
    run_command("process", raw_dir, "-o", out_dir, umask=0o027)
    assert {stat.S_IMODE(path.stat().st_mode) for path in out_dir.rglob("*") if path.is_file()} == {0o640}


def test_a_disk_that_takes_no_more_ends_the_run_and_leaves_no_half_file(raw_dir: Path, out_dir: Path) -> None:
    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))

    outcome = run_command("process", raw_dir, "-o", out_dir, "--json", preexec_fn=limit_file_size)
    assert (outcome.status, outcome.json["error"]) == (1, "DiskFullError")
    assert not [name for name in digests(out_dir) if "npz" in Path(name).suffix or ".tmp" in name]
    assert run_command("process", raw_dir, "-o", out_dir).status == 0


def test_an_output_folder_that_cannot_be_made_is_an_error(raw_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = run_command("process", raw_dir, "-o", tmp_path / "file")
    assert outcome.status == 1
    assert "is not a folder" in outcome.stderr
