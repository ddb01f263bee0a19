"""Transforms that choose among the points: crops, drops, another order, one for each voxel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.transforms.steps import AnySample, Columns, Draft, Ints, Selecting, as_rows, draw_bits


class CropPoints(Selecting, max_points=(1, np.inf), sample_rate=(1e-6, 1), classes=(0, np.inf)):
    """Keeps the vertices nearest to a random vertex, where the scene has more than it may.

    Vertices stay in their order; among equally far ones the first count as nearer. Pointcept's `SphereCrop`
    (pointcept/datasets/transform.py) and `rand_crop` of OctFormer (datasets/scannet.py).

    Attributes:
        max_points: Vertices to keep.
        sample_rate: Share of the vertices to keep at most, above 0..1.
        classes: Train ids of which the random vertex shall be, for example `SCANNET200.tail`: one of those that the
            scene has, each as likely, then one of its vertices. Where it has none, and by default, it is any vertex.
    """

    max_points: int
    sample_rate: float = 1.0
    classes: tuple[int, ...] = ()

    def change(self, draft: Draft, generator: Generator) -> None:
        """Crop."""
        count = min(self.max_points, max(1, int(self.sample_rate * draft.count)))
        if draft.count <= count:
            return
        place = generator.integers(draft.count)
        if np.size(self.classes):
            labels = draft.columns("labels")
            present = np.unique(labels[np.isin(labels, self.classes)])
            candidates = np.flatnonzero(labels == generator.choice(present)) if len(present) else [place]
            place = generator.choice(candidates)
        points = draft.columns("points")
        columns = points.astype(np.result_type(points, np.float32), copy=False)  # of small integers would overflow
        x, y, z = columns - columns[:, [place]]
        # Spelt out: what libraries add up depends on the number of threads.
        distances = x * x + y * y + z * z
        farthest = np.partition(distances, count - 1)[count - 1]
        if not np.isfinite(farthest):  # no vertex would be nearer, and the scene empty
            raise UsageError("CropPoints: there are points that are not finite", "take them out before")
        is_kept = distances < farthest
        at_the_edge = np.flatnonzero(distances == farthest)
        is_kept[at_the_edge[: count - np.count_nonzero(is_kept)]] = True
        draft.select(np.flatnonzero(is_kept))


class CropBox(Selecting, limit=(1e-6, np.inf)):
    """Keeps the vertices of which all coordinates lie between -limit and limit.

    `Points.clip` of ocnn (ocnn/octree/points.py), which OctFormer needs because its octree ends there.

    Attributes:
        limit: Metres.
    """

    limit: float

    def change(self, draft: Draft, generator: Generator) -> None:  # noqa: ARG002
        """Crop."""
        draft.select(np.flatnonzero(np.abs(draft.columns("points")).max(axis=0) < self.limit))


class ShufflePoint(Selecting):
    """Puts the vertices into a random order. Pointcept's `ShufflePoint` (pointcept/datasets/transform.py)."""

    def change(self, draft: Draft, generator: Generator) -> None:
        """Shuffle."""
        draft.select(generator.permutation(draft.count))


class Drop(Selecting, share=(0, 1)):
    """Drops a share of the vertices, chosen at random; at least one stays. Vertices stay in their order.

    Attributes:
        share: 0..1; the number of dropped vertices is rounded.
    """

    share: float = 0.2

    def change(self, draft: Draft, generator: Generator) -> None:
        """Drop."""
        kept_count = max(min(draft.count, 1), draft.count - round(self.share * draft.count))
        draft.select(np.sort(generator.permutation(draft.count)[:kept_count]))


class GridSample(Selecting, size=(1e-6, np.inf)):
    """Keeps one vertex, chosen at random, of all that lie in the same cell of a grid (voxel).

    Nothing is averaged, so labels and ids stay exact. A vertex lies in the cell floor(point / size), computed in double
    precision; the grid begins at the origin of the frame. Vertices stay in their order. It adds

    - `grid`: int32 (N, 3), the cell of each kept vertex, counted from the smallest in each direction;
    - `inverse`: int64 (V,), for each vertex from before, where its representative now is: `prediction[inverse]` has a
      prediction for every vertex of the scene.

    Attributes:
        size: Edge of a cell, metres.
        has_inverse: False to leave `inverse` out, which training does not need.
    """

    size: float
    has_inverse: bool = True

    def change(self, draft: Draft, generator: Generator) -> None:
        """Sample."""
        if "inverse" in draft.sample:
            raise UsageError("GridSample: the sample has an inverse map already", "use GridSample once")
        cells, numbers, bits = _number_cells("GridSample", draft.columns("points"), self.size)
        order, starts = _sort_cells(numbers, bits, generator)
        is_chosen = np.zeros(draft.count, np.bool_)
        is_chosen[order.take(starts, mode="clip")] = True
        draft.add("grid", cells)
        draft.select(np.flatnonzero(is_chosen))
        if self.has_inverse:
            places = (np.cumsum(is_chosen) - 1)[order[starts]]
            inverse = np.empty(len(order), np.int64)
            inverse[order] = np.repeat(places, np.diff(starts, append=len(order)))
            draft.sample["inverse"] = inverse


def fragments(sample: AnySample, size: float) -> list[AnySample]:
    """Divide a scene into fragments for inference: together they have every vertex, each at most one of a cell.

    Pointcept's `GridSample(mode="test")` (pointcept/datasets/transform.py). Nothing is random. There are as many
    fragments as vertices in the fullest cell; each has a vertex of every cell, so those of less full cells come several
    times.

    Args:
        sample: As from the dataset, or after transforms that move points.
        size: Edge of a cell, metres.

    Returns:
        Samples with `grid`, as from `GridSample`, and `index`: int64 (N,), where their vertices are in the scene.
        `merge_fragments` brings their predictions together.
    """
    cells, numbers, bits = _number_cells("fragments", sample["points"].T.copy(), size)
    order, starts = _sort_cells(numbers, bits, None)
    counts = np.diff(starts, append=len(order))
    parts = []
    for number in range(counts.max()):
        index = np.sort(order[starts + number % counts])
        draft = Draft(sample)
        draft.leave_out(Selecting.drops)
        draft.select(index)
        parts.append(draft.finish() | {"grid": as_rows(cells.take(index, axis=1)), "index": index})
    return parts


def merge_fragments(parts: Iterable[tuple[Any, Any]], count: int) -> NDArray[np.float32]:
    """Bring predictions for fragments of a scene together: the mean for each vertex.

    Fragments of several augmentations of the scene may come together. Pointcept adds the softmax of all predictions up
    (pointcept/engines/test.py), which gives the same classes.

    Args:
        parts: For each fragment its `index`, integers (N,), without repetition, and its predictions, for example
            probabilities, floats (N, C). Arrays, or tensors in the memory of the CPU.
        count: Vertices of the scene.

    Returns:
        float32 (count, C).

    Raises:
        UsageError: Shapes do not fit, an index comes twice in a fragment, or a vertex is in none.
    """
    total, times = np.zeros((count, 0), np.float32), np.zeros(count, np.int64)
    for index, predictions in parts:
        index, predictions = np.asarray(index), np.asarray(predictions)
        total = total if total.shape[1] else np.zeros((count, *predictions.shape[1:]), np.float32)
        expected = (len(index), *total.shape[1:])
        if predictions.shape != expected or total.ndim != 2:
            raise UsageError(f"predictions are {predictions.shape}, expected {expected}: a row for each vertex")
        once = np.bincount(index, minlength=count)
        if len(once) > count or once.max(initial=0) > 1:
            raise UsageError(f"an index of a fragment is above {count - 1} or comes twice", "take that of fragments()")
        total[index] += predictions
        times += once
    if missing := np.count_nonzero(times == 0):
        raise UsageError(f"{missing} of {count} vertices are in no fragment", "pass all fragments of the scene")
    total /= times[:, None].astype(np.float32)
    return total


def _number_cells(name: str, points: Columns, size: float) -> tuple[NDArray[np.int32], Ints, int]:
    """The cell of each point, (3, N), from the smallest; a number for each cell; and how many bits a number has."""
    if not points.size:
        raise UsageError(f"{name}: there are no points")
    cells = np.divide(points, size, dtype=np.float64)
    np.floor(cells, out=cells)
    ends = np.array([points.min(axis=1), points.max(axis=1)], np.float64)
    lowest, highest = np.floor(ends / size)
    cells -= lowest[:, None]
    extent = highest - lowest + 1
    count = extent.prod()
    # A number and a place make one of 64 bits, with room for chance.
    if not extent.max() < 2**31 or not count < min(2.0**53, 2.0**59 / points.shape[1]):
        cells_text = " x ".join(f"{number:g}" for number in extent)
        raise UsageError(f"{name}: the scene has {cells_text} cells, too many to count", "choose a larger size")
    numbers = cells[0] * extent[1]
    numbers += cells[1]
    numbers *= extent[2]
    numbers += cells[2]
    return cells.astype(np.int32), numbers.astype(np.int64), int(count).bit_length()


def _sort_cells(numbers: Ints, number_bits: int, generator: Generator | None) -> tuple[Ints, Ints]:
    """Positions sorted by number, which is overwritten; and where in them each number begins.

    Positions of one number are in any order, each as likely, or without a generator ascending.
    """
    # Number, chance and position in one: much faster than a stable argsort, with the same result on every processor.
    bits = len(numbers).bit_length()
    chance_bits = 0 if generator is None else min(16, 63 - number_bits - bits)
    if generator is not None:
        numbers <<= chance_bits
        numbers |= draw_bits(generator, len(numbers)) >> (16 - chance_bits)
    numbers <<= bits
    numbers |= np.arange(len(numbers))
    numbers.sort()
    order = numbers & ((1 << bits) - 1)
    numbers >>= bits + chance_bits
    is_first = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=is_first[1:])
    return order, np.flatnonzero(is_first)
