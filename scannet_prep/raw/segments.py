"""Reads an over-segmentation (`_vh_clean_2.0.010000.segs.json`): which segment (superpoint) each vertex is in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.compiled import compile_geometry, compile_parser
from scannet_prep.errors import SegmentsError
from scannet_prep.files import Buffer, read_file
from scannet_prep.raw.json_text import Id, parse_document, parse_id, parse_name
from scannet_prep.release import SEGMENTS

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
    document = parse_document(data, path, SegmentsError, _Document)
    values = _parse_plain_list(bytes(document.segIndices))
    if values is None:
        values = _parse_any_list(data, path)
    try:
        scene_id = parse_name(msgspec.json.decode(document.sceneId))
    except msgspec.MsgspecError as error:  # a number beyond all bounds
        raise SegmentsError(path, f"sceneId cannot be read: {error}") from None
    return Segmentation(scene_id, *_number_contiguously(values))


class _Document(msgspec.Struct):
    """The file as it is written, the values left as text."""

    segIndices: msgspec.Raw  # noqa: N815 - the file's name for it
    sceneId: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815


class _PlainDocument(msgspec.Struct):
    """The file as it is written."""

    segIndices: list[Id]  # noqa: N815


def _parse_plain_list(text: bytes) -> NDArray[np.int64] | None:
    """Read a JSON list that is written as the release writes it: digits and commas, nothing else.

    It is a megabyte of text, and goes straight into an array. None where anything is unusual.
    """
    numbers = text[1:-1]
    loop = compile_parser() if compile_geometry.cache_info().currsize else None  # where numba was worth loading
    if not text.startswith(b"[") or not numbers:
        return None
    if loop is not None:
        values = np.empty(len(numbers) // 2 + 1, np.int64)
        count = loop(np.frombuffer(numbers, np.uint8), values)
        return values[:count] if count else None
    if numbers.translate(None, b"0123456789,"):
        return None
    values = np.fromstring(numbers, np.int64, sep=",")
    return values if int(values.max()) < _FAST_LIMIT else None


def _parse_any_list(data: Buffer, path: Path) -> NDArray[np.int64]:
    ids = []
    for index, item in enumerate(parse_document(data, path, SegmentsError, _PlainDocument).segIndices):
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
