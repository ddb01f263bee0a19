"""Plans of an epoch: which scenes share a batch, and which batch each rank gets in each step."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

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


@dataclass(frozen=True, slots=True)
class Plan:
    """Scenes in batches.

    Attributes:
        scenes: Indices of the scenes, int64 (S,), batch after batch.
        ends: Where each batch ends in `scenes`, int64 (K,), cumulative.
    """

    scenes: Ints
    ends: Ints

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.ends)

    @property
    def counts(self) -> Ints:
        """Scenes in each batch, int64 (K,)."""
        return np.diff(self.ends, prepend=0)

    @property
    def starts(self) -> Ints:
        """Where each batch begins in `scenes`, int64 (K,)."""
        return self.ends - self.counts

    def batch(self, index: int) -> list[int]:
        """The scenes of one batch."""
        return list(map(int, self.scenes[self.ends[index - 1] if index else 0 : self.ends[index]]))

    def loads(self, lengths: Ints) -> Ints:
        """Vertices of each batch, int64 (K,)."""
        sums = np.concatenate([[0], np.cumsum(lengths[self.scenes], dtype=np.int64)])
        return np.asarray(sums[self.ends] - sums[self.starts])

    def take(self, order: Ints) -> Plan:
        """Some of the batches, in the given order."""
        counts = self.counts[order]
        ends = np.cumsum(counts)
        shifts = np.repeat(self.starts[order] - (ends - counts), counts)
        return Plan(self.scenes[np.arange(len(shifts)) + shifts], ends)


def pack(lengths: Ints, max_points: int, max_scenes: int, world_size: int) -> Plan:
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
    scenes = np.array([scene for batch in batches for scene in batch], np.int64)
    return Plan(scenes, np.cumsum([len(batch) for batch in batches], dtype=np.int64))


def make_plan(packing: Plan, lengths: Ints, max_points: int, world_size: int, generator: Generator | None) -> Plan:
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
        packing = Plan(
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
    return Plan(packing.scenes[order], packing.ends)


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


def _pack_best_fit(order: list[int], lengths: list[int], max_points: int, max_scenes: int) -> list[list[int]]:
    """Pack scenes, the largest first, into few batches: each goes where it leaves the least room."""
    batches: list[list[int]] = []
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


def _mix(packing: Plan, lengths: Ints, max_points: int, generator: Generator) -> Plan:
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
    return Plan(scenes, packing.ends)
