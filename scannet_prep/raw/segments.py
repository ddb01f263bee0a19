"""Reads an over-segmentation (`_vh_clean_2.0.010000.segs.json`): which segment (superpoint) each vertex is in."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.compiled import compile_geometry, compile_parser
from scannet_prep.errors import SegmentsError
from scannet_prep.files import Buffer, read_file
from scannet_prep.raw.json_text import Id, parse_document, parse_id, parse_name
from scannet_prep.release import SEGMENTS

_MARK = -987_654_321
_INT64_MAX = np.iinfo(np.int64).max
# NumPy turns larger numbers than int64 holds into the largest one.
_FAST_LIMIT = 10**18


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
    # The list is a megabyte of text, which goes straight into an array; the JSON parser gets a mark in its place.
    text = bytes(data)
    start = text.find(b"[", text.find(b'"segIndices"')) + 1
    end = text.find(b"]", start)
    values = _parse_plain_list(text[start:end])
    if values is not None:
        with suppress(SegmentsError):  # told below, of the file as it is
            document = parse_document(b"%b%d%b" % (text[:start], _MARK, text[end:]), path, SegmentsError, _Document)
            if document.segIndices == [_MARK]:
                return Segmentation(parse_name(document.sceneId), *_number_contiguously(values))
    document = parse_document(data, path, SegmentsError, _Document)
    return Segmentation(parse_name(document.sceneId), *_number_contiguously(_parse_any_list(document.segIndices, path)))


class _Document(msgspec.Struct):
    """The file as it is written."""

    segIndices: list[Id]  # noqa: N815 - the file's name for it
    sceneId: Any = None  # noqa: N815


def _parse_plain_list(text: bytes) -> NDArray[np.int64] | None:
    """Read a list as the release writes it: numbers with a comma between each two. None where anything is unusual."""
    loop = compile_parser() if compile_geometry.cache_info().currsize else None  # where numba was worth loading
    if loop is not None:
        values = np.empty(len(text) // 2 + 1, np.int64)
        count = loop(np.frombuffer(text, np.uint8), values)
        return values[:count] if count else None
    if text.translate(None, b"0123456789,") or b",," in text or not (text[:1].isdigit() and text[-1:].isdigit()):
        return None
    values = np.fromstring(text, np.int64, sep=",")
    largest = int(values.max())
    # Without leading zeros, the numbers have as many digits as there is text beside the commas.
    digit_count = len(values) + sum(np.count_nonzero(values >= 10**n) for n in range(1, len(str(largest))))
    return values if largest < _FAST_LIMIT and digit_count + len(values) - 1 == len(text) else None


def _parse_any_list(items: list[Id], path: Path) -> NDArray[np.int64]:
    ids = []
    for index, item in enumerate(items):
        segment_id = parse_id(item, f"segIndices[{index}]", path, SegmentsError)
        if segment_id is None or not 0 <= segment_id <= _INT64_MAX:
            raise SegmentsError(path, f"segIndices[{index}] is {item!r:.40}, expected a segment id")
        ids.append(segment_id)
    if not ids:
        raise SegmentsError(path, "segIndices is empty, expected a list of segment ids")
    return np.array(ids, np.int64)


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
