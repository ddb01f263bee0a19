"""Read segments and their groups.

`_vh_clean_2.0.010000.segs.json` is the over-segmentation: the segment (superpoint) of each vertex.
`.aggregation.json` contains the groups: the segments of each object, and the annotator's name for
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.errors import ContentError
from scannet_prep.raw.tree import naming_file

_MAX_ID = 2**63 - 1
_SegmentId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MAX_ID)]
_SegmentIds: TypeAlias = Annotated[list[_SegmentId], msgspec.Meta(min_length=1)]
_Category: TypeAlias = Annotated[str, msgspec.Meta(max_length=1000)]


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation:
    """The segments of one mesh.

    Attributes:
        scene_id: The scene that the file names; empty if it names none.
        raw_ids: int64 (S,), ascending; the ids that the file uses, which are sparse.
        indices: intp (V,), 0..S-1: the file contains `raw_ids[indices]`.
    """

    scene_id: str
    raw_ids: NDArray[np.int64]
    indices: NDArray[np.intp]


class Group(
    msgspec.Struct,
    rename={"raw_category": "label", "segment_ids": "segments", "object_id": "objectId"},
):
    """One entry of `segGroups`.

    Attributes:
        raw_category: The annotator's text, key of the label map.
        segment_ids: Raw segment ids; None where the file has null.
        id: The id of the group; None if the file has null.
        object_id: The file's `objectId`, which may differ from `id`; None if it is null or missing.
    """

    raw_category: _Category
    segment_ids: tuple[int | None, ...]
    id: int | None = None
    object_id: int | None = None


@dataclass(frozen=True, slots=True)
class Aggregation:
    """The groups of one scene.

    Attributes:
        scene_id: The scene that the file names; empty if it names none.
        groups: In file order; where groups overlap, the last one wins.
    """

    scene_id: str
    groups: tuple[Group, ...]


class _Document(msgspec.Struct, kw_only=True):
    """A file of a scene."""

    named_scene: str | None = msgspec.field(default=None, name="sceneId")

    @property
    def scene_id(self) -> str:
        """The scene that the file names; empty if it names none.

        The release has `scannet.<scene>`, the Segmentator the path of the mesh without its ending.
        """
        name = PureWindowsPath(self.named_scene or "").name
        return name.removeprefix("scannet.").partition("_vh_clean")[0]


class _GroupsFile(_Document, kw_only=True):
    """The groups of one scene."""

    groups: tuple[Group, ...] = msgspec.field(name="segGroups")


class _SegmentsFile(_Document, kw_only=True):
    """The segments of one scene; the list of ids is left as text."""

    segment_ids: msgspec.Raw = msgspec.field(name="segIndices")


# Not strict: an id may be a string of digits, as for ScanNet's own reader.
_SEGMENTS_DECODER = msgspec.json.Decoder(_SegmentsFile)
_IDS_DECODER = msgspec.json.Decoder(_SegmentIds, strict=False)
_GROUPS_DECODER = msgspec.json.Decoder(_GroupsFile, strict=False)


def parse_segments(
    data: bytes,
    path: Path,
) -> Segmentation:
    """Parse an over-segmentation.

    Raises:
        FileError: It is not a JSON object, or `segIndices` is not a list of ids.
    """
    with _naming_json(data, path):
        document = _SEGMENTS_DECODER.decode(str(data, "utf-8-sig"))
        values = _parse_ids(bytes(document.segment_ids))
        raw_ids, indices = _number_contiguously(values)
        return Segmentation(document.scene_id, raw_ids, indices)


def parse_aggregation(
    data: bytes,
    path: Path,
) -> Aggregation:
    """Parse annotated groups.

    Raises:
        FileError: It is not a JSON object, or its groups have other types than `Group`.
    """
    with _naming_json(data, path):
        document = _GROUPS_DECODER.decode(str(data, "utf-8-sig"))
        return Aggregation(document.scene_id, document.groups)


def _parse_ids(text: bytes) -> NDArray[np.int64]:
    """Parse a JSON list of ids, int64 (V,)."""
    # A list of digits alone, as in the release, takes a third of the time without an object for
    # each id. NumPy replaces ids beyond int64 by the largest number.
    rest = text.translate(None, b"0123456789,")
    if text != b"[]" and rest == b"[]":
        values = np.fromstring(text[1:-1], np.int64, sep=",")
        if values.max() < _MAX_ID:
            return values
    return np.array(_IDS_DECODER.decode(text), np.int64)


def _number_contiguously(
    values: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Do what `np.unique(values, return_inverse=True)` does, but eight times as fast."""
    largest = int(values.max())
    # Only for small ids, as in the release: the table is as large as the largest id.
    if largest >= 4 * len(values) + 1024:
        return np.unique(values, return_inverse=True)
    index_of = np.zeros(largest + 1, np.int64)
    index_of[values] = 1
    raw_ids = np.flatnonzero(index_of)
    index_of[raw_ids] = np.arange(len(raw_ids))
    return raw_ids, index_of.take(values)


@contextmanager
def _naming_json(
    data: bytes,
    path: Path,
) -> Iterator[None]:
    """Turn errors of the enclosed parser of JSON into a FileError of its file."""
    with naming_file(path):
        try:
            # The parser gets text: msgspec does not check the encoding of values that it ignores.
            yield
        except msgspec.ValidationError as error:
            raise ContentError(f"is damaged: {error}") from None
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            content = describe_beginning(data[:BEGINNING_BYTES]) or "damaged"
            problem = f"is {content}, expected JSON: {error}; it has {len(data):,} bytes"
            raise ContentError(problem) from None
