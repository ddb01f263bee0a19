"""Read the metadata of a scan (`.txt`): `key = value` lines.

Only the axis alignment and the scene type are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import read_text
from scannet_prep.errors import ContentError
from scannet_prep.raw.tree import naming_file
from scannet_prep.release.files import INFO

# No room is shifted by 1,000 km. Points that are shifted by less stay within the range of float32.
_MAX_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class ScanInfo:
    """Metadata of one scan.

    Attributes:
        axis_alignment: float64 (4, 4), aligned <- scan, metres: floor to z = 0, walls to x and y.
            None if the file has none, as in the test split.
        scene_type: Free text, for example `Bedroom / Hotel`; None if the file has none.
    """

    axis_alignment: NDArray[np.float64] | None
    scene_type: str | None


def read_scan_info(
    path: Path,
    max_bytes: int = INFO.max_bytes,
) -> ScanInfo:
    """Read a scan's metadata.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read, or is too large.
        FileError: It is not text of `key = value` lines, or the axis alignment is not 16 finite
            numbers up to a million.
    """
    text = read_text(path, max_bytes)
    with naming_file(path):
        values = _parse_lines(text)
        axis_alignment = None
        if "axisAlignment" in values:
            axis_alignment = _parse_matrix(values["axisAlignment"])
        return ScanInfo(axis_alignment, values.get("sceneType"))


def find_alignment_fault(matrix: NDArray[np.float64]) -> str:
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
