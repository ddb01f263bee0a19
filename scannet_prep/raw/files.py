"""Read the files of the release by their kind; all commands that read or check files do it here.

    _vh_clean_2.0.010000.segs.json   the over-segmentation: the segment (superpoint) of each vertex
    .aggregation.json                the groups: the segments of each object, and its name
    .txt                             metadata, lines `key = value`: the axis alignment and the type

Those are parsed here; meshes, zip files and sensor streams have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.file_kinds import describe_beginning
from scannet_prep.base.files import Fingerprint, decode_text, read_file
from scannet_prep.errors import ContentError, FileError
from scannet_prep.raw.mesh import parse_mesh
from scannet_prep.raw.sensor_stream import check_sensor_stream
from scannet_prep.raw.tree import repair_hint
from scannet_prep.raw.zip_file import check_zip
from scannet_prep.release.files import Content, FileKind
from scannet_prep.release.label_map import read_label_map

# No room is shifted by 1,000 km. Points that are shifted by less stay within the range of float32.
_MAX_NUMBER = 1_000_000
_MAX_ID = 2**63 - 1
_SegmentId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MAX_ID)]
_SegmentIds: TypeAlias = Annotated[list[_SegmentId], msgspec.Meta(min_length=1)]


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

    raw_category: str
    segment_ids: tuple[int | None, ...]
    id: int | None = None
    object_id: int | None = None


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


class Aggregation(_Document, kw_only=True):
    """The groups of one scene.

    Attributes:
        groups: In file order; where groups overlap, the last one wins.
    """

    groups: tuple[Group, ...] = msgspec.field(name="segGroups")


class _SegmentsFile(_Document, kw_only=True):
    """The segments of one scene; the list of ids is left as text."""

    segment_ids: msgspec.Raw = msgspec.field(name="segIndices")


# Not strict: an id may be a string of digits, as for ScanNet's own reader.
_SEGMENTS_DECODER = msgspec.json.Decoder(_SegmentsFile)
_IDS_DECODER = msgspec.json.Decoder(_SegmentIds, strict=False)
_GROUPS_DECODER = msgspec.json.Decoder(Aggregation, strict=False)


def read_raw_file(
    kind: FileKind,
    path: Path,
) -> Any:  # noqa: ANN401 - depends on the kind
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
    if kind.content in _READERS:
        return _READERS[kind.content](path)
    data = read_file(path, kind.max_bytes)
    return _parse(kind, data, path)


def read_raw_files(
    paths: Mapping[FileKind, Path],
) -> tuple[dict[FileKind, Any], dict[str, Fingerprint]]:
    """Read the files that a scene is made from.

    Args:
        paths: The files by kind.

    Returns:
        What `read_raw_file` returns, by kind; and the fingerprints of the files, by name.

    Raises:
        FileError: A file is missing, damaged, or of another kind.
    """
    files = {}
    inputs = {}
    for kind, path in paths.items():
        files[kind] = read_file(path, kind.max_bytes)
        inputs[path.name] = Fingerprint.from_bytes(files[kind])
    contents = {}
    for kind, path in paths.items():
        # Bytes that are parsed are not kept, because those of meshes are many.
        contents[kind] = _parse(kind, files.pop(kind), path)
    return contents, inputs


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Turn a ContentError of the enclosed code into a FileError of this file."""
    try:
        yield
    except ContentError as error:
        raise FileError(path, error.message, error.hint or repair_hint(path)) from None


def _parse(
    kind: FileKind,
    data: bytes,
    path: Path,
) -> Any:  # noqa: ANN401 - as `read_raw_file`
    """Parse the content of a file; the errors of its parser name it."""
    parse = _PARSERS[kind.content]
    with naming_file(path):
        return parse(data, path)


def _parse_scan_info(data: bytes, path: Path) -> ScanInfo:
    """Parse a scan's metadata.

    Raises:
        FileError: It is not text.
        ContentError: It has other lines than `key = value`, or the axis alignment is not 16 finite
            numbers up to a million, or has no inverse.
    """
    values = _parse_lines(decode_text(data, path))
    text = values.get("axisAlignment")
    axis_alignment = None if text is None else _parse_matrix(text)
    return ScanInfo(axis_alignment, values.get("sceneType"))


def _parse_lines(text: str) -> dict[str, str]:
    """Parse lines of `key = value`; at least one."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        key, equals, value = map(str.strip, line.partition("="))
        if not equals or "\0" in line:
            raise ContentError(
                f"is damaged: line {number} reads {line!r:.40}, expected key = value"
            )
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
    if not (np.abs(matrix) <= _MAX_NUMBER).all() or np.linalg.det(matrix) == 0:
        raise ContentError(
            f"axisAlignment has {len(words)} values, {text!r:.200}, "
            f"expected 16 finite numbers up to {_MAX_NUMBER:,}, with blanks between them, "
            "of a matrix with an inverse"
        )
    return matrix


def _parse_segments(
    data: bytes,
    _: Path,
) -> Segmentation:
    """Parse an over-segmentation.

    Raises:
        ContentError: It is not a JSON object, or `segIndices` is not a list of ids.
    """
    with _parsing_json(data):
        document = _SEGMENTS_DECODER.decode(str(data, "utf-8-sig"))
        values = _parse_ids(bytes(document.segment_ids))
        raw_ids, indices = _number_contiguously(values)
        return Segmentation(document.scene_id, raw_ids, indices)


def _parse_aggregation(
    data: bytes,
    _: Path,
) -> Aggregation:
    """Parse annotated groups.

    Raises:
        ContentError: It is not a JSON object, or its groups have other types than `Group`.
    """
    with _parsing_json(data):
        return _GROUPS_DECODER.decode(str(data, "utf-8-sig"))


def _parse_ids(text: bytes) -> NDArray[np.int64]:
    """Parse a JSON list of ids, int64 (V,)."""
    # A list of digits alone, as in the release, takes a third of the time without an object for
    # each id. NumPy replaces ids beyond int64 by the largest number.
    rest = text.translate(None, b"0123456789,")
    if text != b"[]" and rest == b"[]":
        numbers = text[1:-1]
        values = np.fromstring(numbers, np.int64, sep=",")
        if values.max() < _MAX_ID:
            return values
    return np.array(_IDS_DECODER.decode(text), np.int64)


def _number_contiguously(
    values: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return what `np.unique(values, return_inverse=True)` returns, eight times as fast."""
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
def _parsing_json(data: bytes) -> Iterator[None]:
    """Turn errors of the enclosed parser of JSON into a ContentError."""
    try:
        # The parser gets text: msgspec does not check the encoding of values that it ignores.
        yield
    except msgspec.ValidationError as error:
        raise ContentError(f"is damaged: {error}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        content = describe_beginning(data) or "damaged"
        size = f"it has {len(data):,} bytes"
        raise ContentError(f"is {content}, expected JSON: {error}; {size}") from None


# Parsers of content and path.
_PARSERS: dict[Content, Callable[[bytes, Path], Any]] = {
    "mesh": parse_mesh,
    "labels mesh": partial(parse_mesh, has_labels=True),
    "segments": _parse_segments,
    "aggregation": _parse_aggregation,
    "info": _parse_scan_info,
}
# Readers of a path. Zip files and streams are checked piece by piece, whatever their size.
_READERS: dict[Content, Callable[[Path], Any]] = {
    "label map": read_label_map,
    "zip": check_zip,
    "sensor stream": check_sensor_stream,
}
