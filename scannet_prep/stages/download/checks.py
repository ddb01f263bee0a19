"""Is a raw file what its name says, and of its scene? The parsers of `raw` decide."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scannet_prep.errors import FileError
from scannet_prep.files import open_file
from scannet_prep.labels import read_label_map
from scannet_prep.raw.info import read_scan_info
from scannet_prep.raw.mesh import read_mesh
from scannet_prep.raw.segments import read_aggregation, read_segments
from scannet_prep.release import LABELS_MESH, MESH, SEGMENTS, Content
from scannet_prep.scene import Split
from scannet_prep.stages.download.planning import RemoteFile

OF_ONE_MESH = frozenset({MESH, LABELS_MESH, SEGMENTS})
"""Kinds of files of a scene whose numbers of vertices agree."""

# Version 4 of the sensor stream (SensReader in ScanNet's repository): a header with a name of any length in it, and
# frames of 96 bytes with colour and depth after each; at times the number of IMU frames, all of one size, and those.
_SENS_START = struct.Struct("<IQ")
_SENS_HEADER = struct.Struct("<64f2i4IfQ")
_SENS_FRAME = struct.Struct("<80x2Q")


def check_file(remote: RemoteFile, path: Path) -> int | None:
    """Check that a file, perhaps under a temporary name, is whole, of its kind, and of its scene.

    Returns:
        For kinds `OF_ONE_MESH`, of how many vertices it tells.

    Raises:
        FileError: It is not.
    """
    with open_file(path, remote.kind.max_bytes):
        pass  # a regular file, and not too large
    content = remote.kind.content
    found: Any = _READERS[content](path)
    scene_id = getattr(found, "scene_id", "")
    if scene_id and scene_id != remote.scene_id:  # files that say nothing pass
        raise FileError(path, f"sceneId is {scene_id!r:.60}, expected {remote.scene_id}")
    if content is Content.LABELS_MESH and found.labels is None:
        raise FileError(path, "its vertices have no property label")
    if content is Content.INFO and found.axis_alignment is None and remote.split is not Split.TEST:
        raise FileError(path, "has no axisAlignment, which every train and val scene has")
    if remote.kind not in OF_ONE_MESH:
        return None
    return len(found.indices) if remote.kind is SEGMENTS else found.vertex_count


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


_READERS: dict[Content, Callable[[Path], object]] = {
    Content.MESH: read_mesh,
    Content.LABELS_MESH: read_mesh,
    Content.SEGMENTS: read_segments,
    Content.AGGREGATION: read_aggregation,
    Content.INFO: read_scan_info,
    Content.LABEL_MAP: read_label_map,
    Content.ZIP: _check_zip,
    Content.SENSOR_STREAM: _check_sensor_stream,
}
