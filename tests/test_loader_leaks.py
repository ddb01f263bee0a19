"""Loaders leave nothing behind: no descriptor, no semaphore, no file in shared memory, no memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_command

from scannet_prep.synthetic import write_release

JOB = Path(__file__).parent / "leak_job.py"
# A batch of the scenes below is 5 MB; 16 of them are read from the first to the last epoch.
MAX_GROWTH_MB = 20


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large")
    write_release(root / "ScanNet", [f"scene000{number}_00" for number in (0, 1, 2, 5)], vertices=80_000)
    assert run_command("process", root / "ScanNet", "-o", root / "processed").status == 0
    return root / "processed"


@pytest.mark.torch
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="counts what Linux tells of processes")
@pytest.mark.parametrize("workers", ["persistent", "fresh"])
def test_loaders_leave_nothing_behind(large_folder: Path, workers: str) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, JOB, str(large_folder), workers], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    before, after, epochs = found["before"], found["after"], found["epochs"]
    assert after["descriptors"] == before["descriptors"]
    assert after["shared"] == before["shared"]
    assert [epoch["descriptors"] for epoch in epochs[1:]] == [epochs[0]["descriptors"]] * (len(epochs) - 1)
    assert epochs[-1]["private_mb"] - epochs[0]["private_mb"] < MAX_GROWTH_MB
    assert after["private_mb"] - before["private_mb"] < MAX_GROWTH_MB
    # While it runs, batches are in memory without a name; in /dev/shm there are no files, not even passing ones.
    assert any(name.startswith("/memfd:batch") for name in found["running"])
    assert not any("torch" in name for name in found["running"])
    assert [len(processes) for processes in found["workers"]] == [2 if workers == "persistent" else 0] * len(epochs)
    if workers == "persistent":
        for first, last in zip(found["workers"][1], found["workers"][-1], strict=True):
            assert last["descriptors"] <= first["descriptors"]
            assert last["private_mb"] - first["private_mb"] < MAX_GROWTH_MB
