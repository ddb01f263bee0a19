"""Packs scenes into batches under a budget of points: how many batches there are, and one packing that fits."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.errors import UsageError

# The room that is left in the batches, so that scenes can change places from epoch to epoch. With 1.5 % and sizes like
# those of ScanNet's scenes, 1 % of the pairs that share a batch do so again in the next epoch (0.3 % would by chance).
_MAX_FILL = 0.985
_LENGTHS_HINT = "pass dataset.lengths"


@dataclass(frozen=True, slots=True)
class Packing:
    """Scenes in batches.

    Attributes:
        scenes: Indices of the scenes, int64 (S,), batch after batch.
        ends: Where each batch ends in `scenes`, int64 (K,), cumulative.
    """

    scenes: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.ends)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Scenes in each batch, int64 (K,)."""
        return np.diff(self.ends, prepend=0)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each batch begins in `scenes`, int64 (K,)."""
        return self.ends - self.counts

    def batch(self, index: int) -> list[int]:
        """The scenes of one batch."""
        scenes: list[int] = self.scenes[self.ends[index - 1] if index else 0 : self.ends[index]].tolist()
        return scenes

    def loads(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Vertices of each batch, int64 (K,)."""
        sums = np.concatenate([[0], np.cumsum(lengths[self.scenes], dtype=np.int64)])
        loads: NDArray[np.int64] = sums[self.ends] - sums[self.starts]
        return loads

    def take(self, order: NDArray[np.int64]) -> Packing:
        """Some of the batches, in the given order."""
        counts = self.counts[order]
        ends = np.cumsum(counts)
        shifts = np.repeat(self.starts[order] - (ends - counts), counts)
        return Packing(self.scenes[np.arange(len(shifts)) + shifts], ends)


def pack(lengths: NDArray[np.int64], max_points: int, max_scenes: int, world_size: int) -> Packing:
    """Pack all scenes into batches whose number is a multiple of the number of ranks.

    Nothing is random, so the result is the same on every rank and in every epoch.

    Args:
        lengths: Vertices of each scene, (n,).
        max_points: Most vertices in a batch; a larger scene is a batch of its own.
        max_scenes: Most scenes in a batch.
        world_size: Number of ranks.

    Returns:
        Batches, none of them empty. Only where hardly any two scenes fit together, so that no such number is possible,
        every scene is a batch of its own.
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
    return Packing(scenes, np.cumsum([len(batch) for batch in batches], dtype=np.int64))


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


def check_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    """Check the vertex counts of the scenes, and copy them.

    Args:
        lengths: Whole numbers from 0, (n,).

    Returns:
        int64 (n,).

    Raises:
        UsageError: They are not whole numbers in one dimension, there are none, or one is negative.
    """
    if hasattr(lengths, "lengths"):  # as an array, it would be read scene by scene
        raise UsageError(f"lengths is a {type(lengths).__name__}, expected one number for each scene", _LENGTHS_HINT)
    array = np.asarray(lengths)
    if array.ndim != 1 or not len(array):
        raise UsageError(f"lengths has the shape {array.shape}, expected one number for each scene", _LENGTHS_HINT)
    if not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"lengths is of type {array.dtype}, expected whole numbers", _LENGTHS_HINT)
    array = array.astype(np.int64)
    if array.min() < 0:
        raise UsageError(
            f"lengths has {array.min()} at position {array.argmin()}, expected numbers from 0", _LENGTHS_HINT
        )
    return array
