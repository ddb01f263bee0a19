"""Is a raw file what its name says, and does it fit the other files of its scene? The parsers of `raw` decide."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.errors import FileError
from scannet_prep.files import open_file
from scannet_prep.labels import read_label_map
from scannet_prep.release import AGGREGATION, LABELS_MESH, MESH, SEGMENTS, Content, FileKind
from scannet_prep.scene import Split
from scannet_prep.stages.download.planning import RemoteFile
from scannet_prep.stages.process.make_scene import read_raw_file

FITTING = frozenset({MESH, LABELS_MESH, SEGMENTS, AGGREGATION})
"""Kinds of files of a scene that have to fit together."""

# Version 4 of the sensor stream (SensReader in ScanNet's repository): a header with a name of any length in it, and
# frames of 96 bytes with colour and depth after each; at times the number of IMU frames, all of one size, and those.
_SENS_START = struct.Struct("<IQ")
_SENS_HEADER = struct.Struct("<64f2i4IfQ")
_SENS_FRAME = struct.Struct("<80x2Q")


@dataclass(frozen=True, slots=True)
class Facts:
    """What other files of the scene have to agree with."""

    vertex_count: int | None  # how many vertices it tells of; None where it tells of none
    segment_ids: frozenset[int]  # the segments that it has, or names


def check_file(remote: RemoteFile, path: Path) -> Facts | None:
    """Check that a file, perhaps under a temporary name, is whole, of its kind, and of its scene.

    Returns:
        What other files have to agree with, if it is one of the kinds that are `FITTING`.

    Raises:
        FileError: It is not.
    """
    with open_file(path, remote.kind.max_bytes):
        pass  # a regular file, and not too large
    content = remote.kind.content
    found: Any = _READERS[content](path) if content in _READERS else read_raw_file(remote.kind, path)
    scene_id = getattr(found, "scene_id", "")
    if scene_id and scene_id != remote.scene_id:  # files that say nothing pass
        raise FileError(path, f"sceneId is {scene_id!r:.60}, expected {remote.scene_id}")
    if content is Content.LABELS_MESH and found.labels is None:
        raise FileError(path, "its vertices have no property label")
    if content is Content.INFO and found.axis_alignment is None and remote.split is not Split.TEST:
        raise FileError(path, "has no axisAlignment, which every train and val scene has")
    if remote.kind not in FITTING:
        return None
    if remote.kind is SEGMENTS:
        return Facts(len(found.indices), frozenset(found.raw_ids.tolist()))
    if remote.kind is AGGREGATION:
        named = {number for group in found.groups for number in group.segment_ids}
        return Facts(None, frozenset(named - {None}))
    return Facts(found.vertex_count, frozenset())


def find_contradiction(facts: Mapping[FileKind, Facts]) -> str:
    """Find out what keeps files of a scene from fitting together; empty where they do."""
    counts = {kind.suffix: item.vertex_count for kind, item in facts.items() if item.vertex_count is not None}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{suffix} has {count:,}" for suffix, count in counts.items())
        return f"the numbers of vertices differ: {told}"
    known, named = (facts[kind].segment_ids if kind in facts else frozenset() for kind in (SEGMENTS, AGGREGATION))
    # Single strangers are for `verify` to report; a file in which none is known belongs to something else.
    if known and named and known.isdisjoint(named):
        return f"{AGGREGATION.suffix} names {len(named):,} segments, none of which is in {SEGMENTS.suffix}"
    return ""


def _check_zip(path: Path) -> None:
    try:
        zipfile.ZipFile(path).close()  # its directory is at the end
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise FileError(path, f"is not a zip file, or is truncated: {error}") from None


def _check_sensor_stream(path: Path) -> None:
    size_bytes, count = path.stat().st_size, 0
    try:
        with path.open("rb") as file:
            version, name_bytes = _SENS_START.unpack(file.read(_SENS_START.size))
            file.seek(name_bytes, os.SEEK_CUR)
            count = _SENS_HEADER.unpack(file.read(_SENS_HEADER.size))[-1]
            for _ in range(count):
                file.seek(sum(_SENS_FRAME.unpack(file.read(_SENS_FRAME.size))), os.SEEK_CUR)
            rest = size_bytes - file.tell()
            imu_count = int.from_bytes(file.read(8), "little")
    except (struct.error, OSError, OverflowError):
        version, rest, imu_count = 0, 0, 0
    is_end = rest == 0 or (rest >= 8 and (rest - 8) % max(1, imu_count) == 0 and (rest > 8) == (imu_count > 0))
    if version != 4 or not count or not is_end:
        raise FileError(path, f"is truncated, or no sensor stream: {size_bytes:,} bytes, {count:,} frames")


# Of files that no scene is made from.
_READERS: dict[Content, Callable[[Path], object]] = {
    Content.LABEL_MAP: read_label_map,
    Content.ZIP: _check_zip,
    Content.SENSOR_STREAM: _check_sensor_stream,
}
