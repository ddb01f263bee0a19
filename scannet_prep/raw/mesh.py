"""Meshes of scans: read by plyfile, then checked.

plyfile maps binary meshes of triangles into memory, as those of the release. It reads text, and
lists other than those of the faces, row by row: about 1.5 s for 10 MB.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.base.files import open_file
from scannet_prep.base.text import list_some
from scannet_prep.errors import ContentError
from scannet_prep.raw.tree import naming_file
from scannet_prep.release.files import MESH
from scannet_prep.release.irregularities import SceneWarning, WarningKind

if TYPE_CHECKING:
    import plyfile

Elements: TypeAlias = NDArray[np.void]
"""Vertices or faces of a file, one record each; the fields are their properties."""

# In metres: 1,000 km. Larger coordinates are a sign of a flipped bit in an exponent.
_MAX_COORDINATE = 1_000_000
# Of own meshes, in metres. Beyond this, float32 rounds to more than half a millimetre.
_MAX_OWN_COORDINATE = 10_000
# Of own meshes, in metres. A room in millimetres is longer than the first one.
_MAX_EXTENT = 1_000
_LARGE_EXTENT = 100

_MAX_HEADER_BYTES = 65_536
_PAGE_BYTES = 4096
_COUNT = re.compile(rb"^element\s+\S+\s+(\d{1,18})", re.MULTILINE)
_COMMENT = re.compile(rb"^(comment|obj_info)\b.*$", re.MULTILINE)
_QUESTION_MARKS = bytes(range(128)) + b"?" * 128
# The errors of plyfile for damaged files, beside its own.
_PLY_ERRORS = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)
# The names that programs give to the list of the vertices of a face, and to colours.
_FACE_LISTS = ("vertex_indices", "vertex_index")
_COLORS = ("red", "green", "blue")
_OTHER_COLORS = (("diffuse_red", "diffuse_green", "diffuse_blue"), ("r", "g", "b"))
_GREY = 128
_NO_LABELS = "has no labels: its vertices have no property label"
_LABELS = (
    "is a labels.ply under the name of the mesh: its vertices have a property label, "
    "and its colours are those of the labels"
)


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """A triangle mesh. Its vertices have the order of the file, and all other files refer to it.

    Attributes:
        positions: float32 (V, 3), metres, in the frame of the file; float64 if the file has
            doubles. V > 0, finite, at most 1,000 km.
        colors: uint8 (V, 3), red, green, blue, 0..255. In a `labels.ply`, those of the labels.
        faces: int32 (F, 3), indices into the vertices, all in range. F may be 0.
        labels: uint16 (V,), nyu40 ids in a `labels.ply` of ScanNet v2, ScanNet ids in one of
            ScanNet v1; (0,) for any other mesh.
        notes: What the file lacks or has in vain.
    """

    positions: NDArray[np.floating[Any]]
    colors: NDArray[np.uint8]
    faces: NDArray[np.int32]
    labels: NDArray[np.uint16]
    notes: tuple[SceneWarning, ...] = ()

    @property
    def vertex_count(self) -> int:
        """The number of vertices, V."""
        return len(self.positions)


def read_mesh(
    path: Path, max_bytes: int = MESH.max_bytes, *, has_labels: bool = False, is_own: bool = False
) -> Mesh:
    """Read a mesh: binary of both byte orders or text, with properties that are found by name.

    Args:
        path: The file.
        max_bytes: Largest size of the file.
        has_labels: Whether it is a `labels.ply`.
        is_own: Whether it is from another program. Its colours may be missing, which makes all of
            them grey; they may be floats from 0 to 1; and they may be named `diffuse_red` or `r`,
            and so on. It must be in metres, smaller than 1 km, and within 10 km of the origin.

    Raises:
        MissingFileError: There is no such file.
        FileError: It cannot be read, or is too large.
        RawFileError: It is damaged, not triangular, lacks coordinates, colours or labels, or is a
            `labels.ply` in place of a mesh.
    """
    with naming_file(path):
        ply = _read_ply(path, max_bytes)
        vertices = _vertices(ply)
        names = _names(vertices)
        if has_labels is not ("label" in names):
            raise ContentError(_NO_LABELS if has_labels else _LABELS)
        color_names = _find_color_names(names) if is_own else _COLORS
        mesh = Mesh(
            positions=_positions(vertices, _MAX_OWN_COORDINATE if is_own else _MAX_COORDINATE),
            colors=_colors(vertices, color_names, may_be_shares=is_own),
            faces=_faces(ply, len(vertices)),
            labels=_labels(vertices) if has_labels else np.empty(0, np.uint16),
        )
        notes = []
        if not len(mesh.faces):
            notes.append(SceneWarning(WarningKind.NO_FACES))
        if is_own:
            notes += _iter_own_notes(ply, mesh.positions, color_names)
        return replace(mesh, notes=tuple(notes))


def _read_ply(path: Path, max_bytes: int) -> plyfile.PlyData:
    """Read a PLY file to its end.

    Raises:
        ContentError: It is damaged, truncated or another kind of file, or has bytes after its end.
    """
    import plyfile

    with open_file(path, max_bytes) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        start = file.read(_MAX_HEADER_BYTES)
        header, end_header, _ = start.partition(b"end_header")
        if not start.startswith(b"ply") or not end_header:
            content = describe_beginning(start[:BEGINNING_BYTES]) or "not a PLY file"
            expected = f"a PLY file with a line end_header in its first {_MAX_HEADER_BYTES:,} bytes"
            raise ContentError(f"is {content}, expected {expected}; it begins with {start[:8]!r}")
        # A damaged count must not make NumPy reserve terabytes. A row takes at least a byte.
        if sum(map(int, _COUNT.findall(header))) > size_bytes:
            raise ContentError(f"is damaged or truncated: {size_bytes:,} bytes for more rows")

        stream: Any = file
        is_text = b"format ascii" in header
        if is_text or not header.isascii():
            # plyfile reads nothing but ASCII. Programs write paths there, in any encoding.
            header = _COMMENT.sub(lambda line: line[0].translate(_QUESTION_MARKS), header)
            stream = io.BytesIO(header + start[len(header) :] + file.readall())
        if is_text:
            stream = io.TextIOWrapper(stream, "ascii", "replace")
        stream.seek(0)
        lengths = {"face": dict.fromkeys(_FACE_LISTS, 3)}
        # Before NumPy 2.2, an empty list of faces cannot be mapped at the end of a page.
        mmap = "r" if size_bytes % _PAGE_BYTES else False
        try:
            # If numbers do not fit their type, plyfile continues; they are checked later.
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ply = plyfile.PlyData.read(stream, mmap=mmap, known_list_len=lengths)
        except (plyfile.PlyParseError, *_PLY_ERRORS) as error:
            problem = f"is damaged, truncated, or not of triangles ({size_bytes:,} bytes)"
            raise ContentError(f"{problem}: {error}") from None
        rest = stream.read()
    if is_text:
        rest = rest.strip()
    if rest:
        raise ContentError(f"has {len(rest):,} of {size_bytes:,} bytes after its end")
    return ply


def _vertices(ply: plyfile.PlyData) -> Elements:
    """Return the vertices, at least one."""
    if "vertex" not in ply or not len(ply["vertex"].data) or not ply["vertex"].properties:
        raise ContentError("has no vertices, or vertices without any property")
    return np.asarray(ply["vertex"].data)


def _names(records: Elements) -> tuple[str, ...]:
    return records.dtype.names or ()


def _columns(vertices: Elements, names: Sequence[str], kinds: str, expected: str) -> NDArray[Any]:
    """Copy properties side by side, (V, len(names)), in native byte order.

    Args:
        vertices: The vertices.
        names: The names of the properties.
        kinds: The letters of the allowed kinds of types in NumPy.
        expected: The allowed types, for messages.
    """
    for name in names:
        if name not in _names(vertices):
            actual = ", ".join(_names(vertices))
            raise ContentError(f"vertices have no property {name}; they have {actual}"[:300])
    # A signalling NaN, which occurs in damaged files only, is refused later.
    with np.errstate(invalid="ignore"):
        columns = np.stack([vertices[name] for name in names], axis=1)
    if columns.dtype.kind not in kinds:
        listed = ", ".join(names)
        raise ContentError(f"{listed} have type {columns.dtype}, expected {expected}")
    return columns


def _positions(vertices: Elements, largest: int) -> NDArray[np.floating[Any]]:
    """Return the positions, float32 or float64 (V, 3), after checking that they are finite."""
    positions = _columns(vertices, "xyz", "f", "float")
    with np.errstate(invalid="ignore"):
        is_small = np.abs(positions) <= largest  # False if NaN
    if not is_small.all():
        vertex = int(np.argmin(is_small.all(axis=1)))
        raise ContentError(
            f"vertex {vertex} has the coordinates {positions[vertex].tolist()}, "
            f"expected finite ones up to {largest:,}"
        )
    return positions


def _find_color_names(names: Sequence[str]) -> Sequence[str]:
    """Find the names of the colours among those of the properties; empty if there are none."""
    if not set(_COLORS).isdisjoint(names):
        return _COLORS
    for candidate in _OTHER_COLORS:
        if set(candidate).issubset(names):
            return candidate
    return ()


def _colors(vertices: Elements, names: Sequence[str], *, may_be_shares: bool) -> NDArray[np.uint8]:
    """Return the colours, uint8 (V, 3); grey if there are none."""
    if not names:
        return np.full((len(vertices), 3), _GREY, np.uint8)
    colors = _columns(vertices, names, "fiu", "uchar (0..255)")
    if colors.dtype == np.uint8:
        return colors
    is_share = ((colors >= 0) & (colors <= 1)).all(axis=1)  # False if NaN
    if not may_be_shares or colors.dtype.kind != "f" or not is_share.all():
        vertex = int(np.argmin(is_share))
        expected = "uchar (0..255), or float (0..1)" if may_be_shares else "uchar (0..255)"
        raise ContentError(
            f"{', '.join(names)} have type {colors.dtype}, expected {expected}; "
            f"vertex {vertex} has the colour {colors[vertex].tolist()}"
        )
    shares: NDArray[Any] = np.rint(colors * 255)
    return shares.astype(np.uint8)


def _faces(ply: plyfile.PlyData, vertex_count: int) -> NDArray[np.int32]:
    """Return the faces, int32 (F, 3): triangles, whose vertices exist."""
    if "tristrips" in ply:
        raise ContentError("has strips of triangles, expected a list of triangles")
    if "face" not in ply or not len(ply["face"].data):
        return np.empty((0, 3), np.int32)
    records = ply["face"].data
    names = [name for name in _FACE_LISTS if name in _names(records)]
    if len(names) != 1:
        raise ContentError(f"faces have {len(names)} lists {' or '.join(_FACE_LISTS)}, expected 1")
    faces = np.asarray(records[names[0]])
    if faces.dtype.hasobject:  # plyfile has read row by row
        lengths = [len(vertices) for vertices in faces]
        if min(lengths) != 3 or max(lengths) != 3:
            raise ContentError("has faces that are not triangles")
        faces = np.stack(faces.tolist())
    if faces.ndim != 2 or faces.dtype.kind not in "iu":
        raise ContentError(f"faces have {names[0]} as {faces.dtype.name}, expected whole numbers")
    # The smallest and the largest number are found faster in a copy.
    faces = np.ascontiguousarray(faces)
    for vertex in (int(faces.min()), int(faces.max())):
        if not 0 <= vertex < vertex_count:
            raise ContentError(
                f"a face refers to vertex {vertex}, but there are {vertex_count:,} vertices"
            )
    return faces.astype(np.int32, copy=False)


def _labels(vertices: Elements) -> NDArray[np.uint16]:
    """Return the labels, uint16 (V,), after checking their range."""
    labels = _columns(vertices, ["label"], "iu", "whole numbers")[:, 0]
    largest = np.iinfo(np.uint16).max
    if labels.min() < 0 or labels.max() > largest:
        raise ContentError(
            f"has labels from {labels.min()} to {labels.max()}, expected 0 to {largest:,}"
        )
    return labels.astype(np.uint16)


def _iter_own_notes(
    ply: plyfile.PlyData, positions: NDArray[np.floating[Any]], color_names: Sequence[str]
) -> Iterator[SceneWarning]:
    """Iterate over what a mesh of another program lacks, and what it has that is not used.

    Raises:
        ContentError: It is too large for a room.
    """
    if not color_names:
        yield SceneWarning(WarningKind.NO_COLORS)
    extent = float(np.ptp(positions, axis=0).max())
    if extent > _MAX_EXTENT:
        raise ContentError(
            f"is {extent:,.0f} m long, expected metres, and at most {_MAX_EXTENT:,} m"
        )
    if extent > _LARGE_EXTENT:
        yield SceneWarning(WarningKind.LARGE_MESH, f"{extent:,.0f}")

    used = {*"xyz", *color_names, "alpha", *_FACE_LISTS}
    unused = [comment for comment in ply.comments if comment.startswith("TextureFile")]
    for element in ply:
        if element.name in ("vertex", "face"):
            unused += [item.name for item in element.properties if item.name not in used]
        else:
            unused.append(f"element {element.name}")
    if unused:
        yield SceneWarning(WarningKind.UNUSED_PROPERTIES, list_some(unused, 8))
