"""Axis alignment and vertex normals, in double precision.

Coordinates are kept as one array an axis, (3, V): NumPy reads and writes those several times as fast as rows of three.
A compiled loop takes the place of this where numba is installed; the results are the same, bit for bit.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.compiled import compile_geometry

# Faces are gone through in parts whose arrays stay in the processor's cache.
_FACES_AT_ONCE = 16_384
# To load numba takes as long as it saves in so many scenes of the release.
_MESHES_WITHOUT_LOOP = 64
_meshes = itertools.count()


def points_and_normals(
    positions: NDArray[np.floating[Any]], faces: NDArray[np.int32], aligned_from_scan: NDArray[np.float64] | None
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Compute what is saved of a mesh's geometry: points and normals, both in the same frame.

    Args:
        positions: (V, 3), metres, frame of the scan.
        faces: int32 (F, 3), indices into `positions`, in range.
        aligned_from_scan: float64 (4, 4), the `axisAlignment` of the scan; None to stay in the frame of the scan.

    Returns:
        Points, float32 (V, 3), metres, and normals, float64 (V, 3): weighted by the area of the faces around each
        vertex, of unit length; (0, 0, 0) where a vertex has no face, or only faces without area.
    """
    matrix = np.empty((0, 4)) if aligned_from_scan is None else np.ascontiguousarray(aligned_from_scan, np.float64)
    turn = _turn_of(matrix) if len(matrix) else np.empty((0, 3))
    is_worth_it = compile_geometry.cache_info().currsize or next(_meshes) >= _MESHES_WITHOUT_LOOP
    loop = compile_geometry() if is_worth_it and positions.dtype == np.float32 else None
    if loop is not None:
        return loop(np.ascontiguousarray(positions), np.ascontiguousarray(faces), matrix, turn)
    columns = np.ascontiguousarray(positions.T, np.float64)
    points = np.empty(positions.shape, np.float32)
    for axis, column in enumerate(move_columns(columns, matrix[:3]) if len(matrix) else columns):
        points[:, axis] = column
    sums = _sum_products(columns, faces)
    x, y, z = sums = move_columns(sums, turn) if len(turn) else sums
    length = np.sqrt(x * x + y * y + z * z)
    length[length == 0.0] = 1.0
    normals = np.empty(positions.shape, np.float64)
    for axis, total in enumerate(sums):
        np.divide(total, length, out=normals[:, axis])
    return points, normals


def _turn_of(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """What turns the cross product of two vectors into that of the two after a matrix: of a rotation, the rotation."""
    a, b, c = matrix[:3, :3].tolist()
    pairs = ((b, c), (c, a), (a, b))
    return np.array([[p[i - 2] * q[i - 1] - p[i - 1] * q[i - 2] for i in range(3)] for p, q in pairs])


def move_columns(columns: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply vectors, float64 (3, V), by a matrix (3, 3), or (3, 4) with a shift.

    Computing in float32 would be off by up to 1.4e-6 m.
    """
    moved = np.empty_like(columns)
    term = np.empty_like(columns[0])
    # Written out, and not as a matrix product, so that the order of the additions is the same on every machine.
    for row, (a, b, c, *shift) in zip(moved, matrix, strict=True):
        np.multiply(columns[0], a, out=row)
        row += np.multiply(columns[1], b, out=term)
        row += np.multiply(columns[2], c, out=term)
        if shift:
            row += shift[0]
    return moved


def _sum_products(columns: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    """Add up, at each vertex, the cross products of two edges of its faces, float64 (3, V).

    Of float32 coordinates, all this is exact but for the last bits, so that a face without area gives 0 and no
    direction that is made of rounding. The order is that of the faces, and at each face that of its corners.
    """
    products = np.empty((3, len(faces)), np.float64)
    # One piece for all parts: to use new memory each time takes as long as the rest.
    memory = np.empty((3, 3, min(len(faces), _FACES_AT_ONCE)), np.float64)
    for start in range(0, len(faces), _FACES_AT_ONCE):
        part = slice(start, start + _FACES_AT_ONCE)
        corners = faces[part].T.astype(np.intp, order="C")
        # All are in range: `clip` only spares NumPy a buffer.
        origin, a, b = (
            columns.take(corner, axis=1, out=out, mode="clip")
            for corner, out in zip(corners, memory[:, :, : corners.shape[1]], strict=True)
        )
        a -= origin
        b -= origin
        x, y, z = products[:, part]
        np.multiply(a[1], b[2], out=x)
        np.multiply(a[2], b[0], out=y)
        np.multiply(a[0], b[1], out=z)
        x -= np.multiply(a[2], b[1], out=origin[0])
        y -= np.multiply(a[0], b[2], out=origin[1])
        z -= np.multiply(a[1], b[0], out=origin[2])
    corners, sums = faces.reshape(-1).astype(np.intp), np.empty_like(columns)
    weights = np.empty(faces.shape, np.float64)
    for total, product in zip(sums, products, strict=True):
        for corner in range(3):  # np.repeat takes twice as long
            weights[:, corner] = product
        total[:] = np.bincount(corners, weights.reshape(-1), columns.shape[1])
    return sums
