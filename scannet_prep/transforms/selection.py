"""Transforms that keep some of the vertices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.transforms.arguments import check_range


def select_vertices(sample: dict[str, Any], kept: NDArray[np.int64]) -> dict[str, Any]:
    """Keep some vertices, in every array of the vertices.

    Args:
        sample: With `points`, (V, 3).
        kept: Their indices, (N,).

    Returns:
        The same, with N vertices. Where `GridSample` has left an `inverse`, it points to the new places, and is -1 for
        vertices whose representative is gone.

    Raises:
        UsageError: There is an `edge_index`, whose numbers would no longer hold.
    """
    if "edge_index" in sample:
        raise UsageError(
            "the sample has an edge_index, whose numbers would no longer hold", "make the edges afterwards"
        )
    count = len(sample["points"])
    result = {
        key: value.take(kept, axis=0)
        if isinstance(value, np.ndarray) and value.ndim and len(value) == count and key != "inverse"
        else value
        for key, value in sample.items()
    }
    if "inverse" in sample:
        places = np.full(count + 1, -1, np.int64)  # the last for -1
        places[kept] = np.arange(len(kept))
        result["inverse"] = places[sample["inverse"]]
    return result


@dataclass(frozen=True, slots=True)
class CropPoints:
    """Keeps the vertices nearest to a random vertex, where the scene has more than it may.

    Vertices stay in their order; among equally far ones the first count as nearer.

    Attributes:
        max_points: Vertices to keep.
    """

    max_points: int

    def __post_init__(self) -> None:
        """Check the argument."""
        check_range(self, "max_points", lowest=1, is_whole=True)

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        """Crop."""
        points = sample["points"]
        if len(points) <= self.max_points:
            return dict(sample)
        x, y, z = (points - points[generator.integers(len(points))]).T
        distances = x * x + y * y + z * z  # spelt out: what libraries add up depends on the number of threads
        farthest = np.partition(distances, self.max_points - 1)[self.max_points - 1]
        if not np.isfinite(farthest):  # no vertex would be nearer, and the scene empty
            raise UsageError("CropPoints: there are points that are not finite", "take them out before")
        is_kept = distances < farthest
        at_the_edge = np.flatnonzero(distances == farthest)
        is_kept[at_the_edge[: self.max_points - np.count_nonzero(is_kept)]] = True
        return select_vertices(sample, np.flatnonzero(is_kept))


@dataclass(frozen=True, slots=True)
class Drop:
    """Drops a share of the vertices, chosen at random; at least one stays. Vertices stay in their order.

    Attributes:
        share: 0..1; the number of dropped vertices is rounded.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        """Check the argument."""
        check_range(self, "share", lowest=0, highest=1)

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        """Drop."""
        count = len(sample["points"])
        kept_count = max(min(count, 1), count - round(self.share * count))
        return select_vertices(sample, np.sort(generator.permutation(count)[:kept_count]))


@dataclass(frozen=True, slots=True)
class GridSample:
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

    def __post_init__(self) -> None:
        """Check the argument."""
        check_range(self, "size", lowest=1e-6)

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        """Sample."""
        if "inverse" in sample:
            raise UsageError("GridSample: the sample has an inverse map already", "use GridSample once")
        points = sample["points"]
        if not len(points):
            raise UsageError("GridSample: there are no points")
        cells = np.floor(np.ascontiguousarray(points.T, np.float64) / self.size)
        cells -= cells.min(axis=1, keepdims=True)
        extent = cells.max(axis=1) + 1
        bits = len(points).bit_length()
        if not np.isfinite(extent).all() or extent.max() > np.iinfo(np.int32).max or extent.prod() > 2.0 ** (62 - bits):
            cells_text = " x ".join(f"{number:g}" for number in extent)
            raise UsageError(f"GridSample: the scene has {cells_text} cells, too many to count", "choose a larger size")
        keys = cells[0].astype(np.int64)
        for axis in (1, 2):
            keys *= int(extent[axis])
            keys += cells[axis].astype(np.int64)
        kept, inverse = _choose_one_each(keys, bits, generator)
        result = select_vertices(sample, kept)
        result["grid"] = np.ascontiguousarray(cells.take(kept, axis=1).T, np.int32)
        return {**result, "inverse": inverse} if self.has_inverse else result


def _choose_one_each(
    keys: NDArray[np.int64], bits: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose one position at random for each key that occurs.

    Args:
        keys: Below 2 ** (63 - bits); overwritten.
        bits: That a position needs.
        generator: Source of randomness.

    Returns:
        The chosen positions, ascending; and for each position, which of them has its key.
    """
    # Key and position in one number: much faster than a stable argsort, with the same result on every processor. In
    # place, because fresh memory costs more than the arithmetic.
    keys <<= bits
    keys |= np.arange(len(keys))
    keys.sort()
    order = keys & ((1 << bits) - 1)
    keys >>= bits
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
    counts = np.diff(starts, append=len(keys))
    chosen = order[starts + (generator.random(len(starts)) * counts).astype(np.int64)]
    is_chosen = np.zeros(len(keys), np.bool_)
    is_chosen[chosen] = True
    places = np.cumsum(is_chosen) - 1
    keys[order] = np.repeat(places[chosen], counts)
    return np.flatnonzero(is_chosen), keys
