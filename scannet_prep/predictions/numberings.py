"""The numberings of classes that prediction files of this field have: one table for each task.

    raw ids                  nyu40 ids, or ScanNet ids: what `.txt` files should hold
    train ids + 1            0 is unlabeled, as in OctFormer
    train ids                0..K-1, the index in the label set: what arrays should hold
    wall and floor first     0..K-1, as in ISBNet
    train ids - 1            0 was removed, although it is a class
    chair and floor swapped  ScanNet ids in order, for classes with wall and floor first
    classes of instances + 1 1..K-2, counted without wall and floor; 0 is for none
    classes of instances     0..K-3, as in SoftGroup and SPFormer

The last two are in use for instances only, the others for both tasks. In ScanNet20, wall and floor
come first anyway, and nothing is swapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from scannet_prep.evaluation.scores import IntArray
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet

Task: TypeAlias = Literal["semantic", "instance"]

UNLABELED_IDS = frozenset({-1, 0, 255})
"""These ids mean unlabeled in every numbering in which they are not classes."""


class Numbering(NamedTuple):
    """A numbering of the classes of a label set.

    Attributes:
        name: Its name, for messages.
        label_set: The label set.
        train_ids: The train id of each id in a file; the smallest id in a file is -1 or larger.
        predicted: The ids that a network of the task predicts: as instances, no walls and floors.
        conversion: How to convert the ids to those that files should have, and how to save them.
    """

    name: str
    label_set: LabelSet
    train_ids: Mapping[int, int]
    predicted: set[int]
    conversion: str

    def find_classes(self, ids: IntArray) -> IntArray:
        """Find the train ids that ids in a file stand for, int64; -1 for none."""
        # From id -2 to the one after the last class; the first and the last are not classes.
        table = np.full(max(self.train_ids) + 4, -1)
        for number, train_id in self.train_ids.items():
            table[number + 2] = train_id
        return table.take(ids + 2, mode="clip")


def list_numberings(label_set: LabelSet, task: Task) -> list[Numbering]:
    """List the numberings of both label sets for a task, those of the given label set first.

    Files should have the first one, raw ids in `.txt` files, or the third one, train ids in arrays.
    If the same ids fit two numberings, the first one is more likely: the last class may not occur,
    but the first one should.
    """
    numberings = []
    arrays = ".npz" if task == "instance" else ".npy"
    for each in dict.fromkeys((label_set, SCANNET20, SCANNET200)):
        name = f"{each.name} train ids"
        raw_name = "nyu40 ids" if each == SCANNET20 else "ScanNet ids"
        classes = predicted = tuple(range(len(each)))
        things = f"scannet_prep.{each.name.upper()}.things"
        # Wall and floor first: these two are the classes that are not things.
        order = sorted(classes, key=each.things.__contains__)
        # In the tables of the conversions, everything else is -1: also 255, and -1, which leads to
        # the last entry.
        rows = [
            (
                raw_name,
                zip(each.ids, classes, strict=True),
                "ids as .txt",
            ),
            (
                f"{name} + 1",
                enumerate(classes, 1),
                f"np.pad(range({len(each)}), (1, 256), constant_values=-1)[ids] as {arrays}",
            ),
            (
                name,
                enumerate(classes),
                f"ids as {arrays}",
            ),
            (
                f"{each.name} classes with wall and floor first",
                enumerate(order),
                (
                    f"np.pad([0, {each['floor'].train_id}, *{things}], (0, 256), "
                    f"constant_values=-1)[ids] as {arrays}"
                ),
            ),
            (
                f"{name} - 1",
                enumerate(classes, -1),
                f"np.pad(range({len(each)}), (0, 256), constant_values=-1)[ids + 1] as {arrays}",
            ),
            (
                f"{raw_name} with chair and floor swapped",
                zip(each.ids, order, strict=True),
                "ids + (ids == 2) - (ids == 3) as .txt",
            ),
        ]
        if task == "instance":
            predicted = each.things
            name = f"{each.name} classes counted without wall and floor"
            # Before train ids - 1, which are the same in ScanNet20, but 0 is floor and -1 is wall.
            rows.insert(
                4,
                (
                    f"{name} + 1",
                    enumerate(predicted, 1),
                    f"np.pad({things}, (1, 256), constant_values=-1)[ids] as .npz",
                ),
            )
            rows.append(
                (
                    name,
                    enumerate(predicted),
                    f"np.pad({things}, (0, 256), constant_values=-1)[ids] as .npz",
                )
            )
        for name, pairs, content in rows:
            train_ids = dict(pairs)
            ids = {number for number, train_id in train_ids.items() if train_id in predicted}
            conversion = f"save {content}, with --label-set {each.name.lower()}"
            numberings.append(Numbering(name, each, train_ids, ids, conversion))
    return numberings
