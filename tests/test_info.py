"""Tests of `info`: its numbers, and its account of damaged folders and trees."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import Verify, leave_unfinished, run_main

from scannet_prep import ScanNet
from scannet_prep.errors import FileError
from scannet_prep.synthetic import make_scene, write_release, write_scene

TRAIN = ("scene0000_00", "scene0001_00")
VAL = "scene0011_00"
TEST = "scene0707_00"
SCENES = (*TRAIN, VAL, TEST)
UNLISTED = "scene0900_00"
VERTICES = 600


@pytest.fixture(scope="module")
def whole_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw and a processed tree of two training scenes, one of which lists its groups twice."""
    directory = tmp_path_factory.mktemp("info")
    raw_dir = directory / "raw"
    write_release(raw_dir, SCENES, vertices=VERTICES, repeats_groups=[TRAIN[1]])
    outcome = run_main("process", raw_dir, "-o", directory / "processed", "--scannet200")
    assert outcome.status == 0
    return directory


def info_json(path: Path, status: int = 0) -> Any:
    """Run `info --json`, which must end with this status, and return the object."""
    outcome = run_main("info", path, "--json")
    assert len(outcome.stdout.splitlines()) == 1
    assert outcome.status == status
    assert outcome.json["exit_status"] == status
    return outcome.json


# A processed folder.


def test_info_counts_processed_scenes_without_opening_them(out_dir: Path) -> None:
    sizes = {}
    for split in ("train", "val", "test"):
        sizes[split] = sum(path.stat().st_size for path in (out_dir / split).iterdir())
    for path in out_dir.glob("*/*.npz"):
        path.write_bytes(b"")

    splits = info_json(out_dir)["splits"]

    assert splits == {
        "train": {"scenes": 2, "vertices": 1200, "size_bytes": sizes["train"]},
        "val": {"scenes": 1, "vertices": 600, "size_bytes": sizes["val"]},
        "test": {"scenes": 1, "vertices": 600, "size_bytes": sizes["test"]},
        "all": {"scenes": 4, "vertices": 2400, "size_bytes": sum(sizes.values())},
    }


@pytest.fixture(scope="module")
def info_of_folder(whole_dir: Path) -> Any:
    return info_json(whole_dir / "processed")


@pytest.mark.parametrize(
    ("key", "expected"),
    [("kind", "processed"), ("is_complete", True), ("failures", {}), ("unreadable", [])],
)
def test_info_describes_a_complete_folder(info_of_folder: Any, key: str, expected: object) -> None:
    assert info_of_folder[key] == expected


def test_info_reads_the_options_from_the_manifest(info_of_folder: Any) -> None:
    assert info_of_folder["options"] == {
        "scannet200": True,
        "align_axis": False,
        "faces": False,
        "labels_from": "aggregation",
        "compute_segments": False,
    }


def test_info_reads_the_program_from_the_manifest(info_of_folder: Any) -> None:
    assert info_of_folder["program"].startswith("scannet-prep ")


def test_info_names_each_oddity_of_the_raw_files_with_its_scenes(whole_dir: Path) -> None:
    warnings = info_json(whole_dir / "processed")["warnings"]
    oddities = [(warning["kind"], warning["scenes"]) for warning in warnings]

    assert oddities == [("repeated_groups", [TRAIN[1]])]


def test_info_reports_a_damaged_manifest(out_dir: Path) -> None:
    path = out_dir / "manifest.json"
    path.write_text("{}")

    unreadable = info_json(out_dir, status=3)["unreadable"]

    assert [finding["path"] for finding in unreadable] == [str(path)]


@pytest.fixture
def unfinished_dir(raw_dir: Path, tmp_path: Path) -> Path:
    """A processed folder of an unfinished run, in which one scene failed."""
    out_dir = tmp_path / "out"
    (raw_dir / "scans" / TRAIN[0] / f"{TRAIN[0]}_vh_clean_2.ply").write_bytes(b"")
    options = ("--scannet200", "--scenes", *TRAIN, TEST)
    assert run_main("process", raw_dir, "-o", out_dir, *options).status == 3
    leave_unfinished(out_dir, TRAIN[1])
    return out_dir


def test_info_json_has_failures_and_marks_an_unfinished_run(unfinished_dir: Path) -> None:
    value = info_json(unfinished_dir, status=3)

    assert value["is_complete"] is False
    assert list(value["failures"]) == [TRAIN[0]]


def test_info_warns_of_an_unfinished_run(unfinished_dir: Path) -> None:
    assert "processing has not finished" in run_main("info", unfinished_dir).stderr


def test_info_prints_the_options(unfinished_dir: Path) -> None:
    options = "options: --scannet200 --no-align-axis --no-faces --labels-from aggregation"

    assert options in run_main("info", unfinished_dir).stdout


def test_info_prints_the_number_of_failed_scenes(unfinished_dir: Path) -> None:
    assert "scenes failed: 1" in run_main("info", unfinished_dir).stdout


@pytest.fixture(
    params=[
        None,
        ('"format_version": 2', '"format_version": "2"'),
        ('"align_axis":false', '"align_axis":"false"'),
    ],
    ids=["unfinished run", "format version", "option"],
)
def unusable_dir(request: pytest.FixtureRequest, out_dir: Path) -> Path:
    """A processed folder that no reader may use."""
    if request.param is None:
        leave_unfinished(out_dir, VAL)
        return out_dir
    old, new = request.param
    path = out_dir / "manifest.json"
    path.write_text(path.read_text().replace(old, new, 1))
    return out_dir


def test_info_gives_the_reason_of_the_dataset_for_an_unusable_folder(unusable_dir: Path) -> None:
    with pytest.raises(FileError) as caught:
        ScanNet(unusable_dir, split="train")

    unreadable = info_json(unusable_dir, status=3)["unreadable"]

    assert caught.value.problem in [finding["message"] for finding in unreadable]


def test_verify_gives_the_reason_of_the_dataset_for_an_unusable_folder(
    unusable_dir: Path, verify: Verify
) -> None:
    with pytest.raises(FileError) as caught:
        ScanNet(unusable_dir, split="train")

    status, findings = verify(unusable_dir)

    assert status == 3
    assert [message for _, _, _, message in findings] == [caught.value.problem]


# A raw tree.


def test_info_counts_raw_scenes_by_split(raw_dir: Path) -> None:
    write_scene(make_scene(UNLISTED, vertices=VERTICES), raw_dir)
    sizes = Counter[str]()
    for path in raw_dir.glob("scans*/scene*/*"):
        sizes[path.parent.name] += path.stat().st_size
    names_by_split = {
        "train": TRAIN,
        "val": (VAL,),
        "test": (TEST,),
        "none": (UNLISTED,),
        "all": (*SCENES, UNLISTED),
    }
    expected = {}
    for split, names in names_by_split.items():
        expected[split] = {
            "scenes": len(names),
            "vertices": VERTICES * len(names),
            "size_bytes": sum(sizes[name] for name in names),
        }

    value = info_json(raw_dir)

    assert value["kind"] == "raw"
    assert value["splits"] == expected


def test_info_lists_folders_that_are_not_scenes(raw_dir: Path) -> None:
    (raw_dir / "scans/my_room").mkdir()
    assert info_json(raw_dir)["left_out"] == ["my_room"]


def test_info_lists_raw_scenes_that_cannot_be_read(raw_dir: Path) -> None:
    (raw_dir / "scans/scene0002_00").symlink_to("nowhere")
    (raw_dir / "scans" / VAL / f"{VAL}_vh_clean_2.ply").write_bytes(b"")

    unreadable = info_json(raw_dir, status=3)["unreadable"]

    messages = {finding["scene_id"]: finding["message"] for finding in unreadable}
    assert set(messages) == {"scene0002_00", VAL}
    assert "leads nowhere" in messages["scene0002_00"]
    assert "empty" in messages[VAL]


# Wrong paths.


def output_options(command: str, tmp_path: Path) -> list[str | Path]:
    if command in {"process", "pack"}:
        return ["-o", tmp_path / "new.tar.zst"]
    return []


_COMMANDS = ["verify", "info", "pack"]


@pytest.mark.parametrize("command", _COMMANDS)
@pytest.mark.parametrize(
    ("path", "parent", "choice"),
    [(f"raw/scans/{VAL}", "raw/scans", VAL), ("processed/train", "processed", "train")],
    ids=["scene folder", "split folder"],
)
def test_path_inside_a_tree_is_refused_with_the_tree_to_name(
    command: str, path: str, parent: str, choice: str, whole_dir: Path, tmp_path: Path
) -> None:
    outcome = run_main(command, whole_dir / path, *output_options(command, tmp_path))

    assert outcome.status == 1
    assert outcome.stderr.startswith(f"error: {whole_dir / path}: ")
    assert f"{whole_dir / parent}, and choose {choice}" in outcome.stderr


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("verify", "tar -xf"),
        ("info", "tar -xf"),
        ("pack", "give the folder"),
    ],
)
def test_gzip_file_is_refused_with_a_hint(command: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(b"\x1f\x8b")

    outcome = run_main(command, path, *output_options(command, tmp_path))

    assert outcome.status == 1
    assert outcome.stderr.startswith(f"error: {path}: ")
    assert hint in outcome.stderr


@pytest.mark.parametrize("command", _COMMANDS)
def test_missing_path_is_refused_with_commands_that_make_one(command: str, tmp_path: Path) -> None:
    path = tmp_path / "nowhere"

    outcome = run_main(command, path, *output_options(command, tmp_path))

    assert outcome.status == 1
    assert outcome.stderr.startswith(f"error: {path}: no such folder")
    for origin in ("download", "process", "demo"):
        assert f"scannet-prep {origin}" in outcome.stderr


# The output of the command.


@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_tables_of_info_fit_the_terminal(
    kind: str, whole_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    lines = run_main("info", whole_dir / kind).stdout.splitlines()

    # The first line contains the path, which may be longer.
    table_lines = [line for line in lines[1:] if "  " in line.strip()]
    assert max(len(line) for line in table_lines) <= 60


@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_info_scenes_lists_the_scene_ids_in_order(kind: str, whole_dir: Path) -> None:
    lines = run_main("info", whole_dir / kind, "--scenes").stdout.splitlines()
    assert lines == sorted(SCENES)


def test_info_table_of_classes_is_csv(whole_dir: Path) -> None:
    lines = run_main("info", whole_dir / "processed", "--table", "classes").stdout.splitlines()
    assert lines[1].startswith("ScanNet20,0,1,wall,")
