"""What a plan is like: steps, fill, imbalance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannet_prep.sampling.packing import Limits
from scannet_prep.sampling.plan import Plan


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What the plan of an epoch is like.

    Attributes:
        epoch: The epoch.
        step_count: Steps of each rank.
        world_size: Number of ranks.
        scene_count: Different scenes.
        padding: Scenes that come twice, because there are fewer scenes than the division by ranks needs.
        oversize: Scenes above the budget, each a batch of its own.
        max_points: The budget.
        fill: Mean share of the budget that a batch uses, 0..1; an oversize scene counts as 1.
        imbalance: How much longer a step is than with equal work: the mean over the steps of the largest batch beside
            the mean batch; 1 is ideal.
        largest: Vertices of the largest batch.
    """

    epoch: int
    step_count: int
    world_size: int
    scene_count: int
    padding: int
    oversize: int
    max_points: int
    fill: float
    imbalance: float
    largest: int

    def __str__(self) -> str:
        """Two lines for people."""
        text = (
            f"epoch {self.epoch}: {self.scene_count:,} scenes in {self.step_count:,} steps on {self.world_size} ranks\n"
            f"fill {self.fill:.3f} of {self.max_points:,} points, imbalance {self.imbalance:.4f}, "
            f"largest batch {self.largest:,} points"
        )
        if self.oversize:
            text += f"; scenes above the budget, alone in their batch: {self.oversize}"
        if self.padding:
            text += f"; scenes that come twice, to make the ranks even: {self.padding}"
        return text


def summarize(plan: Plan, epoch: int, lengths: NDArray[np.int64], limits: Limits) -> PlanSummary:
    """Measure a plan."""
    loads = plan.packing.loads(lengths)
    steps = loads.reshape(-1, plan.world_size)
    # A step of empty scenes takes as long on all ranks.
    means = np.maximum(steps.mean(axis=1), 1e-9)
    scenes = np.unique(plan.packing.scenes)
    return PlanSummary(
        epoch=epoch,
        step_count=plan.step_count,
        world_size=plan.world_size,
        scene_count=len(scenes),
        padding=len(plan.packing.scenes) - len(scenes),
        oversize=int((lengths[scenes] > limits.max_points).sum()),
        max_points=limits.max_points,
        fill=float(np.minimum(loads, limits.max_points).mean() / limits.max_points),
        imbalance=float(np.maximum(steps.max(axis=1) / means, 1).mean()),
        largest=int(loads.max()),
    )
