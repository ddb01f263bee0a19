"""Weights of the classes for a loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError


def weigh_classes(counts: NDArray[np.int64], formula: str) -> NDArray[np.float32]:
    """Compute the weights of the classes; `ScanNet.class_weights` documents the formulas.

    Args:
        counts: Vertices of each class in each scene, int64 (scenes, classes).
        formula: Name of the formula.

    Returns:
        float32 (classes,), 0 for classes without a vertex.

    Raises:
        UsageError: There is no such formula, or no vertex has a class.
    """
    totals = counts.sum(axis=0)
    occurs = totals > 0
    if not occurs.any():
        raise UsageError(
            "no vertex has a class, so there is nothing to weigh",
            "take the weights of the train split",
        )
    # From here on, only the P classes that occur: their shares of all labeled vertices, (P,), and
    # for each class, the labeled vertices of all scenes that have it, (P,).
    shares = totals[occurs] / totals.sum()
    has_class = counts[:, occurs] > 0
    labeled_by_class = counts.sum(axis=1) @ has_class
    formulas = {
        "inverse": 1 / shares,
        "inverse_sqrt": 1 / np.sqrt(shares),
        "log": 1 / np.log(1.02 + shares),
        # The median of the frequencies is the same factor for all classes, which the mean removes.
        "median_frequency": labeled_by_class / totals[occurs],
    }
    if formula not in formulas:
        raise UsageError(
            f"{formula!r} is not a formula for class weights, expected one of {', '.join(formulas)}"
        )
    weights = formulas[formula]
    # For all classes again, (classes,).
    result = np.zeros(len(totals), np.float32)
    result[occurs] = weights / weights.mean()
    return result
