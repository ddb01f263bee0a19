"""The size of a scene, the tilt of its floor, the turn of its walls about z, and its instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.release.label_sets import LabelSet

# nyu40 ids of the classes.
WALL = 1
FLOOR = 2

_CELL_M = 0.1
# Fewer vertices do not determine a floor or the directions of walls.
_MIN_VERTICES = 100
# The plane of a floor is uncertain if the floor spreads less than this in one direction.
_MIN_FLOOR_SPREAD_M = 0.1
# How far walls must agree on a direction, from 0 to 1 (all the same).
_MIN_WALL_AGREEMENT = 0.3
# A surface is upright if the horizontal part of its normal is longer, and its z shorter, than this.
_MIN_UPRIGHT_XY = 0.5
_MAX_UPRIGHT_Z = 0.3
_FIT_COUNT = 5


@dataclass(frozen=True, slots=True)
class SceneMeasures:
    """The size of a scene in the frame of its points, and its pose in the axis-aligned frame.

    Attributes:
        x_m: Extent of all vertices along x, metres.
        y_m: Extent along y.
        z_m: Extent along z.
        area_m2: Area of all squares of 10 cm, seen from above, that contain a vertex.
        floor_tilt_deg: Angle between the normal of the floor and z, 0..90 degrees; None if fewer
            than 100 vertices are labeled as floor, or they lie on a line.
        floor_height_m: z of the middle of the floor, metres; None if the tilt is None.
        wall_turn_deg: Angle about z between the walls and the axes x and y, -45..45 degrees; None
            if fewer than 100 vertices are labeled as wall, or the walls have no common directions.
    """

    x_m: float
    y_m: float
    z_m: float
    area_m2: float
    floor_tilt_deg: float | None = None
    floor_height_m: float | None = None
    wall_turn_deg: float | None = None


def count_instances(groups: Iterable[AnnotatedGroup], label_set: LabelSet) -> dict[int, int]:
    """Count the instances of each class: the groups with vertices, by train id."""
    key = label_set.raw_ids_key.removesuffix("s")
    raw_ids = [getattr(group, key) for group in groups if group.vertex_count]
    train_ids = label_set.train_ids_from_raw_ids(np.array(raw_ids, np.int64), ignore_index=-1)
    return dict(Counter(train_id for train_id in train_ids.tolist() if train_id >= 0))


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
        aligned_from_points: float64 (4, 4), finite; the identity if points are axis-aligned.
    """
    x_m, y_m, z_m = (round(float(np.ptp(axis)), 4) for axis in points.T)

    # A number for the square of each vertex: x + 2^26 y, in squares. float64 represents it exactly.
    squares = np.floor(points[:, :2].astype(np.float64) / _CELL_M) @ (1, 1 << 26)
    area_m2 = round(len(np.unique(squares)) * _CELL_M**2, 2)

    rotation = aligned_from_points[:3, :3]
    shift = aligned_from_points[:3, 3]
    floor_points = points[nyu40_ids == FLOOR].astype(np.float64) @ rotation.T + shift
    wall_normals = normals[nyu40_ids == WALL].astype(np.float64) @ rotation.T
    tilt_deg, height_m = _fit_floor(floor_points)
    return SceneMeasures(
        x_m=x_m,
        y_m=y_m,
        z_m=z_m,
        area_m2=area_m2,
        floor_tilt_deg=tilt_deg,
        floor_height_m=height_m,
        wall_turn_deg=_measure_turn(wall_normals),
    )


def _fit_floor(points: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Fit a plane, leaving out the points farther from it than three median distances.

    Returns:
        Its tilt in degrees and its height in metres; None for both if there is no plane.
    """
    kept = points
    for _ in range(_FIT_COUNT):
        if len(kept) < _MIN_VERTICES:
            return None, None
        middle = kept.mean(axis=0)
        # The smallest variance comes first; its axis is the normal of the plane.
        variances, axes = np.linalg.eigh(np.cov((kept - middle).T))
        if variances[1] < _MIN_FLOOR_SPREAD_M**2:
            return None, None
        distances = np.abs((points - middle) @ axes[:, 0])
        # A tolerance of 1 mm keeps the points of a perfectly flat floor.
        kept = points[distances <= 3 * np.median(distances) + 0.001]
    # The z of the normal is the cosine of the tilt; rounding may make it greater than 1.
    tilt_deg = np.degrees(np.arccos(min(1.0, abs(axes[2, 0]))))
    return round(float(tilt_deg), 3), round(float(middle[2]), 4)


def _measure_turn(normals: NDArray[np.float64]) -> float | None:
    """Return the mean direction of upright surfaces modulo 90 degrees, in -45..45 degrees.

    Args:
        normals: float64 (N, 3), in the axis-aligned frame.
    """
    x, y, z = normals.T
    is_upright = (np.abs(z) < _MAX_UPRIGHT_Z) & (np.hypot(x, y) > _MIN_UPRIGHT_XY)
    if np.count_nonzero(is_upright) < _MIN_VERTICES:
        return None
    # Multiplied by four, the angles of the four walls of a room are equal modulo 360 degrees.
    angles = np.arctan2(y[is_upright], x[is_upright])
    mean = np.exp(4j * angles).mean()
    if abs(mean) < _MIN_WALL_AGREEMENT:
        return None
    return round(float(np.degrees(np.angle(mean)) / 4), 3)
