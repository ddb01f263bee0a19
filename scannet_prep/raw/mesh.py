"""Meshes of scans (`_vh_clean_2.ply`, `_vh_clean_2.labels.ply`, own scans), checked.

bytes --> records (ply) --> checks of coordinates, colours, faces and labels --> Mesh
"""

from __future__ import annotations

import io
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Buffer, open_file
from scannet_prep.errors import RawFileError
from scannet_prep.raw.layout import download_hint
from scannet_prep.raw.ply import (
    FACE_LISTS,
    Elements,
    copy_side_by_side,
    not_a_triangle,
    parse_elements,
)
from scannet_prep.release.files import MESH

# In metres: 1,000 km. Larger coordinates are a sign of a flipped bit in an exponent, and could make
# the alignment overflow.
_MAX_COORDINATE = 1_000_000
# Coordinates of a map (UTM) reach 10,000 km, and may be in millimetres.
_MAX_OWN_COORDINATE = 10_000_000_000


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
    vertices, faces = parse_elements(data, path)
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
    vertices, faces = parse_elements(data, path)
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
    vertices, faces = parse_elements(data, path)
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
    vertices, faces = parse_elements(map_mesh(path), path)
    _refuse_labels(vertices, path)
    face_count = 0 if faces is None else len(faces)
    return len(vertices), face_count


def _check_faces(records: Elements | None, vertex_count: int, path: Path) -> NDArray[np.int32]:
    """Return the faces, int32 (F, 3): triangles, whose vertices exist."""
    if records is None or not len(records):
        return np.empty((0, 3), np.int32)
    names = [name for name in FACE_LISTS if name in (records.dtype.names or ())]
    if not names:
        problem = f"faces have no list {' or '.join(FACE_LISTS)}"
        raise RawFileError(path, problem, download_hint(path))
    name = names[0]
    lists: NDArray[Any] = records[name]
    if lists.dtype.hasobject:
        lists = _stack_lists(lists, path)
    if lists.ndim != 2 or lists.dtype.kind not in "iu":
        problem = f"faces have {name} as {lists.dtype}, expected a list of whole numbers"
        raise RawFileError(path, problem, download_hint(path))

    # A view of the file is copied into an array of its own. Stacked lists already are such an
    # array, which has no base.
    indices = lists if lists.base is None else copy_side_by_side(records, [name])
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
            raise not_a_triangle(row, len(vertices), path)
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
            raise RawFileError(path, problem, download_hint(path))
    return copy_side_by_side(vertices, names)


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
        problem = f"the vertex property {name} is a list, expected one number"
        raise RawFileError(path, problem, download_hint(path))
    return column
