"""What is odd about a scene but does not stop it. Remarks are counted, shown and stored with the scene."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class RemarkKind(StrEnum):
    """The kinds of remarks; the value is how it is stored."""

    UNKNOWN_CATEGORY = "unknown_category"
    AMBIGUOUS_CATEGORY = "ambiguous_category"
    LABEL_MAP_DIFFERS = "label_map_differs"
    REPEATED_GROUPS = "repeated_groups"
    UNKNOWN_SEGMENTS = "unknown_segments"
    NULL_SEGMENTS = "null_segments"
    RENUMBERED_GROUPS = "renumbered_groups"
    HIGH_RESOLUTION_AGGREGATION = "high_resolution_aggregation"
    OTHER_SCENE = "other_scene"
    NO_AGGREGATION = "no_aggregation"
    NO_ALIGNMENT = "no_alignment"
    NOT_RIGID = "not_rigid"
    NO_INFO = "no_info"
    NO_FACES = "no_faces"
    LABELS_OUTSIDE_NYU40 = "labels_outside_nyu40"

    @property
    def is_doubt(self) -> bool:
        """Whether labels may be wrong because of it, so that `--strict` makes it an error.

        The others are known irregularities of the release that have one right reading.
        """
        return self in _DOUBTS


_DOUBTS = frozenset(
    {
        RemarkKind.UNKNOWN_CATEGORY,
        RemarkKind.AMBIGUOUS_CATEGORY,
        RemarkKind.LABEL_MAP_DIFFERS,
        RemarkKind.UNKNOWN_SEGMENTS,
        RemarkKind.HIGH_RESOLUTION_AGGREGATION,
        RemarkKind.OTHER_SCENE,
        RemarkKind.NO_ALIGNMENT,
        RemarkKind.NOT_RIGID,
    }
)

_TEXTS = {
    RemarkKind.UNKNOWN_CATEGORY: "raw category {subject!r} is not in the label map: groups left unlabeled: {count}",
    RemarkKind.AMBIGUOUS_CATEGORY: "raw category {subject} in the label map: the first row is used; groups: {count}",
    RemarkKind.LABEL_MAP_DIFFERS: "raw category {subject}; groups: {count}",
    RemarkKind.REPEATED_GROUPS: "groups dropped that repeat an earlier group exactly: {count}",
    RemarkKind.UNKNOWN_SEGMENTS: "segment ids of groups that no vertex has, ignored: {count}",
    RemarkKind.NULL_SEGMENTS: "segment ids of groups that are null, ignored: {count}",
    RemarkKind.RENUMBERED_GROUPS: "group ids are {subject}: instances are numbered in file order; groups: {count}",
    RemarkKind.HIGH_RESOLUTION_AGGREGATION: "groups taken from {subject}, for want of .aggregation.json",
    RemarkKind.OTHER_SCENE: "{subject}",
    RemarkKind.NO_AGGREGATION: "no aggregation on disk: no instances and no ScanNet ids",
    RemarkKind.NO_ALIGNMENT: "the .txt has no axisAlignment: identity recorded",
    RemarkKind.NOT_RIGID: "axisAlignment is not a rotation with a shift: {subject}",
    RemarkKind.NO_INFO: "no .txt on disk: identity recorded as axis alignment",
    RemarkKind.NO_FACES: "the mesh has no faces: all normals are (0, 0, 0)",
    RemarkKind.LABELS_OUTSIDE_NYU40: "ids outside nyu40 in labels.ply ({subject}), vertices left unlabeled: {count}",
}


@dataclass(frozen=True, slots=True)
class Remark:
    """One oddity of one scene.

    Attributes:
        kind: What it is.
        subject: What it is about, where the kind alone does not say; may be empty.
        count: How many groups, segments or vertices it concerns.
    """

    kind: RemarkKind
    subject: str = ""
    count: int = 1

    @property
    def text(self) -> str:
        """A sentence for people."""
        return _TEXTS[self.kind].format(subject=self.subject, count=self.count)


@dataclass(frozen=True, slots=True)
class RemarkSummary:
    """The same oddity in several scenes.

    Attributes:
        remark: The oddity, with the counts added up.
        scene_ids: The scenes that show it.
    """

    remark: Remark
    scene_ids: tuple[str, ...]


def summarize_remarks(remarks: Iterable[tuple[str, Remark]]) -> list[RemarkSummary]:
    """Merge the remarks of many scenes, so that each oddity is told once.

    Args:
        remarks: Pairs of scene id and remark.

    Returns:
        One summary for each kind and subject, in order of first appearance.
    """
    found: dict[tuple[RemarkKind, str], tuple[int, dict[str, None]]] = {}
    for scene_id, remark in remarks:
        count, scene_ids = found.get((remark.kind, remark.subject), (0, {}))
        found[remark.kind, remark.subject] = (count + remark.count, scene_ids | {scene_id: None})
    return [
        RemarkSummary(Remark(kind, subject, count), tuple(scene_ids))
        for (kind, subject), (count, scene_ids) in found.items()
    ]
