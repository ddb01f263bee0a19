"""One run of a program, in processes of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comparison.programs import Job, Program

_LAUNCHER_PATH = Path(__file__).parent / "launcher.py"
# Each program uses one core, and leaves nothing in its clone.
_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True, slots=True)
class Run:
    """Result and costs of a run.

    Attributes:
        status: Exit status.
        output: Standard output and standard error.
        wall_s: Seconds from start to end.
        cpu_s: Seconds of CPU time of all its processes, in the program and in the system.
        peak_bytes: The largest resident set of one of its processes.
    """

    status: int
    output: str
    wall_s: float
    cpu_s: float
    peak_bytes: int


def run_program(program: Program, job: Job) -> Run:
    """Run a program to its end."""
    shutil.rmtree(job.work_dir, ignore_errors=True)
    job.work_dir.mkdir(parents=True)
    report_path = job.work_dir / "usage.json"
    launcher = [sys.executable, "-I", "-S", str(_LAUNCHER_PATH), str(report_path)]
    done = subprocess.run(
        [*launcher, *program.prepare(job)],
        cwd=job.work_dir,
        env=os.environ | _VARIABLES,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=True,
    )
    usage = json.loads(report_path.read_text(encoding="ascii"))
    return Run(output=done.stdout, **usage)
