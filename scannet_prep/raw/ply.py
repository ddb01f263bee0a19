"""The header of a PLY file: which elements follow, with which properties, and how many bytes they take.

Format: http://paulbourke.net/dataformats/ply/
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import MeshError, MissingFileError
from scannet_prep.files import Buffer

_MAX_HEADER_BYTES = 65_536
_BYTE_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
_TYPES = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "float": "f4",
    "double": "f8",
    "int8": "i1",
    "uint8": "u1",
    "int16": "i2",
    "uint16": "u2",
    "int32": "i4",
    "uint32": "u4",
    "float32": "f4",
    "float64": "f8",
}


@dataclass(frozen=True, slots=True)
class PlyProperty:
    """One property of an element.

    Attributes:
        name: For example `x`.
        dtype: NumPy type code without byte order, for example `f4`; of the items, where it is a list.
        count_dtype: Type code of a list's length; None where the property is a single number.
    """

    name: str
    dtype: str
    count_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class PlyElement:
    """One kind of element and how many of it there are."""

    name: str
    count: int
    properties: tuple[PlyProperty, ...]

    @property
    def lists(self) -> tuple[PlyProperty, ...]:
        """The properties of variable length."""
        return tuple(item for item in self.properties if item.count_dtype is not None)


@dataclass(frozen=True, slots=True)
class PlyHeader:
    """What a PLY file says of itself.

    Attributes:
        format: `ascii`, `binary_little_endian` or `binary_big_endian`.
        elements: In file order.
        size_bytes: Length of the header; the first element begins there.
    """

    format: str
    elements: tuple[PlyElement, ...]
    size_bytes: int

    @property
    def byte_order(self) -> str:
        """NumPy's character for the byte order; empty for text."""
        return _BYTE_ORDERS[self.format]

    def find_element(self, name: str) -> PlyElement | None:
        """The element of that name, if there is one."""
        return next((item for item in self.elements if item.name == name), None)


def read_header(path: Path) -> tuple[int, PlyHeader]:
    """Read only the beginning of a PLY file; gives the file's size and the header.

    Raises:
        MissingFileError: There is no such file.
        MeshError: It cannot be read, is no PLY file, or its header is damaged.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_MAX_HEADER_BYTES)
            size_bytes = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise MissingFileError(path, "no such file") from None
    except OSError as error:
        raise MeshError(path, f"cannot be read: {error.strerror or error}") from error
    return size_bytes, parse_header(start, path)


def parse_header(data: Buffer, path: Path) -> PlyHeader:
    """Parse the beginning of a PLY file.

    Args:
        data: The file, or at least its header.
        path: Its name, for messages.

    Raises:
        MeshError: It is no PLY file, or its header is damaged.
    """
    start = bytes(data[:_MAX_HEADER_BYTES])
    if not start:
        raise MeshError(path, "is empty", "download it again")
    if not start.startswith((b"ply\n", b"ply\r\n")):
        kind = "an HTML page" if b"<html" in start[:1024].lower() else "no PLY file"
        raise MeshError(path, f"is {kind}: it begins with {start[:16]!r}, expected b'ply\\n'", "download it again")
    end = start.find(b"\nend_header") + 1
    newline = start.find(b"\n", end)
    if end == 0 or newline < 0:
        raise MeshError(path, f"ends inside its header: no end_header in {len(start)} bytes", "download it again")
    lines = start[:end].decode("ascii", "backslashreplace").split("\n")[1:-1]
    return _parse_lines(lines, newline + 1, path)


def _parse_lines(lines: list[str], size_bytes: int, path: Path) -> PlyHeader:
    file_format = ""
    elements: list[PlyElement] = []
    for line in lines:
        match line.split():
            case [] | ["comment" | "obj_info", *_]:
                continue
            case ["format", name, "1.0"] if name in _BYTE_ORDERS and not file_format:
                file_format = name
            case ["element", name, count] if count.isascii() and count.isdigit() and len(count) < 16:
                if any(item.name == name for item in elements):
                    raise MeshError(path, f"header lists the element {name} twice")
                elements.append(PlyElement(name, int(count), ()))
            case ["property", *words] if elements:
                elements[-1] = _with_property(elements[-1], words, line, path)
            case _:
                raise MeshError(path, f"header has a line that is no PLY: {line.strip()[:60]!r}")
    if not file_format:
        raise MeshError(path, "header has no format line")
    return PlyHeader(file_format, tuple(elements), size_bytes)


def _with_property(element: PlyElement, words: list[str], line: str, path: Path) -> PlyElement:
    match words:
        case ["list", count_type, item_type, name] if count_type in _TYPES and item_type in _TYPES:
            added = PlyProperty(name, _TYPES[item_type], _TYPES[count_type])
        case [item_type, name] if item_type in _TYPES:
            added = PlyProperty(name, _TYPES[item_type])
        case _:
            raise MeshError(path, f"header has a property that is no PLY: {line.strip()[:60]!r}")
    if any(item.name == added.name for item in element.properties):
        raise MeshError(path, f"header lists the property {added.name} of {element.name} twice")
    return PlyElement(element.name, element.count, (*element.properties, added))
