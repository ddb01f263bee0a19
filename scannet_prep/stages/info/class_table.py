"""How often each class of a label set occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from scannet_prep.labels import SCANNET20, SCANNET200, Frequency, LabelSet
from scannet_prep.scene import Split


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


class Counted(Protocol):
    """Something that knows how often raw ids occur in a scene."""

    @property
    def nyu40_counts(self) -> Mapping[int, int]:
        """Vertices by nyu40 id."""

    @property
    def scannet_counts(self) -> Mapping[int, int]:
        """Vertices by ScanNet id."""


def make_class_tables(scenes: Sequence[Counted]) -> dict[str, ClassTable]:
    """Make the table of each label set, by its name.

    Args:
        scenes: The annotated scenes.
    """
    return {
        SCANNET20.name: _make_table(SCANNET20, [scene.nyu40_counts for scene in scenes]),
        SCANNET200.name: _make_table(SCANNET200, [scene.scannet_counts for scene in scenes]),
    }


def count_by_split(scenes: Iterable[tuple[str | None, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Add up the numbers of scenes.

    Args:
        scenes: Split and numbers of each; None for a scene of no split.

    Returns:
        By split, `none` for no split, and `all` together: number of scenes, and the sum of each number.
    """
    found: dict[str, Counter[str]] = {name: Counter() for name in (*map(str, Split), "none", "all")}
    for split, numbers in scenes:
        for name in (str(split or "none"), "all"):
            found[name].update({"scenes": 1, **numbers})
    return {name: dict(row) for name, row in found.items() if row}


def _make_table(label_set: LabelSet, scenes: Iterable[Mapping[int, int]]) -> ClassTable:
    vertices, occurrences, scene_count = Counter[int](), Counter[int](), 0
    known = set(label_set.ids)
    for counts in scenes:
        scene = Counter[int]()
        for raw_id, number in counts.items():
            scene[raw_id if raw_id in known else 0] += number  # 0 is not a class: it stands for all that have none
        vertices.update(scene)
        occurrences.update(raw_id for raw_id, number in scene.items() if number)
        scene_count += 1
    total = vertices.total()

    def count(
        raw_id: int, train_id: int | None = None, name: str = "(unlabeled)", frequency: Frequency | None = None
    ) -> ClassCount:
        share = vertices[raw_id] / max(1, total)
        return ClassCount(train_id, raw_id, name, frequency, vertices[raw_id], share, occurrences[raw_id])

    classes = tuple(count(item.raw_id, item.train_id, item.name, item.frequency) for item in label_set.classes)
    return ClassTable(scene_count, total, count(0), classes)
