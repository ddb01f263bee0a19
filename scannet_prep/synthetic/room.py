"""A furnished room as rectangles, in the aligned frame: floor at z = 0, walls along x and y."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scannet_prep.synthetic.furniture import BEDROOM, OTHER_ARRANGEMENTS, WALL_PIECES, Piece
from scannet_prep.synthetic.surfaces import Rectangle, Rectangles, box_sides, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

FLOOR, FIRST_WALL, LAST_WALL = 0, 2, 5

_CELL = 2.5
_HEIGHT = 2.6
# Gives edges of about 0.05 m, as in the release.
_VERTICES_PER_CELL = 22_000
# The coarsest grid there is, four vertices on each side of each box, needs half of this.
_MIN_VERTICES_PER_ARRANGEMENT = 1300
_WALL_PIECES_PER_ARRANGEMENT = 2


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """A room and all that is in it.

    Attributes:
        size: Extent along x, y and z, metres; one corner is the origin.
        pieces: Objects; floor, ceiling and four walls come first.
        surfaces: Their rectangles; `surfaces.pieces` indexes `pieces`.
    """

    size: tuple[float, float, float]
    pieces: tuple[Piece, ...]
    surfaces: Rectangles


def furnish(vertices: int, rng: np.random.Generator) -> Room:
    """Build a room of a size that suits a number of vertices, and put things into it."""
    columns = max(2, round(math.sqrt(vertices / _VERTICES_PER_CELL)))
    rows = max(2, round(vertices / _VERTICES_PER_CELL / columns))
    size = (columns * _CELL, rows * _CELL, _HEIGHT)
    arrangements = min(columns * rows, max(1, vertices // _MIN_VERTICES_PER_ARRANGEMENT))
    objects = [
        *_shell(size),
        *_floor_objects(columns, rows, arrangements, rng),
        *_wall_objects(columns, rows, arrangements * _WALL_PIECES_PER_ARRANGEMENT, rng),
    ]
    boxes = ((index, sides) for index, (_, boxes) in enumerate(objects) for sides in boxes)
    return Room(size, tuple(piece for piece, _ in objects), Rectangles.from_boxes(boxes))


def _shell(size: tuple[float, float, float]) -> Iterator[tuple[Piece, list[list[Rectangle]]]]:
    """Floor, ceiling and walls, fronts inwards; in the order of the constants above."""
    x, y, z = size
    up = (0.0, 0.0, z)
    yield Piece("floor", (140, 115, 90), ()), [[Rectangle((0.0, 0.0, 0.0), (x, 0.0, 0.0), (0.0, y, 0.0))]]
    yield Piece("ceiling", (225, 225, 222), ()), [[Rectangle((0.0, 0.0, z), (0.0, y, 0.0), (x, 0.0, 0.0))]]
    wall = Piece("wall", (200, 196, 182), ())
    yield wall, [[Rectangle((x, 0.0, 0.0), (-x, 0.0, 0.0), up)]]
    yield wall, [[Rectangle((x, y, 0.0), (0.0, -y, 0.0), up)]]
    yield wall, [[Rectangle((0.0, y, 0.0), (x, 0.0, 0.0), up)]]
    yield wall, [[Rectangle((0.0, 0.0, 0.0), (0.0, y, 0.0), up)]]


def _floor_objects(
    columns: int, rows: int, count: int, rng: np.random.Generator
) -> Iterator[tuple[Piece, list[list[Rectangle]]]]:
    """Arrangements in random floor cells; the first is the bedroom, so that every scene has its categories."""
    others = rng.permutation(len(OTHER_ARRANGEMENTS))
    for index, cell in enumerate(rng.permutation(columns * rows)[:count].tolist()):
        pieces = OTHER_ARRANGEMENTS[others[(index - 1) % len(others)]] if index else BEDROOM
        row, column = divmod(cell, columns)
        angle = math.radians(90 * int(rng.integers(4)) + rng.uniform(-8, 8))
        x, y = (column + 0.5) * _CELL, (row + 0.5) * _CELL
        for piece in pieces:
            yield piece, _placed_boxes(piece, math.cos(angle), math.sin(angle), x, y)


def _wall_objects(
    columns: int, rows: int, count: int, rng: np.random.Generator
) -> Iterator[tuple[Piece, list[list[Rectangle]]]]:
    """Pieces on random stretches of wall; x of a piece runs along its wall, y away from it."""
    x, y = columns * _CELL, rows * _CELL
    along_x = [(index + 0.5) * _CELL for index in range(columns)]
    along_y = [(index + 0.5) * _CELL for index in range(rows)]
    stretches = [(1.0, 0.0, middle, 0.0) for middle in along_x] + [(-1.0, 0.0, middle, y) for middle in along_x]
    stretches += [(0.0, 1.0, x, middle) for middle in along_y] + [(0.0, -1.0, 0.0, middle) for middle in along_y]
    kinds = rng.permutation(len(WALL_PIECES))
    for index, stretch in enumerate(rng.permutation(len(stretches))[:count].tolist()):
        piece = WALL_PIECES[kinds[index % len(kinds)]]
        yield piece, _placed_boxes(piece, *stretches[stretch])


def _placed_boxes(piece: Piece, cosine: float, sine: float, x: float, y: float) -> list[list[Rectangle]]:
    return [[place(side, cosine, sine, x, y) for side in box_sides(box)] for box in piece.boxes]
