"""Plans of an epoch: which scenes share a batch, and which batch each rank gets in each step."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Plan: TypeAlias = list[list[int]]  # the scenes of each batch

# The room that is left in the batches, so that scenes can change places from epoch to epoch. With 1.5 % and sizes like
# those of ScanNet's scenes, 1 % of the pairs that share a batch do so again in the next epoch (0.3 % would by chance).
_MAX_FILL = 0.985
# How often each scene is offered a change of places, on average, and from how many scenes on a batch is not offered
# more.
_OFFERS_PER_SCENE = 100
_MANY_SCENES = 40
# How much fuller than the mean a batch may get, where the budget would allow more: even batches keep memory and time
# of a step even.
_MAX_EXCESS = 1.03


def flatten(plan: Plan) -> tuple[Integers, Integers]:
    """The scenes of all batches, int64 (S,), batch after batch; and where each batch ends in them, int64 (K,)."""
    scenes = np.array([scene for batch in plan for scene in batch], np.int64)
    return scenes, np.cumsum([len(batch) for batch in plan], dtype=np.int64)


def sum_loads(plan: Plan, lengths: Integers) -> Integers:
    """Vertices of each batch, int64 (K,)."""
    scenes, ends = flatten(plan)
    return np.diff(np.cumsum(lengths[scenes])[ends - 1], prepend=0)


def pack(lengths: Integers, max_points: int, max_scenes: int, world_size: int) -> Plan:
    """Pack all scenes into batches whose number is a multiple of the number of ranks.

    Nothing is random, so the result is the same on every rank and in every epoch.

    A scene above `max_points` is a batch of its own, and no batch is empty. Only where hardly any two scenes fit
    together, so that no such number is possible, every scene is a batch of its own.
    """
    # Large scenes first; equal ones by index, so that nothing depends on how a sort treats them.
    order = np.argsort(-lengths, kind="stable")
    batches = _pack_best_fit(order.tolist(), lengths.tolist(), max_points, max_scenes)
    is_oversize = lengths > max_points
    roomy = is_oversize.sum() + int(lengths[~is_oversize].sum() / max_points / _MAX_FILL)
    count = -(-max(len(batches), int(roomy)) // world_size) * world_size
    if count > len(lengths):
        most = len(lengths) // world_size * world_size
        count = most if most >= len(batches) else len(lengths)
    while len(batches) < count:  # split as many as are missing in two parts of similar size
        batches.sort(key=len, reverse=True)
        for batch in batches[: count - len(batches)]:
            if len(batch) > 1:
                batches.append(batch[1::2])
                del batch[1::2]
    return batches


def make_plan(packing: Plan, lengths: Integers, max_points: int, world_size: int, generator: Generator | None) -> Plan:
    """Plan an epoch.

    Returns:
        The batches, step after step, and within a step rank after rank; without a generator the same each time, the
        largest first. Batches of one repeated scene are added where the number of batches is not a multiple of the
        number of ranks.
    """
    if generator is not None:
        packing = _mix(packing, lengths, max_points, generator)
    if padding := -len(packing) % world_size:
        some = np.argsort(lengths, kind="stable") if generator is None else generator.permutation(len(lengths))
        packing = [*packing, *([scene] for scene in np.resize(some, padding).tolist())]
    # Batches of similar size in the same step, so that no rank waits for another.
    steps = np.argsort(-sum_loads(packing, lengths), kind="stable").reshape(-1, world_size)
    if generator is not None:
        steps = generator.permuted(generator.permutation(steps), axis=1)
    plan = [packing[index] for index in steps.ravel().tolist()]
    if generator is None:
        return plan
    scenes, ends = flatten(plan)
    batches = np.repeat(np.arange(len(plan)), np.diff(ends, prepend=0))
    return _cut(scenes[np.lexsort((generator.random(len(scenes)), batches))], ends)  # any order within a batch


def _pack_best_fit(order: list[int], lengths: list[int], max_points: int, max_scenes: int) -> Plan:
    """Pack scenes, the largest first, into few batches: each goes where it leaves the least room."""
    batches: Plan = []
    rooms: list[tuple[int, int]] = []  # (room, batch) of batches that take more, sorted
    for scene in order:
        place = bisect_left(rooms, (lengths[scene], -1))
        if place < len(rooms):
            room, index = rooms.pop(place)
            batches[index].append(scene)
        else:
            room, index = max_points, len(batches)
            batches.append([scene])
        if len(batches[index]) < max_scenes:
            insort(rooms, (room - lengths[scene], index))
    return batches


def _mix(packing: Plan, lengths: Integers, max_points: int, generator: Generator) -> Plan:
    """Make a random packing from one that fits, with the same number of batches and within the same limits.

    Packing shuffled scenes from scratch would need one batch more in some epochs than in others. So the batches are
    paired at random, again and again, and a random scene of each changes places with one of the other, wherever the
    budget allows it: whatever happens, the result fits.
    """
    (scenes, ends), loads = flatten(packing), sum_loads(packing, lengths)
    starts, counts = np.concatenate([[0], ends[:-1]]), np.diff(ends, prepend=0)
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
    return _cut(scenes, ends)


def _cut(scenes: Integers, ends: Integers) -> Plan:
    items, places = scenes.tolist(), [0, *ends.tolist()]
    return [items[start:end] for start, end in pairwise(places)]
