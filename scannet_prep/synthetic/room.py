"""A furnished room as a triangle mesh in the aligned frame: floor at z = 0, walls along x and y."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Color: TypeAlias = tuple[int, int, int]


class Piece(NamedTuple):
    """One object, a box.

    Attributes:
        raw_category: What an annotator would call it; None for what annotators leave out.
        color: Red, green, blue, 0..255.
        size: Extent along x, y and z, metres; at most 1.1 along x and y.
        bottom: Height above the floor, metres.
    """

    raw_category: str | None
    color: Color
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

_WOOD: Color = (150, 108, 70)
_DARK: Color = (58, 55, 60)
_WHITE: Color = (222, 222, 216)
_BLUE: Color = (70, 92, 140)
_RED: Color = (150, 62, 58)


_WALL = Piece("wall", (200, 196, 182))
SHELL = (Piece("ceiling", (225, 225, 222)), _WALL, _WALL, _WALL, _WALL, Piece("floor", (140, 115, 90)))
"""What every room has: the sides of a box, in the order of `_box_sides`."""

FURNITURE = (
    # Raw categories of both label sets (bed), of ScanNet200 only (pillow), of ScanNet20 only (wardrobe cabinet:
    # nyu40 id 39, but ScanNet id 1177 is not one of the 200), and of neither (rug): every scene has these.
    Piece("bed", _BLUE, (1.0, 1.1, 0.5)),
    Piece("pillow", _WHITE, (0.5, 0.35, 0.12), 0.5),
    Piece("wardrobe cabinet", _WOOD, (0.5, 1.0, 1.9)),
    Piece("rug", _RED, (0.9, 0.9, 0.015)),
    Piece("table", _WOOD, (1.0, 0.8, 0.14), 0.6),
    Piece("chair", _DARK, (0.45, 0.5, 0.9)),
    Piece("door", _WOOD, (0.1, 0.9, 2.05)),
    Piece("curtain", _WHITE, (1.1, 0.1, 2.1), 0.2),
    Piece("desk", _WOOD, (1.1, 0.75, 0.73)),
    Piece("monitor", _DARK, (0.6, 0.06, 0.4), 0.8),
    Piece("office chair", _BLUE, (0.5, 0.5, 0.9)),
    Piece(None, _RED, (0.35, 0.25, 0.45)),
    Piece("couch", _BLUE, (1.1, 0.7, 0.8)),
    Piece("trash can", _WHITE, (0.27, 0.27, 0.35)),
    Piece("bookshelf", _WOOD, (0.9, 0.25, 1.9)),
    Piece("window", _WHITE, (1.1, 0.1, 1.2), 0.9),
)
_PIECES_PER_CELL = 4


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The mesh of a room and of all that is in it.

    Attributes:
        size: Extent along x, y and z, metres; one corner is the origin.
        pieces: Objects; those of `SHELL` come first.
        edge_length: Distance of neighbouring points, metres.
        owners: int64 (N,), index of the object that each point is on.
        points: float64 (N, 3), metres.
        segments: int64 (N,), segment of each point, from 0; no segment is on two sides of a box.
        triangles: int64 (T, 3), counter-clockwise as seen from inside the room.
    """

    size: tuple[float, float, float]
    pieces: tuple[Piece, ...]
    edge_length: float
    owners: NDArray[np.int64]
    points: NDArray[np.float64]
    segments: NDArray[np.int64]
    triangles: NDArray[np.int64]


def furnish(vertices: int, rng: np.random.Generator) -> Room:
    """Build a room of a size that suits a number of vertices, put things into it, and mesh it.

    The mesh is a square grid with at least so many points, and not many more.
    """
    columns = max(2, round(math.sqrt(vertices / _VERTICES_PER_CELL)))
    rows = max(2, round(vertices / _VERTICES_PER_CELL / columns))
    size = (columns * _CELL, rows * _CELL, _HEIGHT)
    count = min(columns * rows, max(1, vertices // _MIN_VERTICES_PER_CELL))
    shell = _box_sides(*size)[:, [0, 2, 1]] + np.array([[size[0] / 2, size[1] / 2, 0], [0, 0, 0], [0, 0, 0]])
    pieces, sides, owners = list(SHELL), [shell], list(range(len(SHELL)))
    for index, cell in enumerate(rng.permutation(columns * rows)[:count].tolist()):
        for place in range(_PIECES_PER_CELL):  # one in each quarter of the cell
            piece = FURNITURE[(index * _PIECES_PER_CELL + place) % len(FURNITURE)]
            x, y = (cell % columns + 0.25 + place % 2 / 2) * _CELL, (cell // columns + 0.25 + place // 2 / 2) * _CELL
            sides.append(_place(_box_sides(*piece.size, piece.bottom), math.radians(rng.uniform(-8, 8)), x, y))
            owners += [len(pieces)] * len(sides[-1])
            pieces.append(piece)
    all_sides = np.concatenate(sides)
    lengths = np.sqrt((all_sides[:, 1:] ** 2).sum(2))
    spacing = 1.5 * math.sqrt(lengths.prod(1).sum() / vertices)
    # Points along u and v of each side, int64 (S, 2).
    while (shapes := np.maximum(2, (lengths / spacing).astype(np.int64) + 1)).prod(1).sum() < vertices:
        spacing *= 0.995
    points, segments, triangles = [], [], []
    point_count = segment_count = 0
    for (origin, along_u, along_v), (rows, columns) in zip(all_sides, shapes.tolist(), strict=True):
        row, column = np.divmod(np.arange(rows * columns), columns)
        points.append(origin + row[:, None] * (along_u / (rows - 1)) + column[:, None] * (along_v / (columns - 1)))
        corner = point_count + np.flatnonzero((row < rows - 1) & (column < columns - 1))
        beside = corner + columns
        triangles.append(np.stack([corner, beside, beside + 1, corner, beside + 1, corner + 1], 1).reshape(-1, 3))
        segments.append(segment_count + _cut(row, column, rng))
        point_count += len(row)
        segment_count = int(segments[-1].max()) + 1
    joined = (np.concatenate(parts) for parts in (points, segments, triangles))
    return Room(size, tuple(pieces), spacing, np.repeat(owners, shapes.prod(1)), *joined)


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


def _place(sides: NDArray[np.float64], angle: float, x: float, y: float) -> NDArray[np.float64]:
    """Turn sides about the z axis, then shift them by x, y."""
    cosine, sine = round(math.cos(angle), 6), round(math.sin(angle), 6)
    u, v, w = np.moveaxis(sides, -1, 0)
    turned = np.stack([cosine * u - sine * v, sine * u + cosine * v, w], axis=-1)
    turned[:, 0, :2] += x, y
    return turned


def _cut(row: NDArray[np.int64], column: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Cut a grid like a brick wall, and join some bricks to one background; int64 (N,), from 0."""
    course = row // _COURSE
    is_first = rng.random((int(course[-1]) + 1, int(column[-1]) + 1)) < _FIRST_PROBABILITY
    is_first[:, 0] = True
    segments = (is_first.cumsum() - 1).reshape(is_first.shape)[course, column]
    is_background = rng.random(int(segments.max()) + 1) < _BACKGROUND_PROBABILITY
    return np.where(is_background[segments], 0, segments + 1)
