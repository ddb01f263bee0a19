"""Packing and unpacking that is killed, doubled or out of space: what has a name is whole, and the next run ends it."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from archives import call, find_parts, pack_tree, unpack_pipe, write_tree
from commands import COMMAND, NO_BYTECODE, digests, start_command
from release_server import ROOT, ReleaseServer, Stall

from scannet_prep import ScanNet, official_scenes
from scannet_prep.archive import frames
from scannet_prep.archive.source import find_missing_shards
from scannet_prep.errors import FileError, ManifestError, MissingFileError
from scannet_prep.files import run_lock
from scannet_prep.processed.folder import processed_path
from scannet_prep.scene import Split
from scannet_prep.stages import pack, unpack, verify

NAMES = [f"scene{number:04}_00" for number in range(60)]
SCENES = 40


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw tree of 24 MB."""
    dice = random.Random(0)
    files = {f"scans/{name}/{name}.txt": dice.randbytes(400_000) for name in NAMES}
    return write_tree(tmp_path_factory.mktemp("pack") / "tree", files)


@pytest.fixture(scope="module")
def processed(whole_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a processed folder of many scenes, all with the content of one, beside what comes out of it."""
    directory = tmp_path_factory.mktemp("unpack")
    source = Path(shutil.copytree(whole_dir / "processed", directory / "source"))
    value = json.loads((source / "manifest.json").read_text())
    (first, entry), *_ = sorted(value["scenes"].items())
    data = (source / "train" / f"{first}.npz").read_bytes()
    for path in source.glob("*/*.npz"):
        path.unlink()
    value["scenes"] = dict.fromkeys(official_scenes(Split.TRAIN)[:SCENES], entry)
    for scene_id in value["scenes"]:
        processed_path(source, Split.TRAIN, scene_id).write_bytes(data)
    (source / "manifest.json").write_text(json.dumps(value))
    pack.run(pack.plan(source, directory / "a.tar.zst"))
    unpack.run(unpack.plan([directory / "a.tar.zst"], directory / "expected"))
    return directory


def check_whole(path: Path) -> int:
    report = verify.run([path])
    assert not report.errors
    return report.scenes


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An archive that is there already."""
    small = write_tree(tmp_path / "small", {f"scans/{NAMES[0]}/{NAMES[0]}.txt": b"old"})
    pack_tree(small, tmp_path / "a.tar.zst").close()
    return tmp_path / "a.tar.zst"


def wait_for(pattern: str, folder: Path, process: subprocess.Popen[str], count: int = 1, size: int = 0) -> None:
    """Wait until there are so many files of that size, or the process has ended."""
    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        if len([path for path in folder.glob(pattern) if not size or path.stat().st_size >= size]) >= count:
            break
        time.sleep(0.0005)


def kill_later(process: subprocess.Popen[str], dice: random.Random) -> None:
    time.sleep(dice.uniform(0, 0.1))
    process.kill()
    process.communicate()


def limit_files(size_bytes: int) -> None:
    """Let no file of this process become larger, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


def test_a_pack_that_is_killed_leaves_a_whole_archive_or_none(tree: Path, tmp_path: Path) -> None:
    dice, target = random.Random(1), tmp_path / "a.tar.zst"
    seen = set()
    for _ in range(4):
        process = start_command("pack", tree, "-o", target, "-q")
        wait_for(".*.partial/.*.tmp", tmp_path, process)
        kill_later(process, dice)
        seen.add(target.exists())
        if target.exists():
            assert check_whole(target) == 60
            target.unlink()
    assert call("pack", tree, "-o", target).status == 0
    assert check_whole(target) == 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.zst"], "leftovers of the killed runs"
    assert False in seen


def test_a_thread_that_never_ends_keeps_no_run_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_LAST_TASKS_S", 0.1)
    lock = threading.Event()  # for which the second task waits
    results = frames.map_in_threads(lambda number: number and lock.wait(), [(1, 0), (1, 1)], jobs=2)
    assert next(results) == 0
    ending = threading.Thread(target=results.close, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    lock.set()


def test_a_pack_that_is_interrupted_leaves_the_old_archive(tree: Path, old: Path, tmp_path: Path) -> None:
    process = start_command("pack", tree, "-o", old, "--level", "19")
    wait_for(".*.partial/.*.tmp", tmp_path, process, size=1)
    for _ in range(2):  # `timeout` and Slurm send it to the process, and again to its group
        process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert check_whole(old) == 1
    assert not list(tmp_path.glob(".*"))


def test_shards_that_are_killed_at_random_moments_leave_the_old_set_or_a_hole_and_never_a_mixture(
    tree: Path, tmp_path: Path
) -> None:
    dice, target = random.Random(2), tmp_path / "a.tar.zst"
    words = ("-o", target, "--shard-size", "8MB", "-q")
    changed = write_tree(tmp_path / "changed", {f"scans/{name}/{name}.txt": dice.randbytes(400_000) for name in NAMES})
    assert call("pack", tree, *words).status == 0
    old = {path.name: path.read_bytes() for path in tmp_path.glob("a-*.tar.zst")}
    for _ in range(3):
        process = start_command("pack", changed, *words)
        wait_for(".a.tar.zst.partial/a-*", tmp_path, process)
        kill_later(process, dice)
        found = {path.name: path.read_bytes() for path in tmp_path.glob("a-*.tar.zst")}
        same = [name for name in found if found[name] == old[name]]
        assert len(same) in {0, len(found)} or find_missing_shards(found), same
        assert len(found) == len(old) or find_missing_shards(found) or not found
    assert call("pack", changed, *words).status == 0
    assert sum(check_whole(path) for path in tmp_path.glob("a-*.tar.zst")) == 60
    assert not list(tmp_path.glob(".*"))


def test_a_file_that_changes_while_it_is_packed_stops_the_run(tmp_path: Path) -> None:
    name = f"scans/{NAMES[1]}/{NAMES[1]}.txt"
    changing = write_tree(tmp_path / "tree", {f"scans/{NAMES[0]}/{NAMES[0]}.txt": b"first", name: b"second"})
    plan = pack.plan(changing, tmp_path / "a.tar.zst")
    for data in (b"another", b"second"):
        write_tree(changing, {name: data})
        os.utime(changing / name, ns=(1, 1))
        with pytest.raises(FileError, match="changed while it was packed"):
            pack.run(plan)
    (changing / name).unlink()
    os.mkfifo(changing / name)
    with pytest.raises(FileError, match="is a named pipe, expected a file"):
        pack.run(plan)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]


def test_a_full_disk_or_a_second_run_is_said_and_the_old_archive_stays(tree: Path, old: Path, tmp_path: Path) -> None:
    process = start_command("pack", tree, "-o", old, env=NO_BYTECODE, preexec_fn=lambda: limit_files(3_000_000))
    _, stderr = process.communicate()
    assert (process.returncode, "cannot be written" in stderr, "hint: free some space" in stderr) == (1, True, True)
    with run_lock(tmp_path):
        outcome = call("pack", tree, "-o", old)
    assert (outcome.status, "is working in this folder" in outcome.stderr) == (1, True)
    assert check_whole(old) == 1
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("output", "status", "message"),
    [
        (">&-", 2, "standard output is a terminal, closed"),
        ("> /dev/full", 1, "standard output: cannot be written"),
        ("| head -c 9 > /dev/null", 1, "the program reading the pipe has stopped"),
    ],
)
def test_an_output_that_is_closed_or_full_or_read_by_nobody_is_an_error(
    output: str, status: int, message: str, tree: Path
) -> None:
    line = f"set -o pipefail; {' '.join(COMMAND)} pack {tree} - -q {output}"
    done = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr


def test_an_unpacking_that_is_killed_leaves_whole_files_and_the_next_run_completes_them(
    processed: Path, tmp_path: Path
) -> None:
    dice, expected, out_dir = random.Random(4), digests(processed / "expected"), tmp_path / "out"
    archive, interrupted = processed / "a.tar.zst", 0
    for _ in range(3):
        process = start_command("unpack", archive, "-o", out_dir, "--jobs", "2")
        wait_for("train/scene*.npz", out_dir, process, dice.randrange(1, SCENES))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        found = digests(out_dir)
        scenes = {name for name in found if name.endswith(".npz") and not Path(name).name.startswith(".")}
        assert {name: found[name] for name in scenes} == {name: expected[name] for name in scenes}
        if found.keys() >= expected.keys():
            shutil.rmtree(out_dir)
            continue
        interrupted += 1
        with pytest.raises((ManifestError, MissingFileError)):
            ScanNet(out_dir, split="train")
    assert interrupted
    assert unpack_pipe(archive, "-o", out_dir).status == 0
    assert digests(out_dir) == expected  # temporary files of the killed runs would show up here


def test_where_the_disk_is_full_nothing_is_half_unpacked(processed: Path, tmp_path: Path) -> None:
    words = ("unpack", processed / "a.tar.zst", "-o", tmp_path / "out")
    process = start_command(*words, env=NO_BYTECODE, preexec_fn=lambda: limit_files(1_000))
    _, stderr = process.communicate()
    assert (process.returncode, "Traceback" in stderr) == (1, False)
    assert "cannot be written: File too large" in stderr
    assert "it continues" in stderr
    assert not [path for path in (tmp_path / "out").rglob("*") if ".npz" in path.name or path.suffix == ".tmp"]
    with pytest.raises((ManifestError, MissingFileError)):
        ScanNet(tmp_path / "out", split="train")


def test_an_interrupted_read_of_an_archive_on_the_web_ends_at_once_though_the_server_hangs(
    tree: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "a.tar.zst"
    pack_tree(tree, archive).close()
    with ReleaseServer(tmp_path) as server:
        server.files[f"{ROOT}{archive.name}"], parts = archive, find_parts(archive)
        scenes = {f"bytes={start}-{end - 1}" for name, (start, end) in parts.items() if name.startswith("scene")}
        server.faults = [lambda request: [Stall(100)] if request.range in scenes else []]
        url = f"{server.origin}{ROOT}{archive.name}"
        process = start_command("unpack", url, "-o", tmp_path / "out", "--jobs", "2")
        deadline = time.monotonic() + 20
        while len([request for request in server.requests() if request.range in scenes]) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        try:
            _, stderr = process.communicate(timeout=10)
        finally:
            process.kill()
    assert (process.returncode, "Traceback" in stderr) == (130, False), stderr
    assert not list(tmp_path.rglob("scene*.*"))
