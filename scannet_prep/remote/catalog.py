"""What the ScanNet server has, under which address, and where it belongs on disk. Needs no network.

The addresses and the local layout are those of the official download script (as of 2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scannet_prep.errors import UsageError
from scannet_prep.labels import LABEL_MAP_NAME
from scannet_prep.raw.layout import SPLIT_DIRS
from scannet_prep.scene import SceneId, Split

_ALL = frozenset(Split)
_ANNOTATED = frozenset({Split.TRAIN, Split.VAL})


class Content(StrEnum):
    """What is inside a file, and so how it can be checked."""

    MESH = "mesh"
    LABELS_MESH = "labels mesh"
    SEGMENTS = "segments"
    AGGREGATION = "aggregation"
    INFO = "info"
    LABEL_MAP = "label map"
    ZIP = "zip"
    SENSOR_STREAM = "sensor stream"


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of file of the release.

    Attributes:
        suffix: What follows the scene id in its name; for the label map, the whole name.
        content: What is inside.
        splits: The splits whose scenes have it.
        typical_bytes: Average size, for planning; None where nobody has measured it.
    """

    suffix: str
    content: Content
    splits: frozenset[Split]
    typical_bytes: int | None


# Sizes: averages over the release where known (about 6.1 MB of mesh a scene); None elsewhere.
KINDS: dict[str, FileKind] = {
    kind.suffix: kind
    for kind in (
        FileKind("_vh_clean_2.ply", Content.MESH, _ALL, 6_100_000),
        FileKind("_vh_clean_2.labels.ply", Content.LABELS_MESH, _ANNOTATED, 6_400_000),
        FileKind("_vh_clean_2.0.010000.segs.json", Content.SEGMENTS, _ANNOTATED, 900_000),
        FileKind(".aggregation.json", Content.AGGREGATION, _ANNOTATED, 12_000),
        FileKind(".txt", Content.INFO, _ALL, 700),
        FileKind("_vh_clean.aggregation.json", Content.AGGREGATION, _ANNOTATED, 12_000),
        FileKind("_vh_clean.segs.json", Content.SEGMENTS, _ANNOTATED, None),
        FileKind("_vh_clean.ply", Content.MESH, _ALL, None),
        FileKind(".sens", Content.SENSOR_STREAM, _ALL, None),
        FileKind("_2d-instance.zip", Content.ZIP, _ANNOTATED, None),
        FileKind("_2d-instance-filt.zip", Content.ZIP, _ANNOTATED, None),
        FileKind("_2d-label.zip", Content.ZIP, _ANNOTATED, None),
        FileKind("_2d-label-filt.zip", Content.ZIP, _ANNOTATED, None),
    )
}
LABEL_MAP_KIND = FileKind(LABEL_MAP_NAME, Content.LABEL_MAP, frozenset(), 56_406)

PRESETS: dict[str, tuple[str, ...]] = {
    "seg": (
        "_vh_clean_2.ply",
        "_vh_clean_2.labels.ply",
        "_vh_clean_2.0.010000.segs.json",
        ".aggregation.json",
        ".txt",
        LABEL_MAP_NAME,
    ),
}


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of the release.

    Attributes:
        kind: What it is.
        scene_id: The scene it belongs to; None for the label map.
        split: The split of that scene; None for the label map.
        remote_path: Address below the base URL.
        local_path: Place below the data folder, with `/`.
    """

    kind: FileKind
    scene_id: SceneId | None
    split: Split | None
    remote_path: str
    local_path: str


def parse_types(words: Sequence[str]) -> tuple[FileKind, ...]:
    """Turn presets and suffixes into kinds of files, each once.

    Raises:
        UsageError: One is neither a preset nor one of the official suffixes.
    """
    suffixes: dict[str, None] = {}
    for word in words:
        known = PRESETS.get(word, (word,))
        for suffix in known:
            if suffix not in KINDS and suffix != LABEL_MAP_NAME:
                raise UsageError(
                    f"{word!r} is not a type of file",
                    f"presets: {', '.join(PRESETS)}; types: {', '.join(KINDS)}, {LABEL_MAP_NAME}",
                )
            suffixes[suffix] = None
    return tuple(LABEL_MAP_KIND if suffix == LABEL_MAP_NAME else KINDS[suffix] for suffix in suffixes)


def list_files(scenes: Sequence[tuple[SceneId, Split]], kinds: Sequence[FileKind]) -> list[RemoteFile]:
    """List the files of the given kinds that exist for the given scenes, the label map first."""
    files = [
        RemoteFile(kind, None, None, f"v2/tasks/{LABEL_MAP_NAME}", LABEL_MAP_NAME)
        for kind in kinds
        if kind is LABEL_MAP_KIND
    ]
    for scene_id, split in scenes:
        files += [_scene_file(kind, scene_id, split) for kind in kinds if split in kind.splits]
    return files


def _scene_file(kind: FileKind, scene_id: SceneId, split: Split) -> RemoteFile:
    name = f"{scene_id}/{scene_id}{kind.suffix}"
    # The sensor streams of train and val never moved when version 2 came out.
    version = "v1" if kind.content is Content.SENSOR_STREAM and split is not Split.TEST else "v2"
    return RemoteFile(kind, scene_id, split, f"{version}/scans/{name}", f"{SPLIT_DIRS[split]}/{name}")
