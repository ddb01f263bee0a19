"""What `unpack` refuses, before anything is written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from archives import TREE, has_tool, pack_tree, run_pipe, unpack_pipe, write_tree
from commands import COMMAND, digests, run_command
from verifying import TRAIN, VAL

from scannet_prep.archive import write_archive
from scannet_prep.cli.main import main
from scannet_prep.errors import (
    ArchiveError,
    MissingFileError,
    OutputError,
    UsageError,
)
from scannet_prep.stages import unpack
from scannet_prep.stages.pack.contents import find_contents
from scannet_prep.stages.selection import Selection


def test_scenes_made_in_another_way_are_not_mixed_in(whole_dir: Path, packed_dir: Path, tmp_path: Path) -> None:
    out_dir = tmp_path / "out"
    words = ["process", str(whole_dir / "raw"), "-o", str(out_dir), "-q", "--jobs", "1"]
    assert main([*words, "--align-axis", "--scenes", TRAIN]) == 0
    before = digests(out_dir)
    archive = packed_dir / "processed.tar.zst"
    for outcome in (
        run_command("unpack", archive, "-o", out_dir, "--scenes", VAL),
        unpack_pipe(archive, "-o", out_dir, "--scenes", VAL),
    ):
        assert outcome.status == 1
        assert "align_axis" in outcome.stderr
        assert digests(out_dir) == before


def test_an_unknown_scene_is_an_error_before_anything_is_written(packed: Path, tmp_path: Path) -> None:
    outcome = run_command("unpack", packed, "-o", tmp_path / "out", "--scenes", "scene0500_00")
    assert outcome.status == 2
    assert "has no scene0500_00" in outcome.stderr
    assert not (tmp_path / "out").exists()
    outcome = unpack_pipe(packed, "-o", tmp_path / "pipe", "--scenes", "scene0500_00", "scene0000_00", "--json")
    assert outcome.status == 3
    assert [item["scene_id"] for item in outcome.json["failures"]] == ["scene0500_00"]
    assert outcome.json["scenes"] == ["scene0000_00"]
    assert "scene0500_00" in (tmp_path / "pipe/failed.txt").read_text()


def test_splits_are_those_of_the_index_and_scenes_of_unknown_split_are_named(tmp_path: Path) -> None:
    files = {
        "train/scene0900_00.npz": b"t",
        "val/scene0901_00.npz": b"v",
        "scene0902_00/x": b"?",
        "scene0011_00/x": b"o",
    }
    pack_tree(write_tree(tmp_path / "source", files), tmp_path / "a.tar.zst")
    outcome = run_command("unpack", tmp_path / "a.tar.zst", "-o", tmp_path / "out", "--splits", "val", "--json")
    assert outcome.status == 0
    assert (outcome.json["scenes"], outcome.json["left_out"]) == (["scene0011_00", "scene0901_00"], ["scene0902_00"])
    outcome = unpack_pipe(tmp_path / "a.tar.zst", "-o", tmp_path / "pipe", "--splits", "val", "--json")
    assert outcome.status == 3  # what the path says of a split is not known in time
    assert outcome.json["scenes"] == ["scene0011_00"]
    assert [item["scene_id"] for item in outcome.json["failures"]] == ["scene0901_00"]


@pytest.mark.parametrize(
    ("name", "content", "problem", "hint"),
    [
        ("empty.tar.zst", b"", "is empty", "pack"),
        ("page.tar.zst", b"<!DOCTYPE html><html>", "is a web page", "fetch"),
        ("a.tar.gz", b"\x1f\x8b\x08\0" + bytes(100), "is a gzip file", "tar -xzf"),
        ("noise", bytes(range(256)), "no archive of this program", "pack"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, name: str, content: bytes, problem: str, hint: str) -> None:
    (tmp_path / name).write_bytes(content)
    for is_salvage in (False, True):
        with pytest.raises(ArchiveError, match=problem) as caught:
            unpack.plan([tmp_path / name], tmp_path / "out", is_salvage=is_salvage)
        assert hint in caught.value.hint
    with pytest.raises(ArchiveError, match=problem):
        run_pipe(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not has_tool("tar"), reason="needs tar and zstd")
@pytest.mark.parametrize(
    ("option", "name", "hint"), [("--zstd", "t.tar.zst", "tar --zstd -xf"), ("", "t.tar", "tar -xf")]
)
def test_archives_of_tar_are_left_to_tar(packed: Path, tmp_path: Path, option: str, name: str, hint: str) -> None:
    words = ["tar", *([option] if option else []), "-cf", name, "source"]
    subprocess.run(words, cwd=tmp_path, check=True)
    with pytest.raises(ArchiveError) as caught:
        unpack.plan([tmp_path / name], tmp_path / "out")
    assert hint in caught.value.hint


def test_a_folder_and_a_missing_archive_are_named(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="is a folder") as caught:
        unpack.plan([tmp_path], tmp_path / "out")
    assert str(packed) in caught.value.hint
    with pytest.raises(MissingFileError):
        unpack.plan([tmp_path / "none.tar.zst"], tmp_path / "out")


def test_what_is_in_the_way_is_an_error_before_anything_is_written(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "out/train/scene0000_00.npz").mkdir(parents=True)
    with pytest.raises(OutputError, match="is a folder, and the archive has a file of that name"):
        unpack.plan([packed], tmp_path / "out")
    with pytest.raises(OutputError, match="is a folder"):
        run_pipe(packed, tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    write_tree(tmp_path / "out", {"train": b"a file"})
    with pytest.raises(OutputError, match="train: is no folder"):
        unpack.plan([packed], tmp_path / "out")
    with pytest.raises(UsageError, match="where is it to go"):
        unpack.plan([packed])


def test_an_archive_does_not_overwrite_itself(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", {"a.tar.zst": b"x", "scene0000_00/y": b"y"})
    (tmp_path / "out").mkdir()
    pack_tree(source, tmp_path / "out/a.tar.zst")
    contents = find_contents(source, None, Selection()).contents
    write_archive(contents, tmp_path / "out/a.tar.zst")
    with pytest.raises(OutputError, match="is the archive itself"):
        unpack.plan([tmp_path / "out/a.tar.zst"], tmp_path / "out")


def test_archives_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    for number, data in enumerate([b"1", b"2"]):
        source = write_tree(tmp_path / f"s{number}", {"scene0000_00/x": data})
        pack_tree(source, tmp_path / f"{number}.tar.zst")
    with pytest.raises(UsageError, match="scene0000_00 is another one"):
        unpack.plan([tmp_path / "0.tar.zst", tmp_path / "1.tar.zst"], tmp_path / "out")


def test_a_dry_run_writes_nothing_and_a_terminal_is_no_pipe(packed: Path, tmp_path: Path) -> None:
    outcome = run_command("unpack", packed, "-o", tmp_path / "out", "--dry-run", "--json")
    assert outcome.status == 0
    assert outcome.json["missing_files"] == len(TREE)
    assert not (tmp_path / "out").exists()
    main_end, terminal = os.openpty()
    done = subprocess.run(
        [*COMMAND, "unpack", "-", "-o", str(tmp_path / "out"), "--json"],
        stdin=terminal, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    os.close(main_end)
    os.close(terminal)
    assert done.returncode == 2
    assert "cat FILE | scannet-prep unpack -" in json.loads(done.stdout)["hint"]
