"""What stands in a synthetic room: pieces made of boxes, arranged on a floor cell of two by two metres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Box: TypeAlias = tuple[float, float, float, float, float, float]
Color: TypeAlias = tuple[int, int, int]

_LEG_WIDTH = 0.06
_BACK_THICKNESS = 0.05
_BOARD_THICKNESS = 0.04


@dataclass(frozen=True, slots=True)
class Piece:
    """One object.

    Attributes:
        raw_category: What an annotator would call it; None for what annotators leave out.
        color: Red, green, blue, 0..255.
        boxes: Smallest x, y, z, then largest x, y, z, metres. x and y are relative to the centre of the floor cell, or
            for pieces on a wall, x runs along the wall and y away from it; z is the height above the floor.
    """

    raw_category: str | None
    color: Color
    boxes: tuple[Box, ...]


def _board_on_legs(x0: float, y0: float, x1: float, y1: float, height: float) -> tuple[Box, ...]:
    under = height - _BOARD_THICKNESS
    legs = [
        (x, y, 0.0, x + _LEG_WIDTH, y + _LEG_WIDTH, under) for x in (x0, x1 - _LEG_WIDTH) for y in (y0, y1 - _LEG_WIDTH)
    ]
    return ((x0, y0, under, x1, y1, height), *legs)


def _seat(x: float, y: float, *, is_back_at_low_y: bool) -> tuple[Box, ...]:
    """Boxes of a chair of 0.45 m by 0.45 m around x, y."""
    x0, y0, x1, y1 = x - 0.225, y - 0.225, x + 0.225, y + 0.225
    back_y = y0 if is_back_at_low_y else y1 - _BACK_THICKNESS
    return (*_board_on_legs(x0, y0, x1, y1, 0.45), (x0, back_y, 0.45, x1, back_y + _BACK_THICKNESS, 0.9))


_WOOD: Color = (150, 108, 70)
_DARK: Color = (58, 55, 60)
_WHITE: Color = (222, 222, 216)
_BLUE: Color = (70, 92, 140)
_RED: Color = (150, 62, 58)
_GREEN: Color = (92, 128, 84)
_STEEL: Color = (160, 165, 170)

# Between them, these have raw categories of ScanNet20 and ScanNet200 (bed), of ScanNet200 only (pillow), of ScanNet20
# only (wardrobe cabinet: nyu40 id 39, but ScanNet id 1177 is none of the 200), and of neither (rug).
BEDROOM: tuple[Piece, ...] = (
    Piece("bed", _BLUE, ((-0.95, -0.95, 0.12, 0.4, 0.9, 0.5), (-0.95, 0.9, 0.0, 0.4, 0.97, 1.0))),
    Piece("pillow", _WHITE, ((-0.85, 0.5, 0.5, -0.35, 0.85, 0.62),)),
    Piece("pillow", _WHITE, ((-0.2, 0.5, 0.5, 0.3, 0.85, 0.62),)),
    Piece("wardrobe cabinet", _WOOD, ((0.5, -0.95, 0.0, 0.97, 0.0, 1.9),)),
    Piece("rug", _RED, ((0.45, 0.05, 0.0, 0.97, 0.55, 0.015),)),
    Piece("nightstand", _WOOD, ((0.5, 0.6, 0.0, 0.9, 0.97, 0.55),)),
)

OTHER_ARRANGEMENTS: tuple[tuple[Piece, ...], ...] = (
    (
        Piece("table", _WOOD, _board_on_legs(-0.7, -0.4, 0.7, 0.4, 0.74)),
        Piece("chair", _DARK, _seat(-0.35, -0.7, is_back_at_low_y=True)),
        Piece("chair", _DARK, _seat(0.35, -0.7, is_back_at_low_y=True)),
        Piece("chair", _DARK, _seat(-0.1, 0.7, is_back_at_low_y=False)),
    ),
    (
        Piece("desk", _WOOD, _board_on_legs(-0.8, 0.1, 0.6, 0.85, 0.73)),
        Piece("monitor", _DARK, ((-0.4, 0.6, 0.83, 0.2, 0.65, 1.2), (-0.15, 0.55, 0.73, -0.05, 0.7, 0.83))),
        Piece("office chair", _BLUE, _seat(-0.1, -0.2, is_back_at_low_y=True)),
        Piece("trash can", _STEEL, ((0.68, 0.4, 0.0, 0.95, 0.67, 0.35),)),
        Piece("backpack", _GREEN, ((0.5, -0.8, 0.0, 0.85, -0.55, 0.45),)),
    ),
    (
        Piece(
            "couch",
            _GREEN,
            (
                (-0.95, 0.25, 0.1, 0.95, 0.95, 0.42),
                (-0.95, 0.75, 0.42, 0.95, 0.95, 0.85),
                (-0.95, 0.25, 0.42, -0.75, 0.75, 0.6),
                (0.75, 0.25, 0.42, 0.95, 0.75, 0.6),
            ),
        ),
        Piece("coffee table", _WOOD, _board_on_legs(-0.5, -0.6, 0.5, -0.05, 0.42)),
        Piece("lamp", _WHITE, ((0.72, -0.9, 0.0, 0.78, -0.84, 1.3), (0.6, -1.0, 1.3, 0.9, -0.7, 1.6))),
        Piece("vase", _RED, ((-0.1, -0.4, 0.42, 0.05, -0.25, 0.7),)),
    ),
    (
        Piece("counter", _WHITE, ((-0.95, 0.35, 0.0, 0.2, 0.95, 0.9),)),
        Piece("refrigerator", _STEEL, ((0.3, 0.3, 0.0, 0.95, 0.95, 1.8),)),
        Piece("microwave", _DARK, ((-0.85, 0.5, 0.9, -0.4, 0.85, 1.18),)),
        Piece(None, _RED, ((-0.2, 0.5, 0.9, 0.05, 0.75, 1.1),)),
        Piece("stool", _WOOD, _board_on_legs(-0.5, -0.5, -0.15, -0.15, 0.6)),
        Piece("stool", _WOOD, _board_on_legs(0.1, -0.6, 0.45, -0.25, 0.6)),
    ),
    (
        Piece("bookshelf", _WOOD, tuple((-0.9, 0.65, z, 0.1, 0.95, z + 0.32) for z in (0.0, 0.4, 0.8, 1.2, 1.6))),
        Piece("cabinet", _DARK, ((0.2, 0.5, 0.0, 0.95, 0.95, 1.2),)),
        Piece("box", _WOOD, ((-0.8, -0.8, 0.0, -0.35, -0.4, 0.35),)),
        Piece("suitcase", _BLUE, ((0.3, -0.7, 0.0, 0.75, -0.4, 0.7),)),
        Piece("sofa", _RED, ((-0.3, -0.2, 0.1, 0.6, 0.4, 0.4), (-0.3, 0.25, 0.4, 0.6, 0.4, 0.8))),
        Piece(None, _STEEL, ((-0.15, -0.9, 0.0, 0.1, -0.65, 0.3),)),
    ),
    (
        Piece("bathtub", _WHITE, ((-0.95, 0.2, 0.0, 0.7, 0.95, 0.55),)),
        Piece("toilet", _WHITE, ((-0.9, -0.9, 0.0, -0.5, -0.3, 0.42), (-0.9, -0.95, 0.42, -0.5, -0.75, 0.8))),
        Piece("sink", _WHITE, ((-0.1, -0.95, 0.6, 0.5, -0.5, 0.85),)),
        Piece("laundry basket", _GREEN, ((0.6, -0.8, 0.0, 0.95, -0.45, 0.6),)),
    ),
)

# x is relative to the middle of a stretch of wall of 2.5 m.
WALL_PIECES: tuple[Piece, ...] = (
    Piece("window", (190, 210, 225), ((-0.7, 0.0, 0.9, 0.7, 0.04, 2.1),)),
    Piece("door", _WOOD, ((-0.45, 0.0, 0.0, 0.45, 0.05, 2.05),)),
    Piece("picture", _RED, ((-0.35, 0.0, 1.3, 0.35, 0.03, 1.8),)),
    Piece("whiteboard", _WHITE, ((-0.8, 0.0, 0.9, 0.8, 0.03, 1.9),)),
    Piece("curtain", _GREEN, ((-0.6, 0.03, 0.2, -0.1, 0.1, 2.3), (0.1, 0.03, 0.2, 0.6, 0.1, 2.3))),
    Piece(None, _STEEL, ((-0.06, 0.0, 1.1, 0.06, 0.02, 1.22),)),
)
