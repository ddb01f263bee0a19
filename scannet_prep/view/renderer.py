"""Pictures of scenes: the visible surfaces from `raster`, with colours, light and a legend.

The journey of a scene:

    visibility   what is not hidden
    surface      the vertices and triangles to draw, and their places in the picture
    raster       the vertices at each sample; a pixel has one sample, or several
                 --> a colour for each sample, by class and light
    samples      the grid and shaded edges
                 --> pixels: the mean of their samples
    boxes        around instances
    legend       the categories in the picture
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.boxes import draw_boxes, find_boxes
from scannet_prep.view.camera import Camera, PlacedCamera
from scannet_prep.view.categories import Coloring
from scannet_prep.view.coloring import ViewedScene
from scannet_prep.view.fonts import BuiltInFont, PillowFont
from scannet_prep.view.legend import MARGIN, Legend
from scannet_prep.view.lines import ProjectedLines, project_lines
from scannet_prep.view.metre_grid import make_grid
from scannet_prep.view.picture_options import BACKGROUNDS, PictureOptions, choose_samples
from scannet_prep.view.raster import Seen
from scannet_prep.view.samples import Samples
from scannet_prep.view.surface import Surface

__all__ = ["BACKGROUNDS", "LIGHT", "PictureOptions", "choose_samples", "render_scene"]

LIGHT = np.array([0.35, 0.45, 0.82], np.float32)
"""Direction to the light: to the right, up, towards the camera."""

# The number of steps from the darkest shade to the full brightness. Few of them make nearly flat
# surfaces even, and files smaller.
_LIGHT_STEPS = 4
# Distance of the pixels that make an edge, at scale 1.
_EDGE_PIXELS = 1.5
# Samples that are drawn at a time, to bound the memory.
_MAX_SAMPLES = 1 << 22


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
        uint8 (H, W, 3), red, green, blue; row 0 on top. uint8 (H, W, 4) with opacity if the
        background is transparent.

    Raises:
        UsageError: The scene has no such colouring, or it has no class of a hidden name.
    """
    options = options or PictureOptions()
    coloring = scene.coloring(color)
    is_shown = options.visibility.find_shown(scene, coloring)
    scale = options.scale
    font = PillowFont(scale) if options.is_smooth else BuiltInFont(scale)

    # The legend takes a column on the right, unless the picture is too narrow; the scene gets the
    # rest.
    legend = None
    width = options.width
    if options.has_legend:
        legend = Legend(coloring.categories, len(scene.points), font, options.height)
        if legend.width > options.width // 2:
            legend = None
    if legend is not None:
        width -= legend.width
    seen_scene, is_seen = _draw_scene(scene, coloring, is_shown, width, options)

    image = _fill(options)
    image[:, :width] = seen_scene
    if options.has_boxes:
        boxes = find_boxes(scene, coloring, is_shown)
        camera = options.camera.place(scene.points, width, options.height)
        draw_boxes(image[:, :width], boxes, camera, font, (options.ink, options.paper))
    if legend is not None:
        categories = coloring.categories
        if options.is_smooth:
            categories = tuple(each for each, seen in zip(categories, is_seen, strict=True) if seen)
        legend.draw(image, categories, options.ink)
    if options.has_legend:
        for number, text in enumerate((scene.scene_id, coloring.title)):
            top = MARGIN * scale + number * font.line_height
            font.draw(image, MARGIN * scale, top, text, options.ink)
    return image


def _fill(options: PictureOptions) -> NDArray[np.uint8]:
    """Make an empty picture, much faster than `np.full`."""
    color = (0, 0, 0, 0) if options.background is None else options.background
    row = np.tile(np.array(color, np.uint8), options.width)
    return np.tile(row, options.height).reshape(options.height, options.width, len(color))


def _draw_scene(
    scene: ViewedScene,
    coloring: Coloring,
    is_shown: NDArray[np.bool_],
    width: int,
    options: PictureOptions,
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Draw a scene without legend and title.

    Args:
        scene: The scene.
        coloring: Its colouring.
        is_shown: bool (V,), the vertices that are not hidden.
        width: Width of the picture, in pixels.
        options: Its other options.

    Returns:
        The picture, uint8 (H, W, C), and which categories are in it, bool (categories,).
    """
    surface = Surface.of(scene, coloring, is_shown, width, options)
    finish = _Finish.of(scene, width, options)
    is_seen = np.zeros(len(coloring.categories), np.bool_)
    bands = []
    for band in _split_rows(width, options):
        # Edges depend on the samples around them.
        rows = range(
            max(0, band.start - finish.margin), min(options.height, band.stop + finish.margin)
        )
        seen = surface.draw(rows)
        if surface.coloring.indices is not None:
            is_seen[surface.coloring.indices[seen.nearest]] = True
        colors = _color_pixels(surface.scene, surface.coloring, seen, options.camera)
        pixels = finish.finish(seen, colors, rows)
        bands.append(pixels[band.start - rows.start :][: len(band)])
    return np.concatenate(bands), is_seen


def _split_rows(width: int, options: PictureOptions) -> Iterator[range]:
    """Split the rows of a picture into bands that are drawn one after the other."""
    rows = max(1, _MAX_SAMPLES // (width * options.samples**2))
    for top in range(0, options.height, rows):
        yield range(top, min(top + rows, options.height))


@dataclass(frozen=True, slots=True, eq=False)
class _Finish:
    """What is drawn on the surfaces of a picture: the grid and the edges.

    Attributes:
        options: Options of the picture.
        width: Width of the picture, in samples.
        camera: The camera of the picture.
        grid: The lines of the grid in the picture, in samples, and the colour of each; None for no
            grid.
        empty: The nearness of empty samples.
    """

    options: PictureOptions
    width: int
    camera: PlacedCamera
    grid: tuple[ProjectedLines, NDArray[np.uint8]] | None
    empty: float

    @classmethod
    def of(cls, scene: ViewedScene, width: int, options: PictureOptions) -> _Finish:
        """Prepare it for a picture; the width is in pixels."""
        camera = options.camera.place(scene.points, width, options.height)
        size = (width * options.samples, options.height * options.samples)
        grid = None
        if options.has_grid:
            lines, colors = make_grid(scene.points)
            grid = project_lines(lines, camera, *size), colors
        empty = camera.find_nearness(camera.find_reach(scene.points))
        return cls(options, size[0], camera, grid, empty)

    @property
    def margin(self) -> int:
        """The rows of pixels around others that change how these look."""
        return self._reach if self.options.has_edges else 0

    @property
    def _reach(self) -> int:
        """The distance of the pixels that make an edge, in pixels."""
        return max(1, int(_EDGE_PIXELS * self.options.scale + 0.5))

    def finish(self, seen: Seen, colors: NDArray[np.uint8], rows: range) -> NDArray[np.uint8]:
        """Return some rows of the picture, uint8 (H, W, C), from their samples and colours."""
        side = self.options.samples
        samples = Samples.of(seen, colors, self.width, side * len(rows))
        if self.grid is not None:
            lines, line_colors = self.grid
            line_width = side * self.options.scale
            samples.draw_lines(lines, line_colors, line_width, side * rows.start)
        if self.options.has_edges:
            unit = None if self.camera.has_perspective else self.camera.distance
            samples.shade_edges(side * self._reach, self.empty, unit)
        return samples.mix(side, self.options.background)


def _color_pixels(
    scene: ViewedScene, coloring: Coloring, seen: Seen, camera: Camera
) -> NDArray[np.uint8]:
    """Return the colour of each visible pixel, uint8 (P, 3)."""
    if not coloring.categories:
        # Adding 0.5 rounds.
        return (seen.blend(coloring.colors) + 0.5).astype(np.uint8)
    # Categories are never mixed: the vertex with the greatest weight gives the colour.
    nearest = seen.nearest
    colors = coloring.colors.take(nearest, axis=0)
    if scene.normals is None or coloring.indices is None:
        return colors
    light = np.rint(seen.blend(_light(scene.normals, camera)) * _LIGHT_STEPS) / _LIGHT_STEPS
    ambients = np.array([category.ambient for category in coloring.categories], np.float32)
    ambient = ambients[coloring.indices[nearest]]
    # A little more, so that rounding makes no colour darker.
    brightness = ambient + (1 - ambient) * light + np.float32(1e-6)
    shades = (colors * brightness[:, np.newaxis]).astype(np.uint8)
    return np.asarray(shades)


def _light(normals: NDArray[np.floating[Any]], camera: Camera) -> NDArray[np.float32]:
    """Return the light on each vertex, (V,), from 0 to 1, by its angle; 1 without a normal."""
    # LIGHT is along the axes of the camera. This product is along the axes of the scene.
    cosines = normals.astype(np.float32) @ (LIGHT @ camera.axes)
    return np.where(normals.any(axis=1), cosines.clip(0, 1), np.float32(1))
