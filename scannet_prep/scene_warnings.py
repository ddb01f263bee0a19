"""What is odd about a scene but does not stop it. Warnings are counted, shown and stored with the scene."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from scannet_prep.backports import StrEnum
from scannet_prep.typed_json import Count


class WarningKind(StrEnum):
    """The kinds of warnings; the value is how it is stored."""

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
    NO_GROUPS = "no_groups"
    LABELS_OUTSIDE_NYU40 = "labels_outside_nyu40"

    @property
    def is_doubt(self) -> bool:
        """Whether labels may be wrong because of it, so that `--strict` makes it an error.

        The others are known irregularities of the release that have one right reading.
        """
        return self in _DOUBTS

    @property
    def is_damage(self) -> bool:
        """Whether every train and val scene of the release has what is missing here, so that a file must be damaged."""
        return self in _DAMAGE


_DOUBTS = frozenset(
    {
        WarningKind.UNKNOWN_CATEGORY,
        WarningKind.AMBIGUOUS_CATEGORY,
        WarningKind.LABEL_MAP_DIFFERS,
        WarningKind.UNKNOWN_SEGMENTS,
        WarningKind.HIGH_RESOLUTION_AGGREGATION,
        WarningKind.OTHER_SCENE,
        WarningKind.NO_ALIGNMENT,
        WarningKind.NOT_RIGID,
    }
)

_DAMAGE = frozenset({WarningKind.NO_ALIGNMENT, WarningKind.NO_FACES, WarningKind.NO_GROUPS})

_TEXTS = {
    WarningKind.UNKNOWN_CATEGORY: "raw category {subject!r} is not in the label map: groups left unlabeled: {count}",
    WarningKind.AMBIGUOUS_CATEGORY: "raw category {subject} in the label map: the first row is used; groups: {count}",
    WarningKind.LABEL_MAP_DIFFERS: "raw category {subject}; groups: {count}",
    WarningKind.REPEATED_GROUPS: "groups dropped that repeat an earlier group exactly: {count}",
    WarningKind.UNKNOWN_SEGMENTS: "segment ids of groups that no vertex has, ignored: {count}",
    WarningKind.NULL_SEGMENTS: "segment ids of groups that are null, ignored: {count}",
    WarningKind.RENUMBERED_GROUPS: "group ids are {subject}: instances are numbered in file order; groups: {count}",
    WarningKind.HIGH_RESOLUTION_AGGREGATION: "groups taken from {subject}, as there is no .aggregation.json",
    WarningKind.OTHER_SCENE: "{subject}",
    WarningKind.NO_AGGREGATION: "no aggregation on disk: no instances and no ScanNet ids",
    WarningKind.NO_ALIGNMENT: "the .txt has no axisAlignment: identity recorded",
    WarningKind.NOT_RIGID: "axisAlignment is not a rotation with a shift: {subject}",
    WarningKind.NO_INFO: "no .txt on disk: identity recorded as axis alignment",
    WarningKind.NO_FACES: "the mesh has no faces: all normals are (0, 0, 0)",
    WarningKind.NO_GROUPS: "segGroups is empty: no vertex is labeled",
    WarningKind.LABELS_OUTSIDE_NYU40: "ids outside nyu40 in labels.ply ({subject}), vertices left unlabeled: {count}",
}


@dataclass(frozen=True, slots=True)
class SceneWarning:
    """One oddity of one scene.

    Attributes:
        kind: What it is.
        subject: What it is about, where the kind alone does not say; may be empty.
        count: How many groups, segments or vertices it concerns.
    """

    kind: WarningKind
    subject: str = ""
    count: Count = 1

    @property
    def text(self) -> str:
        """A sentence for people."""
        return _TEXTS[self.kind].format(subject=self.subject, count=self.count)


@dataclass(frozen=True, slots=True)
class WarningSummary:
    """The same oddity in several scenes.

    Attributes:
        kind: What it is.
        text: A sentence for people, with the counts added up.
        count: How many groups, segments or vertices it concerns, in all scenes.
        scenes: The scenes that show it.
    """

    kind: WarningKind
    text: str
    count: int
    scenes: tuple[str, ...]


def summarize_warnings(warnings: Iterable[tuple[str, SceneWarning]]) -> list[WarningSummary]:
    """Merge the warnings of many scenes, so that each oddity is told once.

    Args:
        warnings: Pairs of scene id and warning.

    Returns:
        One summary for each kind and subject, in order of first appearance.
    """
    counts: Counter[tuple[WarningKind, str]] = Counter()
    scene_ids: dict[tuple[WarningKind, str], dict[str, None]] = {}  # a dict keeps the order
    for scene_id, warning in warnings:
        key = warning.kind, warning.subject
        counts[key] += warning.count
        scene_ids.setdefault(key, {})[scene_id] = None
    return [
        WarningSummary(kind, SceneWarning(kind, subject, count := counts[kind, subject]).text, count, tuple(found))
        for (kind, subject), found in scene_ids.items()
    ]
