"""Pictures of scenes: the visible surfaces from `raster`, with colours, light and a legend.

The journey of a scene:

    visibility   the vertices and triangles to draw
    camera       their places in the picture
    raster       the vertices at each sample; a pixel has one sample, or several
                 --> a colour for each sample, by class and light
                 --> pixels: the mean of their samples
    legend       the categories in the picture
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.view.camera import NEAR, Camera, Projected
from scannet_prep.view.categories import Color, Coloring
from scannet_prep.view.coloring import ViewedScene
from scannet_prep.view.fonts import BuiltInFont, choose_font
from scannet_prep.view.legend import MARGIN, Legend
from scannet_prep.view.raster import Seen, draw_points, draw_triangles, estimate_spacing
from scannet_prep.view.splats import draw_splats
from scannet_prep.view.visibility import Visibility, clip_near

MAX_PIXELS = 1 << 25
_MIN_SIDE_PIXELS = 16

BACKGROUNDS: Mapping[str, tuple[Color, Color]] = {
    "light": ((255, 255, 255), (30, 30, 30)),
    "dark": ((24, 24, 27), (225, 225, 225)),
}
"""Colours of the background, and of text on it."""

LIGHT = np.array([0.35, 0.45, 0.82], np.float32)
"""Direction to the light: to the right, up, towards the camera."""

# The number of steps from the darkest shade to the full brightness. Few of them make nearly flat
# surfaces even, and files smaller.
_LIGHT_STEPS = 4
# Pictures with more pixels have fewer samples each, so that they take seconds.
_LARGE_PIXELS = 1 << 21
# Samples that are drawn at a time, to bound the memory.
_MAX_SAMPLES = 1 << 22


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """Options of a picture.

    Attributes:
        width: In pixels.
        height: In pixels.
        camera: The viewing direction.
        has_legend: Whether the picture has a legend and a title.
        samples: Samples along each side of a pixel. With one, edges are jagged, points are squares,
            and the legend lists the categories of the scene. With more, edges are smooth, points
            are discs, the legend lists the categories in the picture, and the text has the font of
            Pillow if that is installed.
        background: Red, green, blue; None for a transparent background.
        visibility: What is hidden.
        has_mesh: Whether triangles are drawn, if there are any; otherwise points.
        has_backs: Whether surfaces are also drawn from behind.
        point_scale: Factor of the size of points.

    Raises:
        UsageError: The picture is too small or too large.
    """

    width: int = 800
    height: int = 600
    camera: Camera = field(default_factory=Camera)
    has_legend: bool = True
    samples: int = 1
    background: Color | None = BACKGROUNDS["light"][0]
    visibility: Visibility = field(default_factory=Visibility)
    has_mesh: bool = True
    has_backs: bool = False
    point_scale: float = 1.0

    @property
    def is_smooth(self) -> bool:
        """Whether edges are smooth."""
        return self.samples > 1

    @property
    def ink(self) -> Color:
        """The colour of text on the background."""
        name = "light" if self.background is None or sum(self.background) > 382 else "dark"
        return BACKGROUNDS[name][1]

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


def choose_samples(width: int, height: int) -> int:
    """Return the samples along each side of a pixel for smooth edges in a picture of this size."""
    return 3 if width * height <= _LARGE_PIXELS else 2


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
    scale = max(1, min(options.width, options.height) // 400)
    font = choose_font(scale) if options.is_smooth else BuiltInFont(scale)

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
    ink = (*options.ink, 255)[: image.shape[2]]
    if legend is not None:
        categories = coloring.categories
        if options.is_smooth:
            categories = tuple(each for each, seen in zip(categories, is_seen, strict=True) if seen)
        legend.draw(image, categories, ink)
    if options.has_legend:
        for number, text in enumerate((scene.scene_id, coloring.title)):
            top = MARGIN * scale + number * font.line_height
            font.draw(image, MARGIN * scale, top, text, ink)
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
    surface = _Surface.of(scene, coloring, is_shown, width, options)
    is_seen = np.zeros(len(coloring.categories), np.bool_)
    bands = []
    for band in _split_rows(width, options):
        seen = surface.draw(band)
        if surface.coloring.indices is not None:
            is_seen[surface.coloring.indices[seen.nearest]] = True
        colors = _color_pixels(surface.scene, surface.coloring, seen, options.camera)
        bands.append(_mix_samples(seen, colors, width, len(band), options))
    return np.concatenate(bands), is_seen


def _split_rows(width: int, options: PictureOptions) -> Iterator[range]:
    """Split the rows of a picture into bands that are drawn one after the other."""
    rows = max(1, _MAX_SAMPLES // (width * options.samples**2))
    for top in range(0, options.height, rows):
        yield range(top, min(top + rows, options.height))


def _mix_samples(
    seen: Seen, colors: NDArray[np.uint8], width: int, height: int, options: PictureOptions
) -> NDArray[np.uint8]:
    """Return the mean colour of the samples of each pixel, uint8 (H, W, C).

    Args:
        seen: The samples that are not empty.
        colors: uint8 (P, 3), the colour of each of these.
        width: Width of the picture, in pixels.
        height: Height of the picture, in pixels.
        options: Number of samples, and background.
    """
    samples = options.samples
    # Red, green, blue, and 1 for samples that are not empty.
    flat_values = np.zeros((height * samples * width * samples, 4), np.uint8)
    flat_values[seen.pixels, :3] = colors
    flat_values[seen.pixels, 3] = 1
    values = flat_values.reshape(height * samples, width * samples, 4)
    sums = np.zeros((height, width, 4), np.uint16)
    for down in range(samples):
        for across in range(samples):
            sums += values[down::samples, across::samples]

    counts = sums[..., 3:]
    all_count = samples**2
    if options.background is None:
        means = np.rint(sums[..., :3] / np.maximum(counts, 1))
        opacities = np.rint(counts * np.float32(255 / all_count))
        return np.concatenate([means, opacities], axis=2).astype(np.uint8)
    background = np.array(options.background, np.uint16)
    mixed = sums[..., :3] + (all_count - counts) * background
    # Adding half of the divisor rounds.
    return ((mixed + all_count // 2) // all_count).astype(np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class _Surface:
    """The vertices and triangles of a picture.

    Attributes:
        scene: The scene, without hidden triangles, and cut off near the camera.
        coloring: Its colouring.
        projected: Its vertices in the picture, in samples.
        is_drawn: bool (V,), the vertices to draw if there are no triangles.
        spacing: Distance between neighbours, in metres.
        width: Width of the picture, in samples.
        options: Options of the picture.
    """

    scene: ViewedScene
    coloring: Coloring
    projected: Projected
    is_drawn: NDArray[np.bool_]
    spacing: float
    width: int
    options: PictureOptions

    @classmethod
    def of(
        cls,
        scene: ViewedScene,
        coloring: Coloring,
        is_shown: NDArray[np.bool_],
        width: int,
        options: PictureOptions,
    ) -> _Surface:
        """Select what is drawn, and project it.

        Args:
            scene: The scene.
            coloring: Its colouring.
            is_shown: bool (V,), the vertices that are not hidden.
            width: Width of the picture, in pixels.
            options: Options of the picture.
        """
        camera = options.camera
        size = (width * options.samples, options.height * options.samples)
        projected = camera.project(scene.points, *size)
        depths = (projected.position - scene.points) @ camera.axes[2]
        faces = scene.faces
        spacing = 0.0
        if options.has_mesh and faces is not None and len(faces):
            # A triangle is hidden with each of its corners.
            if not is_shown.all():
                scene = replace(scene, faces=faces[is_shown[faces].all(axis=1)])
            if depths.min() < NEAR:
                scene, coloring = clip_near(scene, coloring, depths)
                projected = camera.project(scene.points, *size)
        else:
            scene = replace(scene, faces=None)
            spacing = estimate_spacing(scene.points) * options.point_scale
            is_shown = is_shown & (depths >= NEAR)
            # Only points on surfaces that face the camera, and those without a normal.
            if scene.normals is not None and not options.has_backs:
                towards_camera = projected.position - scene.points
                normals = scene.normals.astype(np.float32)
                is_shown &= np.einsum("ij,ij->i", towards_camera, normals) >= 0
        return cls(scene, coloring, projected, is_shown, spacing, size[0], options)

    def draw(self, rows: range) -> Seen:
        """Draw some rows of pixels."""
        samples = self.options.samples
        height = len(rows) * samples
        projected = replace(self.projected, y=self.projected.y - np.float32(rows.start * samples))
        faces = self.scene.faces
        if faces is not None:
            if self.options.has_backs:
                # Each triangle and its back.
                faces = np.concatenate([faces, faces[:, ::-1]])
            return draw_triangles(projected, faces, self.width, height)
        if not self.options.is_smooth:
            return draw_points(projected, self.is_drawn, self.spacing, self.width, height)
        normals = np.zeros((len(self.scene.points), 3), np.float32)
        if self.scene.normals is not None:
            normals = self.scene.normals.astype(np.float32) @ self.options.camera.axes.T
        return draw_splats(projected, normals, self.is_drawn, self.spacing, self.width, height)


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
