"""Test-time augmentation: views of a scene, and their division into fragments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from scannet_prep.errors import UsageError
from scannet_prep.transforms.draft import AnySample, Draft, Floats
from scannet_prep.transforms.motion import Flip, Rotate, Scale
from scannet_prep.transforms.selection import number_cells, sort_cells
from scannet_prep.transforms.steps import SELECTED_KEYS, Compose, Step


def views_for_testing() -> tuple[Step, ...]:
    """Return the 13 views of Pointcept's test-time augmentation, none of them random.

    The views are the four right angles about z at scales 1, 0.95 and 1.05, and both reflections
    together (`aug_transform` of configs/scannet/semseg-pt-v3m1-0-base.py). Centre the scene first
    (`CenterShift`), and divide each view into `fragments`.
    """
    views: list[Step] = []
    for scale in (1.0, 0.95, 1.05):
        for angle in (0.0, 90.0, 180.0, 270.0):
            turned = Rotate(angle, angle)
            views.append(Compose(turned, Scale(scale, scale)))
    return (*views, Flip(1.0))


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
        UsageError: There are no points, or `size` is not above 0.
    """
    columns = Draft(sample, "fragments").columns("points")
    cells, numbers, bits = number_cells("fragments", columns, size)
    order, starts = sort_cells(numbers, bits, generator=None)
    # Number of vertices of each cell, (cells,).
    counts = np.diff(starts, append=len(order))

    parts = []
    for part in range(counts.max()):
        # One vertex of each cell: number `part`, or the first ones again if there are fewer.
        positions = starts + part % counts
        index = np.sort(order[positions])
        draft = Draft(sample, "fragments")
        draft.leave_out(SELECTED_KEYS)
        draft.select(index)
        draft.add("grid", cells.take(index, axis=1))
        draft.add("index", index)
        parts.append(draft.finish())
    return parts


def merge_fragments(
    parts: Iterable[tuple[Any, Any]],
    count: int,
) -> Floats:
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
        UsageError: Shapes do not fit, or a vertex is in no fragment.
    """
    # The sum of the predictions of each vertex, without columns until the first fragment, and the
    # number of its fragments.
    total = np.zeros((count, 0), np.float32)
    times = np.zeros(count, np.float32)
    for index, predictions in parts:
        index = np.asarray(index)
        predictions = np.asarray(predictions)
        # The first fragment determines the number of columns. If its predictions are not an array
        # (N, C), neither is the sum, which is refused below.
        if not total.shape[1]:
            shape = (count, *predictions.shape[1:])
            total = np.zeros(shape, np.float32)
        expected = (len(index), *total.shape[1:])
        if predictions.shape != expected or total.ndim != 2:
            raise UsageError(
                f"predictions are {predictions.shape}, expected {expected}: a row for each vertex"
            )
        total[index] += predictions
        times[index] += 1

    missing = np.count_nonzero(times == 0)
    if missing:
        raise UsageError(
            f"{missing} of {count} vertices are in no fragment",
            "merge the predictions of all fragments of the scene",
        )
    total /= times[:, None]
    return total
