"""Axis alignment and vertex normals, in double precision.

There are two implementations with identical results: NumPy, and a loop compiled by numba where that is installed (the
extra `fast`), which takes about a sixth of the time. Both add in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A face counts as having no area where the sine between two of its edges is below 1e-10. That is far below what float32
# coordinates can express (about 1e-7), and above the rounding of the rotation, which would otherwise turn three
# vertices on a line into a normal of arbitrary direction.
_MIN_SINE_SQUARED = 1e-20


def align(positions: NDArray[np.floating[Any]], aligned_from_scan: NDArray[np.float64]) -> NDArray[np.float64]:
    """Move points from the frame of the scan into the axis-aligned frame.

    Args:
        positions: (V, 3), metres, frame of the scan.
        aligned_from_scan: float64 (4, 4), the `axisAlignment` of the scan.

    Returns:
        float64 (V, 3), metres, aligned frame. Computing in float32 would be off by up to 1.4e-6 m.
    """
    x, y, z = (positions[:, axis].astype(np.float64) for axis in range(3))
    aligned = np.empty((len(positions), 3), np.float64)
    for axis in range(3):
        m = aligned_from_scan[axis]
        # Written out, and not as a matrix product, so that the order of the additions is the same on every machine.
        aligned[:, axis] = x * m[0] + y * m[1] + z * m[2] + m[3]
    return aligned


def vertex_normals(positions: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    """Compute vertex normals, weighted by the area of the faces around each vertex.

    Args:
        positions: float64 (V, 3), metres.
        faces: int32 (F, 3), indices into `positions`, in range.

    Returns:
        float64 (V, 3): unit vectors in the frame of `positions`; (0, 0, 0) where a vertex has no face, or only faces
        without area.
    """
    compiled = _compile_vertex_normals()
    if compiled is not None:
        return compiled(positions, faces)
    return vertex_normals_numpy(positions, faces)


def vertex_normals_numpy(positions: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    """Do what `vertex_normals` does, in NumPy alone."""
    corners = faces.reshape(-1).astype(np.intp)
    first, second, third = corners[0::3], corners[1::3], corners[2::3]
    edges = []
    for axis in range(3):
        values = np.ascontiguousarray(positions[:, axis])
        origin = values.take(first)
        edges.append((values.take(second) - origin, values.take(third) - origin))
    (ax, bx), (ay, by), (az, bz) = edges
    products = (ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx)
    area = products[0] * products[0] + products[1] * products[1] + products[2] * products[2]
    limit = _MIN_SINE_SQUARED * (ax * ax + ay * ay + az * az) * (bx * bx + by * by + bz * bz)
    has_no_area = area <= limit
    normals = np.empty((len(positions), 3), np.float64)
    for axis, product in enumerate(products):
        product[has_no_area] = 0.0
        normals[:, axis] = np.bincount(corners, np.repeat(product, 3), len(positions))
    x, y, z = normals[:, 0], normals[:, 1], normals[:, 2]
    length = np.sqrt(x * x + y * y + z * z)
    length[length == 0.0] = 1.0
    normals /= length[:, None]
    return normals


def has_compiled_normals() -> bool:
    """Whether the compiled implementation is in use."""
    return _compile_vertex_normals() is not None


@cache
def _compile_vertex_normals() -> Callable[[NDArray[np.float64], NDArray[np.int32]], NDArray[np.float64]] | None:
    try:
        import numba
    except ImportError:
        return None
    signature = numba.float64[:, ::1](numba.float64[:, ::1], numba.int32[:, ::1])
    try:
        compiled = numba.njit(signature, cache=True)(_vertex_normals_loop)
    except RuntimeError:  # no folder to keep the compiled code in: read-only installation and no home
        compiled = numba.njit(signature)(_vertex_normals_loop)
    return compiled


def _vertex_normals_loop(positions: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    """Compute what `vertex_normals_numpy` does, in the same order of additions; compiled by numba."""
    normals = np.zeros((positions.shape[0], 3), np.float64)
    for face in range(faces.shape[0]):
        i, j, k = faces[face, 0], faces[face, 1], faces[face, 2]
        ax = positions[j, 0] - positions[i, 0]
        ay = positions[j, 1] - positions[i, 1]
        az = positions[j, 2] - positions[i, 2]
        bx = positions[k, 0] - positions[i, 0]
        by = positions[k, 1] - positions[i, 1]
        bz = positions[k, 2] - positions[i, 2]
        x = ay * bz - az * by
        y = az * bx - ax * bz
        z = ax * by - ay * bx
        limit = _MIN_SINE_SQUARED * (ax * ax + ay * ay + az * az) * (bx * bx + by * by + bz * bz)
        if x * x + y * y + z * z <= limit:
            continue
        for corner in (i, j, k):
            normals[corner, 0] += x
            normals[corner, 1] += y
            normals[corner, 2] += z
    for vertex in range(normals.shape[0]):
        x, y, z = normals[vertex, 0], normals[vertex, 1], normals[vertex, 2]
        length = np.sqrt(x * x + y * y + z * z)
        if length > 0.0:
            normals[vertex, 0] = x / length
            normals[vertex, 1] = y / length
            normals[vertex, 2] = z / length
    return normals
