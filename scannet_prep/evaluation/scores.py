"""What the scores of both tasks have in common: they are collected, merged, and told as a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.errors import ContentError, UsageError
from scannet_prep.failures import list_some
from scannet_prep.labels import LabelSet, parse_label_set

Numbers: TypeAlias = Mapping[str, float | None]
"""Numbers by name; None where there is nothing to take one of."""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """What predictions are worth. Scores are shares, 0..1. Which numbers there are, the class that makes it says.

    Attributes:
        totals: Numbers of all that was collected.
        means: Means over classes: over `all`, and for ScanNet200 over those of `head`, `common` and `tail`.
        classes: The numbers of each class, by its name, in the order of the train ids.
    """

    totals: Numbers = field(hash=False)
    means: Mapping[str, Numbers] = field(hash=False)
    classes: Mapping[str, Numbers] = field(hash=False)


class Scores(ABC):
    """Collects predictions. Picklable: several ranks collect apart, and merge what they have.

    All attributes but the label set are arrays or lists, which merging adds.

    Args:
        label_set: SCANNET20 or SCANNET200, or its name, such as `"scannet200"`.

    Raises:
        UsageError: `label_set` is not a label set.
    """

    def __init__(self, label_set: LabelSet | str) -> None:
        self.label_set: LabelSet = parse_label_set(label_set)

    def merge(self, other: Scores) -> None:
        """Add all that another one, for example of another rank, has collected.

        Raises:
            UsageError: It is of another task or label set.
        """
        if type(other) is not type(self) or other.label_set != self.label_set:
            mine = f"{type(self).__name__} of {self.label_set.name}"
            problem = f"{type(other).__name__} of {other.label_set.name} cannot be merged into {mine}"
            raise UsageError(problem, f"make both by {type(self).__name__}({self.label_set.name.upper()})")
        for name, value in vars(other).items():
            if name != "label_set":
                setattr(self, name, getattr(self, name) + value)

    @abstractmethod
    def result(self) -> ScoreTable:
        """The scores of all that was collected."""

    def _groups(self) -> dict[str, list[int]]:
        """Train ids of the classes that means are taken over."""
        groups = {name: list(getattr(self.label_set, name)) for name in ("head", "common", "tail")}
        return {"all": list(range(len(self.label_set)))} | {name: ids for name, ids in groups.items() if ids}


def check_truth(labels: NDArray[np.int64], label_set: LabelSet) -> None:
    """Refuse ground truth of another label set or numbering.

    One number beyond the train ids may stand for unlabeled, such as 255. Several are classes of another label set, or
    raw ids, whose vertices would silently not count.

    Args:
        labels: Train ids, int64 (V,), and anything negative or one other number where there is no class.
        label_set: The label set that the labels should belong to.

    Raises:
        ContentError: Several numbers are too large to be train ids.
    """
    too_large = labels[labels >= len(label_set)]
    if not len(too_large) or (too_large == too_large[0]).all():
        return
    numbers = [str(number) for number in np.unique(too_large).tolist()]
    raise ContentError(
        f"ground truth: found {list_some(numbers)}, which are not train ids of {label_set.name} "
        f"(0 to {len(label_set) - 1})",
        "read the labels with ScanNet(..., labels=scores.label_set)",
    )


def average(values: Iterable[float]) -> float | None:
    """The mean of numbers; None where there are none."""
    found = list(values)
    return float(np.mean(found)) if found else None


def check_integers(values: ArrayLike, what: str, count: int | None = None) -> NDArray[np.int64]:
    """Check that values are a list of integers, and how many; gives them as int64 (N,).

    Raises:
        ContentError: They are not.
    """
    array: NDArray[Any] = np.asarray(values)
    if array.shape == (0,):  # NumPy takes an empty list for floats
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ContentError(f"{what}: found {array.dtype} {array.shape}, expected integers in one dimension")
    if count not in (None, len(array)):
        raise ContentError(f"{what}: found {len(array):,} vertices, expected {count:,}")
    return np.ascontiguousarray(array, np.int64)
