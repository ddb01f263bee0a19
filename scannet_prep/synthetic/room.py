"""A furnished room, as boxes: the walls, the ceiling and the floor, and furniture on the floor.

The floor is at z = 0, and the walls are along x and y. One corner of the room is the origin.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Color: TypeAlias = tuple[int, int, int]
Float64s: TypeAlias = NDArray[np.float64]
Int64s: TypeAlias = NDArray[np.int64]

# The floor is divided into square cells, each with four pieces of furniture. Metres.
_CELL_SIZE = 2.5
_PIECES_PER_CELL = 4
_ROOM_HEIGHT = 2.6
# Gives edges of about 0.05 m, as in the release.
_VERTICES_PER_CELL = 22_000
# In small scenes, only some cells get furniture: one for this many vertices. That is enough even
# for the coarsest mesh, whose vertices are the four corners of each side of a box: at most
# 4 boxes * 6 sides * 4 = 96 for the furniture of a cell, and 6 sides * 4 = 24 for the walls, the
# ceiling and the floor.
_MIN_VERTICES_PER_CELL = 250
# Metres. Narrower sides are left out, as a scan rounds off the rims of boards.
_MIN_SIDE = 0.055


class Piece(NamedTuple):
    """One object, a box.

    Attributes:
        raw_category: The name that an annotator gives it; None if annotators leave it out.
        color: Red, green, blue, 0..255.
        size: Extent along x, y and z, metres; at most 1.1 along x and y.
        bottom: Height above the floor, metres.
    """

    raw_category: str | None
    color: Color
    size: tuple[float, float, float] = (0.0, 0.0, 0.0)
    bottom: float = 0.0


class Room(NamedTuple):
    """A furnished room.

    Attributes:
        size: Extent along x, y and z, metres.
        pieces: The objects; those of `SHELL` come first.
        sides: float64 (S, 3, 3), the sides of all objects: a corner and two edges each, as
            `_box_sides` returns them.
        side_pieces: int64 (S,), the index of the object that each side belongs to.
    """

    size: tuple[float, float, float]
    pieces: list[Piece]
    sides: Float64s
    side_pieces: Int64s


_WOOD: Color = (150, 108, 70)
_DARK: Color = (58, 55, 60)
_WHITE: Color = (222, 222, 216)
_BLUE: Color = (70, 92, 140)
_RED: Color = (150, 62, 58)

_WALL = Piece("wall", (200, 196, 182))
# The parts of every room, in the order of the sides from `_box_sides`: top, four sides, bottom.
SHELL = (
    Piece("ceiling", (225, 225, 222)),
    _WALL,
    _WALL,
    _WALL,
    _WALL,
    Piece("floor", (140, 115, 90)),
)

_FURNITURE = (
    # Every room has the first four. They differ in the label sets that have their raw category:
    # - bed: ScanNet20 and ScanNet200.
    # - pillow: only ScanNet200.
    # - wardrobe cabinet: only ScanNet20, as nyu40 id 39. Its ScanNet id 1177 is not one of the 200.
    # - rug: none.
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


def furnish_room(vertex_count: int, rng: np.random.Generator) -> Room:
    """Build a room whose size suits a number of vertices, and put furniture into it."""
    usual_count = vertex_count / _VERTICES_PER_CELL
    columns = round(math.sqrt(usual_count))
    columns = max(2, columns)
    rows = round(usual_count / columns)
    rows = max(2, rows)
    cell_count = columns * rows
    width = columns * _CELL_SIZE
    depth = rows * _CELL_SIZE
    size = (width, depth, _ROOM_HEIGHT)

    # The shell is a box that is seen from inside. The front of each side points along the cross
    # product of its two edges, so exchanging the edges turns it inwards.
    shell = _box_sides(*size)
    shell = shell[:, [0, 2, 1]]
    # The box is centred on the z axis. Move its corner to the origin.
    shell[:, 0, 0] += width / 2
    shell[:, 0, 1] += depth / 2
    pieces = list(SHELL)
    sides = [shell]
    side_pieces = list(range(len(SHELL)))

    furnished_count = max(1, vertex_count // _MIN_VERTICES_PER_CELL)
    shuffled_cells = rng.permutation(cell_count).tolist()
    # All rooms take the pieces in the same order, and start again after the last one.
    furniture = itertools.cycle(_FURNITURE)
    for cell in shuffled_cells[:furnished_count]:
        row, column = divmod(cell, columns)
        for quarter in range(_PIECES_PER_CELL):
            piece = next(furniture)
            # The centre of the quarter, which lies at 1/4 or 3/4 of the cell along x, and along y.
            quarter_row, quarter_column = divmod(quarter, 2)
            column_middle = column + 0.25 + 0.5 * quarter_column
            row_middle = row + 0.25 + 0.5 * quarter_row
            x = column_middle * _CELL_SIZE
            y = row_middle * _CELL_SIZE
            box = _box_sides(*piece.size, piece.bottom)
            degrees = rng.uniform(-8, 8)
            box = turn_around_z(box, degrees)
            box[:, 0, :2] += x, y
            sides.append(box)
            side_pieces += [len(pieces)] * len(box)
            pieces.append(piece)
    return Room(
        size=size,
        pieces=pieces,
        sides=np.concatenate(sides),
        side_pieces=np.array(side_pieces),
    )


def turn_around_z(points: Float64s, degrees: float) -> Float64s:
    """Turn points or directions, (..., 3), around the z axis.

    Cosine and sine have the six decimals of the release.
    """
    radians = math.radians(degrees)
    cosine = round(math.cos(radians), 6)
    sine = round(math.sin(radians), 6)
    x, y, z = np.moveaxis(points, -1, 0)
    # Written out, because the order of sums in a matrix product differs between processors.
    turned_x = cosine * x - sine * y
    turned_y = sine * x + cosine * y
    return np.stack([turned_x, turned_y, z], axis=-1)


def _box_sides(
    dx: float,
    dy: float,
    dz: float,
    bottom: float = 0.0,
) -> Float64s:
    """Return the sides of a box whose centre is on the z axis, without thin rims.

    Returns:
        float64 (S, 3, 3), metres: of each side one corner, and the edges u and v from there. Their
        cross product u x v points outwards.
    """
    # Two opposite corners of the box.
    x0 = -dx / 2
    y0 = -dy / 2
    x1 = dx / 2
    y1 = dy / 2
    top = bottom + dz
    along_x = (dx, 0, 0)
    along_y = (0, dy, 0)
    along_z = (0, 0, dz)
    sides = np.array(
        [
            [(x0, y0, top), along_x, along_y],
            [(x0, y0, bottom), along_x, along_z],
            [(x1, y1, bottom), (-dx, 0, 0), along_z],
            [(x1, y0, bottom), along_y, along_z],
            [(x0, y1, bottom), (0, -dy, 0), along_z],
            [(x0, y0, bottom), along_y, along_x],
        ],
        np.float64,
    )
    # The edges are along the axes: the sum of their absolute coordinates is their length, (S, 2).
    edges = np.abs(sides[:, 1:])
    edge_lengths = edges.sum(axis=2)
    is_wide = edge_lengths.min(axis=1) > _MIN_SIDE
    return sides.compress(is_wide, axis=0)
