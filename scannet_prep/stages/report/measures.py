"""How large a scene is, and how well it stands: whether its floor is horizontal and its walls follow the axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WALL, FLOOR = 1, 2  # nyu40 ids
_CELL_M = 0.1
_MIN_VERTICES = 100
_MIN_FLOOR_M = 0.1  # the spread of a floor in either direction, below which a plane is not certain
_MIN_AGREEMENT = 0.3  # of the walls, 0..1
_FITS = 5


@dataclass(frozen=True, slots=True)
class SceneMeasures:
    """The size of a scene in the frame of its points, and its stand in the axis-aligned frame.

    Attributes:
        x_m: Extent along x, metres; of all vertices.
        y_m: Extent along y.
        z_m: Extent along z.
        area_m2: Area of all squares of 10 cm, seen from above, that hold a vertex.
        floor_tilt_deg: Angle between the normal of the floor and z, 0..90 degrees; None where less than 100 vertices
            are labeled as floor, or they lie in a line.
        floor_height_m: z of the middle of the floor, metres; None as above.
        wall_turn_deg: Angle about z between the walls and the axes x and y, -45..45 degrees; None where less than 100
            vertices are labeled as wall, or the walls have no common directions.
    """

    x_m: float
    y_m: float
    z_m: float
    area_m2: float
    floor_tilt_deg: float | None = None
    floor_height_m: float | None = None
    wall_turn_deg: float | None = None


def measure_scene(
    points: NDArray[np.float32],
    normals: NDArray[np.floating[Any]],
    nyu40_ids: NDArray[np.uint8],
    aligned_from_points: NDArray[np.float64],
) -> SceneMeasures:
    """Measure a scene.

    Args:
        points: float32 (V, 3), metres, finite, any frame.
        normals: (V, 3), unit length or zero, in the frame of `points`.
        nyu40_ids: uint8 (V,), 0 unannotated.
        aligned_from_points: float64 (4, 4), finite; the identity where points are axis-aligned.
    """
    rotation, shift = aligned_from_points[:3, :3], aligned_from_points[:3, 3]
    x_m, y_m, z_m = (round(float(np.ptp(axis)), 4) for axis in points.T)
    cells = np.floor(points[:, :2].astype(np.float64) / _CELL_M) @ (
        1,
        1 << 26,
    )  # one number for each square
    area_m2 = round(len(np.unique(cells)) * _CELL_M**2, 2)
    tilt, height = _fit_floor(points[nyu40_ids == FLOOR].astype(np.float64) @ rotation.T + shift)
    turn = _measure_turn(normals[nyu40_ids == WALL].astype(np.float64) @ rotation.T)
    return SceneMeasures(x_m, y_m, z_m, area_m2, tilt, height, turn)


def _fit_floor(points: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Fit a plane, leaving out what lies off it (three times the median distance); gives its tilt and its height."""
    kept = points
    for _ in range(_FITS):
        if len(kept) < _MIN_VERTICES:
            return None, None
        middle = kept.mean(axis=0)
        variances, axes = np.linalg.eigh(np.cov((kept - middle).T))  # the smallest variance first
        if variances[1] < _MIN_FLOOR_M**2:
            return None, None
        distances = np.abs((points - middle) @ axes[:, 0])
        kept = points[distances <= 3 * np.median(distances) + 0.001]
    tilt = np.degrees(np.arccos(min(1.0, abs(axes[2, 0]))))
    return round(float(tilt), 3), round(float(middle[2]), 4)


def _measure_turn(normals: NDArray[np.float64]) -> float | None:
    """The mean of the directions of upright surfaces, where quarter turns make no difference."""
    x, y, z = normals.T
    is_upright = (np.abs(z) < 0.3) & (np.hypot(x, y) > 0.5)
    if np.count_nonzero(is_upright) < _MIN_VERTICES:
        return None
    mean = np.exp(4j * np.arctan2(y[is_upright], x[is_upright])).mean()
    return round(float(np.degrees(np.angle(mean)) / 4), 3) if abs(mean) >= _MIN_AGREEMENT else None
