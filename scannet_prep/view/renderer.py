"""Scenes as pictures: colours, light and a legend over what `raster` finds to be seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.view.camera import Camera
from scannet_prep.view.coloring import Color, Coloring, ViewedScene
from scannet_prep.view.png import LINE_HEIGHT, draw_text, measure_text
from scannet_prep.view.raster import draw_points, draw_triangles, estimate_spacing

MAX_PIXELS = 1 << 25

BACKGROUNDS: Mapping[str, tuple[Color, Color]] = {  # and what is written on it
    "light": ((255, 255, 255), (30, 30, 30)),
    "dark": ((24, 24, 27), (225, 225, 225)),
}
LIGHT = np.array([0.35, 0.45, 0.82], np.float32)  # to the right, up, towards the camera
AMBIENT = 0.55
_LIGHT_STEPS = 32  # so that surfaces that are almost even look even, and files are smaller
_FLOOR_QUANTILE = 0.01
_MARGIN = 8
_MAX_LETTERS = 28


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """How a picture is to look.

    Attributes:
        width: In pixels.
        height: In pixels.
        camera: From where.
        has_legend: Whether it has a legend and a title.

    Raises:
        UsageError: A size is not positive, or too large.
    """

    width: int = 800
    height: int = 600
    camera: Camera = field(default_factory=Camera)
    has_legend: bool = True

    def __post_init__(self) -> None:
        """Check the size."""
        if min(self.width, self.height) < 16 or self.width * self.height > MAX_PIXELS:
            problem = f"a picture of {self.width} x {self.height} pixels cannot be drawn"
            raise UsageError(problem, f"at least 16 x 16, and at most {MAX_PIXELS:,} pixels")


def render_scene(
    scene: ViewedScene, color: str, options: PictureOptions | None = None
) -> NDArray[np.uint8]:
    """Draw a scene: triangles where it has faces, else points.

    Surfaces are drawn as they were seen when the room was scanned, and not from behind: one looks into a room through
    the walls and the ceiling that are nearer. Surfaces are brighter or darker by where they face, but those in the
    colours of the scan or of normals.

    Args:
        scene: The scene.
        color: Name of one of its colourings.
        options: How it is to look.

    Returns:
        uint8 (H, W, 3), red, green, blue; row 0 on top.

    Raises:
        UsageError: The scene cannot be coloured so.
    """
    options, coloring = options or PictureOptions(), scene.coloring(color)
    background, ink = BACKGROUNDS["light"]
    row = np.tile(
        np.array(background, np.uint8), options.width
    )  # much faster than np.full, pixel by pixel
    image = np.tile(row, options.height).reshape(options.height, options.width, 3)
    legend_width = _draw_legend(image, coloring, ink) if options.has_legend else 0
    width, points = options.width - legend_width, scene.points
    projected = options.camera.project(points, width, options.height)
    if scene.faces is not None and len(scene.faces):
        seen = draw_triangles(projected, scene.faces, width, options.height)
    else:
        shown = np.ones(len(points), np.bool_)
        if (
            scene.normals is not None
        ):  # only what is seen from the side that its normal points to, or has none
            toward_camera = projected.position - points
            shown = np.einsum("ij,ij->i", toward_camera, scene.normals.astype(np.float32)) >= 0
        seen = draw_points(projected, shown, estimate_spacing(points), width, options.height)
    found = (
        coloring.colors.take(seen.nearest, axis=0)
        if coloring.categories
        else seen.blend(coloring.colors) + 0.5
    )
    if coloring.categories and scene.normals is not None:
        light = (
            np.rint(seen.blend(_light(scene.normals, options.camera)) * _LIGHT_STEPS) / _LIGHT_STEPS
        )
        found = (found * light[:, np.newaxis]).astype(np.uint8)
    image.reshape(-1, 3)[seen.pixels + seen.pixels // width * legend_width] = found
    if options.has_legend:
        scale = _scale(image)
        for number, text in enumerate((scene.scene_id, coloring.title)):
            draw_text(
                image, _MARGIN * scale, (_MARGIN + number * LINE_HEIGHT) * scale, text, ink, scale
            )
    return image


def find_floor(points: NDArray[np.float32]) -> float:
    """The height of the floor, metres: 1 % of the points are below."""
    return float(np.quantile(points[:, 2], _FLOOR_QUANTILE))


def _light(normals: NDArray[np.floating[Any]], camera: Camera) -> NDArray[np.float32]:
    """How bright each vertex is, (V,), by how its normal is turned to a light; 1 for those without."""
    amount = (normals.astype(np.float32) @ (LIGHT @ camera.axes)).clip(0, 1)
    return np.where(normals.any(axis=1), AMBIENT + (1 - AMBIENT) * amount, np.float32(1))


def _draw_legend(image: NDArray[np.uint8], coloring: Coloring, ink: Color) -> int:
    """Draw the categories as a column on the right, with their share of the vertices; gives its width.

    Where they are too many, the last line says how many more there are; a picture that is too narrow has none.
    """
    scale, categories = _scale(image), coloring.categories
    line, margin = LINE_HEIGHT * scale, _MARGIN * scale
    room = max(1, (image.shape[0] - 2 * margin) // line)
    shown = categories if len(categories) <= room else categories[: room - 1]
    names = [
        item.name if len(item.name) <= _MAX_LETTERS else f"{item.name[: _MAX_LETTERS - 3]}..."
        for item in shown
    ]
    shares = [f"{item.count / len(coloring.colors):.1%}" for item in shown]
    if len(shown) < len(categories):
        names, shares = [*names, f"and {len(categories) - len(shown):,} more"], [*shares, ""]
    widths = [
        max((measure_text(text) * scale for text in texts), default=0) for texts in (names, shares)
    ]
    width: int = sum(widths) + 3 * margin + line if names else 0
    if not names or width > image.shape[1] // 2:
        return 0
    left, right = image.shape[1] - width + margin, image.shape[1] - margin
    for number, (name, share) in enumerate(zip(names, shares, strict=True)):
        top = margin + number * line
        if number < len(shown):
            image[top : top + 7 * scale, left : left + 7 * scale] = shown[number].color
        draw_text(image, left + line, top, name, ink, scale)
        draw_text(image, right - measure_text(share) * scale, top, share, ink, scale)
    return width


def _scale(image: NDArray[np.uint8]) -> int:
    """How many pixels of a picture a pixel of the text is."""
    height, width = image.shape[:2]
    return max(1, int(min(height, width)) // 400)
