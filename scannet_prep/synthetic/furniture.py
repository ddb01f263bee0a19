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
        boxes: Smallest x, y, z, then largest x, y, z, metres. x and y are relative to the centre of the floor cell; for
            a piece on a wall, x runs along the wall and y away from it. z is the height above the floor.
    """

    raw_category: str | None
    color: Color
    boxes: tuple[Extent, ...]


def _board_on_legs(x0: float, y0: float, x1: float, y1: float, height: float) -> tuple[Extent, ...]:
    under = height - 0.04
    legs = [(x, y, 0.0, x + 0.06, y + 0.06, under) for x in (x0, x1 - 0.06) for y in (y0, y1 - 0.06)]
    return ((x0, y0, under, x1, y1, height), *legs)


def _seat(x: float, y: float, back_y: float) -> tuple[Extent, ...]:
    """Boxes of a chair of 0.45 m by 0.45 m around x, y, whose back begins at `back_y`."""
    seat = _board_on_legs(x - 0.225, y - 0.225, x + 0.225, y + 0.225, 0.45)
    return (*seat, (x - 0.225, back_y, 0.45, x + 0.225, back_y + 0.05, 0.9))


_WOOD: Color = (150, 108, 70)
_DARK: Color = (58, 55, 60)
_WHITE: Color = (222, 222, 216)
_BLUE: Color = (70, 92, 140)
_RED: Color = (150, 62, 58)
_GREEN: Color = (92, 128, 84)

SHELL = tuple(
    Piece(name, color, ())
    for name, color in (("floor", (140, 115, 90)), ("ceiling", (225, 225, 222)), *(("wall", (200, 196, 182)),) * 4)
)
"""What every room has; `room` knows where these are."""

BEDROOM = (
    Piece("bed", _BLUE, ((-0.95, -0.95, 0.12, 0.4, 0.9, 0.5), (-0.95, 0.9, 0.0, 0.4, 0.97, 1.0))),
    Piece("pillow", _WHITE, ((-0.85, 0.5, 0.5, -0.35, 0.85, 0.62),)),
    Piece("pillow", _WHITE, ((-0.2, 0.5, 0.5, 0.3, 0.85, 0.62),)),
    Piece("wardrobe cabinet", _WOOD, ((0.5, -0.95, 0.0, 0.97, 0.0, 1.9),)),
    Piece("rug", _RED, ((0.45, 0.05, 0.0, 0.97, 0.55, 0.015),)),
)
"""Raw categories of ScanNet20 and ScanNet200 (bed), of ScanNet200 only (pillow), of ScanNet20 only (wardrobe cabinet:
nyu40 id 39, but ScanNet id 1177 is not one of the 200), and of neither (rug)."""

OTHER_ARRANGEMENTS = (
    (
        Piece("table", _WOOD, _board_on_legs(-0.7, -0.4, 0.7, 0.4, 0.74)),
        Piece("chair", _DARK, _seat(-0.35, -0.7, back_y=-0.925)),
        Piece("chair", _DARK, _seat(0.35, -0.7, back_y=-0.925)),
        Piece("chair", _DARK, _seat(-0.1, 0.7, back_y=0.875)),
    ),
    (
        Piece("desk", _WOOD, _board_on_legs(-0.8, 0.1, 0.6, 0.85, 0.73)),
        Piece("monitor", _DARK, ((-0.4, 0.6, 0.83, 0.2, 0.65, 1.2), (-0.15, 0.55, 0.73, -0.05, 0.7, 0.83))),
        Piece("office chair", _BLUE, _seat(-0.1, -0.2, back_y=-0.425)),
        Piece("trash can", _WHITE, ((0.68, 0.4, 0.0, 0.95, 0.67, 0.35),)),
        Piece("backpack", _GREEN, ((0.5, -0.8, 0.0, 0.85, -0.55, 0.45),)),
    ),
    (
        Piece("couch", _GREEN, ((-0.95, 0.25, 0.1, 0.95, 0.95, 0.42), (-0.95, 0.75, 0.42, 0.95, 0.95, 0.85))),
        Piece("coffee table", _WOOD, _board_on_legs(-0.5, -0.6, 0.5, -0.05, 0.42)),
        Piece("lamp", _WHITE, ((0.72, -0.9, 0.0, 0.78, -0.84, 1.3), (0.6, -1.0, 1.3, 0.9, -0.7, 1.6))),
        Piece("vase", _RED, ((-0.1, -0.4, 0.42, 0.05, -0.25, 0.7),)),
    ),
    (
        Piece("counter", _WHITE, ((-0.95, 0.35, 0.0, 0.2, 0.95, 0.9),)),
        Piece("refrigerator", _WHITE, ((0.3, 0.3, 0.0, 0.95, 0.95, 1.8),)),
        Piece("microwave", _DARK, ((-0.85, 0.5, 0.9, -0.4, 0.85, 1.18),)),
        Piece(None, _RED, ((-0.2, 0.5, 0.9, 0.05, 0.75, 1.1),)),
        Piece(None, _DARK, ((0.35, -0.9, 0.0, 0.6, -0.65, 0.3),)),
        Piece("stool", _WOOD, _board_on_legs(-0.5, -0.5, -0.15, -0.15, 0.6)),
    ),
)

# x is relative to the middle of a stretch of wall of 2.5 m.
WALL_PIECES = (
    Piece("window", (190, 210, 225), ((-0.7, 0.0, 0.9, 0.7, 0.04, 2.1),)),
    Piece("door", _WOOD, ((-0.45, 0.0, 0.0, 0.45, 0.05, 2.05),)),
    Piece("picture", _RED, ((-0.35, 0.0, 1.3, 0.35, 0.03, 1.8),)),
    Piece("curtain", _GREEN, ((-0.6, 0.03, 0.2, 0.6, 0.1, 2.3),)),
    Piece(None, _WHITE, ((-0.06, 0.0, 1.1, 0.06, 0.02, 1.22),)),
)
