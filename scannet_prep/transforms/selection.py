"""Transforms that choose among the points: crops, drops, another order, one for each voxel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.transforms import arguments
from scannet_prep.transforms.arguments import SMALLEST, flag, number, optional, whole_number
from scannet_prep.transforms.draft import AnySample, Columns, Draft, Ints
from scannet_prep.transforms.draws import draw_bits
from scannet_prep.transforms.steps import Parameters, Selecting

_CELL_SIZE = number(SMALLEST)


class CropPoints(
    Selecting,
    max_points=whole_number(1),
    sample_rate=number(1e-6, 1),
    classes=arguments.train_ids(),
    label_set=optional(arguments.label_set()),
):
    """Keeps the vertices nearest to a random vertex, if the scene has more than `max_points`.

    Vertices stay in their order; among equally far ones the first count as nearer. Pointcept's
    `SphereCrop` (pointcept/datasets/transform.py) and `rand_crop` of OctFormer
    (datasets/scannet.py).

    A crop removes everything outside, also annotated vertices of limited annotations. Inside, all
    of them stay.

    Attributes:
        max_points: Vertices to keep.
        sample_rate: Share of the vertices to keep at most, above 0..1.
        classes: Train ids from which the random vertex is chosen, for example `SCANNET200.tail`: one
            of those that occur in the scene, each as likely, then one of its vertices. Any vertex if
            none occurs, and by default.
        label_set: The label set of `classes`, or its name. A sample with labels of the other one is
            refused. It may be left out if one of the ids is none of ScanNet20: then it is
            ScanNet200. A dict without `label_set` is accepted.
    """

    max_points: int
    sample_rate: float = 1.0
    classes: tuple[int, ...] = ()
    label_set: LabelSet | None = None

    def __post_init__(self) -> None:
        """Check the arguments, also against each other."""
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
                f"{name}: classes is {self.classes}, which are train ids of both label sets, "
                "for different classes: expected label_set",
                f"{name}({self.max_points}, classes={self.classes}, label_set=SCANNET20), or SCANNET200",
            )

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Crop."""
        label_set = self._find_label_set()
        if label_set is not None:
            draft.check_label_set(label_set)
        count = min(self.max_points, max(1, int(self.sample_rate * draft.count)))
        if draft.count <= count:
            return {"kept": draft.count}
        center = self._choose_center(draft, generator)

        # Squared distance of each vertex to the centre (N,). Small integers would overflow.
        points = draft.columns("points")
        columns = points.astype(np.result_type(points, np.float32), copy=False)
        x, y, z = columns - columns[:, [center]]
        # Spelt out: what libraries add up depends on the number of threads.
        distances = x * x + y * y + z * z

        farthest = np.partition(distances, count - 1)[count - 1]
        if not np.isfinite(farthest):  # no vertex would be nearer, and the scene empty
            raise UsageError(
                "CropPoints: there are points that are not finite",
                'sample["points"][~numpy.isfinite(sample["points"]).all(axis=1)] shows them',
            )
        is_kept = distances < farthest
        at_the_edge = np.flatnonzero(distances == farthest)
        is_kept[at_the_edge[: count - np.count_nonzero(is_kept)]] = True
        draft.select(np.flatnonzero(is_kept))
        return {"kept": count, "center": columns[:, center]}

    def _choose_center(self, draft: Draft, generator: Generator) -> int:
        """Choose the index of a vertex, of one of the classes if these are given and occur."""
        index = int(generator.integers(draft.count))
        if not self.classes:
            return index
        labels = draft.columns("labels")
        present = np.unique(labels[np.isin(labels, self.classes)])
        if not len(present):
            return index
        return int(generator.choice(np.flatnonzero(labels == generator.choice(present))))

    def _find_label_set(self) -> LabelSet | None:
        """Find the label set of the classes; None if there are no classes."""
        if self.label_set is not None:
            return self.label_set
        return SCANNET200 if self.classes else None


class CropBox(Selecting, limit=number(SMALLEST)):
    """Keeps the vertices of which all coordinates lie between -limit and limit.

    `Points.clip` of ocnn (ocnn/octree/points.py), which OctFormer needs because its octree ends
    there. A crop removes everything outside, also annotated vertices of limited annotations.

    Attributes:
        limit: Metres.
    """

    limit: float

    def change(self, draft: Draft, generator: Generator) -> Parameters:  # noqa: ARG002
        """Crop."""
        farthest = np.abs(draft.columns("points")).max(axis=0)
        draft.select(np.flatnonzero(farthest < self.limit))
        return {"kept": draft.count}


class ShufflePoint(Selecting):
    """Puts the vertices into a random order.

    Pointcept's `ShufflePoint` (pointcept/datasets/transform.py).
    """

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Shuffle."""
        draft.select(generator.permutation(draft.count))
        return {}


class Drop(Selecting, share=number(0, 1)):
    """Drops a share of the vertices, chosen at random; at least one stays.

    Vertices stay in their order. Of limited annotations, the annotated vertices stay beside the
    share that is kept, as in Pointcept's `RandomDropout` (pointcept/datasets/transform.py).

    Attributes:
        share: 0..1; the number of dropped vertices is rounded.
    """

    share: float = 0.2

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Drop."""
        kept_count = max(min(draft.count, 1), draft.count - round(self.share * draft.count))
        kept = generator.permutation(draft.count)[:kept_count]
        annotated = draft.find_annotated()
        if annotated is None:
            kept.sort()
        else:
            kept = np.union1d(kept, np.flatnonzero(annotated))
        draft.select(kept)
        return {"kept": len(kept)}


class GridSample(Selecting, size=_CELL_SIZE, has_inverse=flag()):
    """Keeps one vertex, chosen at random, of all that lie in the same cell of a grid (voxel).

    Nothing is averaged, so labels and ids stay exact. A vertex lies in the cell
    floor(point / size), computed in double precision; the grid begins at the origin of the frame.
    Vertices stay in their order. It adds

    - `grid`: int32 (N, 3), the cell of each kept vertex, counted from the smallest in each
      direction;
    - `inverse`: int64 (V,), for each vertex from before, where its representative now is:
      `prediction[inverse]` has a prediction for every vertex of the scene.

    Of limited annotations, all annotated vertices stay: they are kept in place of the vertex that
    would have been chosen for their cell. A cell occurs several times in `grid` only if several
    annotated vertices lie in it.

    Attributes:
        size: Edge of a cell, metres.
        has_inverse: False to leave `inverse` out, which training does not need.
    """

    size: float
    has_inverse: bool = True

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Sample."""
        if "inverse" in draft.sample:
            raise UsageError(
                "GridSample: the sample has an inverse map already",
                "GridSample(size, has_inverse=False) for all but the last",
            )
        cells, numbers, bits = _number_cells("GridSample", draft.columns("points"), self.size)
        order, starts = _sort_cells(numbers, bits, generator)

        annotated = draft.find_annotated()
        is_chosen = np.zeros(draft.count, np.bool_)
        # Not kept in a variable: `select` copies rows into the memory that it leaves, and takes a
        # fifth longer in new memory.
        is_chosen[_represent_cells(order, starts, annotated)] = True
        if annotated is not None:
            is_chosen |= annotated
        draft.add("grid", cells)
        draft.select(np.flatnonzero(is_chosen))
        if self.has_inverse:
            new_indices = np.cumsum(is_chosen) - 1
            counts = np.diff(starts, append=len(order))
            inverse = np.empty(len(order), np.int64)
            representatives = new_indices[_represent_cells(order, starts, annotated)]
            inverse[order] = np.repeat(representatives, counts)
            if annotated is not None:
                inverse[annotated] = new_indices[annotated]
            draft.sample["inverse"] = inverse
        return {"kept": draft.count}


def fragments(sample: AnySample, size: float) -> list[AnySample]:
    """Divide a scene into fragments for inference.

    Together they have every vertex, and each has at most one vertex of a cell. Pointcept's
    `GridSample(mode="test")` (pointcept/datasets/transform.py). Nothing is random. There are as many
    fragments as vertices in the fullest cell; each has a vertex of every cell, so those of less full
    cells come several times.

    Args:
        sample: As from the dataset, or after transforms that move points.
        size: Edge of a cell, metres.

    Returns:
        Samples with `grid`, as from `GridSample`, and `index`: int64 (N,), where their vertices are
        in the scene. `merge_fragments` brings their predictions together.

    Raises:
        UsageError: There are no points, or `size` is not a length.
    """
    size = arguments.check("fragments", "size", size, _CELL_SIZE, "fragments(sample, 0.02)")
    columns = Draft(sample, "fragments").columns("points")
    cells, numbers, bits = _number_cells("fragments", columns, size)
    order, starts = _sort_cells(numbers, bits, None)
    counts = np.diff(starts, append=len(order))
    parts = []
    for part in range(counts.max()):
        index = np.sort(order[starts + part % counts])
        draft = Draft(sample, "fragments")
        draft.leave_out(Selecting.drops)
        draft.select(index)
        draft.add("grid", cells.take(index, axis=1))
        draft.add("index", index)
        parts.append(draft.finish())
    return parts


def merge_fragments(parts: Iterable[tuple[Any, Any]], count: int) -> NDArray[np.float32]:
    """Merge predictions for fragments of a scene: the mean for each vertex.

    Fragments of several augmentations of the scene may come together. Pointcept adds the softmax of
    all predictions up (pointcept/engines/test.py), which gives the same classes.

    Args:
        parts: For each fragment its `index`, integers (N,), without repetition, and its predictions,
            for example probabilities, floats (N, C). Arrays, or tensors in the memory of the CPU.
        count: Vertices of the scene.

    Returns:
        float32 (count, C).

    Raises:
        UsageError: Shapes do not fit, an index comes twice in a fragment, or a vertex is in none.
    """
    total = np.zeros((count, 0), np.float32)
    times = np.zeros(count, np.int64)
    for index, predictions in parts:
        index = np.asarray(index)
        predictions = np.asarray(predictions)
        if not total.shape[1]:
            total = np.zeros((count, *predictions.shape[1:]), np.float32)
        expected = (len(index), *total.shape[1:])
        if predictions.shape != expected or total.ndim != 2:
            raise UsageError(
                f"predictions are {predictions.shape}, expected {expected}: a row for each vertex",
                'merge_fragments([(fragment["index"], scores), ...], count)',
            )
        once = np.bincount(index, minlength=count)
        if len(once) > count or once.max(initial=0) > 1:
            raise UsageError(
                f"an index of a fragment is above {count - 1} or comes twice",
                'merge_fragments([(fragment["index"], scores), ...], count)',
            )
        total[index] += predictions
        times += once
    missing = np.count_nonzero(times == 0)
    if missing:
        raise UsageError(
            f"{missing} of {count} vertices are in no fragment",
            'for fragment in fragments(sample, size): parts.append((fragment["index"], scores))',
        )
    total /= times[:, None].astype(np.float32)
    return total


def _represent_cells(order: Ints, starts: Ints, annotated: NDArray[np.bool_] | None) -> Ints:
    """Choose a vertex of each cell, int64 (cells,): the first one, or the last annotated one."""
    representatives = order.take(starts, mode="clip")
    if annotated is not None:
        positions = np.flatnonzero(annotated[order])
        cells_of_annotated = np.searchsorted(starts, positions, side="right") - 1
        representatives[cells_of_annotated] = order[positions]
    return representatives


def _number_cells(name: str, points: Columns, size: float) -> tuple[NDArray[np.int32], Ints, int]:
    """Number the cells of points.

    Returns:
        The cell of each point, int32 (3, N), counted from the smallest; a number for each cell,
        int64 (N,); and how many bits a number has.
    """
    if not points.size:
        raise UsageError(f"{name}: there are no points, expected at least one")
    cells = np.divide(points, size, dtype=np.float64)
    np.floor(cells, out=cells)
    ends = np.array([points.min(axis=1), points.max(axis=1)], np.float64)
    lowest, highest = np.floor(ends / size)
    cells -= lowest[:, None]

    # A number and a position must fit into 64 bits, with room for chance.
    extent = highest - lowest + 1
    count = extent.prod()
    if not extent.max() < 2**31 or not count < min(2.0**53, 2.0**59 / points.shape[1]):
        cells_text = " x ".join(f"{length:g}" for length in extent)
        raise UsageError(
            f"{name}: the scene has {cells_text} cells, too many to count",
            f"{name}({'sample, ' if name == 'fragments' else ''}0.02)",
        )
    numbers = cells[0] * extent[1]
    numbers += cells[1]
    numbers *= extent[2]
    numbers += cells[2]
    return cells.astype(np.int32), numbers.astype(np.int64), int(count).bit_length()


def _sort_cells(numbers: Ints, number_bits: int, generator: Generator | None) -> tuple[Ints, Ints]:
    """Positions sorted by number, which is overwritten; and where in them each number begins.

    Positions of one number are in any order, each as likely, or without a generator ascending.
    """
    # Number, chance and position in one: much faster than a stable argsort, with the same result on
    # every processor.
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
