"""Runs that end early: what is left is whole, and the next run completes it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import COMMAND, digests, processes_of_session, run_command, start_command

from scannet_prep import official_scenes
from scannet_prep.scene import Split
from scannet_prep.synthetic import write_release

SCENES = [*official_scenes(Split.TRAIN)[:12], *official_scenes(Split.VAL)[:6], *official_scenes(Split.TEST)[:2]]
OPTIONS = ("--align-axis", "--jobs", "2")


@pytest.fixture(scope="module")
def raw_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw_dir = tmp_path_factory.mktemp("release") / "ScanNet"
    write_release(raw_dir, SCENES, vertices=6_000)
    return raw_dir


@pytest.fixture(scope="module")
def expected_dir(raw_dir: Path) -> Path:
    expected_dir = raw_dir.parent / "expected"
    assert run_command("process", raw_dir, "-o", expected_dir, *OPTIONS).status == 0
    return expected_dir


def wait_for_scenes(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    while len(list(folder.rglob("*.npz"))) < count and process.poll() is None:
        time.sleep(0.001)


def wait_until_gone(session_id: int) -> None:
    deadline = time.monotonic() + 20
    while alive := processes_of_session(session_id):
        assert time.monotonic() < deadline, f"processes live on: {alive}"
        time.sleep(0.02)


def test_killed_at_random_moments_it_leaves_whole_scenes_and_the_next_run_completes_them(
    raw_dir: Path, expected_dir: Path, tmp_path: Path
) -> None:
    dice = random.Random(0)
    expected = digests(expected_dir)
    for _ in range(4):
        process = start_command("process", raw_dir, "-o", tmp_path, *OPTIONS)
        wait_for_scenes(tmp_path, dice.randrange(len(SCENES)), process)
        time.sleep(dice.random() * 0.02)
        process.kill()
        process.communicate()
        wait_until_gone(process.pid)  # no worker outlives the program
        for path in tmp_path.rglob("*.npz"):
            if not path.name.startswith("."):
                assert digests(tmp_path)[str(path.relative_to(tmp_path))] == expected[str(path.relative_to(tmp_path))]
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scene*.npz")}
    assert run_command("process", raw_dir, "-o", tmp_path, *OPTIONS).status == 0
    assert digests(tmp_path) == expected  # hidden temporary files would show up here
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_goes_on_next_time(
    raw_dir: Path, expected_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = start_command("process", raw_dir, "-o", tmp_path, *OPTIONS, "--json")
    wait_for_scenes(tmp_path, 2, process)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["exit_status"] == 130
    assert "Traceback" not in stderr
    assert "run the same command again" in stderr
    wait_until_gone(process.pid)
    assert run_command("process", raw_dir, "-o", tmp_path, *OPTIONS).status == 0
    assert digests(tmp_path) == digests(expected_dir)


def test_a_worker_that_is_killed_costs_nothing_but_a_second_try(
    expected_dir: Path, raw_dir: Path, tmp_path: Path
) -> None:
    killed = 0
    for attempt in range(20):  # a run is short: some end before their workers are seen
        out_dir = tmp_path / str(attempt)
        process = start_command("process", raw_dir, "-o", out_dir, *OPTIONS)
        wait_for_scenes(out_dir, 1, process)
        for worker in workers_of(process.pid)[:1]:
            os.kill(worker, signal.SIGKILL)
            killed += 1
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        assert digests(out_dir) == digests(expected_dir)
        if killed == 2:
            return
    pytest.fail("no worker was seen in 20 runs")


def workers_of(session_id: int) -> list[int]:
    """Workers: the children of the command."""
    parents = {}
    for pid in processes_of_session(session_id):
        try:
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return [pid for pid, parent in parents.items() if parent == session_id]


def test_without_a_reader_the_output_ends_quietly(raw_dir: Path, expected_dir: Path) -> None:
    words = " ".join(f"'{word}'" for word in [*COMMAND, "process", str(raw_dir), "--dry-run", "--json", *OPTIONS])
    done = subprocess.run(f"{words} | true", shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
