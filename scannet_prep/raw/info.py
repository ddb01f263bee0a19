"""Reads a scan's metadata (`.txt`): `key = value` lines, of which the axis alignment and the scene type matter here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import RawFileError
from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.base.files import read_file
from scannet_prep.raw.layout import download_hint
from scannet_prep.release.files import INFO

# A shift by 1,000 km belongs to no room; and points that are moved by less stay within float32.
_MAX_NUMBER = 1_000_000
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LINE_END = re.compile(r"\r*\n|\r")


@dataclass(frozen=True, slots=True, eq=False)
class ScanInfo:
    """Metadata of one scan.

    Attributes:
        axis_alignment: float64 (4, 4), aligned <- scan, metres: floor to z = 0, walls to x and y. None where the file
            has none, as in the test split.
        scene_type: Free text, for example `Bedroom / Hotel`; None where the file has none.
    """

    axis_alignment: NDArray[np.float64] | None
    scene_type: str | None


def read_scan_info(path: Path) -> ScanInfo:
    """Read a scan's metadata from a file.

    Raises:
        MissingFileError: There is no such file.
        RawFileError: It is not text of `key = value` lines, or the axis alignment is not 16 finite
            numbers up to a million.
    """
    data = read_file(path, INFO.max_bytes)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise RawFileError(
            path, f"is not text: byte {error.start} is 0x{byte:02x}", download_hint(path)
        ) from None
    kind = "empty" if not text.strip() else describe_beginning(data[:BEGINNING_BYTES])
    if kind or "\0" in text:
        raise RawFileError(
            path,
            f"is {kind or 'not text: it holds NUL bytes'}, expected lines key = value",
            download_hint(path),
        )
    values: dict[str, str] = {}
    for number, line in enumerate(_LINE_END.split(text), start=1):
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals:
            raise RawFileError(
                path,
                f"is damaged: line {number} reads {line[:40]!r}, expected key = value",
                download_hint(path),
            )
        if values.setdefault(key, value.strip()) != value.strip():
            raise RawFileError(
                path, f"has two different values for {key[:40]}", download_hint(path)
            )
    matrix = values.get("axisAlignment")
    return ScanInfo(
        None if matrix is None else _parse_matrix(matrix, path), values.get("sceneType")
    )


def _parse_matrix(text: str, path: Path) -> NDArray[np.float64]:
    words = text.split()
    wrong = [
        word for word in words if not _NUMBER.fullmatch(word) or abs(float(word)) > _MAX_NUMBER
    ]
    if len(words) != 16 or wrong:
        detail = f"{len(words)} values" if len(words) != 16 else f"{wrong[0]!r:.40} among them"
        expected = f"expected 16 finite numbers up to {_MAX_NUMBER:,}"
        raise RawFileError(path, f"axisAlignment has {detail}, {expected}", download_hint(path))
    return np.array(list(map(float, words)), np.float64).reshape(4, 4)
