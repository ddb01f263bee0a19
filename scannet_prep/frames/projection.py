"""Projection of points into images.

    pixel = round(intrinsic @ inverse(camera_to_points) @ point)

A point is visible if it is in front of the camera, within the image, and not behind the surface
that the depth image shows. BPNet and OpenScene do the same. The defaults select the points that
BPNet uses with voxels of 5 cm; `relative=True`, `tolerance=0.25` and, at 320 x 240, `margin=10`
those of OpenScene.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.processed.geometry import move_columns

if TYPE_CHECKING:
    from scannet_prep.processed.scene import ProcessedScene

Floats: TypeAlias = NDArray[np.floating[Any]]

_MILLIMETRES = 1000.0


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
            there, and if their depth differs from it by more than the tolerance. None: no point
            hides another one.
        tolerance: Largest difference of depths, in metres.
        margin: Points that are nearer to the border of the image are not visible; in pixels.
        relative: Whether the tolerance is a share of the measured depth, not metres.

    Returns:
        `pixels`, int32 (V, 2): column and row of each point; -1, -1 if it is not visible. And
        `visible`, bool (V,).

    Raises:
        UsageError: The depth image has another shape or type, or the pose cannot be used, because
            tracking was lost.
    """
    points = np.asarray(points)
    intrinsic_matrix = np.asarray(intrinsics, np.float64)
    points_from_camera = _check_pose(camera_to_points)
    width, height = size
    if depth is not None and (depth.shape != (height, width) or depth.dtype != np.uint16):
        raise UsageError(
            f"the depth image is {depth.dtype} {depth.shape}, expected uint16 in millimetres, "
            f"of the size of the view, {(height, width)}",
            "give the size and the intrinsics of the depth image",
        )
    # From points to pixels, (3, 4). In float64, so that no result depends on rounding errors.
    matrix = intrinsic_matrix[:3, :3] @ np.linalg.inv(points_from_camera)[:3]
    # Points that are not finite, or far too large, are not visible.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        columns, rows, depths = move_columns(points.T.astype(np.float64), matrix)
        columns = np.rint(columns / depths)
        rows = np.rint(rows / depths)

    # Points behind the camera, and those in its centre, have no pixel.
    visible = depths > 0
    visible &= (columns >= margin) & (columns < width - margin)
    visible &= (rows >= margin) & (rows < height - margin)

    # Only the points of the image have coordinates that fit into int32.
    candidates = np.flatnonzero(visible)
    pixels = np.full((len(points), 2), -1, np.int32)
    pixels[candidates, 0] = columns[candidates]
    pixels[candidates, 1] = rows[candidates]
    if depth is not None:
        measured = depth[pixels[candidates, 1], pixels[candidates, 0]] / _MILLIMETRES
        limit = tolerance * measured if relative else tolerance
        is_hidden = (measured == 0) | (np.abs(measured - depths[candidates]) > limit)
        visible[candidates[is_hidden]] = False
        pixels[candidates[is_hidden]] = -1
    return pixels, visible


def camera_in(sample: Mapping[str, Any] | ProcessedScene, pose: Floats) -> NDArray[np.float64]:
    """Convert the pose of a frame into the frame of the points of a scene.

    Poses are in the frame of the scan. If the points are axis-aligned, the pose must be, too.

    Args:
        sample: A sample of `ScanNet`, before transforms; or a processed scene.
        pose: (4, 4), scan <- camera.

    Returns:
        float64 (4, 4), points <- camera.

    Raises:
        UsageError: A sample does not record `is_aligned`, or has no `axis_alignment`; or the pose
            cannot be used, because tracking was lost.
    """
    scan_from_camera = _check_pose(pose)
    if isinstance(sample, Mapping):
        is_aligned = getattr(sample, "is_aligned", None)
        axis_alignment = sample.get("axis_alignment")
    else:
        is_aligned = sample.meta.options.align_axis
        axis_alignment = sample.axis_alignment
    if is_aligned is None or axis_alignment is None:
        raise UsageError(
            "the sample does not record is_aligned and axis_alignment: it is not as the dataset "
            "gives it, a transform has moved its points, or keys= leaves axis_alignment out",
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
