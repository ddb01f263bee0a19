"""The numberings of classes that prediction files of this field have: one table for each task.

    train ids                0..K-1, the index in the label set: what arrays should hold
    train ids + 1            0 is unlabeled, as in OctFormer
    train ids - 1            0 was removed, although it is a class
    raw ids                  nyu40 ids, or ScanNet ids: what `.txt` files should hold
    classes of instances     0..K-3, counted without wall and floor, as in SoftGroup and SPFormer
    classes of instances + 1 the same, with 0 for none

The first four are in use for both tasks, the last two for instances only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.evaluation.instance import counted_classes
from scannet_prep.evaluation.scores import IntArray
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet

Task: TypeAlias = Literal["semantic", "instance"]

FIRST_ID = -2
LAST_ID = 1500
"""Other ids are treated as one of these two, which are not classes in any numbering."""

# These ids mean unlabeled in every numbering in which they are not a class.
UNLABELED_IDS = frozenset({-1, 0, 255})


@dataclass(frozen=True, slots=True)
class Numbering:
    """A numbering of the classes of a label set.

    Attributes:
        name: Its name, for messages.
        label_set: The label set.
        train_ids: The train id of each id in a file.
        conversion: How to make train ids of the ids; empty for train ids and raw ids.
        is_raw: Whether these are raw ids, which belong into `.txt` files.
    """

    name: str
    label_set: LabelSet
    train_ids: Mapping[int, int]
    conversion: str = ""
    is_raw: bool = False

    @property
    def unlabeled_ids(self) -> frozenset[int]:
        """The ids that mean unlabeled."""
        return UNLABELED_IDS - self.train_ids.keys()

    def find_classes(self, ids: NDArray[np.integer]) -> IntArray:
        """Find the train ids that ids in a file stand for, int64; -1 for none."""
        id_count = LAST_ID - FIRST_ID + 1
        table = np.full(id_count, -1, np.int64)
        for number, train_id in self.train_ids.items():
            table[number - FIRST_ID] = train_id
        known_ids = np.clip(ids, FIRST_ID, LAST_ID)
        classes: IntArray = table[known_ids - FIRST_ID]
        return classes

    def ids_of(self, task: Task) -> set[int]:
        """List the ids that networks for a task predict: no instances of walls and floors."""
        if task == "semantic":
            return set(self.train_ids)
        counted = counted_classes(self.label_set)
        ids = set()
        for number, train_id in self.train_ids.items():
            if train_id in counted:
                ids.add(number)
        return ids

    def describe_remedy(self, declared: Numbering) -> str:
        """Describe how to correct files of this numbering that are read as `declared`."""
        steps = [self.conversion] if self.conversion else []
        if declared.is_raw and not self.is_raw:
            steps.append("save them as .npy (instances: .npz), because .txt files hold raw ids")
        if self.is_raw and not declared.is_raw:
            steps.append("save raw ids as .txt, because arrays hold train ids")
        if self.label_set != declared.label_set:
            name = self.label_set.name.lower()
            steps.append(f"pass --label-set {name}")
        return ", and ".join(steps)


def list_numberings(label_set: LabelSet, task: Task) -> list[Numbering]:
    """List the numberings of both label sets for a task, those of the given label set first."""
    other = SCANNET200 if label_set == SCANNET20 else SCANNET20
    numberings = []
    for each in (label_set, other):
        numberings += _list_by_vertices(each)
        if task == "instance":
            numberings += _list_by_instances(each)
    return numberings


def declared_numbering(label_set: LabelSet, *, is_raw: bool) -> Numbering:
    """Return the numbering that files should have: train ids, or raw ids in `.txt` files."""
    train_ids, raw_ids, *_ = _list_by_vertices(label_set)
    return raw_ids if is_raw else train_ids


def _list_by_vertices(label_set: LabelSet) -> list[Numbering]:
    name = f"{label_set.name} train ids"
    raw_name = "nyu40 ids" if label_set == SCANNET20 else "ScanNet ids"
    classes = range(len(label_set))
    ids = dict(enumerate(classes))
    raw_ids = dict(zip(label_set.ids, classes, strict=True))
    ids_from_1 = dict(enumerate(classes, 1))
    ids_without_0 = dict(enumerate(classes, -1))
    subtract = "subtract 1 from the ids, so that wall is 0"
    add = "add 1 to the ids, so that wall is 0"
    return [
        Numbering(name, label_set, ids),
        Numbering(raw_name, label_set, raw_ids, is_raw=True),
        Numbering(f"{name} + 1", label_set, ids_from_1, subtract),
        Numbering(f"{name} - 1", label_set, ids_without_0, add),
    ]


def _list_by_instances(label_set: LabelSet) -> list[Numbering]:
    name = f"{label_set.name} classes counted without wall and floor"
    counted = counted_classes(label_set)
    ids = dict(enumerate(counted))
    ids_from_1 = dict(enumerate(counted, 1))
    class_count = len(label_set)
    skipped = sorted({*range(class_count)} - {*counted})
    make = f"make train ids of the ids: np.delete(np.arange({class_count}), {skipped})"
    return [
        Numbering(name, label_set, ids, f"{make}[ids]"),
        Numbering(f"{name} + 1", label_set, ids_from_1, f"{make}[ids - 1]"),
    ]


def to_scannet20(label_set: LabelSet) -> IntArray:
    """Map the classes of a label set to train ids of ScanNet20, int64 (K,); -1 for no class."""
    if label_set == SCANNET20:
        return np.arange(len(SCANNET20))
    rows = builtin_label_map().rows
    nyu40_ids = [rows[name].nyu40_id for name in label_set.names]
    return SCANNET20.train_ids_from_raw_ids(np.array(nyu40_ids), ignore_index=-1)
