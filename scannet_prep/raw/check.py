"""Read or check a file of the release by its kind; all commands that check files do it here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scannet_prep.raw.mesh import read_mesh
from scannet_prep.raw.scan_info import read_scan_info
from scannet_prep.raw.segments import read_aggregation, read_segments
from scannet_prep.raw.sensor_stream import check_sensor_stream
from scannet_prep.raw.zip_file import check_zip
from scannet_prep.release.files import Content, FileKind
from scannet_prep.release.label_map import read_label_map

_READERS: dict[Content, Callable[[Path, int], Any]] = {
    "mesh": read_mesh,
    "labels mesh": partial(read_mesh, has_labels=True),
    "segments": read_segments,
    "aggregation": read_aggregation,
    "info": read_scan_info,
    "label map": read_label_map,
    # These two are checked piece by piece, and return nothing.
    "zip": check_zip,
    "sensor stream": lambda path, _: check_sensor_stream(path),
}


def read_raw_file(kind: FileKind, path: Path) -> Any:  # noqa: ANN401 - depends on the kind
    """Read a file of the release, which checks that it is complete and of its kind.

    Args:
        kind: The kind of the file.
        path: The file, which may have any name.

    Returns:
        `Mesh`, `Segmentation`, `Aggregation`, `ScanInfo` or `LabelMap`; None for a zip file or a
        sensor stream.

    Raises:
        FileError: The file is missing, damaged, or of another kind.
    """
    return _READERS[kind.content](path, kind.max_bytes)
