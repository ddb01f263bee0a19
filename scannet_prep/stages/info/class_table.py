"""How often each class of a label set occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from scannet_prep.labels import SCANNET20, SCANNET200, LabelClass, LabelSet


@dataclass(frozen=True, slots=True)
class ClassCount:
    """How often one class occurs.

    Attributes:
        item: The class; None for all vertices that have none.
        vertex_count: Its vertices.
        scene_count: Scenes with at least one of them.
    """

    item: LabelClass | None
    vertex_count: int
    scene_count: int


@dataclass(frozen=True, slots=True)
class ClassTable:
    """How often the classes of a label set occur in annotated scenes.

    Attributes:
        label_set: The label set.
        classes: Every class, in the order of the train ids.
        unlabeled: Vertices without a class of this label set.
        scene_count: Annotated scenes.
        vertex_count: Their vertices.
    """

    label_set: LabelSet
    classes: tuple[ClassCount, ...]
    unlabeled: ClassCount
    scene_count: int
    vertex_count: int

    def share(self, count: ClassCount) -> float:
        """The part of all vertices that is in a class, 0..1."""
        return count.vertex_count / self.vertex_count if self.vertex_count else 0.0

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "scenes": self.scene_count,
            "vertices": self.vertex_count,
            "unlabeled": {"vertices": self.unlabeled.vertex_count, "scenes": self.unlabeled.scene_count},
            "classes": [
                {
                    "train_id": count.item.train_id,
                    "raw_id": count.item.raw_id,
                    "name": count.item.name,
                    "frequency": count.item.frequency,
                    "vertices": count.vertex_count,
                    "share": round(self.share(count), 8),
                    "scenes": count.scene_count,
                }
                for count in self.classes
                if count.item is not None
            ],
        }


class Counted(Protocol):
    """Something that knows how often raw ids occur in a scene."""

    @property
    def nyu40_counts(self) -> Mapping[int, int]:
        """Vertices by nyu40 id."""

    @property
    def scannet_counts(self) -> Mapping[int, int]:
        """Vertices by ScanNet id."""


def make_class_tables(scenes: Sequence[Counted]) -> tuple[ClassTable, ...]:
    """Make the table of each label set.

    Args:
        scenes: The annotated scenes.
    """
    return (
        make_class_table(SCANNET20, (scene.nyu40_counts for scene in scenes)),
        make_class_table(SCANNET200, (scene.scannet_counts for scene in scenes)),
    )


def make_class_table(label_set: LabelSet, scenes: Iterable[Mapping[int, int]]) -> ClassTable:
    """Add up what the scenes hold.

    Args:
        label_set: The classes.
        scenes: For each annotated scene, vertices by raw id (nyu40 ids for ScanNet20, ScanNet ids for ScanNet200).
    """
    vertices: Counter[int] = Counter()
    occurrences: Counter[int] = Counter()
    unlabeled_scene_count = scene_count = 0
    known = set(label_set.ids)
    for counts in scenes:
        scene_count += 1
        vertices.update(counts)
        occurrences.update(raw_id for raw_id, count in counts.items() if count)
        unlabeled_scene_count += any(count for raw_id, count in counts.items() if raw_id not in known)
    unlabeled_count = sum(count for raw_id, count in vertices.items() if raw_id not in known)
    return ClassTable(
        label_set=label_set,
        classes=tuple(ClassCount(item, vertices[item.raw_id], occurrences[item.raw_id]) for item in label_set.classes),
        unlabeled=ClassCount(None, unlabeled_count, unlabeled_scene_count),
        scene_count=scene_count,
        vertex_count=vertices.total(),
    )
