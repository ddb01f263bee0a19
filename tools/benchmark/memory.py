"""Peak memory of a worker that processes one scene.

It is measured in a new process, so that nothing else counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from scannet_prep.base.workers import run_tasks
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages import process
from scannet_prep.stages.process import ProcessContext, ProcessTask, make_scene_file


def measure(raw_dir: Path, folder: Path) -> float:
    """Process the scenes of a folder in one worker, and return its peak memory, in MB."""
    with tempfile.TemporaryDirectory(dir=folder) as parent:
        command = [sys.executable, "-m", "benchmark.memory", str(raw_dir), f"{parent}/processed"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def make_and_measure(task: ProcessTask, context: ProcessContext) -> int:
    """Make a scene, in a worker.

    Returns:
        Peak memory of the worker, in kB.
    """
    make_scene_file(task, context)
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def print_peak(raw_dir: Path, out_dir: Path) -> None:
    """Process the scenes of a folder in one worker, and print its peak memory, in MB."""
    plan = process.plan(raw_dir, out_dir, ProcessOptions(scannet200=True, align_axis=True))
    for task in plan.tasks:
        task.path.parent.mkdir(parents=True, exist_ok=True)
    results = run_tasks(make_and_measure, plan.tasks, plan.context, jobs=1)
    outcomes = [outcome for _, outcome in results]
    peaks = [outcome for outcome in outcomes if isinstance(outcome, int)]
    if len(peaks) < len(outcomes):
        raise RuntimeError(f"a worker died: {outcomes}")
    print(max(peaks) / 1024)


if __name__ == "__main__":
    # Workers import the function that they call, and cannot import it from `__main__`.
    from benchmark import memory  # noqa: PLW0406 - this module by the name that can be imported

    memory.print_peak(Path(sys.argv[1]), Path(sys.argv[2]))
