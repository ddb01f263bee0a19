"""Transforms that select vertices: crops, random drops and voxels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from scannet_prep.errors import UsageError
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.transforms.draft import Bools, Columns, Draft, Ints, as_floats
from scannet_prep.transforms.steps import Selecting, check_share


@dataclass(frozen=True)
class CropPoints(Selecting):
    """Keeps the vertices nearest to a random vertex, if there are more than the crop may keep.

    Vertices keep their order. Of vertices at the same distance, the first ones are kept. A crop
    removes everything outside, even the annotated vertices of limited annotations.

    It is Pointcept's `SphereCrop` (pointcept/datasets/transform.py) and OctFormer's `rand_crop`
    (datasets/scannet.py).

    Attributes:
        max_points: Largest number of vertices to keep.
        classes: Train ids of classes in which to crop, for example `SCANNET200.tail`. First one of
            the classes that occur in the scene is drawn uniformly, then one of its vertices. By
            default, and if none of the classes occurs, any vertex is drawn.
        label_set: Label set of `classes`. A sample with labels of the other label set is refused. A
            dict without `label_set` is accepted.

    Raises:
        UsageError: There are classes without a label set, or beyond it; or a crop keeps nothing.
    """

    max_points: int
    classes: tuple[int, ...] = ()
    label_set: LabelSet | None = None

    def __post_init__(self) -> None:
        """Check the size of the crop, and that the classes belong to the label set."""
        if self.max_points < 1:
            raise UsageError(f"CropPoints: max_points is {self.max_points}, expected at least 1")
        for train_id in self.classes:
            if self.label_set is None:
                raise UsageError(
                    "CropPoints: there are classes, but no label_set, and the train ids of the two "
                    "label sets mean different classes",
                    "CropPoints(..., classes=SCANNET200.tail, label_set=SCANNET200)",
                )
            if train_id not in range(len(self.label_set)):
                raise UsageError(
                    f"CropPoints: classes has {train_id!r}, which is not a train id of "
                    f"{self.label_set.name}"
                )

    def change(self, draft: Draft, generator: Generator) -> None:
        """Crop the sample."""
        if self.label_set is not None:
            draft.check_label_set(self.label_set)
        count = self.max_points
        if draft.count <= count:
            return
        center = self._choose_center(draft, generator)

        # Squared distance of each vertex to the centre, (N,), in floats because small integers
        # would overflow. Not a product of matrices, whose rounding may depend on the number of
        # threads.
        points = as_floats(draft.columns("points"))
        middle = points[:, [center]]
        x, y, z = points - middle
        distances = x * x + y * y + z * z

        # The `count`-th smallest distance. NumPy puts inf and nan last, so this distance is finite
        # if at least `count` distances are.
        last = count - 1
        edge = np.partition(distances, last)[last]
        if not np.isfinite(edge):
            raise UsageError(
                "CropPoints: there are points that are not finite",
                "find them with numpy.isfinite",
            )

        # Keep the nearer vertices, and as many of those at the edge as are missing.
        is_kept = distances < edge
        missing_count = count - np.count_nonzero(is_kept)
        at_edge = np.flatnonzero(distances == edge)
        is_kept[at_edge[:missing_count]] = True
        draft.select(np.flatnonzero(is_kept))

    def _choose_center(self, draft: Draft, generator: Generator) -> int:
        """Choose the index of a vertex, in one of the classes if any of them occurs."""
        # Any vertex, for the case that none of the classes occurs.
        index = int(generator.integers(draft.count))
        if not len(self.classes):
            return index
        labels = draft.columns("labels")
        is_chosen = np.isin(labels, self.classes)
        present = np.unique(labels[is_chosen])
        if not len(present):
            return index
        chosen_class = generator.choice(present)
        candidates = np.flatnonzero(labels == chosen_class)
        return int(generator.choice(candidates))


@dataclass(frozen=True)
class Drop(Selecting):
    """Drops a random share of the vertices, but never all of them.

    Vertices keep their order. With limited annotations, all annotated vertices are kept in addition
    to the remaining share, as in Pointcept's `RandomDropout` (pointcept/datasets/transform.py).

    Attributes:
        share: Share of the vertices to drop, 0..1. Their number is rounded.

    Raises:
        UsageError: It is not in 0..1.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        """Check the share."""
        check_share("Drop: share", self.share)

    def change(self, draft: Draft, generator: Generator) -> None:
        """Drop vertices."""
        # The vertices with the smallest random numbers are dropped. At least one stays.
        ranks = generator.random(draft.count, np.float32)
        dropped_count = round(self.share * draft.count)
        dropped_count = min(dropped_count, draft.count - 1)
        if dropped_count <= 0:
            return
        order = np.argpartition(ranks, dropped_count)
        is_kept = np.ones(draft.count, np.bool_)
        is_kept[order[:dropped_count]] = False
        annotated = draft.find_annotated()
        if annotated is not None:
            is_kept |= annotated
        draft.select(np.flatnonzero(is_kept))


@dataclass(frozen=True)
class GridSample(Selecting):
    """Keeps one random vertex of each voxel (cell of a grid).

    Nothing is averaged, so labels and ids are exact. A vertex lies in the cell
    floor(point / size), computed in double precision; the grid begins at the origin of the frame.
    Vertices keep their order. The transform adds

    - `grid`: int32 (N, 3), the cell of each kept vertex, counted from the smallest in each
      direction;
    - `inverse`: int64 (V,), for each of the V vertices before sampling, the new index of the vertex
      that represents it, so that `prediction[inverse]` is a prediction for all of them.

    With limited annotations, all annotated vertices are kept, in place of the random vertex of
    their cell. A cell occurs several times in `grid` only if it has several annotated vertices.

    Attributes:
        size: Edge of a cell, metres.
        has_inverse: Whether to add `inverse`, which training does not need.
    """

    size: float
    has_inverse: bool = True

    def change(self, draft: Draft, generator: Generator) -> None:
        """Sample the vertices."""
        if "inverse" in draft.sample:
            raise UsageError(
                "GridSample: the sample has an inverse map already",
                "pass has_inverse=False to all but the last GridSample",
            )
        points = draft.columns("points")
        cells, numbers, bits = number_cells("GridSample", points, self.size)
        order, starts = sort_cells(numbers, bits, generator)

        annotated = draft.find_annotated()
        representatives = _represent_cells(order, starts, annotated)
        is_chosen = np.zeros(draft.count, np.bool_)
        is_chosen[representatives] = True
        if annotated is not None:
            is_chosen |= annotated
        draft.add("grid", cells)
        draft.select(np.flatnonzero(is_chosen))

        if self.has_inverse:
            # The new index of each chosen vertex, (V,); the other entries are not used. The number
            # of vertices of each cell, (cells,), in the order of the cells, like `order`.
            new_indices = np.cumsum(is_chosen) - 1
            counts = np.diff(starts, append=len(order))
            inverse = np.empty_like(order)
            inverse[order] = np.repeat(new_indices[representatives], counts)
            # All annotated vertices were kept, so each represents itself.
            if annotated is not None:
                inverse[annotated] = new_indices[annotated]
            draft.sample["inverse"] = inverse


def _represent_cells(
    order: Ints,
    starts: Ints,
    annotated: Bools | None,
) -> Ints:
    """Choose the vertex that represents each cell, int64 (cells,).

    It is the last annotated vertex of the cell in `order`; without one, the cell's first vertex.

    Args:
        order: The vertices by cell, from `sort_cells`.
        starts: Where each cell begins in `order`, from `sort_cells`.
        annotated: Whether each vertex is annotated, bool (N,); None without limited annotations.
    """
    representatives = order.take(starts, mode="clip")
    if annotated is not None:
        # The positions of the annotated vertices in `order`, ascending, and their cells, (A,). If a
        # cell is repeated, NumPy stores the last value.
        positions = np.flatnonzero(annotated[order])
        cells_of_annotated = np.searchsorted(starts, positions, side="right") - 1
        representatives[cells_of_annotated] = order[positions]
    return representatives


def number_cells(
    name: str,
    points: Columns,
    size: float,
) -> tuple[Columns, Ints, int]:
    """Number the cells of a grid that contain points.

    Args:
        name: Name of the caller, for messages.
        points: (3, N), metres.
        size: Edge of a cell, metres.

    Returns:
        The cell of each point, int32 (3, N), counted from the smallest. The number of this cell,
        int64 (N,). The number of bits that a number needs.

    Raises:
        UsageError: There are no points, or too many cells.
    """
    point_count = points.shape[1]
    if not point_count or not size > 0:
        raise UsageError(
            f"{name}: there are {point_count:,} points and cells of {size} m, "
            "expected at least one point, and a size above 0"
        )
    cells = np.divide(points, size, dtype=np.float64)
    np.floor(cells, out=cells)
    # Rounding keeps the order, so these are the cells of the outermost points.
    lowest = cells.min(axis=1)
    highest = cells.max(axis=1)
    cells -= lowest[:, None]

    # Numbers are computed as float64, which is exact below 2**53. `sort_cells` stores a number,
    # the index of a vertex and some random bits in 63 bits. Extents that are not finite fail these
    # comparisons.
    extent = highest - lowest + 1
    count = extent.prod()
    has_int32_cells = extent.max() < 2**31
    limit = min(2.0**53, 2.0**59 / point_count)
    if not (has_int32_cells and count < limit):
        raise UsageError(
            f"{name}: the scene has {extent} cells along the axes, too many to count",
            "coordinates and size are in metres",
        )

    numbers = cells[0] * extent[1]
    numbers += cells[1]
    numbers *= extent[2]
    numbers += cells[2]
    bits = int(count).bit_length()
    return cells.astype(np.int32), numbers.astype(np.int64), bits


def sort_cells(
    numbers: Ints,
    number_bits: int,
    generator: Generator | None,
) -> tuple[Ints, Ints]:
    """Sort vertices by the number of their cell, and those of one cell at random.

    Args:
        numbers: From `number_cells`, int64 (N,). Overwritten.
        number_bits: From `number_cells`.
        generator: Random numbers; None to keep the vertices of a cell in ascending order.

    Returns:
        The indices of the vertices in the new order, int64 (N,), and the position in it at which
        each cell begins, int64 (cells,).
    """
    # Sort a single integer of number, random bits and index. This is much faster than a stable
    # argsort, and the result is the same on every processor.
    index_bits = len(numbers).bit_length()
    random_bits = 0
    if generator is not None:
        random_bits = min(16, 63 - number_bits - index_bits)
        numbers <<= random_bits
        numbers |= generator.integers(
            1 << random_bits,
            size=len(numbers),
            dtype=np.uint16,
        )
    numbers <<= index_bits
    numbers |= np.arange(len(numbers))
    numbers.sort()

    order = numbers & ((1 << index_bits) - 1)
    numbers >>= index_bits + random_bits
    is_first = np.ones(len(numbers), np.bool_)
    is_first[1:] = np.diff(numbers) > 0
    return order, np.flatnonzero(is_first)
