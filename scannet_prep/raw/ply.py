"""Read the records of a PLY file: its vertices, and its faces as triangles.

bytes --> header --> plyfile --> layout of the records
      --> binary, triangles only --> NumPy views the records   (the release)
      --> text, or other lists   --> plyfile reads row by row  (seconds: only up to a limit)
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.base.files import Buffer
from scannet_prep.errors import RawFileError
from scannet_prep.raw.layout import download_hint

if TYPE_CHECKING:
    import plyfile

FACE_LISTS = ("vertex_indices", "vertex_index")
"""The names that programs give to the list of the vertices of a face."""

# Limits for a file that NumPy cannot map, so that plyfile reads it row by row, which takes seconds.
MAX_UNMAPPED_BYTES = 10_000_000
MAX_UNMAPPED_ROWS = 500_000
_MAX_HEADER_BYTES = 65_536
# Python refuses to convert thousands of digits, even zeros.
_MAX_COUNT_DIGITS = 18
_ELEMENT = re.compile(rb"^\s*element\s+(\S+)\s+(.*?)\s*$", re.MULTILINE)
# Text that describes the file. Programs write paths there, in any encoding.
_COMMENT = re.compile(rb"^(comment|obj_info)\b.*$", re.MULTILINE)
_QUESTION_MARKS = bytes(range(128)) + b"?" * 128
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


def parse_elements(data: Buffer, path: Path) -> tuple[Elements, Elements | None]:
    """Find the records of the vertices and of the faces.

    Args:
        data: The bytes of the file.
        path: Its name, for messages.

    Returns:
        The vertices, at least one; and the faces, None if the file has none. Fields have the names
        of the properties. A list of a face is a field of three numbers, or of objects if plyfile
        has read the file.

    Raises:
        RawFileError: The file is damaged or truncated, has no vertices, or is a large one that
            NumPy cannot map; or a face is not a triangle, as far as NumPy has read the file.
    """
    header = _find_header(data, path)
    counts = _find_counts(header, len(data), path)
    # With counts of 0, plyfile parses the header and expects no rows.
    layout = _parse_with_plyfile(_ELEMENT.sub(_set_count_to_0, header), path)
    if any(_find_lists(element).issuperset(FACE_LISTS) for element in layout):
        problem = f"has two lists of faces: {' and '.join(FACE_LISTS)}"
        raise RawFileError(path, problem, download_hint(path))

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
    return not lists or (element.name == "face" and lists <= set(FACE_LISTS))


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
    kind = "text"
    if not layout.text:
        names = set[str]()
        for element in layout:
            usual = FACE_LISTS if element.name == "face" else ()
            names |= _find_lists(element).difference(usual)
        kind = f"lists other than those of its faces ({', '.join(sorted(names))})"
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
                raise not_a_triangle(row, int(rows[name][row]), path)
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


def not_a_triangle(row: int, vertex_count: int, path: Path) -> RawFileError:
    """Return the error for a face that does not have three vertices."""
    problem = f"face {row} is not a triangle: it has {vertex_count} vertices"
    return RawFileError(path, problem, download_hint(path))


def copy_side_by_side(records: Elements, names: list[str]) -> NDArray[Any]:
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
    # If the only field has three numbers, `dtype` is the type of all three, and `dtype.base` the
    # type of one.
    joined: NDArray[Any] = copied.view(dtype.base).reshape(-1, 3)
    return joined
