"""Packing and unpacking that is killed, doubled or out of space: what has a name is whole, and the next run ends it."""

import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from archives import call, find_parts, pack_tree, write_tree
from commands import COMMAND, limited, start_command
from release_server import ROOT, ReleaseServer, Stall

from scannet_prep import ScanNet
from scannet_prep.archive import open_archive
from scannet_prep.archive.shards import find_missing_shards
from scannet_prep.archive.writer import iter_archive
from scannet_prep.base.errors import FileError, MissingFileError
from scannet_prep.base.files import write_atomically
from scannet_prep.base.run_lock import run_lock
from scannet_prep.stages import verify
from scannet_prep.stages.pack import find_contents
from scannet_prep.stages.selection import Selection

NAMES = [f"scene{number:04}_00" for number in range(30)]


def write_scenes(folder: Path, seed: int) -> Path:
    """A raw tree of 12 MB."""
    dice = random.Random(seed)
    return write_tree(
        folder, {f"scans/{name}/{name}.txt": dice.randbytes(400_000) for name in NAMES}
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("pack") / "tree", 0)


def check_whole(path: Path) -> int:
    report = verify.run([path])
    assert not report.errors
    return report.scenes


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An archive that is there already."""
    small = write_tree(tmp_path / "small", {f"scans/{NAMES[0]}/{NAMES[0]}.txt": b"old"})
    pack_tree(small, tmp_path / "a.tar.zst")
    return tmp_path / "a.tar.zst"


def test_a_pack_that_is_interrupted_leaves_the_old_archive(
    tree: Path, old: Path, tmp_path: Path
) -> None:
    process = start_command("pack", tree, "-o", old, "--level", "19")
    while not [path for path in tmp_path.glob(".a.tar.zst.*.tmp") if path.stat().st_size]:
        assert process.poll() is None
        time.sleep(0.0005)
    for _ in range(2):  # `timeout` and Slurm send it to the process, and again to its group
        process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert check_whole(old) == 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("words", [[], ["--shard-size", "4MB"]])
def test_a_killed_pack_leaves_the_old_or_the_new_but_no_mixture(
    tree: Path, tmp_path: Path, words: list[str]
) -> None:
    dice, target, changed = (
        random.Random(2),
        tmp_path / "a.tar.zst",
        write_scenes(tmp_path / "changed", 2),
    )
    assert call("pack", tree, "-o", target, *words).status == 0
    old = {path.name: path.read_bytes() for path in tmp_path.glob("a*.tar.zst")}
    for _ in range(2):
        process = start_command("pack", changed, "-o", target, *words)
        while process.poll() is None and not list(tmp_path.glob(".a*.tmp")):
            time.sleep(0.0005)
        time.sleep(dice.uniform(0, 0.05))
        process.kill()
        process.communicate()
        found = {path.name: path.read_bytes() for path in tmp_path.glob("a*.tar.zst")}
        same = [name for name in found if found[name] == old[name]]
        assert len(same) in {0, len(found)} or find_missing_shards(found), same
        assert len(found) == len(old) or find_missing_shards(found) or (words and not found)
        assert all(
            check_whole(tmp_path / name) for name in found
        )  # with its checksum file, if there is one
    assert call("pack", changed, "-o", target, "--force", *words).status == 0
    others = {
        ".report.html.1-0123abcd.tmp",
        ".b.tar.zst.1-0123abcd.tmp",
    }  # of other commands that are at work there
    for name in (".a.tar.zst.1-0123abcd.tmp", ".a-00003-of-00009.tar.zst.1-0123abcd.tmp", *others):
        (tmp_path / name).touch()
    assert call("pack", changed, "-o", target, *words).status == 0
    assert sum(check_whole(path) for path in tmp_path.glob("a*.tar.zst")) == len(NAMES)
    assert {path.name for path in tmp_path.glob(".*")} == others


def test_a_file_that_changes_while_it_is_packed_stops_the_run(tmp_path: Path) -> None:
    name = f"scans/{NAMES[1]}/{NAMES[1]}.txt"
    changing = write_tree(
        tmp_path / "tree", {f"scans/{NAMES[0]}/{NAMES[0]}.txt": b"first", name: b"second"}
    )
    contents = find_contents(changing, Selection())
    for data in (b"another", b"second"):
        write_tree(changing, {name: data})
        os.utime(changing / name, ns=(1, 1))
        with pytest.raises(FileError, match="changed while it was packed"):
            write_atomically(tmp_path / "a.tar.zst", iter_archive(contents))
    (changing / name).unlink()
    os.mkfifo(changing / name)
    with pytest.raises(FileError, match="is a named pipe, expected a file"):
        write_atomically(tmp_path / "a.tar.zst", iter_archive(contents))


def test_a_full_disk_or_a_second_run_is_said_and_the_old_archive_stays(
    tree: Path, old: Path, tmp_path: Path
) -> None:
    with limited(resource.RLIMIT_FSIZE, 3_000_000):
        outcome = call("pack", tree, "-o", old)
    assert (outcome.status, "hint: free some space" in outcome.stderr) == (1, True)
    assert "cannot be written" in outcome.stderr
    with run_lock(tmp_path):
        outcome = call("pack", tree, "-o", old)
    assert (outcome.status, "is working in this folder" in outcome.stderr) == (1, True)
    assert check_whole(old) == 1
    assert not list(tmp_path.glob(".*"))


def test_an_output_that_is_closed_or_full_or_read_by_nobody_is_an_error(tree: Path) -> None:
    for output, status, message in (
        (">&-", 2, "standard output is a terminal, closed"),
        ("> /dev/full", 1, "standard output: cannot be written"),
        ("| head -c 9 > /dev/null", 1, "the program reading the pipe has stopped"),
    ):
        line = f"set -o pipefail; {' '.join(COMMAND)} pack {tree} - -q {output}"
        done = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, message in done.stderr) == (status, True), done.stderr


def test_where_the_disk_is_full_nothing_is_half_unpacked(packed_dir: Path, tmp_path: Path) -> None:
    with limited(resource.RLIMIT_FSIZE, 1_000):
        outcome = call("unpack", packed_dir / "processed.tar.zst", "-o", tmp_path / "out")
    assert outcome.status == 1
    assert "cannot be written: File too large" in outcome.stderr
    assert "it continues" in outcome.stderr
    assert not [
        path
        for path in (tmp_path / "out").rglob("*")
        if ".npz" in path.name or path.suffix == ".tmp"
    ]
    with pytest.raises((FileError, MissingFileError)):
        ScanNet(tmp_path / "out", split="train")
    # Another run for some of the scenes does not make the folder whole; the same one does.
    first = open_archive(packed_dir / "processed.tar.zst").index.scenes[0].scene_id
    assert (
        call(
            "unpack", packed_dir / "processed.tar.zst", "-o", tmp_path / "out", "--scenes", first
        ).status
        == 0
    )
    with pytest.raises(FileError, match=r"unfinished\.txt"):
        ScanNet(tmp_path / "out", split="train")
    assert call("unpack", packed_dir / "processed.tar.zst", "-o", tmp_path / "out").status == 0
    assert check_whole(tmp_path / "out") > 1


def test_interrupted_read_from_the_web_ends_although_the_server_hangs(
    tree: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "a.tar.zst"
    pack_tree(tree, archive)
    with ReleaseServer(tmp_path) as server:
        server.files[f"{ROOT}{archive.name}"], parts = archive, find_parts(archive)
        scenes = {
            f"bytes={start}-{end - 1}"
            for name, (start, end) in parts.items()
            if name.startswith("scene")
        }
        server.faults = [lambda request: [Stall(100)] if request.range in scenes else []]
        url = f"{server.origin}{ROOT}{archive.name}"
        process = start_command("unpack", url, "-o", tmp_path / "out", "--jobs", "2")
        deadline = time.monotonic() + 20
        while len([request for request in server.requests() if request.range in scenes]) < 2:
            assert (process.poll(), time.monotonic() < deadline) == (None, True)
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        try:
            _, stderr = process.communicate(timeout=30)  # cleanup may take 10 s
        finally:
            process.kill()
    assert (process.returncode, "Traceback" in stderr) == (130, False), stderr
    assert not list(tmp_path.rglob("scene*.*"))
