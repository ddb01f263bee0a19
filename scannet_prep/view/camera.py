"""A camera: the viewing direction, and the projection of points into a picture."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError

# Azimuth and elevation, in degrees.
_NAMED_VIEWS = {
    "orbit": (-60.0, 40.0),
    "top": (-90.0, 90.0),
}
_ANGLES = re.compile(r"([-+]?\d{1,3}(?:\.\d{1,3})?),([-+]?\d{1,2}(?:\.\d{1,3})?)")
FIELD_OF_VIEW = math.radians(40)
# The smallest distance of a visible point from the camera, in metres.
NEAR = 0.05
# The share of the picture that the points fill, in the tighter direction.
FILLED = 0.96


@dataclass(frozen=True, slots=True)
class Camera:
    """A direction to look from. The distance depends on the points to show.

    Attributes:
        azimuth: In degrees, counter-clockwise from above: at 0 the camera is on the side of greater
            x, at 90 of greater y, at -90 of smaller y, so that x points to the right in the
            picture.
        elevation: In degrees: 0 is level, 90 looks straight down.
    """

    azimuth: float = _NAMED_VIEWS["orbit"][0]
    elevation: float = _NAMED_VIEWS["orbit"][1]

    @classmethod
    def parse(cls, text: str) -> Camera:
        """Parse `orbit`, `top`, or azimuth and elevation such as `-60,40`.

        Raises:
            UsageError: It is none of these.
        """
        if text in _NAMED_VIEWS:
            return cls(*_NAMED_VIEWS[text])
        match = _ANGLES.fullmatch(text)
        if match is None or abs(float(match[2])) > 90:
            known = ", ".join(_NAMED_VIEWS)
            raise UsageError(
                f"{text!r:.80} is not a view",
                f"views are: {known}, or azimuth and elevation in degrees, such as -60,40",
            )
        return cls(float(match[1]), float(match[2]))

    @property
    def axes(self) -> NDArray[np.float32]:
        """Unit vectors to the right, up, and towards the camera, as rows, float32 (3, 3)."""
        azimuth = math.radians(self.azimuth)
        elevation = math.radians(self.elevation)
        right = (-math.sin(azimuth), math.cos(azimuth), 0.0)
        towards = (
            math.cos(elevation) * math.cos(azimuth),
            math.cos(elevation) * math.sin(azimuth),
            math.sin(elevation),
        )
        return np.array([right, np.cross(towards, right), towards], np.float32)

    def project(self, points: NDArray[np.float32], width: int, height: int) -> Projected:
        """Project points so that they just fit into a picture.

        Args:
            points: float32 (V, 3), finite; at least one.
            width: Width of the picture, in pixels.
            height: Height of the picture, in pixels.
        """
        axes = self.axes
        right, up, towards = axes @ np.ascontiguousarray(points.T)
        focal = 0.5 * min(width, height) / math.tan(FIELD_OF_VIEW / 2)

        # A point is in the picture if |sideways - shift| <= slope * (distance - towards), on both
        # sides. The extremes over all points give the smallest distance, and its shift.
        slopes = np.array([width, height], np.float32) * np.float32(FILLED / 2 / focal)
        rows = []
        for slope, sideways in zip(slopes, (right, up), strict=True):
            rows.append([(slope * towards + sideways).max(), (slope * towards - sideways).max()])
        extremes = np.array(rows)
        fitting_distance = float((extremes.sum(axis=1) / 2 / slopes).max())
        distance = max(fitting_distance, float(towards.max()) + 2 * NEAR)
        shift_right, shift_up = extremes @ [0.5, -0.5]
        position = np.array([shift_right, shift_up, distance], np.float32)

        nearness = 1 / np.maximum(position[2] - towards, np.float32(NEAR))
        scale = np.float32(focal) * nearness
        return Projected(
            x=np.float32(width / 2 - 0.5) + (right - position[0]) * scale,
            y=np.float32(height / 2 - 0.5) - (up - position[1]) * scale,
            nearness=nearness,
            scale=scale,
            position=position @ axes,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Projected:
    """The positions of points in a picture.

    Attributes:
        x: float32 (V,), pixels from the left; whole numbers are the middles of pixels.
        y: float32 (V,), pixels from the top; whole numbers are the middles of pixels.
        nearness: float32 (V,), 1 / metres in front of the camera; positive.
        scale: float32 (V,), pixels per metre at that distance.
        position: float32 (3,), the camera, in the frame of the points.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    nearness: NDArray[np.float32]
    scale: NDArray[np.float32]
    position: NDArray[np.float32]
