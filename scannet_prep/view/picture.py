"""Pictures of scenes: the triangles or points that face the camera, the farthest first.

This is the painter's algorithm, drawn by Pillow. Where triangles interlock, a few pixels show the
one behind. Surfaces are drawn from the side that was scanned: the picture shows the inside of a
room through its nearer walls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.evaluation.scores import BoolArray, FloatArray
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.view.coloring import ColorArray, Coloring, ViewedScene, estimate_spacing

if TYPE_CHECKING:
    from PIL import Image

_FIELD_OF_VIEW = math.radians(40)
# The direction to the light, along the axes of the camera, and the brightness of surfaces that face
# away from it.
_LIGHT = np.array([0.35, 0.45, 0.82])
_AMBIENT = 0.86
# Pictures are drawn larger by this factor and then reduced, for smooth edges.
_SAMPLES = 2
# Share of the width or the height that the scene fills.
_FILLED = 0.96
# Radius of a point, in mean distances between neighbours: the distances vary.
_SPREAD = 0.9
# Points are not drawn if their surface faces away: the cosine of its angle to the camera is lower.
_MIN_COSINE = -0.2
_ANGLES = re.compile(r"(-?\d+(?:\.\d+)?),(-?\d+(?:\.\d+)?)")
_MAX_PIXELS = 1 << 26


@dataclass(frozen=True, slots=True)
class View:
    """A direction to look from, in degrees; from straight above, there is no perspective.

    Attributes:
        azimuth: Turn about the vertical axis; 0 is the side of greater x.
        elevation: Height above the horizon, -90 to 90.
    """

    azimuth: float = -60.0
    elevation: float = 40.0

    @classmethod
    def parse(cls, text: str) -> View:
        """Parse `orbit`, `top`, or azimuth and elevation.

        Raises:
            UsageError: It is none of these.
        """
        if text in _VIEWS:
            return _VIEWS[text]
        match = _ANGLES.fullmatch(text)
        if match is None or abs(float(match[2])) > 90:
            raise UsageError(
                f"{text!r:.80} is not a view",
                "views are orbit, top, and azimuth and elevation in degrees, such as -60,40",
            )
        return cls(float(match[1]), float(match[2]))

    @property
    def axes(self) -> FloatArray:
        """Unit vectors to the right, up, and towards the camera, as rows, (3, 3)."""
        azimuth = math.radians(self.azimuth)
        elevation = math.radians(self.elevation)
        x = math.cos(azimuth)
        y = math.sin(azimuth)
        level = math.cos(elevation)
        right = np.array([-y, x, 0])
        height = math.sin(elevation)
        back = np.array([level * x, level * y, height])
        up = np.cross(back, right)
        return np.stack([right, up, back])

    def project(self, points: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Return positions to the right and down, (V, 2), and distances from the camera, (V,)."""
        points = points.astype(np.float64)
        low = points.min(axis=0)
        high = points.max(axis=0)
        middle = (low + high) / 2
        # A scene of one point has no extent.
        reach = math.dist(low, high) / 2 or 1
        distance = reach / math.sin(_FIELD_OF_VIEW / 2)
        along_axes = (points - middle) @ self.axes.T
        depths = distance - along_axes[:, 2]
        divisors = depths
        if abs(self.elevation) == 90:
            divisors = np.full_like(depths, distance)
        positions = along_axes[:, :2] * (1, -1)
        return positions / divisors[:, np.newaxis], depths


_VIEWS = {"orbit": View(), "top": View(-90, 90)}


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """Options of a picture.

    Attributes:
        view: The direction.
        size: Width and height, in pixels.
        hidden: Names of categories that are left out. A triangle is left out if any of its corners
            is.
        has_legend: Whether title and categories are listed.
        step: If more than 1, only every n-th point is drawn, larger, and no triangles are.
    """

    view: View = View()
    size: tuple[int, int] = (800, 600)
    hidden: tuple[str, ...] = ()
    has_legend: bool = True
    step: int = 1


THUMBNAIL = PictureOptions(size=(320, 240), has_legend=False, step=4)
"""The options of a picture that is shown beside others."""


def draw_scene(scene: ViewedScene, color: str, options: PictureOptions | None = None) -> ColorArray:
    """Draw a scene in one of its colourings.

    Args:
        scene: The scene: its triangles if it has some, otherwise its points.
        color: The name of the colouring.
        options: Options of the picture.

    Returns:
        uint8 (height, width, 3), red, green, blue.

    Raises:
        UsageError: The picture has no or too many pixels, or a name to hide is not that of a class.
    """
    from PIL import Image, ImageDraw, ImageFont

    options = options or PictureOptions()
    width, height = options.size
    if min(options.size) < 1 or width * height > _MAX_PIXELS:
        raise UsageError(
            f"a picture of {width:,} x {height:,} pixels cannot be drawn",
            f"at most {_MAX_PIXELS:,} pixels, such as 800x600",
        )
    coloring = scene.colorings[color]
    drawn_size = (width * _SAMPLES, height * _SAMPLES)
    image = Image.new("RGB", drawn_size, "white")
    # The part of the image for the scene: left of the legend, and below the title.
    top = 0
    area = np.array(image.size)
    if options.has_legend:
        # Names fit beside the scene.
        text_size = max(10, min(height // 45, width // 60))
        legend = _draw_legend(coloring, options, text_size)
        top = 2 * text_size * _SAMPLES
        area -= (legend.width * _SAMPLES, top)
        area = area.clip(1)

    positions, depths = options.view.project(scene.points)
    low = positions.min(axis=0)
    high = positions.max(axis=0)
    # All points may have the same position.
    extent = (high - low).clip(0.1)
    scale = float(np.min(_FILLED * area / extent))
    middle = (low + high) / 2
    positions = (positions - middle) * scale
    positions += area / 2
    positions += (0, top)
    colors = _shade(scene, coloring, options.view)
    is_shown = ~_find_hidden(scene, options.hidden)
    if scene.faces is None or not len(scene.faces) or options.step > 1:
        if scene.normals is not None:
            normals = scene.normals.astype(np.float32)
            cosines = normals @ options.view.axes[2]
            is_shown &= cosines >= _MIN_COSINE
        drawn = np.flatnonzero(is_shown)[:: options.step]
        spacing = estimate_spacing(scene.points) * math.sqrt(options.step)
        radii = _SPREAD * spacing * scale / depths[drawn]
        _draw_points(
            image,
            positions[drawn],
            depths[drawn],
            radii,
            colors[drawn],
        )
    else:
        has_corners = is_shown[scene.faces].all(axis=1)
        faces = scene.faces[has_corners]
        # Each triangle has the colour of its first corner: classes are never mixed.
        first_colors = colors[faces[:, 0]]
        _draw_triangles(image, positions[faces], depths[faces], first_colors)
    image = image.resize((width, height), Image.Resampling.BOX)
    if options.has_legend:
        image.paste(legend, (width - legend.width, 0))
        words = (scene.scene_id, coloring.title)
        title = ", ".join(filter(None, words))
        font = ImageFont.load_default(text_size)
        position = (1.4 * text_size, 0.7 * text_size)
        ImageDraw.Draw(image).text(position, title, "black", font)
    return np.array(image)


def _find_hidden(scene: ViewedScene, names: Collection[str]) -> BoolArray:
    """Find the vertices that have a category of these names in any colouring, (V,).

    Raises:
        UsageError: Neither the scene nor a label set has such a name.
    """
    is_hidden = np.zeros(len(scene.points), np.bool_)
    known = {*SCANNET20.names, *SCANNET200.names}
    for coloring in scene.colorings.values():
        if coloring.indices is not None:
            of_coloring = [category.name for category in coloring.categories]
            is_named = np.isin(of_coloring, list(names))
            is_hidden |= is_named[coloring.indices]
            known.update(of_coloring)
    unknown = sorted(set(names) - known)
    if unknown:
        raise UsageError(
            f"there is no class {unknown[0]!r:.80} to hide",
            "the legend of a picture lists the names of its classes",
        )
    return is_hidden


def _shade(scene: ViewedScene, coloring: Coloring, view: View) -> ColorArray:
    """Return the colours of the vertices, (V, 3); those of categories depend on the light."""
    if coloring.indices is None or scene.normals is None:
        return coloring.colors
    direction = (_LIGHT @ view.axes).astype(np.float32)
    light = scene.normals.astype(np.float32) @ direction
    from_light = (1 - _AMBIENT) * light.clip(0, 1)
    brightness = _AMBIENT + from_light
    shaded = coloring.colors * brightness[:, np.newaxis]
    return shaded.astype(np.uint8)


def _draw_points(
    image: Image.Image,
    positions: FloatArray,
    depths: FloatArray,
    radii: FloatArray,
    colors: ColorArray,
) -> None:
    """Draw points, (N,), as discs."""
    from PIL import ImageDraw

    draw = ImageDraw.Draw(image)
    order = np.argsort(-depths)
    rims = radii[:, np.newaxis].clip(0.5)
    low = positions - rims
    high = positions + rims
    boxes = np.concatenate([low, high], axis=1)
    fills = colors[order].tolist()
    ordered = boxes[order].tolist()
    for box, fill in zip(ordered, fills, strict=True):
        draw.ellipse(box, fill=tuple(fill))


def _draw_triangles(
    image: Image.Image,
    corners: FloatArray,
    depths: FloatArray,
    colors: ColorArray,
) -> None:
    """Draw those triangles, (F,), that face the camera; `depths` are those of corners, (F, 3)."""
    from PIL import ImageDraw

    draw = ImageDraw.Draw(image)
    first = corners[:, 0]
    x1, y1 = (corners[:, 1] - first).T
    x2, y2 = (corners[:, 2] - first).T
    # y points down: counter-clockwise triangles have a negative cross product.
    front = np.flatnonzero(x1 * y2 < y1 * x2)
    farness = depths[front].mean(axis=1)
    order = front[np.argsort(-farness)]
    triangles = corners[order].reshape(-1, 6).tolist()
    fills = colors[order].tolist()
    for triangle, fill in zip(triangles, fills, strict=True):
        draw.polygon(triangle, fill=tuple(fill))


def _draw_legend(coloring: Coloring, options: PictureOptions, text_size: int) -> Image.Image:
    """Draw the names, colours and shares of the categories, the largest first.

    Returns:
        An image as high as the picture, and empty beside its title. It is wide enough for the
        names, but has at most half the width of the picture.
    """
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(text_size)
    width, height = options.size
    line = round(1.4 * text_size)
    share_right = 3.6 * line
    name_left = 4 * line
    listed = [category for category in coloring.categories if category.name not in options.hidden]
    line_count = height // line - 3
    left_out = len(listed) - line_count
    listed = listed[:line_count]
    rights = [name_left + font.getlength(category.name) for category in listed]
    legend_width = math.ceil(max(rights, default=0)) + line // 2
    legend = Image.new("RGB", (min(legend_width, width // 2), height), "white")
    draw = ImageDraw.Draw(legend)

    def write(text: str, x: float, y: float, anchor: str = "la") -> None:
        draw.text((x, y), text, fill="black", font=font, anchor=anchor)

    top = 2 * line
    for category in listed:
        bottom = top + text_size
        draw.rectangle((0, top, text_size, bottom), fill=category.color)
        share = 100 * category.count / len(coloring.colors)
        write(f"{share:.1f} %", share_right, top, anchor="ra")
        write(category.name, name_left, top)
        top += line
    if left_out > 0:
        write(f"and {left_out:,} more", 0, top)
    return legend
