"""Run a command, and measure its time, CPU time and peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# A small process starts the command, because on Linux, the peak memory of a new process begins with
# that of the process that starts it. In KiB; macOS counts bytes.
_LAUNCHER = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
status = subprocess.call(sys.argv[2:])
wall_s = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
peak_mb = used.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
cpu_s = used.ru_utime + used.ru_stime
open(sys.argv[1], "w").write(json.dumps([status, wall_s, cpu_s, peak_mb]))
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """Result and costs of a run.

    Attributes:
        status: Exit status.
        output: Standard output and standard error.
        wall_s: Seconds from start to end.
        cpu_s: Seconds of CPU time of all its processes.
        peak_mb: The largest resident set of one of its processes.
    """

    status: int
    output: str
    wall_s: float
    cpu_s: float
    peak_mb: float


def run(*command: object, cwd: Path | None = None) -> Usage:
    """Run a command to its end. Libraries in it use one core."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "usage.json")
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, report, *map(str, command)],
            cwd=cwd,
            env=os.environ | limits | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=True,
        )
        status, wall_s, cpu_s, peak_mb = json.loads(report.read_text(encoding="ascii"))
    return Usage(status, done.stdout, wall_s, cpu_s, peak_mb)


def run_ours(*words: object) -> Usage:
    """Run a command of this package, which must succeed."""
    usage = run(sys.executable, "-m", "scannet_prep", *words)
    if usage.status:
        raise SystemExit(f"scannet-prep {words[0]}: status {usage.status}\n{usage.output}")
    return usage
