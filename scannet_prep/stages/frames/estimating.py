"""The dry run of `frames`: how many frames and bytes a plan would write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scannet_prep.base.findings import Finding
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.frames.extraction import Estimate
from scannet_prep.stages.frames.planning import FramesPlan
from scannet_prep.stages.frames.scene_worker import estimate_frames


@dataclass(frozen=True, slots=True)
class FramesEstimate:
    """What a run would do.

    Attributes:
        scenes: What would be extracted, by scene.
        failures: Scenes that could not be extracted.
    """

    scenes: Mapping[str, Estimate] = field(hash=False)
    failures: tuple[Finding, ...]


def estimate_plan(
    plan: FramesPlan, *, jobs: int = 1, progress: Progress | None = None
) -> FramesEstimate:
    """Find what a run would extract: the exact number of frames, and about how many bytes.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
    """
    progress = progress or Progress()
    estimates = {}
    failures = list(plan.failures)
    with progress.work("frames", len(plan.tasks), "scenes"):
        for task, outcome in run_tasks(estimate_frames, plan.tasks, plan.context, jobs):
            if isinstance(outcome, Finding):
                failures.append(outcome)
            else:
                estimates[str(task.scene_id)] = outcome
            progress.advance()
    return FramesEstimate(dict(sorted(estimates.items())), tuple(failures))
