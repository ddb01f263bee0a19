"""What the ScanNet server has, under which address, and where it belongs on disk. Needs no network.

The addresses and the local layout are those of the official download script (as of 2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scannet_prep.errors import UsageError
from scannet_prep.release import KINDS, LABEL_MAP, SEGMENTATION_KINDS, SPLIT_DIRS, Content, FileKind
from scannet_prep.scene import SceneId, Split

PRESETS = {"seg": (*(kind.suffix for kind in SEGMENTATION_KINDS), LABEL_MAP.suffix)}


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
    known = {**KINDS, LABEL_MAP.suffix: LABEL_MAP}
    suffixes = dict.fromkeys(suffix for word in words for suffix in PRESETS.get(word, (word,)))
    for suffix in suffixes:
        if suffix not in known:
            hint = f"presets: {', '.join(PRESETS)}; types: {', '.join(known)}"
            raise UsageError(f"{suffix!r} is not a type of file", hint)
    return tuple(known[suffix] for suffix in suffixes)


def list_files(scenes: Sequence[tuple[SceneId, Split]], kinds: Sequence[FileKind]) -> list[RemoteFile]:
    """List the files of the given kinds that exist for the given scenes, the label map first."""
    files = []
    if LABEL_MAP in kinds:
        files.append(RemoteFile(LABEL_MAP, None, None, f"v2/tasks/{LABEL_MAP.suffix}", LABEL_MAP.suffix))
    for scene_id, split in scenes:
        for kind in kinds:
            if split in kind.splits:
                name = f"{scene_id}/{scene_id}{kind.suffix}"
                # The sensor streams of train and val never moved when version 2 came out.
                version = "v1" if kind.content is Content.SENSOR_STREAM and split is not Split.TEST else "v2"
                place = f"{SPLIT_DIRS[split]}/{name}"
                files.append(RemoteFile(kind, scene_id, split, f"{version}/scans/{name}", place))
    return files
