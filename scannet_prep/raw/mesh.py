"""Read a mesh (`_vh_clean_2.ply`, `_vh_clean_2.labels.ply`): coloured vertices, and triangles.

bytes --> header --> plyfile --> layout of the records
      --> binary, triangles only --> NumPy views the records   (the release)
      --> text, or other lists   --> plyfile reads row by row  (seconds: only up to a limit)
      --> checks --> Mesh
"""

from __future__ import annotations

import io
import mmap
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import RawFileError
from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.base.files import Buffer, open_file
from scannet_prep.raw.layout import download_hint
from scannet_prep.release.files import MESH

if TYPE_CHECKING:
    import plyfile

# Limits for a file that NumPy cannot map, so that plyfile reads it row by row, which takes seconds.
MAX_UNMAPPED_BYTES = 10_000_000
MAX_UNMAPPED_ROWS = 500_000
_MAX_HEADER_BYTES = 65_536
# Python refuses to convert thousands of digits, even zeros.
_MAX_COUNT_DIGITS = 18
_FACE_LISTS = ("vertex_indices", "vertex_index")
_ELEMENT = re.compile(rb"^\s*element\s+(\S+)\s+(.*?)\s*$", re.MULTILINE)
# Text that describes the file. Programs write paths there, in any encoding.
_COMMENT = re.compile(rb"^(comment|obj_info)\b.*$", re.MULTILINE)
_QUESTION_MARKS = bytes(range(128)) + b"?" * 128
# In metres: 1,000 km. Larger coordinates are a sign of a flipped bit in an exponent, and could make
# the alignment overflow.
_MAX_COORDINATE = 1_000_000
# Coordinates of a map (UTM) reach 10,000 km, and may be in millimetres.
_MAX_OWN_COORDINATE = 10_000_000_000
# The errors of plyfile for damaged files.
_PLY_ERRORS = (
    ArithmeticError,
    IndexError,
    KeyError,
    MemoryError,
    OSError,
    TypeError,
    ValueError,
)

# In a record type, the length of the list NAME is the field NAME with this suffix. No property of
# a PLY file can have such a name, because names contain no line end.
_LENGTH_SUFFIX = "\nlen"

Elements: TypeAlias = NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """A triangle mesh. Its vertices have the order of the file, and all other files refer to it.

    Attributes:
        positions: float32 (V, 3), metres, in the frame of the file; float64 if the file has
            doubles. V > 0, finite, at most 1,000 km.
        colors: uint8 (V, 3), red, green, blue, 0..255.
        faces: int32 (F, 3), indices into the vertices, all in range. F may be 0.
    """

    positions: NDArray[np.floating[Any]]
    colors: NDArray[np.uint8]
    faces: NDArray[np.int32]

    @property
    def vertex_count(self) -> int:
        """The number of vertices, V."""
        return len(self.positions)


@dataclass(frozen=True, slots=True, eq=False)
class LabelsMesh(Mesh):
    """The mesh of a `labels.ply`. Its colours are the palette of the labels, not those of the scan.

    Attributes:
        labels: uint16 (V,), the property `label`: nyu40 ids in ScanNet v2, ScanNet ids in ScanNet
            v1.
    """

    labels: NDArray[np.uint16]


@dataclass(frozen=True, slots=True, eq=False)
class OwnMesh(Mesh):
    """A mesh that need not be from the release.

    Attributes:
        has_colors: Whether the file has colours. Without them, all are (128, 128, 128).
    """

    has_colors: bool


def map_mesh(path: Path) -> Buffer:
    """Map a mesh file into memory. High-resolution meshes have hundreds of megabytes.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read.
    """
    with open_file(path, MESH.max_bytes) as file:
        size_bytes = file.seek(0, io.SEEK_END)
        if size_bytes == 0:
            return b""  # an empty file cannot be mapped
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def parse_mesh(data: Buffer, path: Path) -> Mesh:
    """Parse a scanned mesh: text or binary of both byte orders, properties found by name.

    Args:
        data: The bytes of the file.
        path: Its name, for messages.

    Raises:
        RawFileError: It is damaged, not triangular, lacks coordinates or colours, or is a
            `labels.ply`.
    """
    vertices, faces = _parse_elements(data, path)
    _refuse_labels(vertices, path)
    return Mesh(
        positions=_positions(vertices, path),
        colors=_colors(vertices, path),
        faces=_check_faces(faces, len(vertices), path),
    )


def parse_labels_mesh(data: Buffer, path: Path) -> LabelsMesh:
    """Parse a `labels.ply`: a mesh with a label per vertex.

    Args:
        data: The bytes of the file.
        path: Its name, for messages.

    Raises:
        RawFileError: It is damaged, not triangular, or lacks coordinates, colours or labels.
    """
    vertices, faces = _parse_elements(data, path)
    return LabelsMesh(
        positions=_positions(vertices, path),
        colors=_colors(vertices, path),
        faces=_check_faces(faces, len(vertices), path),
        labels=_labels(vertices, path),
    )


def parse_own_mesh(data: Buffer, path: Path) -> OwnMesh:
    """Parse a triangle mesh that need not be from the release.

    Colours may be missing, or floats from 0 to 1.

    Args:
        data: The bytes of the file.
        path: Its name, for messages.

    Raises:
        RawFileError: It is damaged, not triangular, or lacks coordinates; or has labels; or its
            colours are of another type or range.
    """
    vertices, faces = _parse_elements(data, path)
    if "label" in (vertices.dtype.names or ()):
        raise RawFileError(
            path,
            "has labels: its vertices have a property label, as in a labels.ply, "
            "where colours are those of the labels",
        )
    has_colors = not {"red", "green", "blue"}.isdisjoint(vertices.dtype.names or ())
    return OwnMesh(
        positions=_positions(vertices, path, largest=_MAX_OWN_COORDINATE),
        colors=_any_colors(vertices, path) if has_colors else _no_colors(len(vertices)),
        faces=_check_faces(faces, len(vertices), path),
        has_colors=has_colors,
    )


def count_elements(path: Path) -> tuple[int, int]:
    """Count the vertices and faces of a scanned mesh, and check that its size fits its header.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read.
        RawFileError: It is truncated, not a mesh, or a `labels.ply`.
    """
    vertices, faces = _parse_elements(map_mesh(path), path)
    _refuse_labels(vertices, path)
    face_count = 0 if faces is None else len(faces)
    return len(vertices), face_count


def _parse_elements(data: Buffer, path: Path) -> tuple[Elements, Elements | None]:
    """Find the records of the vertices, at least one, and of the faces; None for no faces."""
    header = _find_header(data, path)
    counts = _find_counts(header, len(data), path)
    # With counts of 0, plyfile parses the header and expects no rows.
    layout = _parse_with_plyfile(_ELEMENT.sub(_set_count_to_0, header), path)
    if any(_find_lists(element).issuperset(_FACE_LISTS) for element in layout):
        raise RawFileError(path, f"has two lists of faces: {' and '.join(_FACE_LISTS)}")

    has_plain_records = all(_has_plain_records(element) for element in layout)
    if has_plain_records and not layout.text:
        records = _view_records(data, len(header), layout, counts, path)
    else:
        _check_row_by_row(layout, len(data), sum(counts), path)
        content = _parse_with_plyfile(header + data[len(header) :], path)
        records = {element.name: np.asarray(element.data) for element in content}

    if "tristrips" in records:
        raise RawFileError(path, "has strips of triangles, expected a list of triangles")
    vertices = records.get("vertex")
    if vertices is None or not len(vertices) or not vertices.dtype.names:
        problem = "has no vertices, or vertices without any property"
        raise RawFileError(path, problem, download_hint(path))
    return vertices, records.get("face")


def _find_header(data: Buffer, path: Path) -> bytes:
    """Return the header, up to and including the line `end_header`, with comments in ASCII."""
    start = bytes(data[:_MAX_HEADER_BYTES])
    if not start.startswith((b"ply\n", b"ply\r\n")):
        if start.startswith(b"ply"):
            problem = f"begins with {start[:8]!r}, expected a line of ply, ended by LF or CR LF"
            raise RawFileError(path, problem, download_hint(path))
        content = describe_beginning(start[:BEGINNING_BYTES])
        if content is None:
            content = f"not a PLY file: it begins with {start[:16]!r}"
        raise RawFileError(path, f"is {content}, expected a PLY file", download_hint(path))
    end = re.search(rb"\nend_header\r?\n", start)
    if end is None:
        problem = f"has no line end_header in its first {len(start):,} bytes"
        raise RawFileError(path, problem, download_hint(path))
    # plyfile reads nothing but ASCII.
    return _COMMENT.sub(_replace_other_than_ascii, start[: end.end()])


def _find_counts(header: bytes, size_bytes: int, path: Path) -> list[int]:
    """Find the number of rows of each element, in the order of the file.

    A count that exceeds the number of bytes is damaged, because each row takes at least a byte. It
    could make NumPy reserve terabytes.
    """
    counts = []
    for name, count in _ELEMENT.findall(header):
        is_number = count.isdigit() and len(count) <= _MAX_COUNT_DIGITS
        if not is_number or int(count) > size_bytes:
            shown_count = count.decode("ascii", "replace")[:40]
            shown_name = name.decode("ascii", "replace")[:40]
            raise RawFileError(
                path,
                f"is damaged or truncated: its header counts {shown_count} x {shown_name}, "
                f"but it has {size_bytes:,} bytes",
                download_hint(path),
            )
        counts.append(int(count))
    return counts


def _replace_other_than_ascii(line: re.Match[bytes]) -> bytes:
    """Return a line of the same length, with question marks for all bytes that are not ASCII."""
    return line[0].translate(_QUESTION_MARKS)


def _set_count_to_0(line: re.Match[bytes]) -> bytes:
    """Return a line `element` of a header with a count of 0."""
    count_start = line.start(2) - line.start()
    count_end = line.end(2) - line.start()
    return line[0][:count_start] + b"0" + line[0][count_end:]


def _parse_with_plyfile(data: Buffer, path: Path) -> plyfile.PlyData:
    """Parse a whole file, or only its layout if all counts in its header are 0."""
    import plyfile

    try:
        # If numbers do not fit their type, plyfile continues; they are checked here later.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return plyfile.PlyData.read(io.BytesIO(data))
    except plyfile.PlyElementParseError as error:
        problem = f"is damaged or truncated ({len(data):,} bytes): {error}"
        raise RawFileError(path, problem, download_hint(path)) from error
    except (plyfile.PlyParseError, *_PLY_ERRORS) as error:
        raise RawFileError(path, f"is damaged: {error}", download_hint(path)) from error


def _has_plain_records(element: plyfile.PlyElement) -> bool:
    """Whether all rows have the same size, on the assumption that all faces are triangles.

    `_view_records` checks that they are.
    """
    lists = _find_lists(element)
    return not lists or (element.name == "face" and lists <= set(_FACE_LISTS))


def _find_lists(element: plyfile.PlyElement) -> set[str]:
    """Find the names of the properties that are lists."""
    names = set()
    for ply_property in element.properties:
        if hasattr(ply_property, "list_dtype"):
            names.add(ply_property.name)
    return names


def _check_row_by_row(layout: plyfile.PlyData, size_bytes: int, rows: int, path: Path) -> None:
    """Refuse a large file that plyfile would have to read row by row, which takes too long."""
    if size_bytes <= MAX_UNMAPPED_BYTES and rows <= MAX_UNMAPPED_ROWS:
        return
    kind = "text" if layout.text else "lists other than those of its faces"
    raise RawFileError(
        path,
        f"is a PLY file of {kind} with {size_bytes:,} bytes and {rows:,} rows, "
        f"expected at most {MAX_UNMAPPED_BYTES:,} and {MAX_UNMAPPED_ROWS:,}",
        "download it from the release, or convert it to a binary file of triangles",
    )


def _view_records(
    data: Buffer, start: int, layout: plyfile.PlyData, counts: list[int], path: Path
) -> Mapping[str, Elements]:
    """View the bytes after the header as records, by element.

    Raises:
        RawFileError: There are too few bytes, or too many, or a face is not a triangle.
    """
    records = {}
    for element, count in zip(layout, counts, strict=True):
        dtype = _record_dtype(element, layout.byte_order)
        if not dtype.names:
            continue  # an element without properties takes no bytes
        # Also the index of the first incomplete row, if there is one.
        complete_rows = (len(data) - start) // dtype.itemsize
        if complete_rows < count:
            raise RawFileError(
                path,
                f"is damaged or truncated ({len(data):,} bytes): "
                f"element '{element.name}': row {complete_rows}: early end-of-file",
                download_hint(path),
            )
        rows: Elements = np.frombuffer(data, dtype, count, start)
        # The type of the rows has room for three numbers per list: check that all have three.
        for name in dtype.names:
            if not name.endswith(_LENGTH_SUFFIX):
                continue
            is_wrong = rows[name] != 3
            if is_wrong.any():
                row = int(np.flatnonzero(is_wrong)[0])
                raise RawFileError(path, f"face {row} is not a triangle")
        records[element.name] = rows
        start += count * dtype.itemsize
    if start != len(data):
        problem = f"has {len(data):,} bytes, but its header accounts for {start:,}"
        raise RawFileError(path, problem, download_hint(path))
    return records


def _record_dtype(element: plyfile.PlyElement, byte_order: str) -> np.dtype[np.void]:
    """Return the type of the rows of an element; a list of faces has a count and three numbers."""
    fields: list[Any] = []
    for ply_property in element.properties:
        name = ply_property.name
        if hasattr(ply_property, "list_dtype"):
            count_type, value_type = ply_property.list_dtype(byte_order)
            fields.append((f"{name}{_LENGTH_SUFFIX}", count_type))
            fields.append((name, value_type, (3,)))
        else:
            fields.append((name, ply_property.dtype(byte_order)))
    return np.dtype(fields)


def _check_faces(records: Elements | None, vertex_count: int, path: Path) -> NDArray[np.int32]:
    """Return the faces, int32 (F, 3): triangles, whose vertices exist."""
    if records is None or not len(records):
        return np.empty((0, 3), np.int32)
    names = [name for name in _FACE_LISTS if name in (records.dtype.names or ())]
    if not names:
        raise RawFileError(path, f"faces have no list {' or '.join(_FACE_LISTS)}")
    name = names[0]
    lists: NDArray[Any] = records[name]
    if lists.dtype.hasobject:
        lists = _stack_lists(lists, path)
    if lists.ndim != 2 or lists.dtype.kind not in "iu":
        problem = f"faces have {name} as {lists.dtype}, expected a list of whole numbers"
        raise RawFileError(path, problem)

    # A view of the file is copied into an array of its own. Lists that were stacked are one: they
    # have no base.
    indices = lists if lists.base is None else _copy_side_by_side(records, [name])
    indices = indices.astype(indices.dtype.newbyteorder("="), copy=False)
    for vertex in (int(indices.min()), int(indices.max())):
        if not 0 <= vertex < vertex_count:
            raise RawFileError(
                path,
                f"a face refers to vertex {vertex}, but there are {vertex_count:,} vertices",
                download_hint(path),
            )
    return indices.astype(np.int32, copy=False)


def _stack_lists(lists: NDArray[Any], path: Path) -> NDArray[Any]:
    """Join lists of three numbers, which were read one by one, into an array (F, 3)."""
    for row, vertices in enumerate(lists):
        if len(vertices) != 3:
            raise RawFileError(path, f"face {row} is not a triangle")
    return np.stack(lists.tolist())


def _positions(
    vertices: Elements, path: Path, *, largest: int = _MAX_COORDINATE
) -> NDArray[np.floating[Any]]:
    """Return the positions, float32 or float64 (V, 3), after checking that they are finite.

    Args:
        vertices: The vertices.
        path: The file, for messages.
        largest: The largest coordinate that is not an error.
    """
    columns = _columns(vertices, ["x", "y", "z"], "f", "float", path)
    dtype = np.float64 if columns.dtype.itemsize > 4 else np.float32
    # A signalling NaN, which occurs in damaged files only, is reported below.
    with np.errstate(invalid="ignore"):
        positions: NDArray[np.floating[Any]] = columns.astype(dtype, copy=False)
    is_small = np.abs(positions).max() <= largest  # False if any is NaN
    if not is_small:
        is_row_small = (np.abs(positions) <= largest).all(axis=1)
        bad = int(np.argmin(is_row_small))  # the first False
        raise RawFileError(
            path,
            f"vertex {bad} has the coordinates {positions[bad].tolist()}, "
            f"expected finite ones up to {largest:,}",
            download_hint(path),
        )
    return positions


def _columns(
    vertices: Elements, names: list[str], kind: str, expected: str, path: Path
) -> NDArray[Any]:
    """Copy three properties of the vertices into an array (V, 3).

    Args:
        vertices: The vertices.
        names: The names of the properties.
        kind: The beginning of the name of their type in NumPy, without the byte order.
        expected: The name of the type, for messages.
        path: The file, for messages.
    """
    for name in names:
        dtype = _column(vertices, name, path).dtype
        if not dtype.str.lstrip("<>|=").startswith(kind):
            problem = f"{', '.join(names)} have type {dtype}, expected {expected}"
            raise RawFileError(path, problem)
    return _copy_side_by_side(vertices, names)


def _colors(vertices: Elements, path: Path) -> NDArray[np.uint8]:
    """Return the colours, uint8 (V, 3)."""
    return _columns(vertices, ["red", "green", "blue"], "u1", "uchar (0..255)", path)


def _any_colors(vertices: Elements, path: Path) -> NDArray[np.uint8]:
    """Return the colours, uint8 (V, 3), of bytes or of floats from 0 to 1."""
    if _column(vertices, "red", path).dtype.kind != "f":
        return _colors(vertices, path)
    shares = _columns(vertices, ["red", "green", "blue"], "f", "float (0..1)", path)
    is_share = (shares >= 0) & (shares <= 1)  # False if NaN
    if not is_share.all():
        vertex = int(np.argmin(is_share.all(axis=1)))
        raise RawFileError(
            path,
            f"vertex {vertex} has the colour {shares[vertex].tolist()}, "
            "expected floats from 0 to 1, or uchar (0..255)",
        )
    colors: NDArray[np.uint8] = np.rint(shares * 255).astype(np.uint8)
    return colors


def _no_colors(vertex_count: int) -> NDArray[np.uint8]:
    """Return grey, the middle of the range of colours, uint8 (V, 3)."""
    return np.full((vertex_count, 3), 128, np.uint8)


def _refuse_labels(vertices: Elements, path: Path) -> None:
    """Refuse a `labels.ply` under the name of a scanned mesh.

    Its colours are the palette of the labels, which would leak into `colors`.
    """
    if "label" in (vertices.dtype.names or ()):
        raise RawFileError(
            path,
            "is a labels.ply under the name of the mesh: its vertices have a property label, "
            "and its colours are those of the labels",
            download_hint(path),
        )


def _labels(vertices: Elements, path: Path) -> NDArray[np.uint16]:
    """Return the labels, uint16 (V,), after checking their range."""
    labels = _column(vertices, "label", path)
    largest = np.iinfo(np.uint16).max
    is_integer = labels.dtype.kind in "iu"
    if not is_integer or int(labels.min()) < 0 or int(labels.max()) > largest:
        raise RawFileError(
            path,
            f"label has type {labels.dtype} and values from {labels.min()} to {labels.max()}, "
            f"expected whole numbers from 0 to {largest:,}",
            download_hint(path),
        )
    return labels.astype(np.uint16)


def _column(vertices: Elements, name: str, path: Path) -> NDArray[Any]:
    """Return one property of the vertices, which must be numbers, as a view (V,)."""
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
    """Copy three fields, or one field of three numbers, into an array (N, 3).

    If the fields are adjacent, as in the release, the bytes of each record are copied as a whole,
    which is four times as fast as number by number.
    """
    fields: Any = records.dtype.fields
    dtype, start = fields[names[0]][:2]
    adjacent_fields = [(dtype, start + index * dtype.itemsize) for index in range(len(names))]
    actual_fields = [fields[name][:2] for name in names]
    if actual_fields != adjacent_fields or records.dtype.hasobject:
        # Always three fields: a single one is adjacent to itself, and objects were stacked before.
        return np.stack([records[name] for name in names], axis=1)

    # View all fields as one of raw bytes, (N,); copy it, and view the copy as numbers, (N, 3).
    all_fields = np.dtype(
        {
            "names": ["all"],
            "formats": [f"V{dtype.itemsize * len(names)}"],
            "offsets": [start],
            "itemsize": records.dtype.itemsize,
        }
    )
    copied = records.view(all_fields)["all"].copy()
    # If the one field has three numbers, `dtype` is the type of all three, and its base of one.
    joined: NDArray[Any] = copied.view(dtype.base).reshape(-1, 3)
    return joined
