"""The plan of one epoch: which batch each rank gets in each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannet_prep.sampling.packing import Packing

# How often each scene is offered a change of places, on average, and from how many scenes on a batch is not offered
# more.
_OFFERS_PER_SCENE = 100
_MANY_SCENES = 40
# How much fuller than the mean a batch may get, where the budget would allow more: even batches keep memory and time
# of a step even.
_MAX_EXCESS = 1.03


def make_plan(
    packing: Packing,
    lengths: NDArray[np.int64],
    max_points: int,
    world_size: int,
    generator: np.random.Generator | None,
) -> Packing:
    """Plan an epoch.

    Args:
        packing: From `pack`.
        lengths: Vertices of each scene, (n,).
        max_points: The budget of a batch.
        world_size: Number of ranks.
        generator: Source of randomness; None for the same plan each time, the largest batches first.

    Returns:
        The batches, step after step, and within a step rank after rank. Batches of one repeated scene are added where
        the number of batches is not a multiple of the number of ranks.
    """
    if generator is not None:
        packing = _mix(packing, lengths, max_points, generator)
    if padding := -len(packing) % world_size:
        some = np.argsort(lengths, kind="stable") if generator is None else generator.permutation(len(lengths))
        packing = Packing(
            np.concatenate([packing.scenes, np.resize(some, padding)]),
            np.concatenate([packing.ends, packing.ends[-1] + 1 + np.arange(padding)]),
        )
    # Batches of similar size in the same step, so that no rank waits for another.
    steps = np.argsort(-packing.loads(lengths), kind="stable").reshape(-1, world_size)
    if generator is None:
        return packing.take(steps.ravel())
    packing = packing.take(generator.permuted(generator.permutation(steps), axis=1).ravel())
    batches = np.repeat(np.arange(len(packing)), packing.counts)
    order = np.lexsort((generator.random(len(batches)), batches))  # any order within a batch
    return Packing(packing.scenes[order], packing.ends)


def _mix(packing: Packing, lengths: NDArray[np.int64], max_points: int, generator: np.random.Generator) -> Packing:
    """Make a random packing from one that fits, with the same number of batches and within the same limits.

    Packing shuffled scenes from scratch would need one batch more in some epochs than in others. So the batches are
    paired at random, again and again, and a random scene of each changes places with one of the other, wherever the
    budget allows it: whatever happens, the result fits.
    """
    scenes, starts, counts, loads = packing.scenes.copy(), packing.starts, packing.counts, packing.loads(lengths)
    regular = loads[loads <= max_points]
    if len(regular) < 2:
        return packing
    # Sums of whole numbers are exact: every processor plans the same.
    mean = int(regular.sum()) / len(regular)
    highest = min(float(max_points), max(float(regular.max()), _MAX_EXCESS * mean))
    lowest = 2 * mean - highest
    half = len(packing) // 2
    for _ in range(int(_OFFERS_PER_SCENE * min(len(scenes) / len(packing), _MANY_SCENES))):
        order = generator.permutation(len(packing))
        a, b = order[:half], order[half : 2 * half]
        place_a = starts[a] + (generator.random(half) * counts[a]).astype(np.int64)
        place_b = starts[b] + (generator.random(half) * counts[b]).astype(np.int64)
        change = lengths[scenes[place_b]] - lengths[scenes[place_a]]
        load_a, load_b = loads[a] + change, loads[b] - change
        is_even = np.minimum(load_a, load_b) >= lowest
        is_no_worse = np.abs(load_a - load_b) <= np.abs(loads[a] - loads[b])
        is_done = (np.maximum(load_a, load_b) <= highest) & (is_even | is_no_worse)
        place_a, place_b = place_a[is_done], place_b[is_done]
        scenes[place_a], scenes[place_b] = scenes[place_b], scenes[place_a]
        loads[a[is_done]], loads[b[is_done]] = load_a[is_done], load_b[is_done]
    return Packing(scenes, packing.ends)


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


def summarize(plan: Packing, lengths: NDArray[np.int64], max_points: int, world_size: int, epoch: int) -> PlanSummary:
    """Measure a plan, which has at least one step."""
    loads = plan.loads(lengths)
    steps = loads.reshape(-1, world_size)
    means = np.maximum(steps.mean(axis=1), 1e-9)  # a step of empty scenes takes as long on all ranks
    scenes = np.unique(plan.scenes)
    return PlanSummary(
        epoch=epoch,
        step_count=len(steps),
        world_size=world_size,
        scene_count=len(scenes),
        padding=len(plan.scenes) - len(scenes),
        oversize=int((lengths[scenes] > max_points).sum()),
        max_points=max_points,
        fill=float(np.minimum(loads, max_points).mean() / max_points),
        imbalance=float(np.maximum(steps.max(axis=1) / means, 1).mean()),
        largest=int(loads.max()),
    )
