"""Transforms that choose among the points: crops, drops, another order, one for each voxel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.transforms.steps import Ints, Sample, Selecting, as_rows, select, without


@dataclass(frozen=True)
class CropPoints(Selecting, max_points=(1, np.inf), sample_rate=(1e-6, 1)):
    """Keeps the vertices nearest to a random vertex, where the scene has more than it may.

    Vertices stay in their order; among equally far ones the first count as nearer. Pointcept's `SphereCrop`
    (pointcept/datasets/transform.py) and `rand_crop` of OctFormer (datasets/scannet.py).

    Attributes:
        max_points: Vertices to keep.
        sample_rate: Share of the vertices to keep at most, above 0..1.
    """

    max_points: int
    sample_rate: float = 1.0

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Crop."""
        share = max(1, int(self.sample_rate * len(sample["points"])))
        return _crop(self, sample, min(self.max_points, share), generator)


@dataclass(frozen=True)
class CropClasses(Selecting, max_points=(1, np.inf), classes=(0, np.inf)):
    """As `CropPoints`, around a vertex of one of some classes, for example those of the tail of ScanNet200.

    The class is chosen among those that the scene has, each as likely, then one of its vertices. In a scene that has
    none of them, it is any vertex. Needs `labels`.

    Attributes:
        max_points: Vertices to keep.
        classes: Train ids, for example `SCANNET200.tail`.
    """

    max_points: int
    classes: tuple[int, ...]

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Crop."""
        labels = sample["labels"]
        present = np.unique(labels[np.isin(labels, self.classes)])
        candidates = np.flatnonzero(labels == generator.choice(present)) if len(present) else None
        return _crop(self, sample, self.max_points, generator, candidates)


@dataclass(frozen=True)
class CropBox(Selecting, limit=(1e-6, np.inf)):
    """Keeps the vertices of which all coordinates lie between -limit and limit.

    `Points.clip` of ocnn (ocnn/octree/points.py), which OctFormer needs because its octree ends there.

    Attributes:
        limit: Metres.
    """

    limit: float

    def __call__(self, sample: Sample, generator: Generator) -> Sample:  # noqa: ARG002
        """Crop."""
        return select(sample, np.flatnonzero(np.abs(sample["points"].T.copy()).max(axis=0) < self.limit))


@dataclass(frozen=True)
class ShufflePoint(Selecting):
    """Puts the vertices into a random order. Pointcept's `ShufflePoint` (pointcept/datasets/transform.py)."""

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Shuffle."""
        return select(sample, generator.permutation(len(sample["points"])))


@dataclass(frozen=True)
class Drop(Selecting, share=(0, 1)):
    """Drops a share of the vertices, chosen at random; at least one stays. Vertices stay in their order.

    Attributes:
        share: 0..1; the number of dropped vertices is rounded.
    """

    share: float = 0.2

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Drop."""
        count = len(sample["points"])
        kept_count = max(min(count, 1), count - round(self.share * count))
        return select(sample, np.sort(generator.permutation(count)[:kept_count]))


@dataclass(frozen=True)
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

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Sample."""
        if "inverse" in sample:
            raise UsageError("GridSample: the sample has an inverse map already", "use GridSample once")
        cells, keys, bits = _number_cells("GridSample", sample["points"], self.size)
        kept = _choose_one_each(keys, bits, generator, has_inverse=self.has_inverse)
        result = select(sample, kept)
        result["grid"] = as_rows(cells.take(kept, axis=1))
        return {**result, "inverse": keys} if self.has_inverse else result


def fragments(sample: Sample, size: float) -> list[Sample]:
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
    cells, keys, bits = _number_cells("fragments", sample["points"], size)
    order, starts, counts = _sort_keys(keys, bits)
    indices = [np.sort(order[starts + number % counts]) for number in range(counts.max())]
    grids = [as_rows(cells.take(index, axis=1)) for index in indices]
    return [{**select(sample, index), "grid": grid, "index": index} for index, grid in zip(indices, grids, strict=True)]


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


def _crop(
    transform: object, sample: Sample, count: int, generator: Generator, candidates: Ints | None = None
) -> dict[str, Any]:
    """Keep so many vertices, if there are more: the nearest to one of the candidates, or of all."""
    points = sample["points"]
    if len(points) <= count:
        return without(sample, Selecting.drops)  # all samples of a batch need the same keys
    place = generator.integers(len(points if candidates is None else candidates))
    columns = points.T.copy()
    columns -= columns[:, [place if candidates is None else candidates[place]]]
    columns *= columns
    distances = (
        columns[0] + columns[1] + columns[2]
    )  # spelt out: what libraries add up depends on the number of threads
    farthest = np.partition(distances, count - 1)[count - 1]
    if not np.isfinite(farthest):  # no vertex would be nearer, and the scene empty
        message = f"{type(transform).__name__}: there are points that are not finite"
        raise UsageError(message, "take them out before")
    is_kept = distances < farthest
    at_the_edge = np.flatnonzero(distances == farthest)
    is_kept[at_the_edge[: count - np.count_nonzero(is_kept)]] = True
    return select(sample, np.flatnonzero(is_kept))


def _number_cells(name: str, points: NDArray[Any], size: float) -> tuple[NDArray[np.int32], Ints, int]:
    """The cell of each point, (3, V), from the smallest; a number for each cell; and the bits of a point's place."""
    if not len(points):
        raise UsageError(f"{name}: there are no points")
    cells = np.array(points.T, np.float64, order="C")
    cells /= size
    np.floor(cells, out=cells)
    cells -= cells.min(axis=1, keepdims=True)
    extent = cells.max(axis=1) + 1
    bits = len(points).bit_length()
    if not np.isfinite(extent).all() or extent.max() > np.iinfo(np.int32).max or extent.prod() > 2.0 ** (62 - bits):
        cells_text = " x ".join(f"{number:g}" for number in extent)
        raise UsageError(f"{name}: the scene has {cells_text} cells, too many to count", "choose a larger size")
    numbers = cells.astype(np.int32)
    keys = numbers[0].astype(np.int64)
    for axis in (1, 2):
        keys *= int(extent[axis])
        keys += numbers[axis]
    return numbers, keys, bits


def _sort_keys(keys: Ints, bits: int) -> tuple[Ints, Ints, Ints]:
    """Positions sorted by key; where in them each key begins, and how many it has.

    Keys are below 2 ** (63 - bits), and overwritten; a position needs so many bits.
    """
    # Key and position in one number: much faster than a stable argsort, with the same result on every processor. In
    # place, because fresh memory costs more than the arithmetic.
    keys <<= bits
    keys |= np.arange(len(keys))
    keys.sort()
    order = keys & ((1 << bits) - 1)
    keys >>= bits
    is_first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    return order, starts, np.diff(starts, append=len(keys))


def _choose_one_each(keys: Ints, bits: int, generator: Generator, *, has_inverse: bool) -> Ints:
    """Choose one position at random for each key that occurs; gives the chosen positions, ascending.

    Keys are overwritten, see `_sort_keys`: with an inverse, by the place of the chosen one that has the same key.
    """
    order, starts, counts = _sort_keys(keys, bits)
    chosen = order.take(starts + (generator.random(len(starts)) * counts).astype(np.int64), mode="clip")
    is_chosen = np.zeros(len(keys), np.bool_)
    is_chosen[chosen] = True
    if has_inverse:
        places = np.cumsum(is_chosen) - 1
        keys[order] = np.repeat(places[chosen], counts)
    return np.flatnonzero(is_chosen)
