"""The boxes of instances and their names, drawn over a picture as `overlay.js` draws them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.camera import NEAR, PlacedCamera
from scannet_prep.view.categories import Color, Coloring
from scannet_prep.view.coloring import ViewedScene
from scannet_prep.view.fonts import Font
from scannet_prep.view.lines import draw_line, project_lines

WITHOUT_BOX = r"^(unlabeled$|(wall|floor|ceiling) \d)"
"""The names of the instances without a box, which would be as large as the room."""

# In pixels at scale 1.
_LINE_WIDTH = 1.5
_NAME_HEIGHT = 4
_RIM_WIDTH = 1.5
# The rim of letters consists of copies of them around it.
_RIM_COPIES = 8
# The corners of a box by number: its bits choose between both ends of x, y and z.
_EDGES = [(corner, corner | bit) for corner in range(8) for bit in (1, 2, 4) if not corner & bit]


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """The axis-aligned box of an instance.

    Attributes:
        name: Name of the instance.
        color: Its colour.
        low: float64 (3,), the lowest corner, in metres.
        high: float64 (3,), the highest corner, in metres.
    """

    name: str
    color: Color
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def edges(self) -> NDArray[np.float64]:
        """The ends of the edges, float64 (12, 2, 3)."""
        bits = np.arange(8)[:, np.newaxis] >> np.arange(3) & 1
        corners = np.where(bits, self.high, self.low)
        return np.asarray(corners[np.array(_EDGES)])


def find_boxes(scene: ViewedScene, coloring: Coloring, is_shown: NDArray[np.bool_]) -> list[Box]:
    """Find the boxes of the instances of a colouring, otherwise of the annotation.

    Args:
        scene: The scene.
        coloring: The colouring of the picture.
        is_shown: bool (V,), the vertices that are not hidden. An instance without any has no box.
    """
    if not coloring.is_per_scene or coloring.name == "segments":
        if "instances" not in scene.colorings:
            return []
        coloring = scene.colorings["instances"]
    indices = coloring.indices
    if indices is None:
        return []
    has_shown = np.zeros(len(coloring.categories), np.bool_)
    has_shown[indices[is_shown]] = True
    boxes = []
    for number, category in enumerate(coloring.categories):
        if has_shown[number] and not re.match(WITHOUT_BOX, category.name):
            points = scene.points[indices == number].astype(np.float64)
            box = Box(category.name, category.color, points.min(axis=0), points.max(axis=0))
            boxes.append(box)
    return boxes


def draw_boxes(
    image: NDArray[np.uint8],
    boxes: Sequence[Box],
    camera: PlacedCamera,
    font: Font,
    colors: tuple[Color, Color],
) -> None:
    """Draw boxes with their names.

    Args:
        image: uint8 (H, W, C), the picture of the scene, without a legend.
        boxes: The boxes.
        camera: The camera of the picture.
        font: The font of the names.
        colors: The colours of the names, and of the rims of their letters.
    """
    height, width = image.shape[:2]
    for box in boxes:
        for ends in project_lines(box.edges, camera, width, height).ends:
            draw_line(image, ends, _LINE_WIDTH * font.scale, box.color)
        _draw_name(image, box, camera, font, colors)


def _draw_name(
    image: NDArray[np.uint8],
    box: Box,
    camera: PlacedCamera,
    font: Font,
    colors: tuple[Color, Color],
) -> None:
    """Draw the name of a box above the middle of its upper side."""
    middle = (box.low + box.high) / 2
    middle[2] = box.high[2]
    if camera.has_perspective and camera.find_depths(middle) < NEAR:
        return
    height, width = image.shape[:2]
    projected = camera.project(middle[np.newaxis].astype(np.float32), width, height)
    left = round(float(projected.x[0]) - font.measure(box.name) / 2)
    top = round(float(projected.y[0])) - _NAME_HEIGHT * font.scale - font.letter_height
    ink, rim_color = colors
    rim = _RIM_WIDTH * font.scale
    for turn in range(_RIM_COPIES):
        angle = 2 * math.pi * turn / _RIM_COPIES
        right, down = round(rim * math.cos(angle)), round(rim * math.sin(angle))
        font.draw(image, left + right, top + down, box.name, rim_color)
    font.draw(image, left, top, box.name, ink)
