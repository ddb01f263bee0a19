"""The numberings of classes that prediction files of this field have: one table for each task.

    train ids                0..K-1, the index in the label set: what arrays should hold
    raw ids                  nyu40 ids, or ScanNet ids: what `.txt` files should hold
    train ids + 1            0 is unlabeled, as in OctFormer
    train ids - 1            0 was removed, although it is a class
    classes of instances     0..K-3, counted without wall and floor, as in SoftGroup and SPFormer
    classes of instances + 1 the same, with 0 for none

The first four are in use for both tasks, the last two for instances only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.evaluation.scores import IntArray
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet

Task: TypeAlias = Literal["semantic", "instance"]

ID_COUNT = 1500
"""Number of different ids: those of all classes, and some that are not classes in any numbering."""

UNLABELED_IDS = frozenset({-1, 0, 255})
"""These ids mean unlabeled in every numbering in which they are not classes."""


class Numbering(NamedTuple):
    """A numbering of the classes of a label set.

    Attributes:
        name: Its name, for messages.
        label_set: The label set.
        train_ids: The train id of each id in a file.
        predicted: The ids that a network of the task predicts: as instances, no walls and floors.
        conversion: How to make the ids and the files that they belong into.
    """

    name: str
    label_set: LabelSet
    train_ids: Mapping[int, int]
    predicted: set[int]
    conversion: str

    def find_classes(self, ids: NDArray[np.integer]) -> IntArray:
        """Find the train ids that ids in a file stand for, int64; -1 for none."""
        table = np.full(ID_COUNT, -1, np.int64)
        table[list(self.train_ids)] = list(self.train_ids.values())
        classes: IntArray = table[limit_ids(ids)]
        return classes


def limit_ids(ids: NDArray[np.integer]) -> IntArray:
    """Make indices of ids, which begin at -2: ids beyond `ID_COUNT` become one of no class."""
    return np.asarray(np.clip(ids, -2, ID_COUNT - 3) % ID_COUNT)


def list_numberings(label_set: LabelSet, task: Task) -> list[Numbering]:
    """List the numberings of both label sets for a task, those of the given label set first.

    Files should have the first two: train ids in arrays, and raw ids in `.txt` files.
    """
    numberings = []
    for each in dict.fromkeys((label_set, SCANNET20, SCANNET200)):
        name = f"{each.name} train ids"
        raw_name = "nyu40 ids" if each == SCANNET20 else "ScanNet ids"
        of_set = f"with --label-set {each.name.lower()}"
        save = f"save train ids as .npy (instances: .npz), {of_set}"
        classes = range(len(each))
        rows = [
            (
                name,
                dict(enumerate(classes)),
                save,
            ),
            (
                raw_name,
                dict(zip(each.ids, classes, strict=True)),
                f"save raw ids as .txt, {of_set}",
            ),
            (
                f"{name} + 1",
                dict(enumerate(classes, 1)),
                f"subtract 1; {save}",
            ),
            (
                f"{name} - 1",
                dict(enumerate(classes, -1)),
                f"add 1; {save}",
            ),
        ]
        predicted: Sequence[int] = classes
        if task == "instance":
            predicted = each.things
            name = f"{each.name} classes counted without wall and floor"
            skipped = sorted({*classes} - {*predicted})
            make = f"{save}: np.delete(np.arange({len(each)}), {skipped})"
            rows += [
                (
                    name,
                    dict(enumerate(predicted)),
                    f"{make}[ids]",
                ),
                (
                    f"{name} + 1",
                    dict(enumerate(predicted, 1)),
                    f"{make}[ids - 1]",
                ),
            ]
        for name, train_ids, conversion in rows:
            ids = {number for number, train_id in train_ids.items() if train_id in predicted}
            numberings.append(Numbering(name, each, train_ids, ids, conversion))
    return numberings
