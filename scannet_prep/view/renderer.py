"""Pictures of scenes: the visible surfaces from `raster`, with colours, light and a legend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.view.camera import Camera, Projected
from scannet_prep.view.coloring import Category, Color, Coloring, ViewedScene
from scannet_prep.view.png import LINE_HEIGHT, draw_text, measure_text
from scannet_prep.view.raster import Seen, draw_points, draw_triangles, estimate_spacing

MAX_PIXELS = 1 << 25
_MIN_SIDE_PIXELS = 16

BACKGROUNDS: Mapping[str, tuple[Color, Color]] = {
    "light": ((255, 255, 255), (30, 30, 30)),
    "dark": ((24, 24, 27), (225, 225, 225)),
}
"""Colours of the background, and of text on it."""

LIGHT = np.array([0.35, 0.45, 0.82], np.float32)
"""Direction to the light: to the right, up, towards the camera."""

AMBIENT = 0.92
"""Brightness of surfaces that face away from the light; 1 is the full brightness.

From 0.91 on, each shaded colour of ScanNet20 is nearer to its own colour than to any other.
"""

# The number of brightness levels. Few levels make nearly flat surfaces even, and files smaller.
_LIGHT_STEPS = 32
_FLOOR_QUANTILE = 0.01
# In pixels at scale 1.
_MARGIN = 8
_SYMBOL_SIZE = 7
_MAX_LETTERS = 28


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """Options of a picture.

    Attributes:
        width: In pixels.
        height: In pixels.
        camera: The viewing direction.
        has_legend: Whether the picture has a legend and a title.

    Raises:
        UsageError: The picture is too small or too large.
    """

    width: int = 800
    height: int = 600
    camera: Camera = field(default_factory=Camera)
    has_legend: bool = True

    def __post_init__(self) -> None:
        """Check the size."""
        is_too_small = min(self.width, self.height) < _MIN_SIDE_PIXELS
        is_too_large = self.width * self.height > MAX_PIXELS
        if is_too_small or is_too_large:
            raise UsageError(
                f"a picture of {self.width} x {self.height} pixels cannot be drawn",
                f"at least {_MIN_SIDE_PIXELS} x {_MIN_SIDE_PIXELS}, "
                f"and at most {MAX_PIXELS:,} pixels",
            )


def render_scene(
    scene: ViewedScene, color: str, options: PictureOptions | None = None
) -> NDArray[np.uint8]:
    """Draw a scene: its triangles if it has faces, otherwise its points.

    Surfaces are drawn from the side that was scanned, and not from behind: the picture shows the
    inside of a room through its nearer walls and its ceiling. Surfaces are shaded by the direction
    they face, except in the colours of the scan or of normals.

    Args:
        scene: The scene.
        color: Name of one of its colourings.
        options: Options of the picture.

    Returns:
        uint8 (H, W, 3), red, green, blue; row 0 on top.

    Raises:
        UsageError: The scene has no such colouring.
    """
    options = options or PictureOptions()
    coloring = scene.coloring(color)
    background, ink = BACKGROUNDS["light"]
    image = _fill(options.width, options.height, background)

    # The legend takes a column on the right; the scene gets the rest.
    legend_width = 0
    if options.has_legend:
        legend_width = _draw_legend(image, coloring, ink)
    width = options.width - legend_width
    projected = options.camera.project(scene.points, width, options.height)
    seen = _draw(scene, projected, width, options.height)

    rows, columns = np.divmod(seen.pixels, width)
    image[rows, columns] = _color_pixels(scene, coloring, seen, options.camera)
    if options.has_legend:
        scale = _text_scale(image)
        for number, text in enumerate((scene.scene_id, coloring.title)):
            top = (_MARGIN + number * LINE_HEIGHT) * scale
            draw_text(image, _MARGIN * scale, top, text, ink, scale)
    return image


def find_floor(points: NDArray[np.float32]) -> float:
    """Estimate the height of the floor, in metres: 1 % of the points are lower."""
    return float(np.quantile(points[:, 2], _FLOOR_QUANTILE))


def _fill(width: int, height: int, color: Color) -> NDArray[np.uint8]:
    """Make a picture of one colour, much faster than `np.full`."""
    row = np.tile(np.array(color, np.uint8), width)
    return np.tile(row, height).reshape(height, width, 3)


def _draw(scene: ViewedScene, projected: Projected, width: int, height: int) -> Seen:
    """Find the visible part of a scene."""
    if scene.faces is not None and len(scene.faces):
        return draw_triangles(projected, scene.faces, width, height)
    # Only points on surfaces that face the camera, and those without a normal.
    is_shown = np.ones(len(scene.points), np.bool_)
    if scene.normals is not None:
        towards_camera = projected.position - scene.points
        normals = scene.normals.astype(np.float32)
        is_shown = np.einsum("ij,ij->i", towards_camera, normals) >= 0
    spacing = estimate_spacing(scene.points)
    return draw_points(projected, is_shown, spacing, width, height)


def _color_pixels(
    scene: ViewedScene, coloring: Coloring, seen: Seen, camera: Camera
) -> NDArray[np.uint8]:
    """Return the colour of each visible pixel, uint8 (P, 3)."""
    if not coloring.categories:
        # Adding 0.5 rounds.
        return (seen.blend(coloring.colors) + 0.5).astype(np.uint8)
    # Categories are never mixed: the vertex with the greatest weight gives the colour.
    colors = coloring.colors.take(seen.nearest, axis=0)
    if scene.normals is None:
        return colors
    brightness = seen.blend(_light(scene.normals, camera))
    light = np.rint(brightness * _LIGHT_STEPS) / _LIGHT_STEPS
    return (colors * light[:, np.newaxis]).astype(np.uint8)


def _light(normals: NDArray[np.floating[Any]], camera: Camera) -> NDArray[np.float32]:
    """Return the brightness of each vertex, (V,), by its angle to the light; 1 without a normal."""
    # LIGHT is along the axes of the camera. This product is along the axes of the scene.
    cosines = normals.astype(np.float32) @ (LIGHT @ camera.axes)
    brightness = AMBIENT + (1 - AMBIENT) * cosines.clip(0, 1)
    return np.where(normals.any(axis=1), brightness, np.float32(1))


def _draw_legend(image: NDArray[np.uint8], coloring: Coloring, ink: Color) -> int:
    """Draw the categories as a column on the right, with their shares of the vertices.

    If there are too many, the last line counts the omitted ones.

    Returns:
        The width of the legend; 0 if the picture is too narrow for one.
    """
    scale = _text_scale(image)
    line = LINE_HEIGHT * scale
    margin = _MARGIN * scale
    max_lines = max(1, (image.shape[0] - 2 * margin) // line)
    shown = coloring.categories
    if len(shown) > max_lines:
        shown = shown[: max_lines - 1]
    omitted_count = len(coloring.categories) - len(shown)

    names = [_shorten_name(category) for category in shown]
    shares = [f"{category.count / len(coloring.colors):.1%}" for category in shown]
    if omitted_count:
        names.append(f"and {omitted_count:,} more")
        shares.append("")
    if not names:
        return 0
    name_width = max(map(measure_text, names)) * scale
    share_width = max(map(measure_text, shares)) * scale
    width = name_width + share_width + 3 * margin + line
    if width > image.shape[1] // 2:
        return 0

    left = image.shape[1] - width + margin
    right = image.shape[1] - margin
    symbol = _SYMBOL_SIZE * scale
    for number, (name, share) in enumerate(zip(names, shares, strict=True)):
        top = margin + number * line
        if number < len(shown):
            image[top : top + symbol, left : left + symbol] = shown[number].color
        draw_text(image, left + line, top, name, ink, scale)
        draw_text(image, right - measure_text(share) * scale, top, share, ink, scale)
    return width


def _shorten_name(category: Category) -> str:
    """Return the name of a category, shortened if it is too long for the legend."""
    if len(category.name) <= _MAX_LETTERS:
        return category.name
    return f"{category.name[: _MAX_LETTERS - 3]}..."


def _text_scale(image: NDArray[np.uint8]) -> int:
    """Return the factor by which text is enlarged in a picture."""
    height, width = image.shape[:2]
    return max(1, int(min(height, width)) // 400)
