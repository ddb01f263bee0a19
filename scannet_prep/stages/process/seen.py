"""Sizes and times of files that were found right, kept beside the manifest so that a rerun need not read them.

As rsync does: a file is taken for unchanged where size, time of change in ns, and inode are the same, unless all bytes
are asked to be compared. It is not part of the folder's content: without it, the next run reads everything once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from scannet_prep.errors import ContentError, FileError
from scannet_prep.files import read_file, write_if_changed
from scannet_prep.raw.layout import RawScene
from scannet_prep.release import HIGH_RESOLUTION_AGGREGATION, SEGMENTATION_KINDS
from scannet_prep.typed_json import encode_json, parse_json

SEEN_NAME = ".scannet-prep-seen.json"

_VERSION = 1
_SUFFIXES = tuple(kind.suffix for kind in (*SEGMENTATION_KINDS, HIGH_RESOLUTION_AGGREGATION))

FileSeen: TypeAlias = list[int] | None


class SceneSeen(NamedTuple):
    """What the files of one scene were like.

    Attributes:
        label_map: Digest of the label map that was used; empty where none was.
        output: Size, time of change in ns, and inode of the `.npz`.
        inputs: The same of each raw file that a scene can be made from; None where it is not there.
    """

    label_map: str
    output: FileSeen
    inputs: list[FileSeen]


@dataclass(frozen=True, slots=True)
class _Record:
    """What stands in the file."""

    version: int
    scenes: dict[str, SceneSeen]


def look_at_scene(scene: RawScene, path: Path, used_label_map: str = "") -> SceneSeen:
    """Look at the files of one scene, without opening them."""
    start = f"{scene.directory}/{scene.scene_id}"
    return SceneSeen(used_label_map, look_at(str(path)), [look_at(start + suffix) for suffix in _SUFFIXES])


def read_seen(out_dir: Path) -> dict[str, SceneSeen]:
    """Read what the last run saw, by scene id; empty where nothing is known."""
    with suppress(FileError, ContentError):  # damaged: then everything is read again
        record = parse_json(read_file(out_dir / SEEN_NAME), _Record)
        if record.version == _VERSION:
            return record.scenes
    return {}


def write_seen(out_dir: Path, scenes: Mapping[str, SceneSeen]) -> None:
    """Write what this run saw.

    Raises:
        OutputError: The folder cannot be written to.
    """
    write_if_changed(out_dir / SEEN_NAME, encode_json(_Record(_VERSION, dict(sorted(scenes.items())))))


def look_at(path: str) -> FileSeen:
    """Look at one file, without opening it."""
    try:
        status = os.stat(path)  # noqa: PTH116 - eleven thousand of them, before anything else happens
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino]
