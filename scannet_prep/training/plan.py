"""Plans of an epoch: which scenes share a batch, and which batch each rank gets in each step.

`pack` puts the scenes into batches within the budget, once. For each epoch, `make_plan` lets scenes
change batches at random, adds batches until all ranks have equally many, puts batches of similar
size into the same step, and shuffles the steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
# The indices of the scenes of each batch.
Plan: TypeAlias = list[list[int]]

# How full the batches may be on average. The rest is the room in which scenes change batches from
# epoch to epoch. With 1.5 % of room, and sizes like those of ScanNet's scenes, 1 to 2 % of the
# pairs that share a batch do so again in the next epoch (0.3 % would by chance).
_MAX_FILL = 0.985
# How many exchanges are offered for each scene.
_OFFERS_PER_SCENE = 40
# How much fuller than the mean a batch may become, even if the budget would allow more: with even
# batches, all steps take about the same memory and time.
_MAX_EXCESS = 1.03


def sum_loads(plan: Plan, lengths: Integers) -> Integers:
    """Count the vertices of each batch, int64 (K,)."""
    return np.array([lengths[batch].sum() for batch in plan])


def pack(lengths: Integers, max_points: int, world_size: int) -> Plan:
    """Pack all scenes into batches whose number is a multiple of the number of ranks.

    Nothing is random, so the result is the same on every rank and in every epoch.

    A scene above `max_points` is a batch of its own, and no batch is empty. If hardly any two
    scenes fit together, no such number of batches may exist; then every scene is a batch.

    Args:
        lengths: Number of vertices of each scene, int64 (S,).
        max_points: Most vertices of a batch.
        world_size: Number of ranks.
    """
    # Large scenes first, those of equal length by index. Each goes where it leaves the least room:
    # the number of vertices that a batch can still take.
    batches: Plan = []
    # Room and number of each batch, ascending.
    rooms: list[tuple[int, int]] = []
    for scene in np.argsort(-lengths, kind="stable").tolist():
        # The least room that is enough; -1 is below the number of each batch.
        position = bisect_left(rooms, (lengths[scene], -1))
        if position == len(rooms):
            rooms.append((max_points, len(batches)))
            batches.append([])
        room, best = rooms.pop(position)
        # Negative beside a scene above the budget, so that no scene joins it.
        insort(rooms, (room - lengths[scene], best))
        batches[best].append(scene)

    # The number of batches that leaves room for exchanges, rounded up to a multiple of the ranks. A
    # scene above the budget fills a batch.
    filled_count = np.minimum(lengths, max_points).sum() / max_points
    roomy_count = int(filled_count / _MAX_FILL)
    step_count = math.ceil(max(len(batches), roomy_count) / world_size)
    count = step_count * world_size
    # No batch may be empty: take the largest multiple that the scenes allow. If it is below the
    # number of batches that are needed, every scene becomes a batch.
    count = min(count, len(lengths) // world_size * world_size)
    if count < len(batches):
        count = len(lengths)

    # Split the batch of most scenes into two parts of similar size, until there are enough.
    while len(batches) < count:
        fullest = max(batches, key=len)
        batches.append(fullest[1::2])
        del fullest[1::2]
    return batches


def make_plan(
    packing: Plan,
    lengths: Integers,
    max_points: int,
    world_size: int,
    generator: Generator,
) -> Plan:
    """Plan an epoch.

    Args:
        packing: From `pack`.
        lengths: Number of vertices of each scene, int64 (S,).
        max_points: Most vertices of a batch.
        world_size: Number of ranks.
        generator: Random numbers.

    Returns:
        The batches, step after step, and within a step rank after rank. If their number is not a
        multiple of the number of ranks, batches of one repeated scene are added.
    """
    packing = _exchange_scenes(packing, lengths, max_points, generator)

    # Up to the next multiple of the number of ranks.
    missing_count = -len(packing) % world_size
    if missing_count:
        repeated = generator.permutation(len(lengths))[:missing_count]
        packing = packing + [[scene] for scene in repeated.tolist()]

    # Batches of similar size in the same step, so that no rank waits for another: (steps, ranks).
    loads = sum_loads(packing, lengths)
    by_size = np.argsort(-loads, kind="stable")
    steps = by_size.reshape(-1, world_size)
    # The steps in random order, and the batches of each step on random ranks.
    steps = generator.permutation(steps)
    steps = generator.permuted(steps, axis=1)
    return [packing[index] for index in steps.ravel().tolist()]


def _exchange_scenes(
    packing: Plan, lengths: Integers, max_points: int, generator: Generator
) -> Plan:
    """Make a random packing from one that fits, with as many batches and within the same limits.

    To pack shuffled scenes from scratch would need one batch more in some epochs than in others.
    So two scenes are drawn again and again, and change places if both batches then are within the
    limits. A scene above the budget never does, because every batch with it is above the limits.
    """
    # Whole numbers of Python, whose sums are exact, so that all processors plan the same.
    loads = sum_loads(packing, lengths).tolist()
    # The batch of each scene, (S,).
    batch_of = [0] * len(lengths)
    for number, batch in enumerate(packing):
        for scene in batch:
            batch_of[scene] = number
    # The limits: highest and lowest number of vertices, at equal distances from the mean. Scenes
    # above the budget do not raise them.
    mean = sum(min(load, max_points) for load in loads) / len(loads)
    highest = min(max_points, max(*loads, _MAX_EXCESS * mean))
    lowest = 2 * mean - highest

    offers = generator.integers(len(lengths), size=(2, _OFFERS_PER_SCENE * len(lengths)))
    scenes, other_scenes = offers.tolist()
    # How many vertices the first batch would lose to the other.
    changes = np.subtract(*lengths[offers]).tolist()
    for scene, other_scene, change in zip(scenes, other_scenes, changes, strict=True):
        batch = batch_of[scene]
        other = batch_of[other_scene]
        load = loads[batch] - change
        other_load = loads[other] + change
        # Most exchanges end here.
        if load > highest or other_load > highest:
            continue
        # One of them may be below the lowest number, if the two do not become less even.
        floor = min(loads[batch], loads[other], lowest)
        if load >= floor and other_load >= floor:
            batch_of[scene] = other
            batch_of[other_scene] = batch
            loads[batch] -= change
            loads[other] += change

    batches: Plan = [[] for _ in packing]
    for scene in generator.permutation(len(lengths)).tolist():
        batches[batch_of[scene]].append(scene)
    return batches
