"""Reads an over-segmentation (`_vh_clean_2.0.010000.segs.json`): which segment (superpoint) each vertex is in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.compiled import compile_parser
from scannet_prep.errors import ContentError, SegmentsError
from scannet_prep.files import Buffer, read_file
from scannet_prep.raw.json_text import parse_json_object, parse_name, parse_optional_id, shorten
from scannet_prep.release import SEGMENTS

_KEY = "segIndices"
_INT64_MAX = np.iinfo(np.int64).max
# NumPy turns larger numbers than int64 holds into the largest one.
_FAST_LIMIT = 10**18
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
    return parse_segments(read_file(path, SEGMENTS.max_bytes), path)


def parse_segments(data: Buffer, path: Path) -> Segmentation:
    """Parse the content of a `.segs.json` file.

    Args:
        data: The whole file.
        path: Its name, for messages.

    Raises:
        SegmentsError: It is not a JSON object, or `segIndices` is not a list of ids.
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
    values = parse_numbers(body)
    if values is None:
        return None
    try:
        document = parse_json_object(data[: start + 1] + _MARK + data[end:], Path(), SegmentsError)
    except SegmentsError:
        return None
    if document.get(_KEY) != [json.loads(_MARK)]:
        return None
    return document, values


def parse_numbers(text: bytes) -> NDArray[np.int64] | None:
    """Read whole numbers with a comma between each two; None where the text is anything else."""
    loop = compile_parser()
    if loop is not None:
        values = np.empty(len(text) // 2 + 1, np.int64)
        count = loop(np.frombuffer(text, np.uint8), values)
        return values[:count] if count else None
    if not text or text.translate(None, b"0123456789,"):
        return None
    characters = np.frombuffer(b"," + text + b",", np.uint8)
    is_comma = characters == ord(",")
    # An empty item, which NumPy reads as 0; and a zero before other digits, which no JSON parser accepts.
    if (is_comma[1:] & is_comma[:-1]).any():
        return None
    if (is_comma[:-2] & (characters[1:-1] == ord("0")) & ~is_comma[2:]).any():
        return None
    values = np.fromstring(text, np.int64, sep=",")
    return values if int(values.max()) < _FAST_LIMIT else None


def _parse_any(data: Buffer, path: Path) -> tuple[dict[str, Any], NDArray[np.int64]]:
    document = parse_json_object(data, path, SegmentsError)
    items = document.get(_KEY)
    if not isinstance(items, list) or not items:
        raise SegmentsError(path, f"{_KEY} is {shorten(items)}, expected a list of segment ids")
    ids = []
    for index, item in enumerate(items):
        try:
            segment_id = parse_optional_id(item)
        except ContentError:
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
