"""Meshes of scans: read by plyfile, then checked.

plyfile maps binary meshes of triangles, such as those of the release, into memory. It reads text,
and lists other than those of the faces, row by row: about 1.5 s for 10 MB.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.file_kinds import describe_beginning
from scannet_prep.base.text import list_some
from scannet_prep.errors import ContentError
from scannet_prep.release.irregularities import SceneWarning, WarningKind

if TYPE_CHECKING:
    import plyfile

Vertices: TypeAlias = NDArray[np.void]
"""The vertices of a file, one record each; the fields are their properties."""
Positions: TypeAlias = NDArray[np.floating[Any]]

# In metres. Larger coordinates are a sign of a flipped bit in an exponent, or of another unit.
# Beyond 10 km, float32 would round to more than half a millimetre.
_MAX_COORDINATE = 1_000
# In metres. Few meshes are longer, unless they are in another unit.
_LARGE_EXTENT = 100

_MAX_HEADER_BYTES = 65_536
_COUNT = re.compile(rb"^element\s+\S+\s+(\d{1,18})", re.MULTILINE)
_IS_TEXT = re.compile(rb"[\r\n]\s*format\s+ascii")
_NOT_ASCII = re.compile(rb"[^\x00-\x7f]")
# The errors of plyfile for damaged files, beside its own.
_PLY_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError)
# The names that programs give to the list of the vertices of a face, and to colours.
_FACE_LISTS = ("vertex_indices", "vertex_index")
_COLORS = ("red", "green", "blue")
_NORMALS = ("nx", "ny", "nz")
_GREY = 128
_MAX_LABEL = np.iinfo(np.uint16).max
_NO_LABELS = "has no labels: its vertices have no property label"
_LABELS = (
    "is a labels.ply under the name of the mesh: its vertices have a property label (which needs "
    "another name in your own mesh), and its colours are those of the labels"
)


@dataclass(frozen=True, slots=True, eq=False)
class Mesh:
    """A triangle mesh. Its vertices have the order of the file, to which all other files refer.

    In memory, all x come before all y: NumPy reads such columns several times as fast as rows.

    Attributes:
        positions: float32 (V, 3), metres, in the frame of the file; float64 if the file has
            doubles. V > 0, finite, at most 1 km.
        colors: uint8 (V, 3), red, green, blue, 0..255. In a `labels.ply`, those of the labels.
        faces: int32 (F, 3), indices into the vertices, all in range. F may be 0.
        normals: (V, 3), those of the file if it has no faces, of any length, finite; else None.
        labels: uint16 (V,), nyu40 ids in a `labels.ply` of ScanNet v2, ScanNet ids in one of
            ScanNet v1; (0,) for any other mesh.
        notes: What the file lacks, and what it has that is not used.
    """

    positions: Positions
    colors: NDArray[np.uint8]
    faces: NDArray[np.int32]
    normals: NDArray[np.floating[Any]] | None
    labels: NDArray[np.uint16]
    notes: tuple[SceneWarning, ...] = ()


def parse_mesh(
    data: bytes,
    path: Path,
    *,
    has_labels: bool = False,
) -> Mesh:
    """Parse a mesh, binary in either byte order or text; properties are found by name.

    It must be in metres, and within 1 km of the origin. Without colours, all are grey.

    Args:
        data: The content of the file.
        path: The file, from which large parts are mapped.
        has_labels: Whether it is a `labels.ply`.

    Raises:
        ContentError: It is damaged, not triangular, lacks coordinates or labels, has colours of
            another type, or is a `labels.ply` in place of a mesh.
    """
    ply = _read_ply(data, path)
    if "vertex" not in ply or not ply["vertex"].count or not ply["vertex"].properties:
        raise ContentError("has no vertices, or vertices without any property")
    vertices: Vertices = np.asarray(ply["vertex"].data)
    names = vertices.dtype.names or ()
    if has_labels is not ("label" in names):
        raise ContentError(_NO_LABELS if has_labels else _LABELS)
    positions = _find_positions(vertices)
    faces = _find_faces(ply, len(vertices))
    labels = _find_labels(vertices) if has_labels else np.empty(0, np.uint16)
    color_names = _find_color_names(names)
    if color_names:
        colors = _find_colors(vertices, color_names)
    else:
        colors = np.full((len(vertices), 3), _GREY, np.uint8)
    normals = None
    if not len(faces) and set(_NORMALS).issubset(names):
        columns = _copy_columns(vertices, _NORMALS, "fi")
        normals = np.nan_to_num(columns.T, posinf=0, neginf=0)
    mesh = Mesh(positions, colors, faces, normals, labels)
    return replace(mesh, notes=tuple(_iter_notes(ply, mesh, color_names)))


def _read_ply(
    data: bytes,
    path: Path,
) -> plyfile.PlyData:
    """Read a PLY file to its end.

    Raises:
        ContentError: It is damaged, truncated or another kind of file, or has bytes after its end.
    """
    import plyfile

    start = data[:_MAX_HEADER_BYTES]
    header, end_header, _ = start.partition(b"end_header")
    if not start.startswith(b"ply"):
        content = describe_beginning(start) or "a file of another kind"
        raise ContentError(f"is {content}, expected a PLY file; it begins with {start[:8]!r}")
    if not end_header:
        raise ContentError(
            "has a header that is truncated or too long, "
            f"expected a line end_header in its first {_MAX_HEADER_BYTES:,} bytes"
        )
    # A damaged count must not make NumPy reserve terabytes. A row takes at least a byte.
    if sum(map(int, _COUNT.findall(header))) > len(data):
        raise ContentError(f"is damaged or truncated: {len(data):,} bytes for more rows")

    stream: Any
    is_text = _IS_TEXT.search(header) is not None
    if header.isascii() and not is_text:
        # plyfile maps only files.
        stream = path.open("rb")
    else:
        # plyfile reads only ASCII headers, in which programs write paths in any encoding.
        ascii_header = _NOT_ASCII.sub(b"?", header)
        stream = io.BytesIO(ascii_header + data[len(header) :])
    if is_text:
        stream = io.TextIOWrapper(stream, "ascii", "replace")
    lengths = {"face": dict.fromkeys(_FACE_LISTS, 3)}
    # If numbers do not fit their type, plyfile continues; they are checked later.
    with stream, np.errstate(all="ignore"):
        try:
            ply = plyfile.PlyData.read(stream, mmap="r", known_list_len=lengths)
        except (plyfile.PlyParseError, *_PLY_ERRORS) as error:
            problem = f"is damaged, truncated, or not of triangles ({len(data):,} bytes)"
            raise ContentError(f"{problem}: {error}") from None
        rest = stream.read()
    if is_text:
        rest = rest.strip()
    if rest:
        raise ContentError(f"has {len(rest):,} of {len(data):,} bytes after its end")
    return ply


def _copy_columns(
    vertices: Vertices,
    names: Sequence[str],
    kinds: str,
) -> NDArray[Any]:
    """Copy properties, (len(names), V), in native byte order.

    Args:
        vertices: The vertices.
        names: The names of the properties.
        kinds: The letters of the allowed kinds of types in NumPy.
    """
    listed = ", ".join(names)
    try:
        # A signalling NaN, which occurs in damaged files only, is refused later.
        with np.errstate(invalid="ignore"):
            columns = np.stack([vertices[name] for name in names])
    except ValueError:
        actual = ", ".join(vertices.dtype.names or ())
        problem = f"vertices have the properties {actual:.200}, expected {listed}"
        raise ContentError(problem) from None
    if columns.dtype.kind not in kinds:
        expected = {"f": "float", "iu": "whole numbers"}.get(kinds, "numbers")
        raise ContentError(f"{listed} have type {columns.dtype.name}, expected {expected}")
    return columns


def _find_positions(vertices: Vertices) -> Positions:
    """Return the positions, float32 or float64 (V, 3), after checking that they are finite."""
    columns = _copy_columns(vertices, "xyz", "f")
    smallest = columns.min()
    largest = columns.max()
    # False if one of them is NaN.
    is_near = smallest >= -_MAX_COORDINATE and largest <= _MAX_COORDINATE
    if not is_near:
        raise ContentError(
            f"has coordinates from {smallest:,.5g} to {largest:,.5g}, "
            f"expected metres, finite and up to {_MAX_COORDINATE:,}"
        )
    return columns.T


def _find_color_names(names: Sequence[str]) -> tuple[str, ...]:
    """Find the properties that are red, green and blue; none if there are none, or several sets.

    Programs name them `red`, `diffuse_red`, `Red`, `r`, `r_8bit`, and so on. If one set is named
    `red`, `green`, `blue`, it is used.
    """
    by_lower = {name.lower(): name for name in names}
    found = []
    for words in (_COLORS, ("r", "g", "b")):
        is_red = re.compile(rf"(?<![a-z]){words[0]}(?![a-z])")
        for name in by_lower:
            around = is_red.split(name)
            lower_names = [word.join(around) for word in words]
            colors = tuple(by_lower.get(lower, "") for lower in lower_names)
            if len(around) == 2 and all(colors):
                found.append(colors)
    if _COLORS in found:
        return _COLORS
    return found[0] if len(found) == 1 else ()


def _find_colors(
    vertices: Vertices,
    names: Sequence[str],
) -> NDArray[np.uint8]:
    """Return the colours, uint8 (V, 3): 0..255 of any type, floats 0..1, or numbers of 16 bits."""
    columns = _copy_columns(vertices, names, "fiu")
    colors = np.stack([*columns], axis=1)
    if colors.dtype == np.uint8:
        return colors
    smallest = colors.min()
    largest = colors.max()
    are_whole = (colors == np.rint(colors)).all()
    scale = 0.0
    # A whole number 1 may stand for 1 or for 255. False if one of them is NaN.
    if colors.dtype.kind == "f" and largest <= 1:
        scale = 255
    elif largest != 1 and largest <= 255 and are_whole:
        scale = 1
    elif colors.dtype == np.uint16 and largest > 255:
        scale = 1 / 257
    if scale and smallest >= 0:
        levels: Positions = np.rint(colors * scale)
        return levels.astype(np.uint8)
    raise ContentError(
        f"{', '.join(names)} have type {colors.dtype} and values from {smallest} to {largest}, "
        "expected whole numbers 0..255, float 0..1 or ushort 0..65535"
    )


def _find_labels(vertices: Vertices) -> NDArray[np.uint16]:
    """Return the labels, uint16 (V,), after checking their range."""
    (labels,) = _copy_columns(vertices, ["label"], "iu")
    smallest = labels.min()
    largest = labels.max()
    if smallest < 0 or largest > _MAX_LABEL:
        problem = f"has labels from {smallest} to {largest}, expected 0 to {_MAX_LABEL:,}"
        raise ContentError(problem)
    return np.asarray(labels, np.uint16)


def _find_faces(
    ply: plyfile.PlyData,
    vertex_count: int,
) -> NDArray[np.int32]:
    """Return the faces, int32 (F, 3): triangles, whose vertices exist."""
    if "face" not in ply or not ply["face"].count:
        return np.empty((0, 3), np.int32)
    element = ply["face"]
    names = [name for name in _FACE_LISTS if name in element]
    if len(names) != 1:
        expected = " or ".join(_FACE_LISTS)
        raise ContentError(f"faces have {len(names)} lists {expected}, expected 1")
    name = names[0]
    faces: NDArray[Any] = np.asarray(element.data[name])
    if faces.dtype.hasobject:  # plyfile has read row by row
        if {len(vertices) for vertices in faces} != {3}:
            raise ContentError("has faces that are not triangles")
        faces = np.stack(faces.tolist())
    if faces.ndim != 2 or faces.dtype.kind not in "iu":
        raise ContentError(f"faces have {name} as {faces.dtype.name}, expected whole numbers")
    # Columns are copied four times as fast as rows of three.
    columns = np.ascontiguousarray(faces.T)
    smallest = int(columns.min())
    largest = int(columns.max())
    if smallest < 0 or largest >= vertex_count:
        raise ContentError(
            f"faces refer to vertices from {smallest} to {largest}, "
            f"but there are {vertex_count:,} vertices"
        )
    return columns.astype(np.int32, copy=False).T


def _iter_notes(
    ply: plyfile.PlyData,
    mesh: Mesh,
    color_names: Sequence[str],
) -> Iterator[SceneWarning]:
    """Iterate over what a mesh lacks, and what it has that is not used."""
    used = {
        "vertex": {*"xyz", *color_names, "alpha", "label"},
        "face": {*_FACE_LISTS},
    }
    if mesh.normals is not None:
        yield SceneWarning(WarningKind.FILE_NORMALS)
        used["vertex"].update(_NORMALS)
    elif not len(mesh.faces):
        yield SceneWarning(WarningKind.NO_FACES)
    if not color_names:
        yield SceneWarning(WarningKind.NO_COLORS)
    extent = np.ptp(mesh.positions, axis=0).max()
    if extent > _LARGE_EXTENT:
        yield SceneWarning(WarningKind.LARGE_MESH, f"{extent:,.0f}")

    unused = [comment for comment in ply.comments if comment.startswith("TextureFile")]
    for element in ply:
        if element.name in used:
            names = [one.name for one in element.properties]
            unused += [name for name in names if name not in used[element.name]]
        else:
            unused.append(f"element {element.name}")
    if unused:
        yield SceneWarning(WarningKind.UNUSED_PROPERTIES, list_some(unused, 8))
