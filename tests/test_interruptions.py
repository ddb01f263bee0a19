"""Runs that end early: what is left is whole, is no dataset, and the next run completes it."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from archives import pack_tree
from commands import digests, run_main, start_command, wait_until_gone

from scannet_prep import ScanNet, official_scenes
from scannet_prep.base.errors import FileError, MissingFileError
from scannet_prep.release.scene import Split
from scannet_prep.synthetic import write_release

SCENES = [
    *official_scenes(Split.TRAIN)[:20],
    *official_scenes(Split.VAL)[:3],
    *official_scenes(Split.TEST)[:1],
]


@pytest.fixture(scope="module")
def raw_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw_dir = tmp_path_factory.mktemp("release") / "ScanNet"
    write_release(raw_dir, SCENES, vertices=3_000)
    return raw_dir


@pytest.fixture(scope="module")
def expected_dir(raw_dir: Path) -> Path:
    expected_dir = raw_dir.parent / "expected"
    assert run_main("process", raw_dir, "-o", expected_dir).status == 0
    return expected_dir


@pytest.mark.parametrize(
    ("command", "number"),
    [("process", signal.SIGINT), ("process", signal.SIGTERM), ("unpack", signal.SIGKILL)],
)
def test_ended_at_any_moment_by_any_signal_it_leaves_whole_scenes_says_so_and_the_next_run_completes_them(
    raw_dir: Path, expected_dir: Path, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    expected, source, has_refused = digests(expected_dir), raw_dir, False
    if command == "unpack":
        source = raw_dir.with_name("a.tar.zst")
        pack_tree(expected_dir, source)
    for signum, more in ((number, 1), (signal.SIGKILL, random.randrange(5))):
        count = len(list(tmp_path.rglob("*.npz"))) + more
        process = start_command(command, source, "-o", tmp_path, "--json", "--jobs", "2")
        while len(list(tmp_path.rglob("*.npz"))) < count and process.poll() is None:
            time.sleep(0.001)
        time.sleep(0 if more else random.uniform(0, 1))  # also before it makes a scene
        os.killpg(process.pid, signum) if signum == signal.SIGINT else process.send_signal(signum)
        stdout, stderr = process.communicate(timeout=30)
        if signum != signal.SIGKILL:
            assert (process.returncode, json.loads(stdout)["exit_status"]) == (130, 130), stderr
            assert "Traceback" not in stderr
            assert "run the same command again" in stderr
        wait_until_gone(process.pid)  # no worker outlives the program
        found = {
            name: digest
            for name, digest in digests(tmp_path).items()
            if Path(name).match("scene*.npz")
        }
        assert found.items() <= expected.items()
        if len(found) < len(SCENES):
            with pytest.raises((FileError, MissingFileError)):
                ScanNet(tmp_path, split="train")
            has_refused = True
        else:  # it came to its end before
            shutil.rmtree(tmp_path)
    assert has_refused
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scene*.npz")}
    assert run_main(command, source, "-o", tmp_path).status == 0
    assert digests(tmp_path) == expected  # hidden temporary files would show up here
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_a_folder_that_is_being_remade_is_no_dataset(
    raw_dir: Path, expected_dir: Path, tmp_path: Path
) -> None:
    out_dir = Path(shutil.copytree(expected_dir, tmp_path / "out"))
    raw_dir = Path(shutil.copytree(raw_dir, tmp_path / "raw"))
    path = raw_dir / "scannetv2-labels.combined.tsv"
    path.write_bytes(path.read_bytes().replace(b"\twall\t", b"\tvall\t"))
    process = start_command("process", raw_dir, "-o", out_dir, "--jobs", "2")
    before = (out_dir / "manifest.json").read_bytes()
    while (
        out_dir / "manifest.json"
    ).read_bytes() == before:  # the new label map is recorded after the mark
        assert process.poll() is None, "the run ended without a mark"
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # A run for one scene changes nothing in that: the others are still to be made.
    last = max(path.name for path in (raw_dir / "scans").iterdir())
    ended = run_main("process", raw_dir, "-o", out_dir, "--scenes", last)
    assert (ended.status, "not finished: an earlier run had still to make" in ended.stdout) == (
        0,
        True,
    )
    with pytest.raises(FileError, match="has not finished"):
        ScanNet(out_dir, split="train")
    assert run_main("process", raw_dir, "-o", out_dir).status == 0
    assert len(ScanNet(out_dir, split="train")) == 20
    assert digests(out_dir) != digests(expected_dir)
