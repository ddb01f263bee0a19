"""Read or check a file of the release by its kind; all commands that check files do it here."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scannet_prep.base.files import open_file
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError
from scannet_prep.raw.mesh import read_mesh
from scannet_prep.raw.scan_info import ScanInfo, read_scan_info
from scannet_prep.raw.segments import read_aggregation, read_segments
from scannet_prep.raw.sensor_stream import check_sensor_stream
from scannet_prep.raw.zip_file import check_zip
from scannet_prep.release.files import Content, FileKind
from scannet_prep.release.label_map import read_label_map
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split

_READERS: dict[Content, Callable[[Path, int], Any]] = {
    "mesh": read_mesh,
    "labels mesh": partial(read_mesh, has_labels=True),
    "segments": read_segments,
    "aggregation": read_aggregation,
    "info": read_scan_info,
    "label map": read_label_map,
}
# The checks of large files, which report their progress piece by piece.
_LARGE_FILE_CHECKS: dict[Content, Callable[[Path, Progress], None]] = {
    "zip": check_zip,
    "sensor stream": check_sensor_stream,
}


def read_raw_file(kind: FileKind, path: Path, scene_id: str = "") -> Any:  # noqa: ANN401 - by kind
    """Read a file of the release, except for zip files and sensor streams.

    Args:
        kind: The kind of the file.
        path: The file, which may have any name.
        scene_id: Its scene; the mesh of an own scene may have other forms.

    Returns:
        `Mesh`, `Segmentation`, `Aggregation`, `ScanInfo` or `LabelMap`.

    Raises:
        FileError: The file is missing, damaged, or of another kind.
    """
    if kind.content == "mesh" and SceneId.is_own(scene_id):
        return read_mesh(path, kind.max_bytes, is_own=True)
    return _READERS[kind.content](path, kind.max_bytes)


def check_file(
    kind: FileKind, path: Path, scene_id: str = "", progress: Progress | None = None
) -> None:
    """Check that a file is complete, of its kind, and of its scene.

    Args:
        kind: The kind of the file.
        path: The file, which may have any name.
        scene_id: The scene that the file must belong to, as far as it names one. If the scene is a
            train or val scene of the release, its metadata must have an axis alignment. Empty for a
            file of no scene, or to leave both out.
        progress: Its `advance` is called with the number of bytes that were checked.

    Raises:
        FileError: The file is missing, damaged, of another kind, or of another scene.
    """
    progress = progress or Progress()
    with open_file(path, kind.max_bytes) as file:
        size_bytes = file.seek(0, io.SEEK_END)
    if kind.content in _LARGE_FILE_CHECKS:
        _LARGE_FILE_CHECKS[kind.content](path, progress)
        return
    content = read_raw_file(kind, path, scene_id)
    progress.advance(size_bytes)
    # Many files of the release contain no scene id.
    named_id = getattr(content, "scene_id", "")
    if scene_id and named_id and named_id != scene_id:
        raise FileError(path, f"sceneId is {named_id!r:.60}, expected {scene_id}")
    is_annotated = find_official_split(scene_id) in (Split.TRAIN, Split.VAL)
    if isinstance(content, ScanInfo) and content.axis_alignment is None and is_annotated:
        raise FileError(path, "has no axisAlignment, which every train and val scene has")
