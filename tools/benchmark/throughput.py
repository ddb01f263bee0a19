"""Scenes per second through the real stage, with one worker and with two."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from scannet_prep.progress import Progress
from scannet_prep.stages import process
from scannet_prep.stages.selection import Selection

if TYPE_CHECKING:
    from pathlib import Path

    from benchmark.settings import Result
    from scannet_prep.processed.scene import ProcessOptions
    from scannet_prep.stages.process.scene_worker import ProcessTask


_LOOP = """
import time
count, end = 0, time.perf_counter() + 0.3
while time.perf_counter() < end:
    for _ in range(1000):
        count += 1
print(count)
"""


class _Clock(Progress):
    """Notes when each scene was finished."""

    def __init__(self) -> None:
        self.finished_s: list[float] = []

    def advance(self, count: int = 1) -> None:
        """Note the time."""
        self.finished_s += [time.perf_counter()] * count


def measure(raw_dir: Path, folder: Path, options: ProcessOptions, tasks: list[ProcessTask], repeat: int) -> Result:
    """Run the stage in turns: one worker on the given scenes, two on all scenes, which are twice as many."""
    one = Selection(scene_ids=tuple(task.scene.scene_id for task in tasks))
    rates: dict[str, dict[str, list[float]]] = {}
    machine_ratios = []
    for _ in range(repeat):
        machine_ratios.append(_count_loops(2) / _count_loops(1))
        for jobs, selection in ((1, one), (2, Selection())):
            found = rates.setdefault(str(jobs), {"steady": [], "total": [], "start_s": []})
            for key, value in _run(raw_dir, folder / "throughput", options, selection, jobs).items():
                found[key].append(value)
    best = {
        jobs: {key: min(values) if key == "start_s" else max(values) for key, values in found.items()}
        for jobs, found in rates.items()
    }
    return {
        "scenes_per_s": best,
        "ratio_steady": best["2"]["steady"] / best["1"]["steady"],
        "ratio_total": best["2"]["total"] / best["1"]["total"],
        "ratio_machine": max(machine_ratios),
        "first_start_s": rates["1"]["start_s"][0],
    }


def _run(raw_dir: Path, out_dir: Path, options: ProcessOptions, selection: Selection, jobs: int) -> dict[str, float]:
    shutil.rmtree(out_dir, ignore_errors=True)
    plan = process.plan(raw_dir, out_dir, options, selection=selection)
    clock = _Clock()
    start = time.perf_counter()
    report = process.run(plan, jobs=jobs, progress=clock)
    end = time.perf_counter()
    if report.failures or len(report.made) != len(plan.tasks):
        raise RuntimeError(f"failed: {report.failures}")
    shutil.rmtree(out_dir)
    # From the moment when each worker has finished its first scene.
    finished = clock.finished_s
    first = min(jobs, len(finished) - 1)
    return {
        "steady": (len(finished) - first) / (finished[-1] - finished[first - 1]),
        "total": len(finished) / (end - start),
        "start_s": finished[0] - start,
    }


def _count_loops(process_count: int) -> int:
    """How often that many processes together run through an empty loop: what the machine has to give just now."""
    command = [sys.executable, "-S", "-c", _LOOP]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(process_count)]
    return sum(int(process.communicate()[0]) for process in running)


def describe(result: Result) -> str:
    """Show the figures as a table."""
    lines = [
        "throughput of the stage, scenes per second, best run",
        f"  {'workers':<10}{'steady':>9}{'in all':>9}{'first scene after':>20}",
    ]
    for jobs, found in result["scenes_per_s"].items():
        lines.append(f"  {jobs:<10}{found['steady']:9.1f}{found['total']:9.1f}{found['start_s']:18.2f} s")
    lines.append(f"  {'2 / 1':<10}{result['ratio_steady']:9.2f}{result['ratio_total']:9.2f}")
    lines.append(f"  2 / 1 for empty loops, as much as the machine gives now {result['ratio_machine']:.2f}")
    lines.append(f"  the very first scene, with the start of the workers, after {result['first_start_s']:.2f} s")
    return "\n".join(lines)
