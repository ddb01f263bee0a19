"""The plan of one epoch: which batch each rank gets in each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannet_prep.sampling.packing import BasePacking, Limits, Packing, split_fullest
from scannet_prep.sampling.shuffling import shuffle


@dataclass(frozen=True, slots=True)
class Plan:
    """All batches of an epoch, or of what is left of one.

    Attributes:
        packing: The batches, step after step, and within a step rank after rank.
        world_size: Number of ranks.
    """

    packing: Packing
    world_size: int

    @property
    def step_count(self) -> int:
        """Number of steps, the same on all ranks."""
        return len(self.packing) // self.world_size

    def batch(self, step: int, rank: int) -> list[int]:
        """The scenes of a rank in a step."""
        scenes: list[int] = self.packing.batch(step * self.world_size + rank).tolist()
        return scenes

    def after(self, steps_done: int) -> Plan:
        """What is left when all ranks have done so many steps."""
        rest = self.packing.take(np.arange(steps_done * self.world_size, len(self.packing)))
        return Plan(rest, self.world_size)


def make_plan(
    base: BasePacking,
    lengths: NDArray[np.int64],
    limits: Limits,
    world_size: int,
    generator: np.random.Generator | None,
) -> Plan:
    """Plan an epoch.

    Args:
        base: From `pack`.
        lengths: Vertices of each scene, (n,).
        limits: What a batch may hold.
        world_size: Number of ranks.
        generator: Source of randomness; None for the same plan each time.
    """
    regular = base.regular if generator is None else shuffle(base.regular, lengths, limits, generator)
    packing = regular.join(_singles(base.oversize))
    return _arrange(_pad(packing, base.padding, lengths, generator), lengths, world_size, generator)


def deal_again(plan: Plan, lengths: NDArray[np.int64], world_size: int, generator: np.random.Generator | None) -> Plan:
    """Deal what is left of an epoch to another number of ranks.

    The batches stay as they are, but for as many as must be split in two to make their number a multiple of the number
    of ranks. Only where nothing can be split, because every batch is a single scene, are scenes repeated.

    Args:
        plan: What is left; not empty.
        lengths: Vertices of each scene of the dataset, (n,).
        world_size: The new number of ranks.
        generator: Source of randomness; None for the same plan each time.
    """
    count = -(-len(plan.packing) // world_size) * world_size
    batches: list[list[int]] = [plan.packing.batch(index).tolist() for index in range(len(plan.packing))]
    batches = split_fullest(batches, lengths.tolist(), count)
    packing = _pad(Packing.from_batches(batches), count - len(batches), lengths, generator)
    return _arrange(packing, lengths, world_size, generator)


def _pad(packing: Packing, padding: int, lengths: NDArray[np.int64], generator: np.random.Generator | None) -> Packing:
    """Add batches of one scene each, which repeat some that the packing has: any, or the smallest."""
    if not padding:
        return packing
    if generator is None:
        scenes = packing.scenes[np.lexsort((packing.scenes, lengths[packing.scenes]))]
    else:
        scenes = generator.permutation(packing.scenes)
    return packing.join(_singles(np.resize(scenes, padding)))


def _singles(scenes: NDArray[np.int64]) -> Packing:
    return Packing(scenes, np.arange(1, len(scenes) + 1))


def _arrange(
    packing: Packing,
    lengths: NDArray[np.int64],
    world_size: int,
    generator: np.random.Generator | None,
) -> Plan:
    """Put batches of similar size into the same step, so that no rank waits for another."""
    loads = packing.loads(lengths)
    steps = np.argsort(-loads, kind="stable").reshape(-1, world_size)
    if generator is None:
        return Plan(packing.take(steps.ravel()), world_size)
    steps = generator.permuted(generator.permutation(steps), axis=1)
    packing = packing.take(steps.ravel())
    # Scenes come in any order within their batch.
    batches = np.repeat(np.arange(len(packing)), packing.counts)
    order = np.lexsort((generator.random(len(batches)), batches))
    return Plan(Packing(packing.scenes[order], packing.ends), world_size)
