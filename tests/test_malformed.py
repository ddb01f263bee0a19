"""Damaged files, thousands of them: each gives an error of ours that names the file, or a value that makes sense."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER_PATH = Path(__file__).with_name("malformed_worker.py")
KINDS = ["mesh", "labels", "segments", "aggregation", "info", "label_map", "processed"]
SEED = 20


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_give_errors_of_ours_or_sound_values_within_bounds(kind: str) -> None:
    # -W error: a warning that escapes from a reader counts as a foreign exception.
    command = [sys.executable, "-W", "error", WORKER_PATH, kind, str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    faults = result["faults"]
    assert not faults, f"{len(faults)} of {result['mutations']} mutations:\n" + "\n".join(faults[:40])
    assert result["mutations"] >= 300
    assert result["errors"] >= 150
    assert result["peak_bytes"] < 2**29
