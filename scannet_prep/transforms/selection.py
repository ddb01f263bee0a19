"""Transforms that select or reorder vertices: crops, random drops, shuffling and voxels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.transforms import arguments
from scannet_prep.transforms.arguments import SMALLEST, flag, number, optional, whole_number
from scannet_prep.transforms.draft import AnySample, Columns, Draft, Ints
from scannet_prep.transforms.draws import draw_bits
from scannet_prep.transforms.steps import Parameters, Selecting

# The kind of the argument `size`.
_CELL_SIZE = number(SMALLEST)
_HINT_MERGE = 'merge_fragments([(fragment["index"], scores), ...], count)'


class CropPoints(
    Selecting,
    max_points=whole_number(1),
    sample_rate=number(1e-6, 1),
    classes=arguments.train_ids(),
    label_set=optional(arguments.label_set()),
):
    """Keeps the vertices nearest to a random vertex, if there are more than the crop may keep.

    Vertices keep their order. Of vertices at the same distance, the first ones are kept. A crop
    removes everything outside, even the annotated vertices of limited annotations.

    It is Pointcept's `SphereCrop` (pointcept/datasets/transform.py) and OctFormer's `rand_crop`
    (datasets/scannet.py).

    Attributes:
        max_points: Largest number of vertices to keep.
        sample_rate: Largest share of the vertices to keep, above 0 and at most 1.
        classes: Train ids of classes in which to crop, for example `SCANNET200.tail`. First one of
            the classes that occur in the scene is drawn uniformly, then one of its vertices. By
            default, and if none of the classes occurs, any vertex is drawn.
        label_set: Label set of `classes`, or its name. It is optional if one of the train ids is
            too large for ScanNet20, which leaves ScanNet200. A sample with labels of the other
            label set is refused. A dict without `label_set` is accepted.
    """

    max_points: int
    sample_rate: float = 1.0
    classes: tuple[int, ...] = ()
    label_set: LabelSet | None = None

    def __post_init__(self) -> None:
        """Check each argument, and that the classes belong to the label set."""
        super().__post_init__()
        if not self.classes:
            return
        highest = max(self.classes)
        name = type(self).__name__
        if self.label_set is not None and highest >= len(self.label_set):
            raise UsageError(
                f"{name}: classes has the train id {highest}, "
                f"expected those of {self.label_set.name}, 0 to {len(self.label_set) - 1}",
                "label_set=SCANNET200",
            )
        if self.label_set is None and highest < len(SCANNET20):
            raise UsageError(
                f"{name}: classes is {self.classes}, expected label_set with them: "
                "both label sets have these train ids, for different classes",
                f"{name}({self.max_points}, classes={self.classes}, label_set=SCANNET20), "
                "or SCANNET200",
            )

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Crop the sample."""
        label_set = self._find_label_set()
        if label_set is not None:
            draft.check_label_set(label_set)
        count = min(self.max_points, max(1, int(self.sample_rate * draft.count)))
        if draft.count <= count:
            return {"kept": draft.count}
        center = self._choose_center(draft, generator)

        # Squared distance of each vertex to the centre, (N,), in floats because small integers
        # would overflow. Not a product of matrices, whose rounding may depend on the number of
        # threads.
        points = draft.columns("points")
        columns = points.astype(np.result_type(points, np.float32), copy=False)
        x, y, z = columns - columns[:, [center]]
        distances = x * x + y * y + z * z

        # The `count`-th smallest distance. NumPy puts inf and nan last, so this distance is finite
        # if at least `count` distances are.
        edge = np.partition(distances, count - 1)[count - 1]
        if not np.isfinite(edge):
            raise UsageError(
                "CropPoints: there are points that are not finite",
                'sample["points"][~numpy.isfinite(sample["points"]).all(axis=1)] shows them',
            )

        # Keep the nearer vertices, and as many of those at the edge as are missing.
        is_kept = distances < edge
        missing_count = count - np.count_nonzero(is_kept)
        at_edge = np.flatnonzero(distances == edge)
        is_kept[at_edge[:missing_count]] = True
        draft.select(np.flatnonzero(is_kept))
        return {"kept": count, "center": columns[:, center]}

    def _choose_center(self, draft: Draft, generator: Generator) -> int:
        """Choose the index of a vertex, in one of the classes if any of them occurs."""
        # Any vertex, for the case that none of the classes occurs.
        index = int(generator.integers(draft.count))
        if not self.classes:
            return index
        labels = draft.columns("labels")
        present = np.unique(labels[np.isin(labels, self.classes)])
        if not len(present):
            return index
        chosen_class = generator.choice(present)
        return int(generator.choice(np.flatnonzero(labels == chosen_class)))

    def _find_label_set(self) -> LabelSet | None:
        """Return the label set of the classes; None if neither it nor classes were given."""
        if self.label_set is not None:
            return self.label_set
        # `__post_init__` has checked that one of the classes exists only in ScanNet200.
        return SCANNET200 if self.classes else None


class CropBox(Selecting, limit=number(SMALLEST)):
    """Keeps the vertices whose coordinates all lie between -limit and limit.

    A crop removes everything outside, even the annotated vertices of limited annotations.

    It is ocnn's `Points.clip` (ocnn/octree/points.py), which OctFormer needs because its octree
    ends at the limit.

    Attributes:
        limit: Half the edge of the box, metres.
    """

    limit: float

    def change(self, draft: Draft, generator: Generator) -> Parameters:  # noqa: ARG002
        """Crop the sample."""
        farthest = np.abs(draft.columns("points")).max(axis=0)
        draft.select(np.flatnonzero(farthest < self.limit))
        return {"kept": draft.count}


class ShufflePoint(Selecting):
    """Puts the vertices into a random order.

    It is Pointcept's `ShufflePoint` (pointcept/datasets/transform.py).
    """

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Shuffle the vertices."""
        draft.select(generator.permutation(draft.count))
        return {}


class Drop(Selecting, share=number(0, 1)):
    """Drops a random share of the vertices, but never all of them.

    Vertices keep their order. With limited annotations, all annotated vertices are kept in addition
    to the remaining share, as in Pointcept's `RandomDropout` (pointcept/datasets/transform.py).

    Attributes:
        share: Share of the vertices to drop, 0..1. Their number is rounded.
    """

    share: float = 0.2

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Drop vertices."""
        # At least one vertex is kept, if there is one.
        smallest_count = min(draft.count, 1)
        kept_count = max(smallest_count, draft.count - round(self.share * draft.count))
        kept = generator.permutation(draft.count)[:kept_count]
        annotated = draft.find_annotated()
        if annotated is None:
            kept.sort()
        else:
            kept = np.union1d(kept, np.flatnonzero(annotated))
        draft.select(kept)
        return {"kept": len(kept)}


class GridSample(Selecting, size=_CELL_SIZE, has_inverse=flag()):
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

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Sample the vertices."""
        if "inverse" in draft.sample:
            raise UsageError(
                "GridSample: the sample has an inverse map already",
                "GridSample(size, has_inverse=False) for all but the last",
            )
        cells, numbers, bits = _number_cells("GridSample", draft.columns("points"), self.size)
        order, starts = _sort_cells(numbers, bits, generator)

        annotated = draft.find_annotated()
        is_chosen = np.zeros(draft.count, np.bool_)
        # The representatives are computed again below, not stored: `select` reuses their memory,
        # and takes a fifth longer if it has to allocate.
        is_chosen[_represent_cells(order, starts, annotated)] = True
        if annotated is not None:
            is_chosen |= annotated
        draft.add("grid", cells)
        draft.select(np.flatnonzero(is_chosen))

        if self.has_inverse:
            # The new index of each chosen vertex, (V,); the other entries are not used. The number
            # of vertices of each cell, (cells,), in the order of the cells, like `order`.
            new_indices = np.cumsum(is_chosen) - 1
            counts = np.diff(starts, append=len(order))
            inverse = np.empty(len(order), np.int64)
            representatives = new_indices[_represent_cells(order, starts, annotated)]
            inverse[order] = np.repeat(representatives, counts)
            # All annotated vertices were kept, so each represents itself.
            if annotated is not None:
                inverse[annotated] = new_indices[annotated]
            draft.sample["inverse"] = inverse
        return {"kept": draft.count}


def fragments(sample: AnySample, size: float) -> list[AnySample]:
    """Divide a scene into fragments for inference, each with one vertex of every cell.

    There are as many fragments as vertices in the fullest cell, so that together they contain every
    vertex. Vertices of less full cells are repeated. Not random.

    It is Pointcept's `GridSample(mode="test")` (pointcept/datasets/transform.py).

    Args:
        sample: A sample of the dataset, also after transforms that move points.
        size: Edge of a cell, metres.

    Returns:
        Samples with `grid`, as from `GridSample`, and with `index`, int64 (N,), the indices of
        their vertices in the scene, for `merge_fragments`.

    Raises:
        UsageError: There are no points, or `size` is not a length.
    """
    size = arguments.check("fragments", "size", size, _CELL_SIZE, "fragments(sample, 0.02)")
    columns = Draft(sample, "fragments").columns("points")
    cells, numbers, bits = _number_cells("fragments", columns, size)
    order, starts = _sort_cells(numbers, bits, generator=None)
    # Number of vertices of each cell, (cells,).
    counts = np.diff(starts, append=len(order))

    parts = []
    for part in range(counts.max()):
        # One vertex of each cell: number `part`, or the first ones again if there are fewer.
        index = np.sort(order[starts + part % counts])
        draft = Draft(sample, "fragments")
        draft.leave_out(Selecting.drops)
        draft.select(index)
        draft.add("grid", cells.take(index, axis=1))
        draft.add("index", index)
        parts.append(draft.finish())
    return parts


def merge_fragments(parts: Iterable[tuple[Any, Any]], count: int) -> NDArray[np.float32]:
    """Compute the mean prediction of each vertex over all fragments of a scene.

    Fragments of several augmentations of the scene may be merged at once. Pointcept adds up the
    softmax of all predictions (pointcept/engines/test.py), which gives the same classes.

    Args:
        parts: For each fragment its `index`, integers (N,), without repetition, and its
            predictions, for example probabilities, floats (N, C). Arrays, or tensors on the CPU.
        count: Number of vertices of the scene.

    Returns:
        float32 (count, C).

    Raises:
        UsageError: Shapes do not fit, an index is repeated in a fragment or too large, or a vertex
            is in no fragment.
    """
    # The sum of the predictions of each vertex, without columns until the first fragment, and the
    # number of its fragments.
    total = np.zeros((count, 0), np.float32)
    times = np.zeros(count, np.int64)
    for index, predictions in parts:
        index = np.asarray(index)
        predictions = np.asarray(predictions)
        # The first fragment determines the number of columns. If its predictions are not an array
        # (N, C), neither is the sum, which is refused below.
        if not total.shape[1]:
            total = np.zeros((count, *predictions.shape[1:]), np.float32)
        expected = (len(index), *total.shape[1:])
        if predictions.shape != expected or total.ndim != 2:
            raise UsageError(
                f"predictions are {predictions.shape}, expected {expected}: a row for each vertex",
                _HINT_MERGE,
            )
        occurrences = np.bincount(index, minlength=count)
        if len(occurrences) > count or occurrences.max(initial=0) > 1:
            raise UsageError(
                f"an index of a fragment is above {count - 1} or repeated",
                _HINT_MERGE,
            )
        total[index] += predictions
        times += occurrences

    missing = np.count_nonzero(times == 0)
    if missing:
        raise UsageError(
            f"{missing} of {count} vertices are in no fragment",
            'for fragment in fragments(sample, size): parts.append((fragment["index"], scores))',
        )
    total /= times[:, None].astype(np.float32)
    return total


def _represent_cells(order: Ints, starts: Ints, annotated: NDArray[np.bool_] | None) -> Ints:
    """Choose the vertex that represents each cell, int64 (cells,).

    It is the last annotated vertex of the cell in `order`; without one, the cell's first vertex.

    Args:
        order: The vertices by cell, from `_sort_cells`.
        starts: Where each cell begins in `order`, from `_sort_cells`.
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


def _number_cells(name: str, points: Columns, size: float) -> tuple[NDArray[np.int32], Ints, int]:
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
    if not points.size:
        raise UsageError(f"{name}: there are no points, expected at least one")
    cells = np.divide(points, size, dtype=np.float64)
    np.floor(cells, out=cells)
    ends = np.array([points.min(axis=1), points.max(axis=1)], np.float64)
    lowest, highest = np.floor(ends / size)
    cells -= lowest[:, None]

    # Numbers are computed as float64, which is exact below 2**53. `_sort_cells` stores a number,
    # the index of a vertex and some random bits in 63 bits. Extents that are not finite fail these
    # comparisons.
    extent = highest - lowest + 1
    count = extent.prod()
    has_int32_cells = extent.max() < 2**31
    has_small_numbers = count < min(2.0**53, 2.0**59 / points.shape[1])
    if not (has_int32_cells and has_small_numbers):
        cells_text = " x ".join(f"{length:g}" for length in extent)
        first_argument = "sample, " if name == "fragments" else ""
        raise UsageError(
            f"{name}: the scene has {cells_text} cells, too many to count",
            f"{name}({first_argument}0.02)",
        )

    numbers = cells[0] * extent[1]
    numbers += cells[1]
    numbers *= extent[2]
    numbers += cells[2]
    return cells.astype(np.int32), numbers.astype(np.int64), int(count).bit_length()


def _sort_cells(numbers: Ints, number_bits: int, generator: Generator | None) -> tuple[Ints, Ints]:
    """Sort vertices by the number of their cell, and those of one cell at random.

    Args:
        numbers: From `_number_cells`, int64 (N,). Overwritten.
        number_bits: From `_number_cells`.
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
        numbers |= draw_bits(generator, len(numbers)) >> (16 - random_bits)
    numbers <<= index_bits
    numbers |= np.arange(len(numbers))
    numbers.sort()

    order = numbers & ((1 << index_bits) - 1)
    numbers >>= index_bits + random_bits
    is_first = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=is_first[1:])
    return order, np.flatnonzero(is_first)
