"""The ScanNet v2 release: which files a scene has, what they are called, where they are, and how large they get.

The one table of files that download, process, verify and info all use. Addresses and the local layout are those of the
official download script (as of 2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from scannet_prep.release.scene import Split

BASE_URL = "https://kaldir.vc.cit.tum.de/scannet/"
TERMS_URL = BASE_URL + "ScanNet_TOS.pdf"
# Records in a raw tree that one person has accepted the terms; it never leaves the machine.
ACCEPTANCE_NAME = "terms_accepted.txt"

TASKS_DIR = "tasks"
"""Folder of the files that belong to no scene, but for the label map."""

SPLIT_DIRS = {Split.TRAIN: "scans", Split.VAL: "scans", Split.TEST: "scans_test"}

_ALL = frozenset(Split)
_ANNOTATED = frozenset({Split.TRAIN, Split.VAL})


Content: TypeAlias = Literal[
    "mesh", "labels mesh", "segments", "aggregation", "info", "label map", "zip", "sensor stream"
]  # fmt: skip
"""What is inside a file, and so how it can be checked."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of file of the release.

    Attributes:
        suffix: What follows the scene id in its name; for a file of no scene, the whole name.
        content: What is inside.
        splits: The splits whose scenes have it; none for a file of no scene.
        typical_bytes: Average size over the release, for planning; None where nobody has measured it.
        max_bytes: A larger file is not what it claims to be; generous.
    """

    suffix: str
    content: Content
    splits: frozenset[Split]
    typical_bytes: int | None
    max_bytes: int


MESH = FileKind("_vh_clean_2.ply", "mesh", _ALL, 6_100_000, 1 << 30)
LABELS_MESH = FileKind("_vh_clean_2.labels.ply", "labels mesh", _ANNOTATED, 6_400_000, 1 << 30)
SEGMENTS = FileKind("_vh_clean_2.0.010000.segs.json", "segments", _ANNOTATED, 900_000, 1 << 26)
AGGREGATION = FileKind(".aggregation.json", "aggregation", _ANNOTATED, 12_000, 1 << 24)
INFO = FileKind(".txt", "info", _ALL, 700, 1 << 20)
# OctFormer's trees have this one instead of `.aggregation.json`; it was made for the high-resolution mesh.
HIGH_RESOLUTION_AGGREGATION = FileKind(
    "_vh_clean.aggregation.json", "aggregation", _ANNOTATED, 12_000, 1 << 24
)
LABEL_MAP = FileKind("scannetv2-labels.combined.tsv", "label map", frozenset(), 56_406, 1 << 24)

SEGMENTATION_KINDS = (MESH, LABELS_MESH, SEGMENTS, AGGREGATION, INFO)
"""What segmentation needs of a scene, less what its split does not have."""

INPUT_KINDS = (*SEGMENTATION_KINDS, HIGH_RESOLUTION_AGGREGATION)
"""What a processed scene can be made from."""

KINDS = {
    kind.suffix: kind
    for kind in (
        *SEGMENTATION_KINDS,
        HIGH_RESOLUTION_AGGREGATION,
        FileKind("_vh_clean.segs.json", "segments", _ANNOTATED, None, 1 << 30),
        FileKind("_vh_clean.ply", "mesh", _ALL, None, 1 << 32),
        FileKind(".sens", "sensor stream", _ALL, None, 1 << 36),
        FileKind("_2d-instance.zip", "zip", _ANNOTATED, None, 1 << 34),
        FileKind("_2d-instance-filt.zip", "zip", _ANNOTATED, None, 1 << 34),
        FileKind("_2d-label.zip", "zip", _ANNOTATED, None, 1 << 34),
        FileKind("_2d-label-filt.zip", "zip", _ANNOTATED, None, 1 << 34),
    )
}
"""The files of a scene, by suffix: the 13 of the official download script."""

FRAMES = FileKind("scannet_frames_25k.zip", "zip", frozenset(), 5_600_000_000, 1 << 35)
TEST_FRAMES = FileKind("scannet_frames_test.zip", "zip", frozenset(), 610_000_000, 1 << 33)
DATA_EFFICIENT_KINDS = tuple(
    FileKind(name, "zip", frozenset(), None, 1 << 31)
    for name in (
        "limited-reconstruction-scenes.zip",
        "limited-annotation-points.zip",
        "limited-bboxes.zip",
    )
)

SHARED_KINDS = {
    kind.suffix: kind for kind in (LABEL_MAP, FRAMES, TEST_FRAMES, *DATA_EFFICIENT_KINDS)
}
"""Files of no scene, by name: the label map, preprocessed frames, and lists for training with few annotations."""

_SEG = (*(kind.suffix for kind in SEGMENTATION_KINDS), LABEL_MAP.suffix)
PRESETS = {"seg": _SEG, "seg-min": tuple(suffix for suffix in _SEG if suffix != LABELS_MESH.suffix)}
"""Words for several suffixes; `seg-min` is what `process` reads unless told otherwise."""
