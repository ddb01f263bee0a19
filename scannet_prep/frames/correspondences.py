"""The vertex that each pixel of an image sees.

The mesh is drawn with a depth buffer. A pixel shows the face that its ray meets first, and sees the
corner of the face that is nearest to this place. Pointcept takes the nearest vertex of the whole
scan there, which is nearly always this corner.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scannet_prep.processed.geometry import move_columns
from scannet_prep.raw.mesh import Mesh
from scannet_prep.raw.sensor_stream import SensorCamera, find_tracked

# Faces are drawn in parts whose arrays stay small.
_FACES_AT_ONCE = 256
# In metres. Sensors measure nothing nearer.
_NEAREST = 0.1
# Where there is no face: 1 / depth.
_NOTHING = 1e-9
_MILLIMETRES = 1000.0
# In metres, as for `project`.
_DEPTH_TOLERANCE = 0.05
# In metres, as for Pointcept.
_MAX_DISTANCE = 0.01


def find_vertices(
    mesh: Mesh,
    pose: NDArray[np.float32],
    camera: SensorCamera,
    depth: NDArray[np.uint16] | None = None,
) -> NDArray[np.int32]:
    """Find the vertex that each pixel sees.

    Args:
        mesh: The mesh, in the frame of the scan.
        pose: (4, 4), scan <- camera. If tracking was lost, no pixel sees a vertex.
        camera: The camera.
        depth: uint16 (H, W), millimetres. Pixels see no vertex where nothing was measured, or the
            mesh is not within 5 cm of the measured depth. None to find what Pointcept finds: its
            rays are half a pixel to the right and below, and pixels see a vertex within 1 cm.

    Returns:
        int32 (H, W), the index of the vertex; -1 for none.
    """
    width, height = camera.size
    if not find_tracked(pose[np.newaxis])[0]:
        return np.full((height, width), -1, np.int32)
    shift = 0.5 if depth is None else 0
    pixel_from_camera = camera.intrinsic[:3, :3].astype(np.float64)
    matrix = pixel_from_camera @ np.linalg.inv(pose.astype(np.float64))[:3]
    # Column and row, times the depth; and the depth.
    points = move_columns(mesh.positions.T.astype(np.float64), matrix)
    faces = mesh.faces[(points[2] > _NEAREST)[mesh.faces].all(axis=1)]
    # Those without area have no inverse.
    faces = faces[np.linalg.det(points.T[faces]) != 0]
    rays = np.ones((3, height * width))
    rays[1], rays[0] = np.divmod(np.arange(height * width), width)
    rays[:2] += shift

    nearness = np.full(height * width, _NOTHING)
    shown = np.zeros((height * width, 3), np.int32)
    for start in range(0, len(faces), _FACES_AT_ONCE):
        part = faces[start : start + _FACES_AT_ONCE]
        corners = points.T[part]
        # The pixels of the rectangle around each face.
        places = corners[:, :, :2] / corners[:, :, 2:] - shift
        borders = np.ceil(places.min(axis=1)), np.floor(places.max(axis=1))
        first, last = np.clip(borders, 0, np.subtract(camera.size, 1)).astype(int)
        widths, heights = (last - first + 1).T
        counts = widths * heights
        face = np.repeat(np.arange(len(part)), counts)
        offsets = np.arange(len(face)) - (counts.cumsum() - counts)[face]
        rows, columns = np.divmod(offsets, widths[face])
        pixels = (first @ [1, width])[face] + rows * width + columns
        # A ray is the sum of the corners with these weights, which are positive within the face.
        # Where it meets the face, weights add up to 1. So their sum here is 1 / depth.
        inverse = np.linalg.inv(corners)[face]
        weights = np.einsum("jn,nji->in", rays[:, pixels], inverse, order="C")
        near = weights.sum(axis=0) * (weights.min(axis=0) >= 0)
        np.maximum.at(nearness, pixels, near)
        is_shown = near == nearness[pixels]
        shown[pixels[is_shown]] = part[face[is_shown]]

    rays[:2] -= shift
    ends = rays / nearness
    camera_from_pixel = np.linalg.inv(pixel_from_camera)
    distances = []
    for corner in shown.T:
        offsets = camera_from_pixel @ (points[:, corner] - ends)
        distances.append(np.linalg.norm(offsets, axis=0))
    if depth is None:
        is_seen = np.min(distances, axis=0) < _MAX_DISTANCE
    else:
        is_seen = np.abs(ends[2] - depth.ravel() / _MILLIMETRES) < _DEPTH_TOLERANCE
    vertices = np.choose(np.argmin(distances, axis=0), shown.T)
    return np.where(is_seen, vertices, np.int32(-1)).reshape(height, width)


def list_pixels(vertices: NDArray[np.int32]) -> NDArray[np.int32]:
    """List the pixels that see a vertex.

    Args:
        vertices: int32 (H, W), the index of the vertex; -1 for none.

    Returns:
        int32 (N, 3): column, row, vertex.
    """
    is_seen = vertices >= 0
    pixels = np.argwhere(is_seen)[:, ::-1]
    return np.column_stack([pixels, vertices[is_seen]]).astype(np.int32)
