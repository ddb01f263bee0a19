"""How often classes occur, and their weights for a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.labels import LabelSet

Formula: TypeAlias = Literal["inverse", "inverse_sqrt", "median_frequency", "log"]


def count_classes(scenes: Sequence[Mapping[int, int]], label_set: LabelSet) -> NDArray[np.int64]:
    """Vertices by scene and class, int64 (scenes, classes), from vertices by raw id of each scene."""
    rows = [[scene.get(raw_id, 0) for raw_id in label_set.ids] for scene in scenes]
    return np.array(rows, np.int64).reshape(len(rows), len(label_set))


def weigh_classes(counts: NDArray[np.int64], formula: Formula) -> NDArray[np.float32]:
    """Weights, float32 (classes,), from vertices by scene and class, (scenes, classes)."""
    if formula not in get_args(Formula):
        message = f"{formula!r} is not a formula for class weights"
        raise UsageError(message, f"there are: {', '.join(get_args(Formula))}")
    totals = counts.sum(axis=0)
    occurs = totals > 0
    if not occurs.any():
        raise UsageError("no vertex has a class, so there is nothing to weigh", 'take the weights of split="train"')
    shares = totals[occurs] / totals.sum()
    labeled = counts.sum(axis=1, keepdims=True)  # of each scene
    frequencies = totals[occurs] / ((counts[:, occurs] > 0) * labeled).sum(axis=0)
    weights = {
        "inverse": 1 / shares,
        "inverse_sqrt": 1 / np.sqrt(shares),
        "log": 1 / np.log(1.02 + shares),
        "median_frequency": np.median(frequencies) / frequencies,
    }[formula]
    result = np.zeros(len(totals), np.float32)
    result[occurs] = weights / weights.mean()
    return result
