"""Common parts of the scores of both tasks: their result, and the checks of their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.base.text import list_some
from scannet_prep.errors import ContentError
from scannet_prep.release.label_sets import LabelSet

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.float64]

Numbers: TypeAlias = Mapping[str, float | None]
"""Numbers by name; None for the mean of nothing."""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """The scores of predictions, from 0 to 1.

    `SemanticScores` and `InstanceScores` document the numbers.

    Attributes:
        totals: Numbers over everything that was collected.
        means: Means over the classes: over `all`, and for ScanNet200 over those of `head`, `common`
            and `tail`.
        classes: The numbers of each class, by its name, in the order of the train ids.
    """

    totals: Numbers
    means: Mapping[str, Numbers]
    classes: Mapping[str, Numbers]


def list_class_groups(label_set: LabelSet) -> dict[str, list[int]]:
    """Return the train ids of each group of classes that means are taken over."""
    groups = {"all": list(range(len(label_set)))}
    for name in ("head", "common", "tail"):
        train_ids = list(getattr(label_set, name))
        if train_ids:  # ScanNet20 has no such groups
            groups[name] = train_ids
    return groups


def check_truth(labels: IntArray, label_set: LabelSet) -> None:
    """Refuse ground truth of another label set or numbering.

    A single number beyond the train ids, such as 255, may stand for unlabeled. Several such numbers
    must be train ids of another label set, or raw ids. Without this check, their vertices would
    count as unlabeled.

    Args:
        labels: int64 (V,), train ids. Vertices without a class have negative numbers, or a single
            number that is too large for a train id.
        label_set: The label set that the labels should belong to.

    Raises:
        ContentError: Several numbers are too large to be train ids.
    """
    is_too_large = labels >= len(label_set)
    too_large = np.unique(labels[is_too_large])
    if len(too_large) < 2:
        return
    numbers = [str(number) for number in too_large.tolist()]
    raise ContentError(
        f"ground truth: found {list_some(numbers)}, which are not train ids of {label_set.name} "
        f"(0 to {len(label_set) - 1})",
        "read the labels with ScanNet(..., labels=scores.label_set)",
    )


def average(values: Iterable[float]) -> float | None:
    """Compute the mean of numbers; None for an empty list."""
    numbers = list(values)
    if not numbers:
        return None
    return float(np.mean(numbers))


def describe_array(array: NDArray[Any]) -> str:
    """Describe the type and the shape of an array, as in `float32 (100, 3)`."""
    return f"{array.dtype} {array.shape}"


def check_integers(values: ArrayLike, name: str, count: int | None = None) -> IntArray:
    """Check that values are integers in one dimension, and check their number.

    Args:
        values: The values.
        name: Name of the values, for messages.
        count: The expected number of values; None for any.

    Returns:
        int64 (N,).

    Raises:
        ContentError: The values have another type, shape or number.
    """
    array = np.asarray(values)
    if array.shape == (0,):  # an empty list becomes an array of floats
        array = array.astype(np.int64)
    is_integer = array.dtype.kind in "iu"
    if array.ndim != 1 or not is_integer:
        found = describe_array(array)
        raise ContentError(f"{name}: found {found}, expected integers in one dimension")
    length = len(array)
    if count is not None and length != count:
        raise ContentError(f"{name}: found {length:,} vertices, expected {count:,}")
    return np.ascontiguousarray(array, np.int64)
