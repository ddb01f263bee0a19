"""Axis alignment and vertex normals, in double precision.

Coordinates are kept as one array per axis, (3, V), which NumPy reads and writes several times as
fast as rows of three. A loop compiled by numba can replace this module, with the same results bit
for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.compiled import compile_geometry

# Faces are processed in parts whose arrays stay in the processor's cache.
_FACES_AT_ONCE = 16_384


def points_and_normals(
    positions: NDArray[np.floating[Any]],
    faces: NDArray[np.int32],
    aligned_from_scan: NDArray[np.float64] | None,
    *,
    uses_numba: bool = False,
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Compute the stored geometry of a mesh: points and normals, both in the same frame.

    Args:
        positions: (V, 3), metres, frame of the scan.
        faces: int32 (F, 3), indices into `positions`, in range.
        aligned_from_scan: float64 (4, 4), the `axisAlignment` of the scan; None to stay in the
            frame of the scan.
        uses_numba: Whether to use the compiled loop, if numba is installed.

    Returns:
        Points, float32 (V, 3), metres, and unit normals, float64 (V, 3), weighted by the area of
        the faces around each vertex; (0, 0, 0) if a vertex has no face, or only faces without area.
    """
    # Without an alignment, both matrices have no rows.
    matrix = np.empty((0, 4))
    cofactors = np.empty((0, 3))
    if aligned_from_scan is not None:
        matrix = np.ascontiguousarray(aligned_from_scan, np.float64)
        cofactors = _cofactor_matrix(matrix)

    if uses_numba and positions.dtype == np.float32:
        loop = compile_geometry()
        if loop is not None:
            rows = np.ascontiguousarray(positions)
            return loop(rows, np.ascontiguousarray(faces), matrix, cofactors)
    return _points_and_normals(positions, faces, matrix, cofactors)


def _points_and_normals(
    positions: NDArray[np.floating[Any]],
    faces: NDArray[np.int32],
    matrix: NDArray[np.float64],
    cofactors: NDArray[np.float64],
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Compute points and normals with NumPy. The matrices, (4, 4) and (3, 3), may have no rows."""
    # Positions, and the sum of the cross products at each vertex: both (3, V), frame of the scan.
    columns = np.ascontiguousarray(positions.T, np.float64)
    sums = _sum_products(columns, faces)
    # Move both to the aligned frame. The sums are not computed there, because moved coordinates are
    # rounded, and faces without area would no longer give 0.
    if len(matrix):
        columns = move_columns(columns, matrix[:3])
        sums = move_columns(sums, cofactors)
    points = _to_points(columns)

    # Normals. A vertex without a face of some area has a sum of length 0, and keeps (0, 0, 0).
    x, y, z = sums
    length = np.sqrt(x * x + y * y + z * z)
    length[length == 0.0] = 1.0
    normals = np.empty(positions.shape, np.float64)
    for axis, total in enumerate(sums):
        np.divide(total, length, out=normals[:, axis])
    return points, normals


def _to_points(columns: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round coordinates, (3, V), and turn them into rows, (V, 3)."""
    points = np.empty(columns.shape[::-1], np.float32)
    for axis, column in enumerate(columns):
        points[:, axis] = column
    return points


def _cofactor_matrix(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cofactor matrix C, (3, 3), of M = `matrix[:3, :3]`: (M a) x (M b) = C (a x b).

    For a rotation, C = M.
    """
    a, b, c = matrix[:3, :3].tolist()
    return np.array([_cross(b, c), _cross(c, a), _cross(a, b)])


def _cross(p: list[float], q: list[float]) -> list[float]:
    """Return the cross product of two vectors, in Python's own double precision."""
    return [p[1] * q[2] - p[2] * q[1], p[2] * q[0] - p[0] * q[2], p[0] * q[1] - p[1] * q[0]]


def move_columns(columns: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply vectors, float64 (3, V), by a matrix (3, 3), or (3, 4) with a shift.

    Computing in float32 would be off by up to 1.4e-6 m.
    """
    moved = np.empty_like(columns)
    term = np.empty_like(columns[0])
    # Not a matrix product, so that the order of the additions is the same on every machine.
    for moved_axis, factors in zip(moved, matrix, strict=True):
        np.multiply(columns[0], factors[0], out=moved_axis)
        moved_axis += np.multiply(columns[1], factors[1], out=term)
        moved_axis += np.multiply(columns[2], factors[2], out=term)
        # A matrix (3, 4) has a shift in its last column.
        if len(factors) == 4:
            moved_axis += factors[3]
    return moved


def _sum_products(columns: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    """Add up, for each vertex, the cross products of two edges of its faces, float64 (3, V).

    A face without area gives 0, and not a direction that consists of rounding errors: edges between
    float32 coordinates are exact in float64, and the two halves of its product are rounded alike.
    The order of the additions is that of the faces, and for each face that of its corners.
    """
    # The cross product of each face, (3, F).
    products = np.empty((3, len(faces)), np.float64)
    # Memory for a part: (3 corners, 3 axes, faces). It is used again for each part, because new
    # memory takes as long as all the rest.
    memory = np.empty((3, 3, min(len(faces), _FACES_AT_ONCE)), np.float64)
    for start in range(0, len(faces), _FACES_AT_ONCE):
        part = slice(start, start + _FACES_AT_ONCE)
        corners = faces[part].T.astype(np.intp, order="C")
        # First, the coordinates of the three corners of each face. Each array is (3 axes, faces).
        origin, a, b = memory[:, :, : corners.shape[1]]
        for corner, out in zip(corners, (origin, a, b), strict=True):
            # All indices are in range; `clip` only spares NumPy a buffer.
            columns.take(corner, axis=1, out=out, mode="clip")
        # From here on, a and b are the edges from `origin` to the other two corners.
        a -= origin
        b -= origin
        x, y, z = products[:, part]
        np.multiply(a[1], b[2], out=x)
        np.multiply(a[2], b[0], out=y)
        np.multiply(a[0], b[1], out=z)
        # The second half of each product. The memory of `origin` is free for it by now.
        x -= np.multiply(a[2], b[1], out=origin[0])
        y -= np.multiply(a[0], b[2], out=origin[1])
        z -= np.multiply(a[1], b[0], out=origin[2])

    # Each product counts for the three vertices of its face, (F * 3,).
    vertices = faces.reshape(-1).astype(np.intp)
    weights = np.empty(faces.shape, np.float64)
    sums = np.empty_like(columns)
    for total, product in zip(sums, products, strict=True):
        # np.repeat would take twice as long.
        for corner in range(3):
            weights[:, corner] = product
        total[:] = np.bincount(vertices, weights.reshape(-1), columns.shape[1])
    return sums
