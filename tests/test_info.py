"""What `info` says is what the scenes hold."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Verify, run_main

from scannet_prep import ScanNet
from scannet_prep.base.errors import FileError
from scannet_prep.synthetic import make_scene, write_release, write_scene

TRAIN, VAL, TEST = ("scene0000_00", "scene0001_00"), "scene0011_00", "scene0707_00"
SCENES = (*TRAIN, VAL, TEST)


@pytest.fixture(scope="module")
def whole_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("info")
    write_release(directory / "raw", SCENES, vertices=600, repeats_groups=[TRAIN[1]])
    assert (
        run_main("process", directory / "raw", "-o", directory / "processed", "--scannet200").status
        == 0
    )
    return directory


def info_json(path: Path, status: int = 0) -> Any:
    outcome = run_main("info", path, "--json")
    assert len(outcome.stdout.splitlines()) == 1
    assert (outcome.status, outcome.json["exit_status"]) == (status, status)
    return outcome.json


def test_processed_tree_is_described_by_its_manifest_alone(out_dir: Path) -> None:
    splits = ("train", "val", "test")
    sizes = {
        split: sum(path.stat().st_size for path in (out_dir / split).iterdir()) for split in splits
    }
    for path in out_dir.glob("*/*.npz"):
        path.write_bytes(b"")  # nobody looks
    value = info_json(out_dir)
    assert (value["kind"], value["is_complete"]) == ("processed", True)
    assert value["splits"] == {
        "train": {"scenes": 2, "vertices": 1200, "size_bytes": sizes["train"]},
        "val": {"scenes": 1, "vertices": 600, "size_bytes": sizes["val"]},
        "test": {"scenes": 1, "vertices": 600, "size_bytes": sizes["test"]},
        "all": {"scenes": 4, "vertices": 2400, "size_bytes": sum(sizes.values())},
    }
    options = {
        "scannet200": True,
        "align_axis": False,
        "faces": False,
        "labels_from": "aggregation",
    }
    assert value["options"] == options
    assert value["program"].startswith("scannet-prep ")
    assert [(item["kind"], item["scenes"]) for item in value["warnings"]] == [
        ("repeated_groups", [TRAIN[1]])
    ]
    assert (value["failures"], value["unreadable"]) == ({}, [])


@pytest.mark.parametrize("damage", [None, "{}"])
def test_without_a_manifest_the_files_say_the_same(out_dir: Path, damage: str | None) -> None:
    expected = info_json(out_dir)
    path = out_dir / "manifest.json"
    path.unlink()
    if damage is not None:
        path.write_text(damage)
    value = info_json(out_dir, 0 if damage is None else 3)
    assert [item["path"] for item in value["unreadable"]] == ([] if damage is None else [str(path)])
    changing = ("is_complete", "exit_status", "unreadable", "program")
    assert (value["program"], value["is_complete"]) == ("", None)
    assert value == expected | {key: value[key] for key in changing}


def test_scene_files_that_cannot_be_read_are_listed(out_dir: Path) -> None:
    (out_dir / "manifest.json").unlink()
    path = out_dir / "train" / f"{TRAIN[0]}.npz"
    os.truncate(path, 5000)
    np.savez(out_dir / "val" / f"{VAL}.npz", points=np.zeros((3, 3)))
    value = info_json(out_dir, 3)
    assert [item["scene_id"] for item in value["unreadable"]] == [TRAIN[0], VAL]
    assert (value["unreadable"][0]["path"], "truncated" in value["unreadable"][0]["message"]) == (
        str(path),
        True,
    )
    assert {name: row["scenes"] for name, row in value["splits"].items()} == {
        "train": 1,
        "test": 1,
        "all": 2,
    }


def test_info_lists_failures_and_an_unfinished_run(raw_dir: Path, tmp_path: Path) -> None:
    out_dir = tmp_path / "out"
    (raw_dir / "scans" / TRAIN[0] / f"{TRAIN[0]}_vh_clean_2.ply").write_bytes(b"")
    words = ("--scannet200", "--scenes", *TRAIN, TEST)
    assert run_main("process", raw_dir, "-o", out_dir, *words).status == 3
    (out_dir / "unfinished.txt").touch()

    value = info_json(out_dir, 3)
    assert value["is_complete"] is False
    assert list(value["failures"]) == [TRAIN[0]]

    outcome = run_main("info", out_dir)
    assert "processing has not finished" in outcome.stderr
    assert (
        "options: --scannet200 --no-align-axis --no-faces --labels-from aggregation"
        in outcome.stdout
    )
    assert "scenes failed: 1" in outcome.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, ""),  # the mark of a run that has not ended
        ('"format_version": 2', '"format_version": "2"'),
        ('"align_axis": false', '"align_axis": "false"'),
    ],
)
def test_all_readers_agree_on_unusable_folders(
    out_dir: Path, verify: Verify, old: str | None, new: str
) -> None:
    path = out_dir / "manifest.json"
    if old is None:
        (out_dir / "unfinished.txt").touch()
    else:
        path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(FileError) as caught:
        ScanNet(out_dir, split="train")
    assert caught.value.problem in [item["message"] for item in info_json(out_dir, 3)["unreadable"]]
    status, findings = verify(out_dir)
    assert (status, findings[0][3]) == (3, caught.value.problem)
    assert len(findings) == 1


def test_raw_tree_is_counted_by_split_and_what_cannot_be_read_is_listed(raw_dir: Path) -> None:
    (raw_dir / "scans/my_room").mkdir()
    write_scene(make_scene("scene0900_00", vertices=600), raw_dir)
    value = info_json(raw_dir)
    assert (value["kind"], value["left_out"]) == ("raw", ["my_room"])
    sizes = Counter[str]()
    for path in raw_dir.glob("scans*/scene*/*"):
        sizes[path.parent.name] += path.stat().st_size
    expected = {"train": TRAIN, "val": (VAL,), "test": (TEST,), "none": ("scene0900_00",)}
    expected["all"] = sum(expected.values(), ())
    assert value["splits"] == {
        split: {
            "scenes": len(names),
            "vertices": 600 * len(names),
            "size_bytes": sum(sizes[name] for name in names),
        }
        for split, names in expected.items()
    }
    (raw_dir / "scans/scene0002_00").symlink_to("nowhere")
    (raw_dir / "scans" / VAL / f"{VAL}_vh_clean_2.ply").write_bytes(b"")
    value = info_json(raw_dir, 3)
    found = {item["scene_id"]: item["message"] for item in value["unreadable"]}
    assert ("leads nowhere" in found["scene0002_00"], "empty" in found[VAL], len(found)) == (
        True,
        True,
        2,
    )


@pytest.mark.parametrize("command", ["verify", "info", "process", "pack"])
def test_a_path_inside_a_tree_or_to_nothing_gives_a_hint(
    command: str, whole_dir: Path, tmp_path: Path
) -> None:
    raw_dir, out_dir = whole_dir / "raw", whole_dir / "processed"
    (tmp_path / "x.gz").write_bytes(b"\x1f\x8b")
    for path, hint in (
        (raw_dir / "scans" / VAL, f"{raw_dir / 'scans'}, and choose {VAL}"),
        (out_dir / "train", f"{out_dir}, and choose train"),
        (tmp_path / "x.gz", "give the folder"),
        *(
            (tmp_path / "nowhere", f"scannet-prep {origin}")
            for origin in ("download", "process", "demo")
        ),
    ):
        outcome = run_main(
            command, path, *["-o", tmp_path / "new.tar.zst"] * (command in {"process", "pack"})
        )
        assert (outcome.status, hint in outcome.stderr) == (1, True)
        assert outcome.stderr.startswith(
            f"error: {path}: {'no such folder' * (path.name == 'nowhere')}"
        )


def test_overviews_fit_the_terminal_and_scenes_are_lists(
    whole_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for kind in ("raw", "processed"):
        lines = run_main("info", whole_dir / kind).stdout.splitlines()
        assert (
            max(len(line) for line in lines[1:] if "  " in line.strip()) <= 60
        )  # the first line has the path
        assert run_main("info", whole_dir / kind, "--scenes").stdout.splitlines() == sorted(SCENES)
    lines = run_main("info", whole_dir / "processed", "--table", "classes").stdout.splitlines()
    assert lines[1].startswith("ScanNet20,0,1,wall,")
