"""What can be chosen about processed scenes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

from scannet_prep.errors import UsageError
from scannet_prep.labels import SCANNET20, SCANNET200, LabelSet

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

    def differences(self, other: ProcessOptions) -> list[str]:
        """What is different in `other`, in words such as `align_axis: False -> True`."""
        mine, theirs = asdict(self), asdict(other)
        return [f"{name}: {mine[name]} -> {theirs[name]}" for name in mine if mine[name] != theirs[name]]
