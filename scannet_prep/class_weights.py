"""How often classes occur, and their weights for a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.labels import SCANNET20, SCANNET200, Frequency, LabelSet

Formula: TypeAlias = Literal["inverse", "inverse_sqrt", "median_frequency", "log"]


@dataclass(frozen=True, slots=True)
class ClassCount:
    """How often one class occurs in annotated scenes; or all vertices that have none.

    Attributes:
        train_id: Its index in the label set; None for vertices without a class.
        raw_id: Its id in the release: nyu40 id for ScanNet20, ScanNet id for ScanNet200; 0 for no class.
        name: Its name.
        frequency: For ScanNet200, whether it is frequent (head), common or rare (tail).
        vertices: Vertices of this class.
        share: Of all vertices, 0..1.
        scenes: Scenes with at least one of them.
    """

    train_id: int | None
    raw_id: int
    name: str
    frequency: Frequency | None
    vertices: int
    share: float
    scenes: int


@dataclass(frozen=True, slots=True)
class ClassTable:
    """How often the classes of a label set occur in annotated scenes.

    Attributes:
        scenes: Annotated scenes.
        vertices: Their vertices.
        unlabeled: Vertices without a class of this label set.
        classes: Every class, in the order of the train ids.
    """

    scenes: int
    vertices: int
    unlabeled: ClassCount
    classes: tuple[ClassCount, ...]


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


def make_class_tables(scenes: Sequence[tuple[Mapping[int, int], Mapping[int, int]]]) -> dict[str, ClassTable]:
    """Make the table of each label set, by its name.

    Args:
        scenes: Of each annotated scene, vertices by nyu40 id, and by ScanNet id.
    """
    tables = {}
    for index, label_set in enumerate((SCANNET20, SCANNET200)):
        counts = count_classes([item[index] for item in scenes], label_set)
        totals = np.array([sum(item[index].values()) for item in scenes], np.int64)
        counts = np.column_stack([counts, totals - counts.sum(axis=1)])  # the last column: vertices without a class
        total = int(totals.sum())
        classes = [(item.train_id, item.raw_id, item.name, item.frequency) for item in label_set.classes]
        names: list[tuple[Any, Any, Any, Any]] = [*classes, (None, 0, "(unlabeled)", None)]
        sums = zip(names, counts.sum(axis=0).tolist(), (counts > 0).sum(axis=0).tolist(), strict=True)
        rows = [ClassCount(*name, vertices, vertices / max(1, total), scenes_of) for name, vertices, scenes_of in sums]
        tables[label_set.name] = ClassTable(len(scenes), total, rows[-1], tuple(rows[:-1]))
    return tables
