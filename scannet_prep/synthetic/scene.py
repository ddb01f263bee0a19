"""Synthetic scenes: a furnished room as a scanner would see it, over-segmented and annotated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.raw.segments import Group
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import find_official_split

Ids: TypeAlias = NDArray[np.integer[Any]]
_Color: TypeAlias = tuple[int, int, int]

MIN_VERTICES = 500

_NOISE = 0.003

# Measured on meshes of the release: vertices come in chunks of about a metre, within them in runs of two or three.
_CHUNK_EDGES = 24.0
_BLOCK_EDGES = 2.0


class _Piece(NamedTuple):
    """One object, a box.

    Attributes:
        raw_category: What an annotator would call it; None for what annotators leave out.
        color: Red, green, blue, 0..255.
        size: Extent along x, y and z, metres; at most 1.1 along x and y.
        bottom: Height above the floor, metres.
    """

    raw_category: str | None
    color: _Color
    size: tuple[float, float, float] = (0.0, 0.0, 0.0)
    bottom: float = 0.0


_CELL, _HEIGHT = 2.5, 2.6
# Gives edges of about 0.05 m, as in the release.
_VERTICES_PER_CELL = 22_000
# The coarsest mesh, with four vertices on each side of each box, has at most half of this.
_MIN_VERTICES_PER_CELL = 250
# A scan rounds off the rims of boards.
_MIN_SIDE = 0.055

# Together these give one segment for about 120 vertices, as in the release: many small ones and a few large ones.
_COURSE = 12
_FIRST_PROBABILITY = 0.08
_BACKGROUND_PROBABILITY = 0.25

_WOOD: _Color = (150, 108, 70)
_DARK: _Color = (58, 55, 60)
_WHITE: _Color = (222, 222, 216)
_BLUE: _Color = (70, 92, 140)
_RED: _Color = (150, 62, 58)


_WALL = _Piece("wall", (200, 196, 182))
# What every room has: the sides of a box, in the order of `_box_sides`.
_SHELL = (_Piece("ceiling", (225, 225, 222)), _WALL, _WALL, _WALL, _WALL, _Piece("floor", (140, 115, 90)))

_FURNITURE = (
    # Raw categories of both label sets (bed), of ScanNet200 only (pillow), of ScanNet20 only (wardrobe cabinet:
    # nyu40 id 39, but ScanNet id 1177 is not one of the 200), and of neither (rug): every scene has these.
    _Piece("bed", _BLUE, (1.0, 1.1, 0.5)),
    _Piece("pillow", _WHITE, (0.5, 0.35, 0.12), 0.5),
    _Piece("wardrobe cabinet", _WOOD, (0.5, 1.0, 1.9)),
    _Piece("rug", _RED, (0.9, 0.9, 0.015)),
    _Piece("table", _WOOD, (1.0, 0.8, 0.14), 0.6),
    _Piece("chair", _DARK, (0.45, 0.5, 0.9)),
    _Piece("door", _WOOD, (0.1, 0.9, 2.05)),
    _Piece("curtain", _WHITE, (1.1, 0.1, 2.1), 0.2),
    _Piece("desk", _WOOD, (1.1, 0.75, 0.73)),
    _Piece("monitor", _DARK, (0.6, 0.06, 0.4), 0.8),
    _Piece("office chair", _BLUE, (0.5, 0.5, 0.9)),
    _Piece(None, _RED, (0.35, 0.25, 0.45)),
    _Piece("couch", _BLUE, (1.1, 0.7, 0.8)),
    _Piece("trash can", _WHITE, (0.27, 0.27, 0.35)),
    _Piece("bookshelf", _WOOD, (0.9, 0.25, 1.9)),
    _Piece("window", _WHITE, (1.1, 0.1, 1.2), 0.9),
)
_PIECES_PER_CELL = 4


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticScene:
    """One synthetic scan.

    Attributes:
        scene_id: Its name.
        positions: float32 (V, 3), metres, scan frame: z up, turned and shifted against the walls.
        colors: uint8 (V, 3), red, green, blue, 0..255.
        faces: int32 (F, 3), vertex indices, counter-clockwise as seen from inside the room.
        segment_ids: int32 (V,), raw segment ids: sparse, and `segment_ids[id] == id` for each of them.
        groups: Annotated objects in file order; empty for test scenes. No two have a segment in common. Their ids have
            gaps where the annotator removed an object; their object ids have none.
        axis_alignment: float64 (4, 4), aligned <- scan, metres, six decimals; None for test scenes.
    """

    scene_id: SceneId
    positions: NDArray[np.float32]
    colors: NDArray[np.uint8]
    faces: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    groups: tuple[Group, ...]
    axis_alignment: NDArray[np.float64] | None


def make_scene(scene_id: str, *, vertices: int = 4000, seed: int = 0, repeats_groups: bool = False) -> SyntheticScene:
    """Make a scene; the same arguments give the same scene.

    Rooms grow with the number of vertices until a scan's usual density is reached, then the density stays. Raw
    categories are all in the built-in label map. Scenes of the official test split are made without annotation.

    Args:
        scene_id: Its name, for example `scene0000_00`.
        vertices: The exact number of vertices, at least 500.
        seed: Another seed gives another room; at least 0.
        repeats_groups: Whether every group is listed twice, as in the release's scene0217_00; the repeats have new ids
            and object ids.
    """
    name = SceneId(scene_id)
    if vertices < MIN_VERTICES or seed < 0:
        raise UsageError(
            f"cannot make a scene of {vertices} vertices from seed {seed}", f"vertices={MIN_VERTICES}, seed=0"
        )
    rng = np.random.default_rng([name.space, name.scan, vertices, seed])
    size, pieces, side_owners, sides = _furnish(vertices, rng)
    edge_length, point_sides, points, segments, triangles = _mesh(sides, vertices, rng)
    axis_alignment = _draw_alignment(rng)
    # What is missing of the room is one hole in the ceiling, as scans have.
    center = (rng.uniform(0.3, 0.7) * size[0], rng.uniform(0.3, 0.7) * size[1], size[2])
    kept = np.sort(np.argsort(-((points - center) ** 2).sum(1), kind="stable")[:vertices])
    noisy = points[kept] + rng.normal(0.0, _NOISE, (vertices, 3))
    # Written out, because the order of sums in a matrix product differs between processors.
    cosine, sine = axis_alignment[0, 0], axis_alignment[1, 0]
    x, y, z = (noisy - axis_alignment[:3, 3]).T
    scanned = np.stack([cosine * x + sine * y, cosine * y - sine * x, z], axis=1)
    order = _order_like_release(scanned, edge_length)

    kept = kept[order]
    owners, segments = np.array(side_owners)[point_sides[kept]], segments[kept]
    names = np.empty(int(segments.max()) + 1, np.int32)  # each segment is named after one of its vertices
    shuffled = rng.permutation(vertices).astype(np.int32)
    names[segments[shuffled]] = shuffled
    segment_ids = names[segments]
    numbers = np.full(len(points), -1, np.int32)
    numbers[kept] = np.arange(vertices, dtype=np.int32)
    faces = numbers[triangles]
    faces = faces.compress(faces.min(1) >= 0, axis=0)  # without those that lost a vertex
    # Colours are a little different in each object and vertex.
    base = np.array([piece.color for piece in pieces]) + rng.normal(0.0, 12.0, (len(pieces), 3))
    noise = rng.standard_normal((vertices, 1), np.float32) * np.float32(8.0)
    has_annotation = find_official_split(name) is not Split.TEST
    groups = _annotate(pieces, owners, segment_ids, rng) if has_annotation else ()
    if repeats_groups:
        groups += tuple(replace(it, id=1000 + place, object_id=len(groups) + place) for place, it in enumerate(groups))
    return SyntheticScene(
        scene_id=name,
        positions=scanned[order].astype(np.float32),
        colors=np.clip(base.astype(np.float32)[owners] + noise, 0, 255).astype(np.uint8),
        faces=faces.take(np.argsort(faces.min(1), kind="stable"), axis=0),
        segment_ids=segment_ids,
        groups=groups,
        axis_alignment=axis_alignment if has_annotation else None,
    )


def _draw_alignment(rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw an axis alignment that turns by 10 to 60 degrees, and shifts."""
    cosine, sine = _cosine_and_sine(rng.uniform(10.0, 60.0) * (1 if rng.random() < 0.5 else -1))
    x, y, z = rng.uniform([-5.0, -5.0, -0.12], [5.0, 5.0, -0.02]).round(6)
    return np.array([[cosine, -sine, 0, x], [sine, cosine, 0, y], [0, 0, 1, z], [0, 0, 0, 1]])


def _order_like_release(positions: NDArray[np.float64], edge_length: float) -> NDArray[np.int64]:
    """Order vertices as the release's meshes do: chunk after chunk, within a chunk by the hash of a small block.

    The hash is the one of voxel hashing (Teschner et al. 2003), which is what fused the scans.
    """
    chunks = np.floor((positions - positions.min(0)) / (edge_length * _CHUNK_EDGES)).astype(np.int64)
    blocks = np.floor(positions / (edge_length * _BLOCK_EDGES)).astype(np.int64)
    hashes = (blocks[:, 0] * 73_856_093) ^ (blocks[:, 1] * 19_349_669) ^ (blocks[:, 2] * 83_492_791)
    return np.lexsort((hashes & 0xFFFFF, chunks[:, 2], chunks[:, 1], chunks[:, 0]))


def _annotate(pieces: Sequence[_Piece], owners: Ids, segment_ids: Ids, rng: np.random.Generator) -> tuple[Group, ...]:
    """Group segments to objects in random order; a quarter of floor, ceiling and walls is left out."""
    names, first = np.unique(segment_ids, return_index=True)
    objects = []
    for index, piece in enumerate(pieces):
        members = names[owners[first] == index].tolist()
        if index < len(_SHELL):
            members = members[len(members) // 4 :]
        if piece.raw_category is not None and members:
            objects.append((piece.raw_category, tuple(members)))
    order = [objects[index] for index in rng.permutation(len(objects))]
    removed = len(order) // 2
    return tuple(Group(name, ids, at + (at >= removed), at) for at, (name, ids) in enumerate(order))


def _furnish(
    vertices: int, rng: np.random.Generator
) -> tuple[tuple[float, float, float], list[_Piece], list[int], NDArray[np.float64]]:
    """Build a room of a size that suits a number of vertices, and put things into it.

    Its floor is at z = 0, its walls are along x and y.

    Returns:
        Its extent along x, y and z, metres; one corner is the origin. Objects; those of `_SHELL` come first. The sides
        of all of them: the index of the object of each, and float64 (S, 3, 3) as of `_box_sides`.
    """
    columns = max(2, round(math.sqrt(vertices / _VERTICES_PER_CELL)))
    rows = max(2, round(vertices / _VERTICES_PER_CELL / columns))
    size = (columns * _CELL, rows * _CELL, _HEIGHT)
    count = min(columns * rows, max(1, vertices // _MIN_VERTICES_PER_CELL))
    shell = _box_sides(*size)[:, [0, 2, 1]] + np.array([[size[0] / 2, size[1] / 2, 0], [0, 0, 0], [0, 0, 0]])
    pieces, sides, owners = list(_SHELL), [shell], list(range(len(_SHELL)))
    for index, cell in enumerate(rng.permutation(columns * rows)[:count].tolist()):
        for place in range(_PIECES_PER_CELL):  # one in each quarter of the cell
            piece = _FURNITURE[(index * _PIECES_PER_CELL + place) % len(_FURNITURE)]
            x, y = (cell % columns + 0.25 + place % 2 / 2) * _CELL, (cell // columns + 0.25 + place // 2 / 2) * _CELL
            box, (cosine, sine) = _box_sides(*piece.size, piece.bottom), _cosine_and_sine(rng.uniform(-8, 8))
            u, v, w = np.moveaxis(box, -1, 0)
            box = np.stack([cosine * u - sine * v, sine * u + cosine * v, w], axis=-1)
            box[:, 0, :2] += x, y
            sides.append(box)
            owners += [len(pieces)] * len(box)
            pieces.append(piece)
    return size, pieces, owners, np.concatenate(sides)


def _mesh(
    sides: NDArray[np.float64], vertices: int, rng: np.random.Generator
) -> tuple[float, NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Mesh the sides of boxes by a square grid with at least so many points, and not many more.

    Returns:
        The distance of neighbouring points, metres. Of each point: the index of its side, int64 (N,); float64 (N, 3),
        metres; and its segment, int64 (N,), from 0, none of which is on two sides. The triangles, int64 (T, 3),
        counter-clockwise as seen from inside the room.
    """
    lengths = np.sqrt((sides[:, 1:] ** 2).sum(2))
    spacing = 1.5 * math.sqrt(lengths.prod(1).sum() / vertices)
    # Points along u and v of each side, int64 (S, 2).
    while (shapes := np.maximum(2, (lengths / spacing).astype(np.int64) + 1)).prod(1).sum() < vertices:
        spacing *= 0.995
    points, segments, triangles = [], [], []
    point_count = segment_count = 0
    for (origin, along_u, along_v), (rows, columns) in zip(sides, shapes.tolist(), strict=True):
        row, column = np.divmod(np.arange(rows * columns), columns)
        points.append(origin + row[:, None] * (along_u / (rows - 1)) + column[:, None] * (along_v / (columns - 1)))
        corner = point_count + np.flatnonzero((row < rows - 1) & (column < columns - 1))
        beside = corner + columns
        triangles.append(np.stack([corner, beside, beside + 1, corner, beside + 1, corner + 1], 1).reshape(-1, 3))
        segments.append(segment_count + _cut(row, column, rng))
        point_count += len(row)
        segment_count = int(segments[-1].max()) + 1
    point_sides = np.repeat(np.arange(len(sides)), shapes.prod(1))
    return spacing, point_sides, np.concatenate(points), np.concatenate(segments), np.concatenate(triangles)


def _box_sides(dx: float, dy: float, dz: float, bottom: float = 0.0) -> NDArray[np.float64]:
    """The sides of a box around the z axis, without thin rims; float64 (S, 3, 3), metres.

    For each side one corner, and the edges u and v from there. The front, where u x v points, is outwards.
    """
    x0, y0, z0, x1, y1, z1 = -dx / 2, -dy / 2, bottom, dx / 2, dy / 2, bottom + dz
    sides = [
        [(x0, y0, z1), (dx, 0, 0), (0, dy, 0)],
        [(x0, y0, z0), (dx, 0, 0), (0, 0, dz)],
        [(x1, y1, z0), (-dx, 0, 0), (0, 0, dz)],
        [(x1, y0, z0), (0, dy, 0), (0, 0, dz)],
        [(x0, y1, z0), (0, -dy, 0), (0, 0, dz)],
        [(x0, y0, z0), (0, dy, 0), (dx, 0, 0)],
    ]
    array = np.array(sides, np.float64)
    return array.compress(np.abs(array[:, 1:]).sum(2).min(1) > _MIN_SIDE, axis=0)


def _cut(row: NDArray[np.int64], column: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Cut a grid like a brick wall, and join some bricks to one background; int64 (N,), from 0."""
    course = row // _COURSE
    is_first = rng.random((int(course[-1]) + 1, int(column[-1]) + 1)) < _FIRST_PROBABILITY
    is_first[:, 0] = True
    segments = (is_first.cumsum() - 1).reshape(is_first.shape)[course, column]
    is_background = rng.random(int(segments.max()) + 1) < _BACKGROUND_PROBABILITY
    return np.where(is_background[segments], 0, segments + 1)


def _cosine_and_sine(degrees: float) -> tuple[float, float]:
    """Both of an angle, with the six decimals of the release."""
    return round(math.cos(math.radians(degrees)), 6), round(math.sin(math.radians(degrees)), 6)
