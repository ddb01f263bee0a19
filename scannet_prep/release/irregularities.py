"""Warnings: oddities of a scene that are counted, shown and stored, but do not stop it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from scannet_prep.base.json import Count


class WarningKind(str, Enum):
    """The kinds of warnings: how each is stored, shown, and handled.

    Attributes:
        fault: What was found, in words; `{subject}` and `{count}` are filled in.
        effect: How the scene is processed anyway, in the same form; may be empty. Left out
            of errors.
        is_doubt: Whether labels may be wrong because of it, so that `--strict` makes it an error.
            The other kinds are known irregularities of the release, which can be read in only one
            correct way.
        is_damage: Whether it is about missing data that every such scene of the release has, so
            that a file must be damaged.
    """

    fault: str
    effect: str
    is_doubt: bool
    is_damage: bool

    __str__ = str.__str__

    def __new__(cls, value: str, fault: str, effect: str = "", grades: str = "") -> WarningKind:
        """Make a member from its row below.

        Args:
            value: The name that is stored.
            fault: See the attributes.
            effect: See the attributes.
            grades: `doubt` or `damage`; may be empty.
        """
        member = str.__new__(cls, value)
        # Otherwise, the value of the member would be the whole row.
        member._value_ = value
        member.fault = fault
        member.effect = effect
        member.is_doubt = "doubt" in grades
        member.is_damage = "damage" in grades
        return member

    # Rows of the stored name, fault, effect and grades.
    UNKNOWN_CATEGORY = (
        "unknown_category",
        "raw category {subject} is not in the label map",
        "groups left unlabeled: {count}",
        "doubt",
    )
    REPEATED_GROUPS = (
        "repeated_groups",
        "groups dropped that repeat an earlier group exactly: {count}",
    )
    UNKNOWN_SEGMENTS = (
        "unknown_segments",
        "segment ids of groups that no vertex has: {count}",
        "ignored",
        "doubt",
    )
    NULL_SEGMENTS = "null_segments", "segment ids of groups that are null, ignored: {count}"
    RENUMBERED_GROUPS = (
        "renumbered_groups",
        "group ids are {subject}: instances are numbered in file order; groups: {count}",
    )
    HIGH_RESOLUTION_AGGREGATION = (
        "high_resolution_aggregation",
        "there is no .aggregation.json, only {subject}",
        "groups taken from that",
        "doubt",
    )
    TEST_IN_SCANS = "test_in_scans", "lies in scans/, but is a test scene"
    OTHER_SCENE = "other_scene", "{subject}", "", "doubt"
    NO_AGGREGATION = "no_aggregation", "no aggregation on disk: no instances and no ScanNet ids"
    NO_ALIGNMENT = (
        "no_alignment",
        "the .txt has no axisAlignment",
        "identity recorded",
        "damage",
    )
    NOT_RIGID = "not_rigid", "axisAlignment is not a rotation with a shift: {subject}", "", "doubt"
    NO_INFO = "no_info", "no .txt on disk", "identity recorded as axis alignment"
    NO_FACES = "no_faces", "the mesh has no faces", "all normals are (0, 0, 0)", "damage"
    FILE_NORMALS = "file_normals", "the mesh has no faces", "normals taken from the file", "damage"
    NO_COLORS = (
        "no_colors",
        "no properties of the vertices are known as colours",
        "all colours are (128, 128, 128)",
        "damage",
    )
    UNUSED_PROPERTIES = "unused_properties", "the mesh has {subject}", "not used"
    LARGE_MESH = "large_mesh", "the mesh is {subject} m long", "its unit must be the metre"
    NO_GROUPS = "no_groups", "segGroups is empty", "no vertex is labeled", "damage"
    LABELS_OUTSIDE_NYU40 = (
        "labels_outside_nyu40",
        "ids outside nyu40 in labels.ply ({subject})",
        "vertices left unlabeled: {count}",
    )
    LABELS_CONTRADICT_GROUPS = (
        "labels_contradict_groups",
        "vertices whose label in labels.ply contradicts the groups: {count}",
        "",
        "doubt",
    )


@dataclass(frozen=True, slots=True)
class SceneWarning:
    """One oddity of one scene.

    Attributes:
        kind: The kind of oddity.
        subject: The name or the numbers for `{subject}` in the texts of the kind; may be empty.
        count: Number of groups, segments or vertices that are concerned, for `{count}`.
    """

    kind: WarningKind
    subject: str = ""
    count: Count = 1

    @property
    def fault(self) -> str:
        """The fault, in words."""
        return self.kind.fault.format(subject=self.subject, count=self.count)

    @property
    def text(self) -> str:
        """The fault, and how the scene is processed anyway."""
        effect = self.kind.effect.format(subject=self.subject, count=self.count)
        return f"{self.fault}: {effect}" if effect else self.fault
