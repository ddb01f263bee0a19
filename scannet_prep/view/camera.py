"""A camera: the viewing direction, and the projection of points into a picture."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError

# Azimuth and elevation, in degrees.
_NAMED_VIEWS = {
    "orbit": (-60.0, 40.0),
    "top": (-90.0, 90.0),
}
_ANGLES = re.compile(r"([-+]?\d{1,3}(?:\.\d{1,3})?),([-+]?\d{1,2}(?:\.\d{1,3})?)")
FIELD_OF_VIEW = math.radians(40)
# The smallest distance of a visible point from the camera, in metres.
NEAR = 0.05
# From the target of an orthographic camera, in metres. Points behind it are not told apart.
_FARTHEST = 1000.0
# The share of the picture that the points fill, in the tighter direction.
FILLED = 0.96


@dataclass(frozen=True, slots=True)
class Camera:
    """A direction to look from. `project` chooses the distance for the points to show.

    Attributes:
        azimuth: The direction from the points to the camera, in degrees, seen from above,
            counter-clockwise from the x axis: 0 is towards greater x, 90 towards greater y. At -90,
            towards smaller y, the x axis points to the right in the picture.
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
        # The coordinates of the points along the axes of the camera, (V,) each.
        right, up, towards = axes @ np.ascontiguousarray(points.T)
        # In pixels: a metre at a distance of one metre has this length in the picture.
        focal = 0.5 * self._shorter_side(width, height) / math.tan(FIELD_OF_VIEW / 2)
        slopes = np.array([width, height], np.float32) * np.float32(FILLED / 2 / focal)
        position = self._find_position(right, up, towards, slopes)

        nearness, sizes = self._see(position[2] - towards)
        scale = np.float32(focal) * sizes
        # Whole numbers are the middles of pixels: the first pixel reaches from -0.5 to 0.5, and the
        # middle of the picture is at width / 2 - 0.5.
        return Projected(
            x=np.float32(width / 2 - 0.5) + (right - position[0]) * scale,
            y=np.float32(height / 2 - 0.5) - (up - position[1]) * scale,
            nearness=nearness,
            scale=scale,
            # The axes are rows: this product is the position in the frame of the points.
            position=position @ axes,
            has_perspective=self.has_perspective,
        )

    def place(self, points: NDArray[np.float32], width: int, height: int) -> PlacedCamera:
        """Return the camera at the place from which it shows these points in `project`."""
        distance = 1.0
        projected = self.project(points, width, height)
        target = projected.position - distance * self.axes[2]
        x, y, z = target.tolist()
        return PlacedCamera(self.azimuth, self.elevation, (x, y, z), distance)

    @property
    def has_perspective(self) -> bool:
        """Whether things look smaller the farther away they are."""
        return True

    def _see(
        self, distances: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return how near points are, and how large they look; 1 at a distance of one metre.

        Args:
            distances: float32 (V,), metres in front of the camera.

        Returns:
            As `Projected` has them, float32 (V,) each.
        """
        # Far from the origin, float32 rounds by more than NEAR: keep the divisor positive.
        nearness = np.reciprocal(np.maximum(distances, np.float32(NEAR)))
        return nearness, nearness

    def _shorter_side(self, width: int, height: int) -> float:
        """Return the length that the field of view covers, in pixels."""
        return min(width, height)

    def _find_position(
        self,
        right: NDArray[np.float32],
        up: NDArray[np.float32],
        towards: NDArray[np.float32],
        slopes: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Find the nearest position from which all points are in the picture.

        Args:
            right: float32 (V,), the points along the first axis of the camera.
            up: float32 (V,), along the second axis.
            towards: float32 (V,), along the third axis.
            slopes: float32 (2,), half the width and height to fill, at a distance of one metre.

        Returns:
            float32 (3,), along the axes of the camera.
        """
        # In each direction of the picture, the camera moves sideways by `shift`, and away to
        # `distance`. A point fits into the picture if
        #     |sideways - shift| <= slope * (distance - towards),
        # that is, if both
        #     slope * towards + sideways <= slope * distance + shift    (its highest value: upper)
        #     slope * towards - sideways <= slope * distance - shift    (its highest value: lower)
        # The sum of both lines gives the smallest distance, and their difference the shift to it.
        shifts = []
        distances = []
        for slope, sideways in zip(slopes, (right, up), strict=True):
            upper = (slope * towards + sideways).max()
            lower = (slope * towards - sideways).max()
            shifts.append((float(upper) - float(lower)) / 2)
            distances.append(float((upper + lower) * np.float32(0.5) / slope))
        # Both directions must fit, and the nearest point must be in front of the camera.
        distance = max(*distances, float(towards.max()) + 2 * NEAR)
        return np.array([*shifts, distance], np.float32)


@dataclass(frozen=True, slots=True)
class PlacedCamera(Camera):
    """A camera at a fixed place, such as that of a page. Points may be behind it.

    Attributes:
        target: The point in the middle of the picture: x, y, z in metres.
        distance: Distance from the target, in metres; positive.
        aspect: Width of the view divided by its height. A picture of another shape shows all of the
            view, and more at two sides. 0 for the shape of each picture.
    """

    target: tuple[float, float, float] = (0.0, 0.0, 0.0)
    distance: float = 1.0
    aspect: float = 0.0

    def place(self, _points: NDArray[np.float32], _width: int, _height: int) -> PlacedCamera:
        """Return this camera, which has a place."""
        return self

    def find_nearness(self, distance: float) -> float:
        """Return the nearness, as `Projected` has it, of points at a distance in metres."""
        nearness, _ = self._see(np.array([distance], np.float32))
        return float(nearness[0])

    def find_reach(self, points: NDArray[np.float32]) -> float:
        """Return a distance that is larger than those of all points, in metres."""
        low = points.min(axis=0).astype(np.float64)
        high = points.max(axis=0).astype(np.float64)
        to_middle = float(np.linalg.norm((low + high) / 2 - self.target))
        return self.distance + to_middle + float(np.linalg.norm(high - low)) + 2 * NEAR

    def find_depths(self, points: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return how far points, (..., 3), are in front of the camera, float64 (...)."""
        back = self.axes[2].astype(np.float64)
        return np.asarray((np.array(self.target) - points) @ back + self.distance)

    def _shorter_side(self, width: int, height: int) -> float:
        """Return the shorter side of the largest part of a picture that has the aspect."""
        if not self.aspect:
            return min(width, height)
        return min(width, height, width / self.aspect, height * self.aspect)

    def _find_position(
        self,
        _right: NDArray[np.float32],
        _up: NDArray[np.float32],
        _towards: NDArray[np.float32],
        _slopes: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Return the position, along the axes of the camera, float32 (3,)."""
        position = self.axes.astype(np.float64) @ np.array(self.target)
        position[2] += self.distance
        return np.asarray(position, np.float32)


@dataclass(frozen=True, slots=True)
class OrthographicCamera(PlacedCamera):
    """A camera without perspective, which also sees the points behind its position.

    All points have the size that a `PlacedCamera` shows at its target.
    """

    @property
    def has_perspective(self) -> bool:
        """Whether things look smaller the farther away they are."""
        return False

    def _see(
        self, distances: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return how near points are, and how large they look."""
        nearness = np.float32(self.distance + _FARTHEST) - distances
        return np.maximum(nearness, np.float32(NEAR)), np.full_like(distances, 1 / self.distance)


@dataclass(frozen=True, slots=True, eq=False)
class Projected:
    """The positions of points in a picture.

    Attributes:
        x: float32 (V,), pixels from the left; whole numbers are the middles of pixels.
        y: float32 (V,), pixels from the top; whole numbers are the middles of pixels.
        nearness: float32 (V,), positive, and linear within a plane in the picture. In perspective,
            it is 1 / metres in front of the camera, and 1 / NEAR for points that are nearer than
            NEAR or behind the camera; otherwise metres in front of a plane behind the scene.
        scale: float32 (V,), pixels per metre at that distance.
        position: float32 (3,), the camera, in the frame of the points.
        has_perspective: Whether the camera has perspective.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    nearness: NDArray[np.float32]
    scale: NDArray[np.float32]
    position: NDArray[np.float32]
    has_perspective: bool = True

    def approach(
        self, indices: NDArray[np.intp], metres: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the nearness of points of planes through other points, float32 (P,).

        Args:
            indices: (P,), the other points.
            metres: float32 (P,), how much the planes come towards the camera on the way from these;
                negative for planes that recede.
        """
        nearness = self.nearness[indices]
        # The derivative of 1 / distance is 1 / distance**2.
        steps = metres * nearness**2 if self.has_perspective else metres
        return np.asarray((nearness + steps).clip(np.finfo(np.float32).tiny))
