"""Reads a mesh (`_vh_clean_2.ply`, `_vh_clean_2.labels.ply`): vertices with colour, and triangles.

plyfile does the reading; what it accepts is checked here. Binary files of triangles, as the release has them, are
mapped into memory. All others are read row by row, which takes seconds, and so are refused above a stated size.
"""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import RawFileError
from scannet_prep.base.file_kinds import describe_beginning
from scannet_prep.base.files import open_file
from scannet_prep.raw.layout import download_hint
from scannet_prep.release.files import MESH

MAX_UNMAPPED_BYTES = 10_000_000
MAX_UNMAPPED_ROWS = 500_000
_MAX_HEADER_BYTES = 65_536
_FACE_LISTS = ("vertex_indices", "vertex_index")
_LIST_LENGTHS = {"face": dict.fromkeys(_FACE_LISTS, 3)}
_LIST = re.compile(rb"^[ \t]*property\s+list\s+\S+\s+\S+\s+(\S+)", re.MULTILINE)
_ELEMENT = re.compile(rb"^\s*element\s+(\S+)\s+(.*?)\s*$", re.MULTILINE)
# 1,000 km in metres: no room, but what a flipped bit in an exponent makes of one; and what would overflow when aligned.
_MAX_COORDINATE = 1_000_000

Elements: TypeAlias = NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """A triangle mesh. The order of the vertices is the file's; everything else refers to it.

    Attributes:
        positions: float32 (V, 3), metres, in the frame of the file; float64 where the file has doubles. V > 0, finite,
            at most 1,000 km.
        colors: uint8 (V, 3), red, green, blue, 0..255.
        faces: int32 (F, 3), indices into the vertices, all in range. F may be 0.
    """

    positions: NDArray[np.floating[Any]]
    colors: NDArray[np.uint8]
    faces: NDArray[np.int32]

    @property
    def vertex_count(self) -> int:
        """V."""
        return len(self.positions)


@dataclass(frozen=True, slots=True, eq=False)
class LabelsMesh(Mesh):
    """The mesh of a `labels.ply`. Its colours are the palette of the labels, not those of the scan.

    Attributes:
        labels: uint16 (V,), the property `label`: nyu40 ids in ScanNet v2, ScanNet ids in ScanNet v1.
    """

    labels: NDArray[np.uint16]


def read_mesh(path: Path) -> Mesh:
    """Read a scanned mesh from a file: text or binary of both byte orders, properties found by name.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read.
        RawFileError: It is damaged, not triangular, lacks coordinates or colours, or is a `labels.ply`.
    """
    vertices, faces = _read_elements(path)
    _refuse_labels(vertices, path)
    return Mesh(
        positions=_positions(vertices, path),
        colors=_colors(vertices, path),
        faces=_check_faces(faces, len(vertices), path),
    )


def read_labels_mesh(path: Path) -> LabelsMesh:
    """Read a `labels.ply`: a mesh with a label per vertex.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read.
        RawFileError: It is damaged, not triangular, or lacks coordinates, colours or labels.
    """
    vertices, faces = _read_elements(path)
    return LabelsMesh(
        positions=_positions(vertices, path),
        colors=_colors(vertices, path),
        faces=_check_faces(faces, len(vertices), path),
        labels=_labels(vertices, path),
    )


def count_elements(path: Path) -> tuple[int, int]:
    """Count the vertices and faces of a scanned mesh from its header, and check that its size fits the header.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read.
        RawFileError: It is truncated, not a mesh, or a `labels.ply`.
    """
    vertices, faces = _read_elements(path)
    _refuse_labels(vertices, path)
    return len(vertices), 0 if faces is None else len(faces)


def _read_elements(path: Path) -> tuple[Elements, Elements | None]:
    """Open a file with plyfile; gives its vertices, of which there are some, and its faces, if it has any."""
    with open_file(path, MESH.max_bytes) as raw_file:
        file = io.BufferedReader(raw_file)  # plyfile reads headers byte by byte
        size_bytes = file.seek(0, 2)
        is_mapped = _check_header(file, size_bytes, path)
        import plyfile

        try:
            # Numbers that do not fit their type, and lists without items: plyfile goes on, and so can the checks here.
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                content = plyfile.PlyData.read(file, mmap="r", known_list_len=_LIST_LENGTHS)
        except plyfile.PlyElementParseError as error:
            if error.message == "unexpected list length":
                raise RawFileError(path, f"face {error.row} is not a triangle") from error
            problem = f"is damaged or truncated ({size_bytes:,} bytes): {error}"
            raise RawFileError(path, problem, download_hint(path)) from error
        except (
            plyfile.PlyParseError, ValueError, KeyError, IndexError, TypeError, ArithmeticError, MemoryError, OSError,
        ) as error:  # fmt: skip
            raise RawFileError(path, f"is damaged: {error}", download_hint(path)) from error
        if is_mapped and file.tell() != size_bytes:
            problem = f"has {size_bytes:,} bytes, but its header accounts for {file.tell():,}"
            raise RawFileError(path, problem, download_hint(path))
    if "vertex" not in content or not content["vertex"].count or not content["vertex"].properties:
        raise RawFileError(
            path, "has no vertices, or vertices without any property", download_hint(path)
        )
    return np.asarray(content["vertex"].data), np.asarray(
        content["face"].data
    ) if "face" in content else None


def _check_header(file: BinaryIO, size_bytes: int, path: Path) -> bool:
    """Check what plyfile takes too lightly; gives whether it can be mapped: binary, and no list but the faces'."""
    file.seek(0)
    start = file.read(_MAX_HEADER_BYTES)
    file.seek(0)
    if not start.startswith((b"ply\n", b"ply\r\n")):
        found = describe_beginning(start[:1024]) or f"not a PLY file: it begins with {start[:16]!r}"
        raise RawFileError(path, f"is {found}, expected a PLY file", download_hint(path))
    end = re.search(rb"\nend_header\r?\n", start)
    if end is None:
        raise RawFileError(
            path, f"has no line end_header in its first {len(start):,} bytes", download_hint(path)
        )
    header = start[: end.start() + 1]
    rows = 0
    for name, count in _ELEMENT.findall(header):
        # A damaged count must not make plyfile reserve terabytes: each row takes a byte at least.
        if not count.isdigit() or int(count[:20]) > size_bytes:
            problem = f"header counts {count.decode('ascii', 'replace')[:40]} x {name.decode('ascii', 'replace')[:40]}"
            raise RawFileError(
                path,
                f"is damaged or truncated: its {problem}, but it has {size_bytes:,} bytes",
                download_hint(path),
            )
        rows += int(count)
    is_text = re.search(rb"^\s*format\s+ascii", header, re.MULTILINE) is not None
    lists = {name.decode("latin-1") for name in _LIST.findall(header)}
    if lists.issuperset(_FACE_LISTS):
        raise RawFileError(path, f"has two lists of faces: {' and '.join(_FACE_LISTS)}")
    is_mapped = not is_text and lists.issubset(_FACE_LISTS)
    if not is_mapped and (size_bytes > MAX_UNMAPPED_BYTES or rows > MAX_UNMAPPED_ROWS):
        kind = "text" if is_text else "lists other than those of its faces"
        expected = f"expected at most {MAX_UNMAPPED_BYTES:,} and {MAX_UNMAPPED_ROWS:,}"
        problem = f"is a PLY file of {kind} with {size_bytes:,} bytes and {rows:,} rows, {expected}"
        raise RawFileError(
            path,
            problem,
            "download it from the release, or convert it to a binary file of triangles",
        )
    return is_mapped


def _check_faces(records: Elements | None, vertex_count: int, path: Path) -> NDArray[np.int32]:
    if records is None or not len(records):
        return np.empty((0, 3), np.int32)
    name = next((name for name in _FACE_LISTS if name in (records.dtype.names or ())), None)
    if name is None:
        raise RawFileError(path, f"faces have no list {' or '.join(_FACE_LISTS)}")
    lists: NDArray[Any] = records[name]
    if lists.dtype.hasobject:  # read row by row, so that nothing is known of the lengths
        wrong = next((index for index, item in enumerate(lists) if len(item) != 3), None)
        if wrong is not None:
            raise RawFileError(path, f"face {wrong} is not a triangle")
        lists = np.stack(lists.tolist())
    if lists.ndim != 2 or lists.dtype.kind not in "iu":
        raise RawFileError(
            path, f"faces have {name} as {lists.dtype}, expected a list of whole numbers"
        )
    indices = lists if lists.base is None else _copy_side_by_side(records, [name])
    indices = indices.astype(indices.dtype.newbyteorder("="), copy=False)
    smallest, largest = int(indices.min()), int(indices.max())
    if smallest < 0 or largest >= vertex_count:
        found = smallest if smallest < 0 else largest
        raise RawFileError(
            path,
            f"a face refers to vertex {found}, but there are {vertex_count:,} vertices",
            download_hint(path),
        )
    return indices.astype(np.int32, copy=False)


def _positions(vertices: Elements, path: Path) -> NDArray[np.floating[Any]]:
    columns = _columns(vertices, ["x", "y", "z"], "f", "float", path)
    dtype = np.float64 if columns.dtype.itemsize > 4 else np.float32
    with np.errstate(
        invalid="ignore"
    ):  # a signalling NaN, which only a damaged file has; found below
        positions: NDArray[np.floating[Any]] = columns.astype(dtype, copy=False)
    if not np.abs(positions).max() <= _MAX_COORDINATE:  # also where one is NaN
        bad = int(np.flatnonzero(~(np.abs(positions) <= _MAX_COORDINATE).all(axis=1))[0])
        expected = f"expected finite ones up to {_MAX_COORDINATE:,}"
        raise RawFileError(
            path,
            f"vertex {bad} has the coordinates {positions[bad].tolist()}, {expected}",
            download_hint(path),
        )
    return positions


def _columns(
    vertices: Elements, names: list[str], kind: str, expected: str, path: Path
) -> NDArray[Any]:
    """Take three fields as an array (V, 3); `kind` is how their types in NumPy begin, `expected` is its name."""
    types = [_column(vertices, name, path).dtype for name in names]
    wrong = next((dtype for dtype in types if not dtype.str.lstrip("<>|=").startswith(kind)), None)
    if wrong is not None:
        raise RawFileError(path, f"{', '.join(names)} have type {wrong}, expected {expected}")
    return _copy_side_by_side(vertices, names)


def _colors(vertices: Elements, path: Path) -> NDArray[np.uint8]:
    return _columns(vertices, ["red", "green", "blue"], "u1", "uchar (0..255)", path)


def _refuse_labels(vertices: Elements, path: Path) -> None:
    """Refuse a `labels.ply` under the name of a scanned mesh: its palette would leak the labels into `colors`."""
    if "label" in (vertices.dtype.names or ()):
        raise RawFileError(
            path,
            "is a labels.ply under the name of the mesh: its vertices have a property label, "
            "and its colours are those of the labels",
            download_hint(path),
        )


def _labels(vertices: Elements, path: Path) -> NDArray[np.uint16]:
    labels = _column(vertices, "label", path)
    largest = np.iinfo(np.uint16).max
    if labels.dtype.kind not in "iu" or int(labels.min()) < 0 or int(labels.max()) > largest:
        raise RawFileError(
            path,
            f"label has type {labels.dtype} and values from {labels.min()} to {labels.max()}, "
            f"expected whole numbers from 0 to {largest:,}",
            download_hint(path),
        )
    return labels.astype(np.uint16)


def _column(vertices: Elements, name: str, path: Path) -> NDArray[Any]:
    names = vertices.dtype.names or ()
    if name not in names:
        raise RawFileError(
            path,
            f"vertices have no property {name}; they have {', '.join(names)}"[:300],
            download_hint(path),
        )
    column: NDArray[Any] = vertices[name]
    if column.dtype.kind not in "fiu" or column.ndim > 1:
        raise RawFileError(path, f"the vertex property {name} is a list, expected one number")
    return column


def _copy_side_by_side(records: Elements, names: list[str]) -> NDArray[Any]:
    """Copy three fields, or one of three numbers, into an array (N, 3).

    Where they lie side by side, as in the release, the bytes of each record are copied as a whole: four times as fast
    as number by number.
    """
    fields: Any = records.dtype.fields
    dtype, start = fields[names[0]][:2]
    ends = [start + index * dtype.itemsize for index in range(len(names))]
    if [fields[name][:2] for name in names] != [
        (dtype, end) for end in ends
    ] or records.dtype.hasobject:
        return np.stack([records[name] for name in names], axis=1)
    whole: Any = {
        "names": ["all"],
        "formats": [f"V{dtype.itemsize * len(names)}"],
        "offsets": [start],
    }
    copied = records.view(np.dtype(whole | {"itemsize": records.dtype.itemsize}))["all"].copy()
    joined: NDArray[Any] = copied.view(dtype.base).reshape(-1, 3)
    return joined
