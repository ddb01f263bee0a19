"""Weights of the classes for a loss, from how often they occur."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.labels import LabelSet

Formula: TypeAlias = Literal["inverse", "inverse_sqrt", "median_frequency", "log"]


def count_classes(scenes: Sequence[Mapping[int, int]], label_set: LabelSet) -> NDArray[np.int64]:
    """Count vertices by scene and class.

    Args:
        scenes: For each scene, vertices by raw id (nyu40 ids for ScanNet20, ScanNet ids for ScanNet200); raw ids that
            are none of the label set's, such as 0 (unannotated), do not count.
        label_set: The classes.

    Returns:
        int64 (scenes, classes), in the order of the train ids.
    """
    train_id_of = {raw_id: train_id for train_id, raw_id in enumerate(label_set.ids)}
    counts = np.zeros((len(scenes), len(label_set)), np.int64)
    for row, scene in zip(counts, scenes, strict=True):
        for raw_id, count in scene.items():
            if raw_id in train_id_of:
                row[train_id_of[raw_id]] = count
    return counts


def weigh_classes(counts: NDArray[np.int64], formula: Formula) -> NDArray[np.float32]:
    """Compute weights of classes.

    Args:
        counts: Vertices by scene and class, (scenes, classes).
        formula: See `ScanNet.class_weights`.

    Returns:
        float32 (classes,), with the mean 1 over the classes that occur; 0 for those that do not.

    Raises:
        UsageError: There is no such formula, or no vertex has a class.
    """
    if formula not in get_args(Formula):
        raise UsageError(
            f"{formula!r} is not a formula for class weights", f"there are: {', '.join(get_args(Formula))}"
        )
    totals = counts.sum(axis=0)
    occurs = totals > 0
    if not occurs.any():
        raise UsageError("no vertex has a class, so there is nothing to weigh", 'take the weights of split="train"')
    shares = totals[occurs] / totals.sum()
    if formula == "inverse":
        weights = 1 / shares
    elif formula == "inverse_sqrt":
        weights = 1 / np.sqrt(shares)
    elif formula == "log":
        weights = 1 / np.log(1.02 + shares)
    else:
        labeled = counts.sum(axis=1, keepdims=True)  # of each scene
        frequencies = totals[occurs] / ((counts[:, occurs] > 0) * labeled).sum(axis=0)
        weights = np.median(frequencies) / frequencies
    result = np.zeros(len(totals), np.float32)
    result[occurs] = weights / weights.mean()
    return result
