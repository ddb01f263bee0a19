"""From where a scene is looked at, and where its vertices land in a picture."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError

_VIEWS = {
    "orbit": (-60.0, 40.0),
    "top": (-90.0, 90.0),
}
_ANGLES = re.compile(r"([-+]?\d{1,3}(?:\.\d{1,3})?),([-+]?\d{1,2}(?:\.\d{1,3})?)")
FIELD_OF_VIEW = math.radians(40)
NEAR = 0.05
FILLED = 0.96  # of the picture, in the direction that is the tighter one


@dataclass(frozen=True, slots=True)
class Camera:
    """A direction to look from; how far away is decided by what is to be seen.

    Attributes:
        azimuth: In degrees, counter-clockwise from above: at 0 the camera is on the side of greater x, at 90 of greater
            y, at -90 of smaller y, so that x goes to the right in the picture.
        elevation: In degrees: 0 is level, 90 looks straight down.
    """

    azimuth: float = _VIEWS["orbit"][0]
    elevation: float = _VIEWS["orbit"][1]

    @classmethod
    def parse(cls, text: str) -> Camera:
        """Parse `orbit`, `top`, or azimuth and elevation such as `-60,40`.

        Raises:
            UsageError: It is something else.
        """
        if text in _VIEWS:
            return cls(*_VIEWS[text])
        if (match := _ANGLES.fullmatch(text)) is None or abs(float(match[2])) > 90:
            hint = f"{', '.join(_VIEWS)}, or azimuth and elevation in degrees, such as -60,40"
            raise UsageError(f"{text!r:.80} is not a view", f"views are: {hint}")
        return cls(float(match[1]), float(match[2]))

    @property
    def axes(self) -> NDArray[np.float32]:
        """Unit vectors to the right, up, and towards the camera, as rows, float32 (3, 3)."""
        azimuth, elevation = math.radians(self.azimuth), math.radians(self.elevation)
        right = (-math.sin(azimuth), math.cos(azimuth), 0.0)
        back = (
            *(math.cos(elevation) * part for part in (math.cos(azimuth), math.sin(azimuth))),
            math.sin(elevation),
        )
        return np.array([right, np.cross(back, right), back], np.float32)

    def project(self, points: NDArray[np.float32], width: int, height: int) -> Projected:
        """Find where points land in a picture that they just fit into.

        Args:
            points: float32 (V, 3), finite; at least one.
            width: Of the picture, in pixels.
            height: Of the picture, in pixels.
        """
        seen = self.axes @ np.ascontiguousarray(points.T)
        focal = 0.5 * min(width, height) / math.tan(FIELD_OF_VIEW / 2)
        slopes = np.array([width, height], np.float32) * np.float32(FILLED / 2 / focal)
        # A point is in the picture if |sideways - shift| <= slope * (distance - towards), on both sides: with the
        # extremes over all points, the smallest distance and its shift follow.
        extremes = np.array(
            [
                [(slope * seen[2] + sideways).max(), (slope * seen[2] - sideways).max()]
                for slope, sideways in zip(slopes, seen[:2], strict=True)
            ]
        )
        distance = max(
            float((extremes.sum(axis=1) / 2 / slopes).max()), float(seen[2].max()) + 2 * NEAR
        )
        position = np.array([*(extremes @ [0.5, -0.5]), distance], np.float32)
        nearness = 1 / np.maximum(position[2] - seen[2], np.float32(NEAR))
        scale = np.float32(focal) * nearness
        x = np.float32(width / 2 - 0.5) + (seen[0] - position[0]) * scale
        y = np.float32(height / 2 - 0.5) - (seen[1] - position[1]) * scale
        return Projected(x, y, nearness, scale, position @ self.axes)


@dataclass(frozen=True, slots=True, eq=False)
class Projected:
    """Points in a picture.

    Attributes:
        x: float32 (V,), pixels from the left; whole numbers are the middles of pixels.
        y: float32 (V,), pixels from the top; the same.
        nearness: float32 (V,), 1 / metres in front of the camera; positive.
        scale: float32 (V,), pixels of a metre at that distance.
        position: float32 (3,), where the camera is, in the frame of the points.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    nearness: NDArray[np.float32]
    scale: NDArray[np.float32]
    position: NDArray[np.float32]
