"""Reads segments and their groups.

`_vh_clean_2.0.010000.segs.json` is the over-segmentation: which segment (superpoint) each vertex is in.
`.aggregation.json` has the groups: which segments make up which object, in the annotator's words.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.compiled import compile_parser
from scannet_prep.base.errors import FileError, RawFileError
from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.base.files import read_file
from scannet_prep.base.number_lists import parse_plain_list
from scannet_prep.base.typed_json import make_decoder
from scannet_prep.raw.layout import download_hint
from scannet_prep.release.files import AGGREGATION, SEGMENTS

_MARK = 987_654_321_987_654_321
_MAX_CATEGORY_LENGTH = 1000
Document = TypeVar("Document")

# An id as ScanNet's own reader takes it: a whole number, or a string of digits.
_Digits: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,18}\Z")]
_SegmentId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | _Digits
if TYPE_CHECKING:
    Id: TypeAlias = int  # as groups make it
else:
    Id = int | _Digits


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
        return (
            self.indices.astype(np.uint16)
            if len(self.raw_ids) <= 1 << 16
            else self.indices.astype(np.uint32)
        )


class Group(
    msgspec.Struct,
    rename={"raw_category": "label", "segment_ids": "segments", "object_id": "objectId"},
):
    """One entry of `segGroups`.

    Attributes:
        raw_category: The annotator's text, key of the label map.
        segment_ids: Raw segment ids; None where the file has null.
        id: The group's id; None where the file has null.
        object_id: The file's `objectId`, which may differ from `id`; None where it is null or missing.
    """

    raw_category: Annotated[str, msgspec.Meta(max_length=_MAX_CATEGORY_LENGTH)]
    segment_ids: tuple[Id | None, ...]
    id: Id | None = None
    object_id: Id | None = None

    def __post_init__(self) -> None:
        """Make numbers of strings of digits."""
        values = (self.id, self.object_id, *self.segment_ids)
        self.id, self.object_id, *ids = [None if value is None else int(value) for value in values]
        self.segment_ids = tuple(ids)


class Aggregation(msgspec.Struct, rename={"groups": "segGroups", "scene_id": "sceneId"}):
    """The groups of one scene.

    Attributes:
        groups: In file order; where groups overlap the last one wins.
        scene_id: As the file says it, without a leading `scannet.`; empty where it says nothing.
    """

    groups: tuple[Group, ...]
    scene_id: Any = None

    def __post_init__(self) -> None:
        """Take what the file says for the name of the scene."""
        self.scene_id = _parse_name(self.scene_id)


def read_segments(path: Path, *, uses_numba: bool = False) -> Segmentation:
    """Read an over-segmentation from a file.

    Args:
        path: The file.
        uses_numba: Whether to use the compiled parser, if numba is installed.

    Raises:
        MissingFileError: There is no such file.
        RawFileError: It is not a JSON object, or `segIndices` is not a list of ids.
    """
    # The list is a megabyte of text. It goes straight into an array, and the JSON parser gets a mark in its place.
    data = read_file(path, SEGMENTS.max_bytes)
    start = data.find(b"[", data.find(b'"segIndices"')) + 1
    end = data.find(b"]", start)
    values = _parse_plain_list(data[start:end], uses_numba=uses_numba)
    if values is not None:
        shortened = b"%b%d%b" % (data[:start], _MARK, data[end:])
        # A damaged file is reported below, where it is parsed as it is.
        with suppress(RawFileError):
            document = _parse_document(shortened, path, RawFileError, _DOCUMENT)
            if document.segIndices == [_MARK]:
                return Segmentation(_parse_name(document.sceneId), *_number_contiguously(values))
    document = _parse_document(data, path, RawFileError, _DOCUMENT)
    ids = np.array([int(segment_id) for segment_id in document.segIndices], np.int64)
    return Segmentation(_parse_name(document.sceneId), *_number_contiguously(ids))


class _Document(msgspec.Struct):
    """The file as it is written."""

    segIndices: Annotated[list[_SegmentId], msgspec.Meta(min_length=1)]  # noqa: N815 - the file's name for it
    sceneId: Any = None  # noqa: N815


_DOCUMENT = make_decoder(_Document)
_AGGREGATION = make_decoder(Aggregation)


def _parse_plain_list(text: bytes, *, uses_numba: bool) -> NDArray[np.int64] | None:
    """Parse a list as the release writes it, numbers separated by commas. Return None if anything is unusual."""
    loop = compile_parser() if uses_numba else None
    if loop is None:
        return parse_plain_list(text, b",")
    values = np.empty(len(text) // 2 + 1, np.int64)
    count = loop(np.frombuffer(text, np.uint8), values)
    return values[:count] if count else None


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


def read_aggregation(path: Path) -> Aggregation:
    """Read annotated groups from a file.

    Raises:
        MissingFileError: There is no such file.
        RawFileError: It is not a JSON object, or its groups are not as described.
    """
    data = read_file(path, AGGREGATION.max_bytes)
    return _parse_document(data, path, RawFileError, _AGGREGATION)


def _parse_document(
    data: bytes, path: Path, error_type: type[FileError], decoder: msgspec.json.Decoder[Document]
) -> Document:
    """Parse a file that holds one JSON object. A damaged file is an error of the given type."""
    try:
        # As text: msgspec does not check the encoding of values that it ignores.
        return decoder.decode(str(data, "utf-8"))
    except msgspec.ValidationError as error:
        raise error_type(path, f"is damaged: {error}", download_hint(path)) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        found = describe_beginning(data[:BEGINNING_BYTES])
        problem = (
            f"is {found}, expected JSON"
            if found
            else f"is not JSON: {error}; it has {len(data):,} bytes"
        )
        raise error_type(path, problem, download_hint(path)) from None


def _parse_name(value: Any) -> str:  # noqa: ANN401 - whatever the file has there
    """Read the name of a scene, without the `scannet.` that v2 puts before it; empty where there is none."""
    return (
        value.removeprefix("scannet.")
        if isinstance(value, str)
        else ""
        if value is None
        else f"{value!r:.40}"
    )
