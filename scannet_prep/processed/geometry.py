"""Axis alignment and vertex normals, in double precision.

Coordinates are kept as one array per axis, (3, V), which NumPy reads and writes several times as
fast as rows of three.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Faces are processed in parts whose arrays stay in the processor's cache.
_FACES_AT_ONCE = 16_384


def points_and_normals(
    positions: NDArray[np.floating[Any]],
    faces: NDArray[np.int32],
    aligned_from_scan: NDArray[np.float64] | None,
    normals: NDArray[np.floating[Any]] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float16]]:
    """Compute the stored geometry of a mesh: points and normals, both in the same frame.

    Args:
        positions: (V, 3), metres, frame of the scan.
        faces: int32 (F, 3), indices into `positions`, in range.
        aligned_from_scan: float64 (4, 4), the `axisAlignment` of the scan; None to stay in the
            frame of the scan.
        normals: (V, 3), of any length, to be used instead of those of the faces.

    Returns:
        Points, float32 (V, 3), metres, and unit normals, float16 (V, 3), weighted by the area of
        the faces around each vertex; (0, 0, 0) if a vertex has no face, or only faces without area.
    """
    # Positions, and the sum of the cross products at each vertex: both (3, V), frame of the scan.
    columns = np.ascontiguousarray(positions.T, np.float64)
    if normals is None:
        sums = _sum_products(columns, faces)
    else:
        sums = normals.T.astype(np.float64)
    # Move both to the aligned frame. The sums are not computed there, because moved coordinates are
    # rounded, and faces without area would no longer give 0. For the cofactors C of the matrix M,
    # (M a) x (M b) = C (a x b); for a rotation, C = M.
    if aligned_from_scan is not None:
        rotation = aligned_from_scan[:3, :3]
        next_rows = rotation[[1, 2, 0]]
        cofactors = np.cross(next_rows, rotation[[2, 0, 1]])
        columns = move_columns(columns, aligned_from_scan[:3])
        sums = move_columns(sums, cofactors)

    # A vertex without a face of some area has a sum of length 0, and keeps (0, 0, 0).
    x, y, z = sums
    lengths = np.sqrt(x * x + y * y + z * z)
    lengths[lengths == 0] = 1
    sums /= lengths
    return columns.T.astype(np.float32, order="C"), sums.T.astype(np.float16, order="C")


def move_columns(
    columns: NDArray[np.float64],
    matrix: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Multiply vectors, float64 (3, V), by a matrix (3, 3), or (3, 4) with a shift.

    Computing in float32 would be off by up to 1.4e-6 m.
    """
    x, y, z = columns
    moved = []
    for row in matrix:
        # Not a matrix product, so that the order of the additions is the same on every machine.
        axis = x * row[0] + y * row[1] + z * row[2]
        # A matrix (3, 4) has a shift in its last column.
        if len(row) == 4:
            axis += row[3]
        moved.append(axis)
    return np.stack(moved)


def _sum_products(
    columns: NDArray[np.float64],
    faces: NDArray[np.int32],
) -> NDArray[np.float64]:
    """Add up, for each vertex, the cross products of two edges of its faces, float64 (3, V).

    A face without area gives 0, and not a direction that consists of rounding errors: edges between
    float32 coordinates are exact in float64, and the two halves of its product are rounded alike.
    The order of the additions is the same on every machine.
    """
    sums = np.zeros_like(columns)
    for start in range(0, len(faces), _FACES_AT_ONCE):
        part = faces[start : start + _FACES_AT_ONCE]
        corners = part.T.astype(np.intp, order="C")
        # The first corner of each face, and the edges from it to the other two: (3, faces).
        origin, a, b = (columns.take(corner, axis=1) for corner in corners)
        a -= origin
        b -= origin
        product = [
            a[1] * b[2] - a[2] * b[1],
            a[2] * b[0] - a[0] * b[2],
            a[0] * b[1] - a[1] * b[0],
        ]
        # Each product counts for the three vertices of its face.
        for axis_sums, axis_product in zip(sums, product, strict=True):
            for corner in corners:
                np.add.at(axis_sums, corner, axis_product)
    return sums
