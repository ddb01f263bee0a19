"""Packs scenes into batches under a budget of points: how many batches there are, and one packing that fits."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# The room that is left in the batches, so that scenes can change places from epoch to epoch. With 1.5 % and sizes like
# those of ScanNet's scenes, 3 % of the pairs that share a batch do so again in the next epoch (0.5 % would by chance);
# with no more room than the tightest packing leaves, it is three to four times as many.
_MAX_FILL = 0.985


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch may hold.

    Attributes:
        max_points: Vertices; a scene that is larger is a batch of its own.
        max_scenes: Scenes.
    """

    max_points: int
    max_scenes: int


@dataclass(frozen=True, slots=True)
class Packing:
    """Scenes in batches.

    Attributes:
        scenes: Indices of the scenes, int64 (S,), batch after batch.
        ends: Where each batch ends in `scenes`, int64 (K,), cumulative.
    """

    scenes: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def from_batches(cls, batches: Sequence[Sequence[int]]) -> Packing:
        """Join batches that are lists of scene indices."""
        scenes = np.array([scene for batch in batches for scene in batch], np.int64)
        return cls(scenes, np.cumsum([len(batch) for batch in batches], dtype=np.int64))

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.ends)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each batch begins in `scenes`, int64 (K,)."""
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Scenes in each batch, int64 (K,)."""
        return np.diff(self.ends, prepend=0)

    def batch(self, index: int) -> NDArray[np.int64]:
        """The scenes of one batch."""
        return self.scenes[self.ends[index - 1] if index else 0 : self.ends[index]]

    def loads(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Vertices of each batch, int64 (K,)."""
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[self.scenes], dtype=np.int64)])
        loads: NDArray[np.int64] = sums[self.ends] - sums[self.starts]
        return loads

    def take(self, order: NDArray[np.int64]) -> Packing:
        """Some of the batches, in the given order."""
        counts = self.counts[order]
        ends = np.cumsum(counts)
        shifts = np.repeat(self.starts[order] - (ends - counts), counts)
        return Packing(self.scenes[np.arange(len(shifts)) + shifts], ends)

    def join(self, other: Packing) -> Packing:
        """The batches of both."""
        last = self.ends[-1] if len(self.ends) else 0
        return Packing(np.concatenate([self.scenes, other.scenes]), np.concatenate([self.ends, last + other.ends]))


@dataclass(frozen=True, slots=True)
class BasePacking:
    """A packing that fits, from which those of all epochs are made.

    Attributes:
        regular: Batches within the limits.
        oversize: Scenes that are larger than the budget, int64 (O,), each a batch of its own.
        padding: Batches of one repeated scene that are needed to make the number of batches a multiple of the number
            of ranks; only where there are hardly more scenes than ranks, or hardly any scene shares a batch.
    """

    regular: Packing
    oversize: NDArray[np.int64]
    padding: int


def pack(lengths: NDArray[np.int64], limits: Limits, world_size: int) -> BasePacking:
    """Find the number of batches, a multiple of the number of ranks, and a packing of that many batches.

    Both depend on the arguments alone and on nothing random, so they are the same on every rank and in every epoch.

    Args:
        lengths: Vertices of each scene, (n,).
        limits: What a batch may hold.
        world_size: Number of ranks, at most n.
    """
    oversize = np.flatnonzero(lengths > limits.max_points)
    regular = np.flatnonzero(lengths <= limits.max_points)
    # Large scenes first; equal ones by index, so that nothing depends on how a sort treats them.
    regular = regular[np.argsort(-lengths[regular], kind="stable")]
    sizes: list[int] = lengths[regular].tolist()
    tight = _pack_best_fit(sizes, limits)
    count, padding = _count_batches(len(tight), len(sizes), len(oversize), sum(sizes) / limits.max_points, world_size)
    batches = _pack_evenly(sizes, count, limits) or split_fullest(tight, sizes, count)
    scenes: list[int] = regular.tolist()
    named = Packing.from_batches([[scenes[item] for item in batch] for batch in batches])
    return BasePacking(named, oversize, padding)


def _count_batches(tight: int, regular: int, oversize: int, full_batches: float, world_size: int) -> tuple[int, int]:
    """Number of regular batches, and of padding."""
    roomy = min(max(tight, int(full_batches / _MAX_FILL)), regular)
    for wanted in (roomy, tight):
        count = -(-(wanted + oversize) // world_size) * world_size - oversize
        if count <= regular:
            return count, 0
    # Every scene is a batch of its own, and still they cannot be dealt out evenly.
    return regular, -(regular + oversize) % world_size


def _pack_best_fit(sizes: list[int], limits: Limits) -> list[list[int]]:
    """Pack descending sizes into few batches: each goes where it leaves the least room."""
    batches: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room, batch) of batches that take more, sorted
    for item, size in enumerate(sizes):
        place = bisect_left(rooms, (size, -1))
        if place < len(rooms):
            room, index = rooms.pop(place)
            batches[index].append(item)
        else:
            room, index = limits.max_points, len(batches)
            batches.append([item])
        if len(batches[index]) < limits.max_scenes:
            insort(rooms, (room - size, index))
    return batches


def _pack_evenly(sizes: list[int], count: int, limits: Limits) -> list[list[int]] | None:
    """Pack descending sizes into exactly so many batches, each where there is least; None if that does not fit."""
    batches: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, 0, index) for index in range(count)]  # (points, scenes, batch), a heap
    for item, size in enumerate(sizes):
        if not loads or loads[0][0] + size > limits.max_points:
            return None
        points, scenes, index = loads[0]
        batches[index].append(item)
        if scenes + 1 < limits.max_scenes:
            heapq.heapreplace(loads, (points + size, scenes + 1, index))
        else:
            heapq.heappop(loads)
    return batches


def split_fullest(batches: Sequence[Sequence[int]], sizes: Sequence[int], count: int) -> list[list[int]]:
    """Split the fullest batches in two until there are so many, or until no batch has more than one scene.

    Args:
        batches: Items of each batch.
        sizes: Vertices by item.
        count: Number of batches wanted.
    """
    parts = [list(batch) for batch in batches]
    fullest = [(-sum(sizes[item] for item in part), index) for index, part in enumerate(parts) if len(part) > 1]
    heapq.heapify(fullest)
    while len(parts) < count and fullest:
        _, index = heapq.heappop(fullest)
        halves = _halve(parts[index], sizes)
        parts[index] = halves[0]
        parts.append(halves[1])
        for place, half in zip((index, len(parts) - 1), halves, strict=True):
            if len(half) > 1:
                heapq.heappush(fullest, (-sum(sizes[item] for item in half), place))
    return parts


def _halve(batch: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Split two or more scenes into two parts of similar size, neither of them empty."""
    halves: tuple[list[int], list[int]] = ([], [])
    loads = [(0, 0), (0, 0)]  # (points, scenes)
    for item in sorted(batch, key=lambda item: (-sizes[item], item)):
        side = 0 if loads[0] <= loads[1] else 1
        halves[side].append(item)
        loads[side] = (loads[side][0] + sizes[item], loads[side][1] + 1)
    return halves
