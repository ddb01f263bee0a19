"""Table of the files of the ScanNet v2 release: names, content, splits, sizes and addresses.

Download, process, verify and info all use this table. Addresses and the local layout are those of
the official download script (as of 2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from scannet_prep.release.scenes import Split

BASE_URL = "https://kaldir.vc.cit.tum.de/scannet/"
TERMS_URL = BASE_URL + "ScanNet_TOS.pdf"
# The file in a raw folder that records that one person has accepted the terms. It never leaves the
# machine.
ACCEPTANCE_NAME = "terms_accepted.txt"
# The notice in folders of files that derive from the release.
NOTICE_NAME = "TERMS.txt"
NOTICE_TEXT = f"""\
The files in this folder derive from the ScanNet dataset (http://www.scan-net.org) and remain \
under the
ScanNet Terms of Use, which allow non-commercial research and education and forbid redistribution:
{TERMS_URL}
Give them only to people who have accepted those terms.
"""

# Folder of the files that belong to no scene. Only the label map is elsewhere, in the root.
TASKS_DIR = "tasks"
# Folder of the scenes of each split.
SPLIT_DIRS = {Split.TRAIN: "scans", Split.VAL: "scans", Split.TEST: "scans_test"}

_ALL = frozenset(Split)
_ANNOTATED = frozenset({Split.TRAIN, Split.VAL})

# The format of a file, which determines how it can be checked.
Content: TypeAlias = Literal[
    "mesh", "labels mesh", "segments", "aggregation", "info", "label map", "zip", "sensor stream"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of file of the release.

    Attributes:
        suffix: The part of the name after the scene id. For a file of no scene, the whole name.
        content: The format.
        splits: The splits whose scenes have it; empty for a file that belongs to no scene.
        typical_bytes: Average size over the release, for planning.
        max_bytes: A generous limit: a larger file is not of this kind.
    """

    suffix: str
    content: Content
    splits: frozenset[Split]
    typical_bytes: int
    max_bytes: int


# In the order of the attributes: suffix, content, splits, typical and largest size in bytes.
#
# The typical sizes of the files that segmentation needs, and of the frames, are those of the
# server. `.sens` is 1.2 TB over 1,613 scenes. The others are estimates: a mesh before
# decimation has about six times the vertices, a label image of 1296 x 968 pixels about 13 kB as
# PNG, a scene about 1,600 of them, and lists of scenes and points are small.
MESH = FileKind("_vh_clean_2.ply", "mesh", _ALL, 6_100_000, 1 << 30)
LABELS_MESH = FileKind("_vh_clean_2.labels.ply", "labels mesh", _ANNOTATED, 6_400_000, 1 << 30)
SEGMENTS = FileKind("_vh_clean_2.0.010000.segs.json", "segments", _ANNOTATED, 900_000, 1 << 26)
AGGREGATION = FileKind(".aggregation.json", "aggregation", _ANNOTATED, 12_000, 1 << 24)
INFO = FileKind(".txt", "info", _ALL, 700, 1 << 20)
# In OctFormer's layout, this file replaces `.aggregation.json`. It belongs to the
# high-resolution mesh.
HIGH_RESOLUTION_AGGREGATION = FileKind(
    "_vh_clean.aggregation.json", "aggregation", _ANNOTATED, 12_000, 1 << 24
)
LABEL_MAP = FileKind("scannetv2-labels.combined.tsv", "label map", frozenset(), 56_406, 1 << 24)

# The files of a scene that segmentation needs. Test scenes have only some of them.
SEGMENTATION_KINDS = (MESH, LABELS_MESH, SEGMENTS, AGGREGATION, INFO)
# The files that a processed scene can be made from.
INPUT_KINDS = (*SEGMENTATION_KINDS, HIGH_RESOLUTION_AGGREGATION)
# Its groups come from one of these: the first that it has.
GROUPS_KINDS = (AGGREGATION, HIGH_RESOLUTION_AGGREGATION)
# The files of a scene, by suffix: the 13 of the official download script.
KINDS = {
    kind.suffix: kind
    for kind in (
        *SEGMENTATION_KINDS,
        HIGH_RESOLUTION_AGGREGATION,
        FileKind("_vh_clean.segs.json", "segments", _ANNOTATED, 6_000_000, 1 << 30),
        FileKind("_vh_clean.ply", "mesh", _ALL, 37_000_000, 1 << 32),
        FileKind(".sens", "sensor stream", _ALL, 750_000_000, 1 << 36),
        *(
            FileKind(suffix, "zip", _ANNOTATED, 20_000_000, 1 << 34)
            for suffix in (
                "_2d-instance.zip",
                "_2d-instance-filt.zip",
                "_2d-label.zip",
                "_2d-label-filt.zip",
            )
        ),
    )
}

FRAMES = FileKind("scannet_frames_25k.zip", "zip", frozenset(), 5_600_000_000, 1 << 35)
TEST_FRAMES = FileKind("scannet_frames_test.zip", "zip", frozenset(), 610_000_000, 1 << 33)
DATA_EFFICIENT_KINDS = tuple(
    FileKind(name, "zip", frozenset(), 1_000_000, 1 << 31)
    for name in (
        "limited-reconstruction-scenes.zip",
        "limited-annotation-points.zip",
        "limited-bboxes.zip",
    )
)

# The files of no scene, by name: the label map, preprocessed frames, and lists for training with
# few annotations.
SHARED_KINDS = {
    kind.suffix: kind for kind in (LABEL_MAP, FRAMES, TEST_FRAMES, *DATA_EFFICIENT_KINDS)
}

_SEG = tuple(kind.suffix for kind in (*SEGMENTATION_KINDS, LABEL_MAP))
# The files that `process` reads by default.
_SEG_MIN = tuple(suffix for suffix in _SEG if suffix != LABELS_MESH.suffix)
# Words that users can type for several suffixes.
PRESETS = {"seg": _SEG, "seg-min": _SEG_MIN}
# All words that name files to download.
TYPES = (*PRESETS, *KINDS, *SHARED_KINDS)
