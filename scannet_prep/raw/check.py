"""Check a file of the release by its kind; every command that checks files uses `check_file`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scannet_prep.base.files import open_file
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError
from scannet_prep.raw.contents import read_raw_file
from scannet_prep.raw.info import ScanInfo
from scannet_prep.raw.sensor_stream import check_sensor_stream
from scannet_prep.raw.zip_file import check_zip
from scannet_prep.release.files import FileKind
from scannet_prep.release.label_map import read_label_map
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import find_official_split

# The checks of large files, which report their progress piece by piece.
_LARGE_FILE_CHECKS: dict[str, Callable[[Path, Callable[[int], None]], None]] = {
    "zip": check_zip,
    "sensor stream": check_sensor_stream,
}


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
    advance = Progress().advance if progress is None else progress.advance
    with open_file(path, kind.max_bytes) as file:
        size_bytes = file.seek(0, 2)
    if kind.content in _LARGE_FILE_CHECKS:
        _LARGE_FILE_CHECKS[kind.content](path, advance)
        return
    if kind.content == "label map":
        read_label_map(path)
    else:
        _check_small_file(kind, path, scene_id)
    advance(size_bytes)


def _check_small_file(kind: FileKind, path: Path, scene_id: str) -> None:
    """Parse a file of a scene, and check that it belongs to the scene, if one is given."""
    content = read_raw_file(kind, path)
    if not scene_id:
        return
    # Many files of the release contain no scene id.
    named_id = getattr(content, "scene_id", "")
    if named_id and named_id != scene_id:
        raise FileError(path, f"sceneId is {named_id!r:.60}, expected {scene_id}")
    is_annotated = find_official_split(scene_id) in (Split.TRAIN, Split.VAL)
    if isinstance(content, ScanInfo) and content.axis_alignment is None and is_annotated:
        raise FileError(path, "has no axisAlignment, which every train and val scene has")
