"""Packs that are killed, doubled or out of space: under a final name stands a whole archive, the old one or the new."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from archives import call, pack_tree, write_tree
from commands import COMMAND, run_command, start_command

from scannet_prep.archive.source import find_missing_shards
from scannet_prep.errors import FileError, OutputError, SourceError
from scannet_prep.files import run_lock
from scannet_prep.stages import pack
from scannet_prep.stages.verify import archive as verify_archive

NAMES = [f"scene{number:04}_00" for number in range(60)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dice = random.Random(0)
    files = {f"scans/{name}/{name}.txt": dice.randbytes(400_000) for name in NAMES}
    return write_tree(tmp_path_factory.mktemp("pack") / "tree", files)


def check_whole(path: Path) -> int:
    report = verify_archive.run([path])
    assert not report.errors
    return report.scenes


def wait_for(pattern: str, folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 20
    while not list(folder.glob(pattern)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)


def test_killed_at_random_moments_it_leaves_a_whole_archive_or_none(tree: Path, tmp_path: Path) -> None:
    dice, target = random.Random(1), tmp_path / "a.tar.zst"
    seen = set()
    for _ in range(5):
        process = start_command("pack", tree, "-o", target, "-q")
        wait_for(".*.partial/.*.tmp", tmp_path, process)
        time.sleep(dice.uniform(0, 0.1))
        process.kill()
        process.communicate()
        seen.add(target.exists())
        if target.exists():
            assert check_whole(target) == 60
            target.unlink()
    assert call("pack", tree, "-o", target).status == 0
    assert check_whole(target) == 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.zst"], "leftovers of the killed runs"
    assert False in seen


# `timeout` and Slurm send SIGTERM to the process, and again to its group.
@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_interrupted_it_leaves_the_old_archive_alone(numbers: tuple[int, ...], tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    small = write_tree(tmp_path / "small", {f"scans/{NAMES[0]}/{NAMES[0]}.txt": b"old"})
    pack_tree(small, target).close()
    process = start_command("pack", tree, "-o", target, "--level", "19")
    wait_for(".*.partial/.*.tmp", tmp_path, process)
    while process.poll() is None and not any(path.stat().st_size for path in tmp_path.glob(".*.partial/.*.tmp")):
        time.sleep(0.001)  # until the file is not only made, but written to
    for number in numbers:
        process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert check_whole(target) == 1
    assert not list(tmp_path.glob(".*"))


def test_shards_that_are_killed_at_random_moments_leave_the_old_set_or_a_hole_and_never_a_mixture(
    tree: Path, tmp_path: Path
) -> None:
    dice, target = random.Random(2), tmp_path / "a.tar.zst"
    words = ("pack", tree, "-o", target, "--shard-size", "8MB", "-q")
    changed = Path(shutil.copytree(tree, tmp_path / "changed"))
    assert call(*words).status == 0
    old = {path.name: path.read_bytes() for path in tmp_path.glob("a-*.tar.zst")}
    for name in NAMES:
        (changed / f"scans/{name}/{name}.txt").write_bytes(dice.randbytes(400_000))
    for _ in range(4):
        process = start_command("pack", changed, *words[2:])
        wait_for(".a.tar.zst.partial/a-*", tmp_path, process)
        time.sleep(dice.uniform(0, 0.1))
        process.kill()
        process.communicate()
        found = {path.name: path.read_bytes() for path in tmp_path.glob("a-*.tar.zst")}
        same = [name for name in found if found[name] == old[name]]
        assert len(same) in {0, len(found)} or find_missing_shards(found), same
        if len(found) < len(old):
            assert find_missing_shards(found) or not found
    assert call("pack", changed, *words[2:]).status == 0
    assert sum(check_whole(path) for path in tmp_path.glob("a-*.tar.zst")) == 60
    assert not list(tmp_path.glob(".*"))


def test_one_run_at_a_time_works_in_a_folder(tree: Path, tmp_path: Path) -> None:
    with run_lock(tmp_path):
        outcome = call("pack", tree, "-o", tmp_path / "a.tar.zst")
    assert (outcome.status, "is working in this folder" in outcome.stderr) == (1, True)
    assert not list(tmp_path.iterdir())


def test_a_file_that_changes_while_it_is_packed_stops_the_run(tmp_path: Path) -> None:
    name = f"scans/{NAMES[1]}/{NAMES[1]}.txt"
    changing = write_tree(tmp_path / "tree", {f"scans/{NAMES[0]}/{NAMES[0]}.txt": b"first", name: b"second"})
    plan = pack.plan(changing, tmp_path / "a.tar.zst")
    write_tree(changing, {name: b"another"})
    with pytest.raises(SourceError, match="changed while it was packed: 6 bytes at first, then 7"):
        pack.run(plan)
    write_tree(changing, {name: b"second"})
    os.utime(changing / name, ns=(1, 1))
    with pytest.raises(SourceError, match="changed while it was packed"):
        pack.run(plan)
    (changing / name).unlink()
    os.mkfifo(changing / name)
    with pytest.raises(FileError, match="is a named pipe, expected a file"):
        pack.run(plan)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]


def test_a_full_disk_is_said_and_leaves_the_old_archive(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    pack_tree(write_tree(tmp_path / "small", {f"scans/{NAMES[0]}/{NAMES[0]}.txt": b"old"}), target).close()

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))

    outcome = run_command("pack", tree, "-o", target, preexec_fn=limit)
    assert outcome.status == 1
    assert "cannot be written" in outcome.stderr
    assert "hint: free some space" in outcome.stderr
    assert check_whole(target) == 1
    assert not list(tmp_path.glob(".*"))


def test_a_reader_of_the_pipe_that_stops_early_is_told(tree: Path) -> None:
    process = start_command("pack", tree, "-", "-q")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=20) == 1
    assert process.stderr is not None
    assert "the program reading the pipe has stopped" in process.stderr.read()
    process.stderr.close()


def test_a_closed_or_full_output_is_an_error(tree: Path) -> None:
    outcome = run_command("pack", tree, "-", "-q", preexec_fn=lambda: os.close(1))
    assert (outcome.status, "standard output is closed" in outcome.stderr) == (2, True)
    with Path("/dev/full").open("wb") as full:
        words = [*COMMAND, "pack", str(tree), "-", "-q"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "standard output: cannot be written" in done.stderr


def test_a_file_in_the_place_of_the_folder_is_named(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="file"):
        pack.run(pack.plan(tree, tmp_path / "file" / "a.tar.zst"))
