"""What can be chosen about processed scenes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from scannet_prep.errors import ContentError, UsageError
from scannet_prep.labels import SCANNET20, SCANNET200, LabelSet
from scannet_prep.strict_json import take

LabelsFrom = Literal["aggregation", "ply"]


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Everything that changes the bytes of a processed scene, other than the raw files.

    Attributes:
        scannet200: Whether `labels` holds ScanNet200 (else ScanNet20); the raw ids of both are always there.
        align_axis: Whether `points` and `normals` are in the axis-aligned frame (else in the frame of the scan).
        faces: Whether the triangles are kept.
        labels_from: `aggregation`, or `ply` for the nyu40 ids of `labels.ply`, as OctFormer and PointGroup take them.

    Raises:
        UsageError: The options contradict each other.
    """

    scannet200: bool = False
    align_axis: bool = False
    faces: bool = False
    labels_from: LabelsFrom = "aggregation"

    def __post_init__(self) -> None:
        """Check the combination."""
        if self.labels_from not in get_args(LabelsFrom):
            raise UsageError(f"labels_from is {self.labels_from!r}, expected one of {get_args(LabelsFrom)}")

    @property
    def label_set(self) -> LabelSet:
        """The label set of the array `labels`."""
        return SCANNET200 if self.scannet200 else SCANNET20

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> ProcessOptions:
        """Read what `to_json` made.

        Raises:
            ContentError: It is something else.
        """
        if not isinstance(value, dict) or set(value) != {field.name for field in fields(cls)}:
            raise ContentError(f"{value!r:.80} are not options")
        source: LabelsFrom = take(value, "labels_from", str)
        if source not in get_args(LabelsFrom):
            raise ContentError(f"labels_from is {source!r:.40}")
        scannet200, align_axis, faces = (take(value, key, bool) for key in ("scannet200", "align_axis", "faces"))
        return cls(scannet200, align_axis, faces, source)

    def differences(self, other: ProcessOptions) -> list[str]:
        """What is different in `other`, in words such as `align_axis: False -> True`."""
        mine, theirs = self.to_json(), other.to_json()
        return [f"{name}: {mine[name]} -> {theirs[name]}" for name in mine if mine[name] != theirs[name]]
