"""What stands in a synthetic room: pieces made of boxes, arranged on floor cells of two by two metres."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Extent: TypeAlias = tuple[float, float, float, float, float, float]
Color: TypeAlias = tuple[int, int, int]


class Piece(NamedTuple):
    """One object.

    Attributes:
        raw_category: What an annotator would call it; None for what annotators leave out.
        color: Red, green, blue, 0..255.
        boxes: Smallest x, y, z, then largest x, y, z, metres; x and y from the centre of the floor cell, z from the
            floor.
    """

    raw_category: str | None
    color: Color
    boxes: tuple[Extent, ...]


_WOOD: Color = (150, 108, 70)
_DARK: Color = (58, 55, 60)
_WHITE: Color = (222, 222, 216)
_BLUE: Color = (70, 92, 140)
_RED: Color = (150, 62, 58)


def _chair(x: float, y: float) -> Piece:
    seat = (x - 0.22, y - 0.22, 0.3, x + 0.22, y + 0.22, 0.45)
    return Piece("chair", _DARK, (seat, (x - 0.22, y - 0.3, 0.0, x + 0.22, y - 0.22, 0.9)))


_WALL = Piece("wall", (200, 196, 182), ())
SHELL = (Piece("floor", (140, 115, 90), ()), Piece("ceiling", (225, 225, 222), ()), _WALL, _WALL, _WALL, _WALL)
"""What every room has; where these are, `room` knows."""

ARRANGEMENTS = (
    # Raw categories of both label sets (bed), of ScanNet200 only (pillow), of ScanNet20 only (wardrobe cabinet:
    # nyu40 id 39, but ScanNet id 1177 is not one of the 200), and of neither (rug): every scene has these.
    (
        Piece("bed", _BLUE, ((-0.95, -0.95, 0.12, 0.4, 0.9, 0.5), (-0.95, 0.9, 0.0, 0.4, 0.97, 1.0))),
        Piece("pillow", _WHITE, ((-0.85, 0.5, 0.5, -0.35, 0.85, 0.62),)),
        Piece("wardrobe cabinet", _WOOD, ((0.5, -0.95, 0.0, 0.97, 0.0, 1.9),)),
        Piece("rug", _RED, ((0.45, 0.05, 0.0, 0.97, 0.55, 0.015),)),
        Piece("curtain", _WHITE, ((-0.9, 1.1, 0.2, 0.5, 1.2, 2.3),)),
    ),
    (
        Piece("table", _WOOD, ((-0.7, -0.4, 0.6, 0.7, 0.4, 0.74), (-0.1, -0.1, 0.0, 0.1, 0.1, 0.6))),
        _chair(-0.35, -0.7),
        _chair(0.35, -0.7),
        _chair(-0.1, 0.7),
        Piece("door", _WOOD, ((-1.2, -0.45, 0.0, -1.1, 0.45, 2.05),)),
    ),
    (
        Piece("desk", _WOOD, ((-0.8, 0.1, 0.0, 0.6, 0.85, 0.73),)),
        Piece("monitor", _DARK, ((-0.4, 0.6, 0.83, 0.2, 0.66, 1.2), (-0.15, 0.55, 0.73, -0.05, 0.7, 0.83))),
        Piece("office chair", _BLUE, ((-0.35, -0.45, 0.0, 0.15, 0.0, 0.9),)),
        Piece("trash can", _WHITE, ((0.68, 0.4, 0.0, 0.95, 0.67, 0.35),)),
        Piece(None, _RED, ((0.5, -0.8, 0.0, 0.85, -0.55, 0.45),)),
    ),
    (
        Piece("couch", _BLUE, ((-0.95, 0.25, 0.1, 0.95, 0.95, 0.42), (-0.95, 0.75, 0.42, 0.95, 0.95, 0.85))),
        Piece("coffee table", _WOOD, ((-0.5, -0.6, 0.0, 0.5, -0.05, 0.42),)),
        Piece("bookshelf", _WOOD, tuple((-0.9, -0.95, z, 0.1, -0.7, z + 0.32) for z in (0.0, 0.4, 0.8, 1.2, 1.6))),
        Piece("window", _WHITE, ((-0.7, 1.1, 0.9, 0.7, 1.2, 2.1),)),
    ),
)
