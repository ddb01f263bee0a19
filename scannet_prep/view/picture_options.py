"""The options of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scannet_prep.errors import UsageError
from scannet_prep.view.camera import Camera
from scannet_prep.view.categories import Color
from scannet_prep.view.visibility import Visibility

MAX_PIXELS = 1 << 25
_MIN_SIDE_PIXELS = 16
# Pictures with more pixels have fewer samples each, so that they take seconds.
_LARGE_PIXELS = 1 << 21

BACKGROUNDS: Mapping[str, tuple[Color, Color]] = {
    "light": ((255, 255, 255), (30, 30, 30)),
    "dark": ((24, 24, 27), (225, 225, 225)),
}
"""Colours of the background, and of text on it."""


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
            Pillow.
        background: Red, green, blue; None for a transparent background.
        visibility: What is hidden.
        has_mesh: Whether triangles are drawn, if there are any; otherwise points.
        has_backs: Whether surfaces are also drawn from behind.
        point_scale: Factor of the size of points.
        has_boxes: Whether instances have boxes with their names.
        has_grid: Whether there is a grid of metres on the floor.
        has_edges: Whether edges are shaded by depth.

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
    has_boxes: bool = False
    has_grid: bool = False
    has_edges: bool = False

    @property
    def scale(self) -> int:
        """The factor by which text, lines and margins are enlarged."""
        return max(1, min(self.width, self.height) // 400)

    @property
    def is_smooth(self) -> bool:
        """Whether edges are smooth."""
        return self.samples > 1

    @property
    def ink(self) -> Color:
        """The colour of text on the background."""
        return BACKGROUNDS["light" if self._is_light else "dark"][1]

    @property
    def paper(self) -> Color:
        """The colour of the background, or one like it if that is transparent."""
        return self.background or BACKGROUNDS["light"][0]

    @property
    def _is_light(self) -> bool:
        """Whether the background is light."""
        return self.background is None or sum(self.background) > 382

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
