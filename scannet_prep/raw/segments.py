"""Reads an over-segmentation (`_vh_clean_2.0.010000.segs.json`): which segment (superpoint) each vertex is in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.compiled import compile_loop
from scannet_prep.errors import SegmentsError
from scannet_prep.files import Buffer, read_file
from scannet_prep.raw.json_text import parse_json_object, parse_name, parse_optional_id, shorten

_KEY = "segIndices"
_INT64_MAX = np.iinfo(np.int64).max
# Stands for the long list while the rest is parsed, and tells whether it was the list at the top that was cut out.
_MARK = b'"the list that was cut out"'


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation:
    """The segments of one mesh.

    Attributes:
        scene_id: As the file says it, without a leading `scannet.`; empty where it says nothing.
        raw_ids: int64 (S,), ascending; the ids that the file uses, which are sparse.
        indices: intp (V,), 0..S-1: `raw_ids[indices]` is what the file holds.
    """

    scene_id: str
    raw_ids: NDArray[np.int64]
    indices: NDArray[np.intp]

    def compact_indices(self) -> NDArray[np.uint16] | NDArray[np.uint32]:
        """The indices in the smallest of uint16 and uint32 that holds them."""
        if len(self.raw_ids) <= np.iinfo(np.uint16).max + 1:
            return self.indices.astype(np.uint16)
        return self.indices.astype(np.uint32)


def read_segments(path: Path) -> Segmentation:
    """Read an over-segmentation from a file.

    Raises:
        MissingFileError: There is no such file.
        SegmentsError: It is damaged.
    """
    return parse_segments(read_file(path), path)


def parse_segments(data: Buffer, path: Path) -> Segmentation:
    """Parse the content of a `.segs.json` file.

    Args:
        data: The whole file.
        path: Its name, for messages.

    Raises:
        SegmentsError: It is no JSON object, or `segIndices` is no list of ids.
    """
    document, values = _parse_plain(bytes(data)) or _parse_any(data, path)
    raw_ids, indices = _number_contiguously(values)
    return Segmentation(parse_name(document.get("sceneId")), raw_ids, indices)


def _parse_plain(data: bytes) -> tuple[dict[str, Any], NDArray[np.int64]] | None:
    """Parse a file whose long list is written as the release writes it: digits and commas, nothing else.

    The list is a megabyte of text, so it goes straight into an array, and only the rest through the JSON parser. None
    where anything is unusual; then the general way decides.
    """
    key = data.find(b'"' + _KEY.encode() + b'"')
    start = data.find(b"[", key)
    end = data.find(b"]", start)
    if key < 0 or start < 0 or end < 0:
        return None
    body = data[start + 1 : end]
    values = _parse_numbers(body)
    if values is None:
        return None
    try:
        document = parse_json_object(data[: start + 1] + _MARK + data[end:], Path(), SegmentsError)
    except SegmentsError:
        return None
    if document.get(_KEY) != [json.loads(_MARK)]:
        return None
    return document, values


def compile_parser() -> Callable[[NDArray[np.uint8], NDArray[np.int64]], int] | None:
    """Compile the parser of long lists, unless that is done; None where numba is not installed."""
    return compile_loop(_parse_numbers_loop, "int64(Array(uint8, 1, 'C', readonly=True), int64[::1])")


def _parse_numbers(text: bytes) -> NDArray[np.int64] | None:
    """Read numbers of at most 18 digits with a comma between each two; None where the text is anything else."""
    loop = compile_parser()
    if loop is None:
        return _parse_numbers_numpy(text)
    values = np.empty(len(text) // 2 + 1, np.int64)
    count = loop(np.frombuffer(text, np.uint8), values)
    return values[:count] if count else None


def _parse_numbers_numpy(text: bytes) -> NDArray[np.int64] | None:
    characters = np.frombuffer(text, np.uint8)
    is_comma = characters == ord(",")
    if not (text[:1].isdigit() and text[-1:].isdigit()) or (is_comma[1:] & is_comma[:-1]).any():
        return None
    ends = np.flatnonzero(is_comma)
    longest = int(np.diff(ends, prepend=-1, append=len(text)).max()) - 1
    if longest > 18 or text.translate(None, b"0123456789,"):
        return None
    values = np.fromstring(text, np.int64, sep=",")
    return values if len(values) == len(ends) + 1 else None


def _parse_numbers_loop(text: NDArray[np.uint8], values: NDArray[np.int64]) -> int:
    """Do what `_parse_numbers_numpy` does; returns how many numbers there are, 0 for None; compiled by numba."""
    count, value, digit_count = 0, np.int64(0), 0
    for character in text:
        digit = np.uint8(character - np.uint8(48))
        if digit < 10:
            value = value * 10 + np.int64(digit)
            digit_count += 1
        elif character == 44 and 0 < digit_count < 19:
            values[count] = value
            count, value, digit_count = count + 1, np.int64(0), 0
        else:
            return 0
    if not 0 < digit_count < 19:
        return 0
    values[count] = value
    return count + 1


def _parse_any(data: Buffer, path: Path) -> tuple[dict[str, Any], NDArray[np.int64]]:
    document = parse_json_object(data, path, SegmentsError)
    items = document.get(_KEY)
    if not isinstance(items, list) or not items:
        raise SegmentsError(path, f"{_KEY} is {shorten(items)}, expected a list of segment ids")
    ids = []
    for index, item in enumerate(items):
        try:
            segment_id = parse_optional_id(item)
        except ValueError:
            segment_id = None
        if segment_id is None or not 0 <= segment_id <= _INT64_MAX:
            raise SegmentsError(path, f"{_KEY}[{index}] is {shorten(item)}, expected a segment id")
        ids.append(segment_id)
    return document, np.array(ids, np.int64)


def _number_contiguously(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Do what `np.unique(values, return_inverse=True)` does; by a table where ids are small, as the release's are."""
    largest = int(values.max())
    if largest >= 4 * len(values) + 1024:
        unique, inverse = np.unique(values, return_inverse=True)
        return unique, inverse.reshape(-1)
    is_used = np.zeros(largest + 1, np.bool_)
    is_used[values] = True
    raw_ids = np.flatnonzero(is_used)
    numbers = np.empty(largest + 1, np.intp)
    numbers[raw_ids] = np.arange(len(raw_ids))
    return raw_ids.astype(np.int64, copy=False), numbers.take(values)
