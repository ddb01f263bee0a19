"""Reads a mesh (`_vh_clean_2.ply`, `_vh_clean_2.labels.ply`): vertices with colour, and triangles."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import MeshError
from scannet_prep.files import Buffer, read_file
from scannet_prep.raw.ply import PlyElement, PlyHeader, PlyProperty, parse_header, read_header

_FACE_LISTS = ("vertex_indices", "vertex_index")
_HINT = "download it again"
# 1,000 km in metres: no room, but what a flipped bit in an exponent makes of one; and what would overflow when aligned.
_MAX_COORDINATE = 1_000_000

Records: TypeAlias = NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """A triangle mesh. The order of the vertices is the file's; everything else refers to it.

    Attributes:
        positions: float32 (V, 3), metres, in the frame of the file; float64 where the file has doubles. V > 0, finite,
            at most 1,000 km.
        colors: uint8 (V, 3), red, green, blue, 0..255.
        faces: int32 (F, 3), indices into the vertices, all in range. F may be 0.
        labels: uint16 (V,) where the file has the property `label` (nyu40 ids in `labels.ply`), else None.
    """

    positions: NDArray[np.floating[Any]]
    colors: NDArray[np.uint8]
    faces: NDArray[np.int32]
    labels: NDArray[np.uint16] | None

    @property
    def vertex_count(self) -> int:
        """V."""
        return len(self.positions)


def read_mesh(path: Path) -> Mesh:
    """Read a mesh from a file.

    Raises:
        MissingFileError: There is no such file.
        MeshError: It is damaged, not triangular, or lacks coordinates or colours.
    """
    return parse_mesh(read_file(path), path)


def check_mesh_file(path: Path, *, needs_labels: bool = False) -> int:
    """Check that a mesh file is whole, by its header and its size; reads it only where that does not suffice.

    Args:
        path: The file.
        needs_labels: Whether its vertices must have the property `label`.

    Returns:
        The number of vertices.

    Raises:
        MissingFileError: There is no such file.
        MeshError: It is truncated, or no mesh.
    """
    size_bytes, header = read_header(path)
    vertex = header.find_element("vertex")
    if vertex is None or vertex.count == 0:
        raise MeshError(path, "has no vertices", _HINT)
    if needs_labels and all(item.name != "label" for item in vertex.properties):
        raise MeshError(path, "its vertices have no property label", _HINT)
    if header.byte_order and all(_has_fixed_size(element) for element in header.elements):
        expected = header.size_bytes + sum(
            element.count * _record_type(element, header.byte_order).itemsize for element in header.elements
        )
        if size_bytes != expected:
            raise MeshError(path, f"has {size_bytes:,} bytes, but its header accounts for {expected:,}", _HINT)
    else:
        read_mesh(path)
    return vertex.count


def parse_mesh(data: Buffer, path: Path) -> Mesh:
    """Parse the content of a PLY file; ASCII and both byte orders, properties found by name.

    Args:
        data: The whole file.
        path: Its name, for messages.

    Raises:
        MeshError: It is damaged, not triangular, or lacks coordinates or colours.
    """
    header = parse_header(data, path)
    vertex = header.find_element("vertex")
    if vertex is None or vertex.count == 0:
        raise MeshError(path, "has no vertices", _HINT)
    if header.byte_order and all(_has_fixed_size(element) for element in header.elements):
        records = _slice_records(data, header, path)
        vertices, face_indices = records["vertex"], _triangles_from_records(records, header, path)
    else:
        vertices, face_indices = _read_with_plyfile(data, header, path)
    faces = _check_faces(face_indices, len(vertices), path)
    return Mesh(_positions(vertices, path), _colors(vertices, path), faces, _labels(vertices, path))


def _has_fixed_size(element: PlyElement) -> bool:
    """Whether every record of an element has the same size, given that faces are triangles."""
    return not element.lists or (element.name == "face" and _find_face_list(element) == element.lists[0])


def _find_face_list(element: PlyElement) -> PlyProperty | None:
    return element.lists[0] if len(element.lists) == 1 and element.lists[0].name in _FACE_LISTS else None


def _record_type(element: PlyElement, byte_order: str) -> np.dtype[np.void]:
    fields: list[tuple[str, str] | tuple[str, str, tuple[int]]] = []
    for item in element.properties:
        if item.count_dtype is None:
            fields.append((item.name, byte_order + item.dtype))
        else:
            fields += [
                (f"{item.name} count", byte_order + item.count_dtype),
                (item.name, byte_order + item.dtype, (3,)),
            ]
    return np.dtype(fields)


def _slice_records(data: Buffer, header: PlyHeader, path: Path) -> dict[str, Records]:
    """View each element of a binary file as an array of records, without copying."""
    records = {}
    offset = header.size_bytes
    for element in header.elements:
        dtype = _record_type(element, header.byte_order)
        whole = min(element.count, (len(data) - offset) // max(dtype.itemsize, 1))
        records[element.name] = part = np.frombuffer(data, dtype, whole, offset)
        # Before anything is said about the size: a polygon that is no triangle shifts all that follows.
        face_list = _find_face_list(element)
        if face_list is not None:
            _check_face_sizes(part[f"{face_list.name} count"], path)
        if whole < element.count:
            expected = offset + element.count * dtype.itemsize
            raise MeshError(
                path,
                f"is truncated: {len(data):,} bytes, but {element.count:,} x {element.name} end at byte {expected:,}",
                _HINT,
            )
        offset += whole * dtype.itemsize
    if offset != len(data):
        raise MeshError(path, f"has {len(data):,} bytes, but its header accounts for {offset:,}", _HINT)
    return records


def _check_face_sizes(counts: NDArray[np.integer[Any]], path: Path) -> None:
    wrong = np.flatnonzero(counts != 3)
    if len(wrong):
        raise MeshError(path, f"face {wrong[0]} has {counts[wrong[0]]} vertices, expected triangles")


def _triangles_from_records(records: dict[str, Records], header: PlyHeader, path: Path) -> NDArray[np.integer[Any]]:
    element = header.find_element("face")
    if element is None or element.count == 0:
        return np.empty((0, 3), np.int32)
    face_list = _find_face_list(element)
    if face_list is None:
        raise MeshError(path, f"faces have no list {' or '.join(_FACE_LISTS)}")
    if face_list.dtype.startswith("f"):
        raise MeshError(path, f"faces list their vertices as {face_list.dtype}, expected whole numbers")
    return _join_fields(records["face"], [face_list.name])


def _read_with_plyfile(data: Buffer, header: PlyHeader, path: Path) -> tuple[Records, NDArray[np.integer[Any]]]:
    """Read text files, and binary ones with further lists."""
    # Each element takes a byte at least; a damaged count must not make plyfile reserve terabytes.
    available = len(data) - header.size_bytes
    for element in header.elements:
        if element.count > available:
            raise MeshError(path, f"is truncated: {element.count:,} x {element.name} in {available:,} bytes", _HINT)
    import plyfile

    try:
        # Numbers that do not fit their type, and lists without items: plyfile goes on, and so can the checks after it.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = plyfile.PlyData.read(io.BytesIO(bytes(data)))
        vertices = np.asarray(content["vertex"].data)
        lists = _face_lists_from_plyfile(content, header, path)
    except (plyfile.PlyParseError, ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError) as error:
        if isinstance(error, MeshError):
            raise
        raise MeshError(path, f"is damaged: {error}", _HINT) from error
    return vertices, lists


def _face_lists_from_plyfile(content: Any, header: PlyHeader, path: Path) -> NDArray[np.integer[Any]]:  # noqa: ANN401 - plyfile has no types
    element = header.find_element("face")
    if element is None or element.count == 0:
        return np.empty((0, 3), np.int32)
    face_list = _find_face_list(element)
    if face_list is None:
        raise MeshError(path, f"faces have no list {' or '.join(_FACE_LISTS)}")
    lists = content["face"].data[face_list.name]
    _check_face_sizes(np.fromiter((len(item) for item in lists), np.int64, len(lists)), path)
    stacked = np.stack(lists)
    if stacked.dtype.kind not in "iu":
        raise MeshError(path, f"faces list their vertices as {stacked.dtype}, expected whole numbers")
    return stacked


def _check_faces(indices: NDArray[np.integer[Any]], vertex_count: int, path: Path) -> NDArray[np.int32]:
    if indices.size:
        smallest, largest = int(indices.min()), int(indices.max())
        if smallest < 0 or largest >= vertex_count:
            found = smallest if smallest < 0 else largest
            raise MeshError(path, f"a face refers to vertex {found}, but there are {vertex_count:,} vertices", _HINT)
    return indices.astype(np.int32, copy=False)


def _positions(vertices: Records, path: Path) -> NDArray[np.floating[Any]]:
    columns = [_column(vertices, name, path) for name in ("x", "y", "z")]
    wrong = next((column.dtype for column in columns if column.dtype.kind != "f"), None)
    if wrong is not None:
        raise MeshError(path, f"x, y, z have type {wrong}, expected float")
    is_double = any(column.dtype.itemsize > 4 for column in columns)
    with np.errstate(invalid="ignore"):  # a signalling NaN, which only a damaged file has; found below
        joined = _join_fields(vertices, ["x", "y", "z"])
        positions: NDArray[np.floating[Any]] = joined.astype(np.float64 if is_double else np.float32, copy=False)
    if not np.abs(positions).max() <= _MAX_COORDINATE:  # also where one is NaN
        bad = int(np.flatnonzero(~(np.abs(positions) <= _MAX_COORDINATE).all(axis=1))[0])
        expected = f"expected finite ones up to {_MAX_COORDINATE:,}"
        raise MeshError(path, f"vertex {bad} has the coordinates {positions[bad].tolist()}, {expected}", _HINT)
    return positions


def _colors(vertices: Records, path: Path) -> NDArray[np.uint8]:
    columns = [_column(vertices, name, path) for name in ("red", "green", "blue")]
    wrong = next((column.dtype for column in columns if column.dtype != np.uint8), None)
    if wrong is not None:
        raise MeshError(path, f"colours have type {wrong}, expected uchar (0..255)")
    return _join_fields(vertices, ["red", "green", "blue"])


def _labels(vertices: Records, path: Path) -> NDArray[np.uint16] | None:
    if "label" not in (vertices.dtype.names or ()):
        return None
    labels = _column(vertices, "label", path)
    if labels.dtype.kind not in "iu" or int(labels.min()) < 0 or int(labels.max()) > np.iinfo(np.uint16).max:
        raise MeshError(path, f"label has type {labels.dtype} and values from {labels.min()} to {labels.max()}")
    return labels.astype(np.uint16)


def _column(vertices: Records, name: str, path: Path) -> NDArray[Any]:
    names = vertices.dtype.names or ()
    if name not in names:
        raise MeshError(path, f"vertices have no property {name}; they have {', '.join(names)}")
    column: NDArray[Any] = vertices[name]
    if column.dtype.kind not in "fiu":
        raise MeshError(path, f"the vertex property {name} is a list, expected one number")
    return column


def _join_fields(records: Records, names: list[str]) -> NDArray[Any]:
    """Copy three numeric fields, or one of three numbers, into a contiguous array (N, 3) of native byte order.

    Where they lie side by side, as in the release, the bytes of each record are copied as a whole: four times as fast
    as number by number.
    """
    fields: Mapping[str, Any] = records.dtype.fields or {}
    dtype, start = fields[names[0]][0], fields[names[0]][1]
    is_side_by_side = all(
        fields[name][0] == dtype and fields[name][1] == start + index * dtype.itemsize
        for index, name in enumerate(names)
    )
    if not is_side_by_side or records.dtype.hasobject:
        return np.stack([records[name] for name in names], axis=1)
    whole = np.dtype(
        {
            "names": ["whole"],
            "formats": [f"V{dtype.itemsize * len(names)}"],
            "offsets": [start],
            "itemsize": records.dtype.itemsize,
        }
    )
    joined: NDArray[Any] = records.view(whole)["whole"].copy().view(dtype.base).reshape(-1, 3)
    return joined.astype(dtype.base.newbyteorder("="), copy=False)
