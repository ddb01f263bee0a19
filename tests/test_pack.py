"""`pack`: what it packs, what it refuses, and what an interrupted run leaves."""

import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import (
    COMMAND,
    TRAIN,
    TREE,
    VAL,
    fail,
    flip,
    leave_unfinished,
    limited,
    pack_tree,
    read_tree,
    run_command,
    run_main,
    succeed,
    unpack_file,
    write_tree,
)

from scannet_prep import ScanNet
from scannet_prep.archive import writing
from scannet_prep.archive.format import Index, PackedScene
from scannet_prep.archive.writing import FileGroup, encode_archive
from scannet_prep.errors import FileError, OutputError
from scannet_prep.source.place import open_place


@pytest.mark.parametrize("kind", ["processed", "raw"])
def test_archive_has_the_same_bytes_in_a_file_and_a_pipe(kind, whole_dir, tmp_path):
    source = whole_dir / kind
    path = tmp_path / "a.tar.zst"
    report = run_main("pack", source, "-o", path, "--json").json
    files = read_tree(source)
    assert report["splits"] == {"train": 1, "val": 1, "test": 1}
    assert report["size_bytes"] == sum(map(len, files.values()))
    assert report["stored_bytes"] == path.stat().st_size < report["size_bytes"]
    piped = subprocess.run([*COMMAND, "pack", source, "-o", "-"], capture_output=True, check=True)
    assert path.read_bytes() == piped.stdout
    assert b"standard output: 3 scenes" in piped.stderr

    assert unpack_file(path, "-o", tmp_path / "out").status == 0
    assert read_tree(tmp_path / "out") == files
    pack_tree(source, tmp_path / "stored.tar.zst", level=0)
    stored_bytes = (tmp_path / "stored.tar.zst").stat().st_size
    header_bytes = 10_000 + 1024 * len(files)
    assert path.stat().st_size < stored_bytes < report["size_bytes"] + header_bytes


def test_existing_archive_is_replaced_only_with_force_and_a_link_to_it_stays(out_dir, tmp_path):
    path = tmp_path / "a.tar.zst"
    succeed("pack", out_dir, "-o", path)
    before = path.read_bytes()
    problem = f"error: {path}: exists already\nhint: name another file"
    fail(2, problem, "pack", out_dir, "-o", path, "--level", "19")
    assert path.read_bytes() == before

    link = tmp_path / "link.tar.zst"
    link.symlink_to("a.tar.zst")
    succeed("pack", out_dir, "-o", link, "--level", "19", "--force")
    assert link.is_symlink()
    assert path.read_bytes() != before
    assert len(ScanNet(link, split="val")[0]["points"]) == 600
    path.unlink()
    # A link that leads to itself is replaced.
    path.symlink_to(link)
    succeed("pack", out_dir, "-o", path, "--force")
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []  # noqa: PTH208


def test_other_names_are_left_out_and_counted(tree, tmp_path):
    strangers = {
        "terms_accepted.txt": b"me",
        "old.tar.zst": b"",
        "notes about it.txt": b"",
        ".hidden": b"",
        f"scans/{TRAIN}/color/0.jpg": b"",
        f"scans/{TRAIN}/tmp1234": b"",
        "tasks/con txt": b"",
        "folder/x": b"",
    }
    write_tree(tree, strangers)
    # As on another disk.
    (tree / "tasks").rename(tmp_path / "tasks")
    (tree / "tasks").symlink_to(tmp_path / "tasks")
    outcome = run_main("pack", tree, "-o", tmp_path / "a.tar.zst", "--json")
    assert {*outcome.json["left_out"]} == {name.removesuffix("/0.jpg") for name in strangers}
    assert "left out, because they belong to no packed scene: 8 (" in outcome.stderr
    unpack_file(tmp_path / "a.tar.zst", "-o", tmp_path / "out")
    assert read_tree(tmp_path / "out") == TREE


OPTIONS = {"level": 1, "jobs": 1, "advance": print}


def test_files_of_few_scenes_are_in_memory_at_a_time(out_dir, monkeypatch):
    monkeypatch.setattr(writing, "_MAX_HELD_BYTES", 0)
    groups = open_place(out_dir).iter_groups()
    pieces = encode_archive(Index("processed"), FileGroup("", {}), groups, **OPTIONS)
    # The index, and two of three scenes. The last one has not been begun.
    for _ in range(3):
        next(pieces)
    [_] = groups


def test_scenes_that_change_meanwhile_are_an_error_of_pack_or_of_the_archive(out_dir, tmp_path):
    path = tmp_path / "a.tar.zst"
    others = FileGroup("", {"manifest.json": out_dir / "manifest.json"})
    path.write_bytes(b"".join(encode_archive(Index("processed"), others, [], **OPTIONS)))
    fail(1, "lists other scenes", "unpack", path, cwd=tmp_path)
    index = Index("processed", (PackedScene(VAL, "val", 1),))
    for groups in ([], open_place(out_dir).iter_groups()):
        with pytest.raises(OutputError, match="changed while"):
            list(encode_archive(index, others, groups, **OPTIONS))
    # A run has begun after the folder was opened.
    place = open_place(out_dir)
    leave_unfinished(out_dir)
    with pytest.raises(FileError, match="was changed meanwhile"):
        next(place.iter_groups())


def test_scenes_that_failed_in_processing_are_listed_with_status_3(raw_dir, tmp_path):
    flip(raw_dir / f"scans/{VAL}/{VAL}.aggregation.json", 3)
    assert run_main("process", raw_dir, "-o", tmp_path / "out").status == 3
    unlisted = tmp_path / "out/train/scene0001_00.npz"
    unlisted.touch()
    outcome = run_main("pack", tmp_path / "out", "-o", tmp_path / "a.tar.zst", "--json")
    unlisted.unlink()
    assert outcome.status == 3
    assert f"{VAL}" in outcome.stderr
    assert outcome.json["left_out"] == ["train/scene0001_00.npz"]
    # They stay in the records of a folder into which all or some scenes are unpacked.
    for words in ((), ("--splits", "train")):
        assert unpack_file(tmp_path / "a.tar.zst", "-o", tmp_path / "copy", *words).status == 0
        assert read_tree(tmp_path / "copy") == read_tree(tmp_path / "out")
    assert unpack_file(tmp_path / "a.tar.zst", "-o", tmp_path, "--splits", "val").status == 2
    failures = open_place(tmp_path / "a.tar.zst").failures
    assert {name: Path(failure.subject).name for name, failure in failures.items()} == {
        VAL: f"{VAL}.aggregation.json"
    }


def test_raw_scenes_without_files_or_in_two_folders_are_left_out_with_status_3(raw_dir, tmp_path):
    (raw_dir / "scene0001_00").mkdir()
    shutil.copytree(raw_dir / f"scans/{VAL}", raw_dir / VAL)
    outcome = run_main("pack", raw_dir, "-o", tmp_path / "a.tar.zst", "--json")
    assert outcome.status == 3
    assert outcome.json["splits"] == {"train": 1, "test": 1}
    assert "0001_00: holds no file" in outcome.stderr
    assert "has the same scene as" in outcome.stderr


def write_fifo(raw_dir):
    os.mkfifo(raw_dir / "fifo")


def write_dangling(raw_dir):
    (raw_dir / f"scans/{TRAIN}/{TRAIN}.sens").symlink_to("nowhere")


def write_large(raw_dir, size_bytes=(1 << 30) + 1):
    with (raw_dir / f"scans/{TRAIN}/{TRAIN}.sens").open("wb") as file:
        file.truncate(size_bytes)


def flatten(raw_dir):
    for path in (raw_dir / "scans" / VAL).iterdir():
        path.rename(raw_dir / "scans" / path.name)


REFUSALS = {
    "other place": ("raw", flatten, "lies outside of scans/ and scans_test/"),
    "unfinished": ("processed", leave_unfinished, "manifest.json"),
    "changed": (
        "processed",
        lambda path: flip(path / f"val/{VAL}.npz", 99),
        "is not the file that was recorded\nhint: remove it",
    ),
    "missing": ("processed", lambda path: (path / f"val/{VAL}.npz").unlink(), f"val/{VAL}.npz: no"),
    "named pipe": ("raw", write_fifo, "fifo: is a named pipe or"),
    "dangling link": ("raw", write_dangling, ".sens: is a link that leads nowhere"),
    "large file": ("raw", write_large, f"{TRAIN}.sens: has 1,073,741,825 bytes"),
    "large scene": ("raw", lambda path: write_large(path, 1 << 30), "and the files before it have"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_folder_that_cannot_be_packed_is_refused_and_named(name, raw_dir, out_dir, tmp_path):
    kind, change, message = REFUSALS[name]
    source = raw_dir if kind == "raw" else out_dir
    change(source)
    fail(1, message, "pack", source, "-o", tmp_path / "a.tar.zst")
    assert not list(tmp_path.glob("*.tar.zst"))
    assert not list(tmp_path.glob(".*"))


def test_full_disk_keeps_the_old_archive_and_a_broken_pipe_is_a_clear_error(whole_dir, tmp_path):
    source = whole_dir / "raw"
    path = tmp_path / "a.tar.zst"
    path.write_bytes(b"old")
    with limited(resource.RLIMIT_FSIZE, 10_000):
        problem = f"{path}: cannot be written: File too large\nhint: free some space"
        fail(1, problem, "pack", source, "-o", path, "--force")
    assert path.read_bytes() == b"old"

    # The folder may have files of other programs.
    (tmp_path / ".a.tar.zst.1-0123abcd.tmp").touch()
    (tmp_path / ".other.tar.zst.1-0123abcd.tmp").touch()
    reader, broken = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    for target, message in {full: "No space left on device", broken: "Broken pipe"}.items():
        problem = f"standard output: cannot be written: {message}"
        fail(1, problem, "pack", source, "-o", "-", stdout=target, run=run_command)
        os.close(target)
    succeed("pack", source, "-o", path, "--force")
    assert {file.name for file in tmp_path.iterdir()} == {
        "a.tar.zst",
        ".other.tar.zst.1-0123abcd.tmp",
    }
