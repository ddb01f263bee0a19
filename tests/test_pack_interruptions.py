"""Packs that are killed, doubled or out of space: under a final name stands a whole archive, the old one or the new."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from archives import pack_tree, write_tree
from commands import COMMAND, run_command, start_command
from scannet_prep.archive.output import FileOutput
from scannet_prep.stages.pack.append import locked_archive

from scannet_prep.archive import open_archive
from scannet_prep.archive.shards import find_missing_shards
from scannet_prep.errors import OutputError, SourceError
from scannet_prep.stages import pack


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dice = random.Random(0)
    files = {f"train/scene{number:04}_00.bin": dice.randbytes(400_000) for number in range(60)}
    return write_tree(tmp_path_factory.mktemp("pack") / "tree", files)


def check_whole(path: Path) -> int:
    with open_archive(path) as archive:
        for group in archive.index.groups:
            for _ in archive.iter_content(group):
                pass
        return len(archive.index.scenes)


def test_killed_at_random_moments_it_leaves_a_whole_archive_or_none(tree: Path, tmp_path: Path) -> None:
    dice, target = random.Random(1), tmp_path / "a.tar.zst"
    seen = set()
    for _ in range(12):
        process = start_command("pack", tree, "-o", target, "-q")
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob(".*.tmp")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(dice.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        seen.add(target.exists())
        if target.exists():
            assert check_whole(target) == 60
            target.unlink()
    assert run_command("pack", tree, "-o", target).status == 0
    assert check_whole(target) == 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.zst"], "leftovers of the killed runs"
    assert False in seen


def test_killed_while_appending_the_old_archive_stays_valid(tree: Path, tmp_path: Path) -> None:
    dice, target = random.Random(2), tmp_path / "a.tar.zst"
    assert run_command("pack", tree, "-o", target, "--limit", "20").status == 0
    for _ in range(8):
        process = start_command("pack", tree, "-o", target, "--append", "-q")
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob(".*.tmp")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(dice.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert check_whole(target) in {20, 60}
    assert run_command("pack", tree, "-o", target, "--append").status == 0
    assert check_whole(target) == 60


# `timeout` and Slurm send SIGTERM to the process, and again to its group.
@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_interrupted_it_leaves_the_old_archive_alone(numbers: tuple[int, ...], tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    pack_tree(write_tree(tmp_path / "small", {"scene0000_00.bin": b"old"}), target).close()
    process = start_command("pack", tree, "-o", target, "--level", "19")
    while not list(tmp_path.glob(".*.tmp")) and process.poll() is None:
        time.sleep(0.002)
    for number in numbers:
        process.send_signal(number)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "goes on" not in stderr  # it begins anew
    assert check_whole(target) == 1
    assert not list(tmp_path.glob(".*.tmp"))


def test_two_that_add_at_once_lose_nothing(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    assert run_command("pack", tree, "-o", target, "--scenes", "scene0000_00").status == 0
    with locked_archive(target):
        outcome = run_command("pack", tree, "-o", target, "--append")
        assert outcome.status == 1
        assert "another process is adding to it" in outcome.stderr
    plan = pack.plan(tree, target, appends=True)
    with locked_archive(target) as check:
        replaced = tmp_path / "b.tar.zst"
        assert run_command("pack", tree, "-o", replaced, "--scenes", "scene0001_00").status == 0
        replaced.replace(target)
        with pytest.raises(OutputError, match="was replaced by another process"):
            check()
    with pytest.raises((OutputError, ValueError), match="replaced"):
        pack.run(plan)
    assert [scene.scene_id for scene in open_archive(target).index.scenes] == ["scene0001_00"]


def test_a_run_that_ends_between_its_shards_leaves_no_mixture_of_old_and_new_ones(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.tar.zst"
    old = pack.run(pack.plan(tree, target, shard_bytes=8_000_000))
    assert len(old.archives) == 4
    commit, committed = FileOutput.commit, []

    def commit_one(output: FileOutput, path: Path) -> None:
        if committed:
            raise KeyboardInterrupt
        committed.append(path)
        commit(output, path)

    monkeypatch.setattr(FileOutput, "commit", commit_one)
    with pytest.raises(KeyboardInterrupt):
        pack.run(pack.plan(tree, target, shard_bytes=8_000_000, level=1))
    assert sorted(tmp_path.glob("a-*.tar.zst")) == committed
    assert len(find_missing_shards(committed)) == 3


def test_a_file_that_changes_while_it_is_packed_stops_the_run(tree: Path, tmp_path: Path) -> None:
    changing = write_tree(tmp_path / "tree", {"scene0000_00.bin": b"first", "scene0001_00.bin": b"second"})
    plan = pack.plan(changing, tmp_path / "a.tar.zst")
    write_tree(changing, {"scene0001_00.bin": b"another"})
    with pytest.raises(SourceError, match="changed while it was packed: 6 bytes at first, then 7"):
        pack.run(plan)
    write_tree(changing, {"scene0001_00.bin": b"second"})
    os.utime(changing / "scene0001_00.bin", ns=(1, 1))
    with pytest.raises(SourceError, match="changed while it was packed: it was written to, and has the same size"):
        pack.run(plan)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]


def test_a_full_disk_is_said_and_leaves_the_old_archive(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar.zst"
    pack_tree(write_tree(tmp_path / "small", {"scene0000_00.bin": b"old"}), target).close()

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))

    outcome = run_command("pack", tree, "-o", target, preexec_fn=limit)
    assert outcome.status == 1
    assert "cannot be written" in outcome.stderr
    assert "hint: free some space" in outcome.stderr
    assert "it continues" not in outcome.stderr
    assert check_whole(target) == 1
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_reader_that_ends_early_is_an_error(tree: Path) -> None:
    process = start_command("pack", tree, "-", "-q")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=20) == 1
    assert process.stderr is not None
    assert "whoever read it has ended" in process.stderr.read()
    process.stderr.close()


def test_a_closed_or_full_output_is_an_error(tree: Path) -> None:
    outcome = run_command("pack", tree, "-", "-q", preexec_fn=lambda: os.close(1))
    assert (outcome.status, "standard output is closed" in outcome.stderr) == (2, True)
    with Path("/dev/full").open("wb") as full:
        words = [*COMMAND, "pack", str(tree), "-", "-q"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "standard output: cannot be written" in done.stderr
    assert "-o" not in done.stderr


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="file"):
        FileOutput(tmp_path / "file" / "a.tar.zst")
