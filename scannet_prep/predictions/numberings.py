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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannet_prep.evaluation.instance import counted_classes
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet

# These ids mean unlabeled in every numbering in which they are no class.
UNLABELED_IDS = frozenset({-1, 0, 255})


@dataclass(frozen=True, slots=True)
class Numbering:
    """A numbering of the classes of a label set.

    Attributes:
        name: Its name, for messages.
        label_set: The label set.
        classes: The train ids of the classes that have an id, in any order.
        ids: The id of each of these classes in a file.
        is_raw: Whether these are raw ids, which belong into `.txt` files.
        conversion: How to make train ids of the ids; empty for train ids and raw ids.
    """

    name: str
    label_set: LabelSet
    classes: tuple[int, ...]
    ids: tuple[int, ...]
    is_raw: bool = False
    conversion: str = ""

    def __str__(self) -> str:
        """Return the name, for messages."""
        return self.name

    def describe_remedy(self, declared: Numbering) -> str:
        """Describe how to correct files of this numbering that are read as `declared`."""
        steps = [self.conversion] if self.conversion else []
        if declared.is_raw and not self.is_raw:
            steps.append("save them as .npy (instances: .npz), because .txt files hold raw ids")
        if self.is_raw and not declared.is_raw:
            steps.append("save raw ids as .txt, because arrays hold train ids")
        if self.label_set != declared.label_set:
            steps.append(f"pass --label-set {self.label_set.name.lower()}")
        return ", and ".join(steps)

    def find_classes(self, file_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the train ids that some ids in a file stand for, int64; -1 for none."""
        order = np.argsort(self.ids)
        ids = np.array(self.ids)[order]
        positions = np.searchsorted(ids, file_ids).clip(max=len(ids) - 1)
        is_class = ids[positions] == file_ids
        return np.where(is_class, np.array(self.classes)[order][positions], -1)


def list_numberings(label_set: LabelSet, task: str) -> list[Numbering]:
    """List the numberings of both label sets for a task, those of the given label set first."""
    other = SCANNET200 if label_set == SCANNET20 else SCANNET20
    return [*_list_of(label_set, task), *_list_of(other, task)]


def declared_numbering(label_set: LabelSet, *, is_raw: bool) -> Numbering:
    """Return the numbering that files should have: train ids, or raw ids in `.txt` files."""
    numberings = _list_of(label_set, "semantic")
    return next(each for each in numberings if not each.conversion and each.is_raw is is_raw)


def _list_of(label_set: LabelSet, task: str) -> list[Numbering]:
    name = label_set.name
    count = len(label_set)
    classes = tuple(range(count))

    def shifted(shift: int, conversion: str) -> Numbering:
        sign = "+" if shift > 0 else "-"
        ids = tuple(range(shift, shift + count))
        return Numbering(
            f"{name} train ids {sign} 1", label_set, classes, ids, conversion=conversion
        )

    numberings = [
        Numbering(f"{name} train ids", label_set, classes, classes),
        shifted(1, "subtract 1 from the ids, so that wall is 0"),
        shifted(-1, "add 1 to the ids, so that wall is 0"),
        Numbering(
            "nyu40 ids" if label_set == SCANNET20 else "ScanNet ids",
            label_set,
            classes,
            label_set.ids,
            is_raw=True,
        ),
    ]
    if task == "semantic":
        return numberings
    counted = tuple(counted_classes(label_set))
    skipped = sorted(set(classes) - set(counted))
    for first, ids_text in ((0, "ids"), (1, "ids - 1")):
        suffix = " + 1" if first else ""
        numberings.append(
            Numbering(
                f"{name} classes counted without wall and floor{suffix}",
                label_set,
                counted,
                tuple(range(first, first + len(counted))),
                conversion="make train ids of the ids: "
                f"np.delete(np.arange({count}), {skipped})[{ids_text}]",
            )
        )
    return numberings


def to_scannet20(label_set: LabelSet) -> NDArray[np.int64]:
    """Map the classes of a label set to train ids of ScanNet20, int64 (K,); -1 for no class."""
    if label_set == SCANNET20:
        return np.arange(len(SCANNET20))
    rows = builtin_label_map().rows
    nyu40_ids = np.array([rows[name].nyu40_id for name in label_set.names])
    return SCANNET20.train_ids_from_raw_ids(nyu40_ids, ignore_index=-1)
