"""Parse any file of a scene, by its kind."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from scannet_prep.base.files import Buffer, read_file
from scannet_prep.raw.info import ScanInfo, parse_scan_info
from scannet_prep.raw.mesh import LabelsMesh, Mesh, map_mesh, parse_labels_mesh, parse_mesh
from scannet_prep.raw.segments import Aggregation, Segmentation, parse_aggregation, parse_segments
from scannet_prep.release.files import FileKind

RawContent: TypeAlias = Mesh | LabelsMesh | Segmentation | Aggregation | ScanInfo
"""The content of a file of a scene."""


def read_raw_file(kind: FileKind, path: Path) -> RawContent:
    """Read a file of a scene.

    Errors are those of `read_file` and `parse_raw_file`.
    """
    # Meshes may have hundreds of megabytes, so they are mapped rather than read.
    if kind.content in ("mesh", "labels mesh"):
        return parse_raw_file(kind, map_mesh(path), path)
    return parse_raw_file(kind, read_file(path, kind.max_bytes), path)


def parse_raw_file(kind: FileKind, data: Buffer, path: Path) -> RawContent:
    """Parse a file of a scene.

    Args:
        kind: The kind of the file; not a zip file or a sensor stream.
        data: Its bytes.
        path: Its name, for messages.

    Raises:
        RawFileError: It is damaged, or another kind of file.
    """
    if kind.content == "mesh":
        return parse_mesh(data, path)
    if kind.content == "labels mesh":
        return parse_labels_mesh(data, path)
    if kind.content == "segments":
        return parse_segments(data, path)
    if kind.content == "aggregation":
        return parse_aggregation(data, path)
    if kind.content == "info":
        return parse_scan_info(data, path)
    raise ValueError(f"no parser for files of kind {kind.content}")
