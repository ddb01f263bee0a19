"""Read the files of the release by their kind; all commands that read or check files do it here.

The metadata of a scan (`.txt`) are read here, too: lines `key = value`, of which only the axis
alignment and the scene type are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Fingerprint, decode_text, read_file
from scannet_prep.errors import ContentError
from scannet_prep.raw.mesh import parse_mesh
from scannet_prep.raw.segments import parse_aggregation, parse_segments
from scannet_prep.raw.sensor_stream import check_sensor_stream
from scannet_prep.raw.tree import naming_file
from scannet_prep.raw.zip_file import check_zip
from scannet_prep.release.files import Content, FileKind
from scannet_prep.release.irregularities import SceneWarning, WarningKind
from scannet_prep.release.label_map import read_label_map

# No room is shifted by 1,000 km. Points that are shifted by less stay within the range of float32.
_MAX_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class ScanInfo:
    """Metadata of one scan.

    Attributes:
        axis_alignment: float64 (4, 4), aligned <- scan, metres: floor to z = 0, walls to x and y.
            None if the file has none, as in the test split.
        scene_type: Free text, for example `Bedroom / Hotel`; None if the file has none.
        notes: What is odd about the axis alignment.
    """

    axis_alignment: NDArray[np.float64] | None
    scene_type: str | None
    notes: tuple[SceneWarning, ...] = ()


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
    read_in_pieces = _READERS.get(kind.content)
    if read_in_pieces is not None:
        return read_in_pieces(path, kind.max_bytes)
    return _PARSERS[kind.content](read_file(path, kind.max_bytes), path)


def read_raw_files(
    paths: Mapping[FileKind, Path],
) -> tuple[dict[FileKind, Any], dict[str, Fingerprint]]:
    """Read the files that a scene is made from, each once.

    Args:
        paths: The files by kind.

    Returns:
        What `read_raw_file` returns, by kind; and the fingerprints of the files, by name.

    Raises:
        FileError: A file is missing, damaged, or of another kind.
    """
    data = {kind: read_file(path, kind.max_bytes) for kind, path in paths.items()}
    inputs = {paths[kind].name: Fingerprint.from_bytes(data[kind]) for kind in paths}
    contents = {kind: _PARSERS[kind.content](data[kind], path) for kind, path in paths.items()}
    return contents, inputs


def _parse_scan_info(
    data: bytes,
    path: Path,
) -> ScanInfo:
    """Parse a scan's metadata.

    Raises:
        FileError: It is not text of `key = value` lines, or the axis alignment is not 16 finite
            numbers up to a million.
    """
    text = decode_text(data, path)
    with naming_file(path):
        values = _parse_lines(text)
        scene_type = values.get("sceneType")
        if "axisAlignment" not in values:
            return ScanInfo(None, scene_type)
        axis_alignment = _parse_matrix(values["axisAlignment"])
    fault = _find_alignment_fault(axis_alignment)
    notes = (SceneWarning(WarningKind.NOT_RIGID, fault),) if fault else ()
    return ScanInfo(axis_alignment, scene_type, notes)


def _find_alignment_fault(matrix: NDArray[np.float64]) -> str:
    """Describe why a matrix, float64 (4, 4), is not a rotation with a shift; empty if it is one."""
    last_row = matrix[3].tolist()
    if last_row != [0, 0, 0, 1]:
        return f"its last row is {last_row}"
    rotation = matrix[:3, :3]
    # The release writes six decimals, so that its rotations are exact up to a few millionths.
    product = rotation @ rotation.T
    deviations = np.abs(product - np.eye(3))
    deviation = float(deviations.max())
    if deviation > 1e-4:
        return f"it deviates by {deviation:.2g} from one"
    if np.linalg.det(rotation) < 0:
        return "it mirrors the points"
    return ""


def _parse_lines(text: str) -> dict[str, str]:
    """Parse lines of `key = value`; at least one."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if not equals or "\0" in line:
            raise ContentError(
                f"is damaged: line {number} reads {line!r:.40}, expected key = value"
            )
        key = key.strip()
        value = value.strip()
        # A key may be repeated with the same value.
        if values.setdefault(key, value) != value:
            raise ContentError(f"has two different values for {key[:40]}")
    if not values:
        raise ContentError("is empty, expected lines key = value")
    return values


def _parse_matrix(text: str) -> NDArray[np.float64]:
    """Parse the 16 numbers of a matrix, listed row by row, as float64 (4, 4)."""
    words = text.split()
    try:
        matrix = np.array(words, np.float64).reshape(4, 4)
    except ValueError:
        matrix = np.full((4, 4), np.nan)
    # False if a number is NaN.
    if not (np.abs(matrix) <= _MAX_NUMBER).all():
        raise ContentError(
            f"axisAlignment has {len(words)} values, {text!r:.200}, "
            f"expected 16 finite numbers up to {_MAX_NUMBER:,}"
        )
    return matrix


# Parsers of content and path.
_PARSERS: dict[Content, Callable[[bytes, Path], Any]] = {
    "mesh": parse_mesh,
    "labels mesh": partial(parse_mesh, has_labels=True),
    "segments": parse_segments,
    "aggregation": parse_aggregation,
    "info": _parse_scan_info,
}
# Readers of path and largest size. Zip files and streams are checked piece by piece.
_READERS: dict[Content, Callable[[Path, int], Any]] = {
    "label map": read_label_map,
    "zip": check_zip,
    "sensor stream": lambda path, _: check_sensor_stream(path),
}
