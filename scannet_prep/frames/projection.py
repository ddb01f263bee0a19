"""The way between points and pixels: projection of points, and the vertices that pixels see.

    pixel = round(intrinsic @ inverse(camera_to_points) @ point)

A point is visible if it is in front of the camera, within the image, and not behind the surface
that the depth image shows. BPNet and OpenScene do the same. The defaults select the points that
BPNet uses with voxels of 5 cm; `relative=True`, `tolerance=0.25` and, at 320 x 240, `margin=10`
those of OpenScene.

To find the vertex that each pixel sees, the mesh is drawn with a depth buffer. A pixel shows the
face that its ray meets first, and sees the corner of the face that is nearest to this place.
Pointcept takes the nearest vertex of the whole scan there, which is nearly always this corner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.processed.geometry import move_columns
from scannet_prep.raw.sensor_stream import SensorCamera

Floats: TypeAlias = NDArray[np.floating[Any]]

_MILLIMETRES = 1000.0
# Faces are drawn in parts of this many pixels, so that arrays stay small.
_PIXELS_AT_ONCE = 1 << 15
# In metres. Sensors measure nothing nearer.
_NEAREST = 0.1
# 1 / depth where there is no face.
_NOTHING = 1e-9


def project(
    points: Floats,
    camera_to_points: Floats,
    intrinsics: Floats,
    size: tuple[int, int],
    depth: NDArray[np.uint16] | None = None,
    tolerance: float = 0.05,
    margin: int = 0,
    *,
    relative: bool = False,
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Find the pixel of each point, and whether the point is visible.

    Args:
        points: (V, 3), metres.
        camera_to_points: (4, 4), points <- camera: a pose in the frame of the points; see
            `camera_in`.
        intrinsics: (3, 3) or (4, 4), for images of this size. Whole numbers are the middles of
            pixels.
        size: Width and height of the image, in pixels.
        depth: uint16 (height, width), millimetres; 0 where nothing was measured. Points are hidden
            there, and also where their depth differs from the measured one by more than the
            tolerance. None: no point hides another one.
        tolerance: Largest difference of depths, in metres.
        margin: Points nearer than this to the border of the image are not visible; in pixels.
        relative: Whether the tolerance is a share of the measured depth, not metres.

    Returns:
        `pixels`, int32 (V, 2): column and row of each point; -1, -1 if it is not visible. And
        `visible`, bool (V,).

    Raises:
        UsageError: The depth image has another shape or type, or the pose cannot be used, because
            tracking was lost.
    """
    points_from_camera = _check_pose(camera_to_points)
    if depth is not None and (depth.shape != size[::-1] or depth.dtype != np.uint16):
        raise UsageError(
            f"the depth image is {depth.dtype} {depth.shape}, expected uint16 in millimetres, "
            f"of the shape (height, width) = {size[::-1]}",
            "give the size and the intrinsics of the depth image",
        )
    # From points to pixels, (3, 4). In float64, so that no result depends on rounding errors.
    pixel_from_camera = np.asarray(intrinsics, np.float64)[:3, :3]
    matrix = pixel_from_camera @ np.linalg.inv(points_from_camera)[:3]
    # Points that are not finite, or far too large, are not visible.
    with np.errstate(all="ignore"):
        *places, depths = move_columns(np.asarray(points, np.float64).T, matrix)
        places = np.rint(places / depths)
    # Points behind the camera, and those in its centre, have no pixel.
    visible = depths > 0
    for axis_places, length in zip(places, size, strict=True):
        visible &= (axis_places >= margin) & (axis_places < length - margin)
    if depth is not None:
        candidates = np.flatnonzero(visible)
        column, row = places[:, candidates].astype(int)
        measured = depth[row, column] / _MILLIMETRES
        limit = tolerance * measured if relative else tolerance
        differences = np.abs(measured - depths[candidates])
        visible[candidates] = (measured > 0) & (differences <= limit)
    # Only the places of visible points fit into int32.
    pixels = np.where(visible, places, -1).astype(np.int32)
    return pixels.T, visible


def camera_in(sample: Mapping[str, Any], pose: Floats) -> NDArray[np.float64]:
    """Convert the pose of a frame into the frame of the points of a scene.

    Poses are in the frame of the scan. If the points are axis-aligned, the pose must be, too.

    Args:
        sample: A sample of `ScanNet`, before transforms.
        pose: (4, 4), scan <- camera.

    Returns:
        float64 (4, 4), points <- camera.

    Raises:
        UsageError: The sample does not record `is_aligned`, or has no `axis_alignment`; or the pose
            cannot be used, because tracking was lost.
    """
    scan_from_camera = _check_pose(pose)
    is_aligned = getattr(sample, "is_aligned", None)
    axis_alignment = sample.get("axis_alignment")
    if is_aligned is None or axis_alignment is None:
        raise UsageError(
            "the sample does not record is_aligned and axis_alignment: it is not a sample of the "
            "dataset, a transform has moved its points, or keys= leaves axis_alignment out",
            "project the points of the dataset's sample, before transforms, and add "
            "axis_alignment to keys=",
        )
    if not is_aligned:
        return scan_from_camera
    return np.asarray(axis_alignment @ scan_from_camera, np.float64)


def _check_pose(pose: Floats) -> NDArray[np.float64]:
    """Return a pose as float64 (4, 4).

    Raises:
        UsageError: Tracking was lost.
    """
    matrix = np.asarray(pose, np.float64)
    # Lost poses of the release are -inf, NaN or 0.
    if not np.isfinite(matrix).all() or np.linalg.det(matrix) == 0:
        raise UsageError(
            "the pose is not finite, or is 0: tracking was lost in this frame",
            "leave out frames whose is_tracked is False",
        )
    return matrix


def draw_faces(
    positions: Floats,
    faces: NDArray[np.int32],
    pose: Floats,
    camera: SensorCamera,
    offset: float = 0.0,
) -> tuple[NDArray[np.int32], Floats, Floats]:
    """Draw the faces that a camera sees, except those that are very near or partly behind it.

    Args:
        positions: float32 (V, 3), metres, frame of the scan.
        faces: int32 (F, 3), indices of vertices.
        pose: (4, 4), scan <- camera. If it is not finite, no face is seen.
        camera: The camera.
        offset: How far rays are to the right of the middles of their pixels, and below them; in
            pixels. As in Pointcept, the place that a pixel sees is as far away as its ray meets a
            face, but in the direction of the middle of the pixel.

    Returns:
        Three arrays (H, W) about the place that each pixel sees on the first face: the nearest
        corner of the face, int32; its distance from the place, float64, metres; and the depth of
        the place, float64, metres. Where there is no face, the corner is -1, and the others are
        very large; not numbers if the pose is not finite.
    """
    width, height = camera.size
    pixel_count = width * height
    camera_from_scan = np.linalg.inv(pose.astype(np.float64))[:3]
    points = move_columns(positions.T.astype(np.float64), camera_from_scan)
    # Column, row and 1 of each pixel.
    rays = np.ones((3, pixel_count))
    rays[1], rays[0] = np.divmod(np.arange(pixel_count), width)
    ray_from_camera = camera.intrinsic[:3, :3].astype(np.float64)
    ends = np.linalg.inv(ray_from_camera) @ rays
    ray_from_camera[:2, 2] -= offset
    # Column and row of the ray to each vertex, times the depth; and the depth.
    projected = move_columns(points, ray_from_camera)
    faces = faces[(points[2] > _NEAREST)[faces].all(axis=1)]
    # Those without area have no inverse.
    faces = faces[np.linalg.det(projected.T[faces]) != 0]
    corners = projected.T[faces]
    inverses = np.linalg.inv(corners)
    # The pixels of the rectangle around each face; none if it is outside of the image.
    places = corners[:, :, :2] / corners[:, :, 2:]
    first = np.ceil(places.min(axis=1)).clip(0).astype(int)
    last = np.floor(places.max(axis=1)).clip(None, [width - 1, height - 1]).astype(int)
    widths, heights = (last - first + 1).clip(0).T
    counts = widths * heights
    bounds = counts.cumsum()
    first_pixels = first @ [1, width]

    nearness = np.full(pixel_count, _NOTHING)
    shown = np.full((pixel_count, 3), -1, np.int32)
    for start in range(0, counts.sum(), _PIXELS_AT_ONCE):
        numbers = np.arange(start, min(start + _PIXELS_AT_ONCE, bounds[-1]))
        face = np.searchsorted(bounds, numbers, side="right")
        rows, columns = np.divmod(numbers - bounds[face] + counts[face], widths[face])
        pixels = first_pixels[face] + rows * width + columns
        # A ray is the sum of the corners with these weights, which are positive within the face.
        # Where it meets the face, weights add up to 1. So their sum here is 1 / depth.
        weights = np.einsum("jn,nji->in", rays[:, pixels], inverses[face], order="C")
        near = weights.sum(axis=0) * (weights.min(axis=0) >= 0)
        np.maximum.at(nearness, pixels, near)
        is_shown = near == nearness[pixels]
        shown[pixels[is_shown]] = faces[face[is_shown]]

    # As far away as the face is along the ray, but through the middle of the pixel.
    directions = np.linalg.inv(ray_from_camera) @ rays
    ends *= np.linalg.norm(directions, axis=0) / np.linalg.norm(ends, axis=0)
    ends /= nearness
    distances = [np.linalg.norm(points[:, corner] - ends, axis=0) for corner in shown.T]
    nearest = np.choose(np.argmin(distances, axis=0), shown.T)
    shape = (height, width)
    return (
        nearest.reshape(shape),
        np.min(distances, axis=0).reshape(shape),
        ends[2].reshape(shape),
    )
