"""Counts of the classes, and their weights for a loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.release.label_sets import LabelSet

Formula: TypeAlias = Literal["inverse", "inverse_sqrt", "median_frequency", "log"]


def count_classes(scenes: Iterable[Mapping[int, int]], label_set: LabelSet) -> NDArray[np.int64]:
    """Arrange class counts as an array.

    Args:
        scenes: For each scene, the number of vertices by raw id. Raw ids without a class are left
            out.
        label_set: The classes.

    Returns:
        Vertices of each class in each scene, int64 (scenes, classes).
    """
    # `ids` are the raw ids of the classes, in the order of the train ids.
    rows = []
    for scene in scenes:
        row = [scene.get(raw_id, 0) for raw_id in label_set.ids]
        rows.append(row)
    # Without scenes, the array would have only one axis.
    counts = np.array(rows, np.int64)
    return counts.reshape(len(rows), len(label_set))


def weigh_classes(counts: NDArray[np.int64], formula: Formula) -> NDArray[np.float32]:
    """Compute the weights of the classes; `ScanNet.class_weights` documents the formulas.

    Args:
        counts: Vertices of each class in each scene, int64 (scenes, classes).
        formula: Name of the formula.

    Returns:
        float32 (classes,), 0 for classes without a vertex.

    Raises:
        UsageError: There is no such formula, or no vertex has a class.
    """
    if formula not in get_args(Formula):
        raise UsageError(
            f"{formula!r} is not a formula for class weights, "
            f"expected one of {', '.join(get_args(Formula))}"
        )
    totals = counts.sum(axis=0)
    occurs = totals > 0
    if not occurs.any():
        raise UsageError(
            "no vertex has a class, so there is nothing to weigh",
            "take the weights of the train split",
        )

    # From here on, only the P classes that occur: their shares of all labeled vertices, (P,).
    shares = totals[occurs] / totals.sum()
    if formula == "inverse":
        weights = 1 / shares
    elif formula == "inverse_sqrt":
        weights = 1 / np.sqrt(shares)
    elif formula == "log":
        weights = 1 / np.log(1.02 + shares)
    else:
        # Labeled vertices of each scene, (scenes, 1).
        labeled = counts.sum(axis=1, keepdims=True)
        # For each class, the labeled vertices of all scenes that have it, (P,).
        has_class = counts[:, occurs] > 0
        labeled_by_class = (has_class * labeled).sum(axis=0)
        # The median of the frequencies is the same factor for all classes, which the mean removes.
        weights = labeled_by_class / totals[occurs]

    # Of all classes again, (classes,).
    result = np.zeros(len(totals), np.float32)
    result[occurs] = weights / weights.mean()
    return result
