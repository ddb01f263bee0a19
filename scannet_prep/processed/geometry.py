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
    points = np.stack([*columns], axis=1, dtype=np.float32, casting="same_kind")
    units = np.stack([*sums], axis=1, dtype=np.float16, casting="same_kind")
    return points, units


def move_columns(
    columns: NDArray[np.float64],
    matrix: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Multiply vectors, float64 (3, V), by a matrix (3, 3), or (3, 4) with a shift.

    Computing in float32 would be off by up to 1.4e-6 m.
    """
    moved = np.empty_like(columns)
    # Not a matrix product, so that the order of the additions is the same on every machine.
    for moved_axis, factors in zip(moved, matrix, strict=True):
        np.multiply(columns[0], factors[0], out=moved_axis)
        moved_axis += columns[1] * factors[1]
        moved_axis += columns[2] * factors[2]
        # A matrix (3, 4) has a shift in its last column.
        if len(factors) == 4:
            moved_axis += factors[3]
    return moved


def _sum_products(
    columns: NDArray[np.float64],
    faces: NDArray[np.int32],
) -> NDArray[np.float64]:
    """Add up, for each vertex, the cross products of two edges of its faces, float64 (3, V).

    A face without area gives 0, and not a direction that consists of rounding errors: edges between
    float32 coordinates are exact in float64, and the two halves of its product are rounded alike.
    The order of the additions is the same on every machine.
    """
    # x and y of a vertex are one complex number: NumPy finds and adds two numbers as fast as one.
    xy = np.empty(columns.shape[1], np.complex128)
    xy.real, xy.imag, z = columns
    xy_sums = np.zeros_like(xy)
    z_sums = np.zeros_like(z)
    for start in range(0, len(faces), _FACES_AT_ONCE):
        part = faces[start : start + _FACES_AT_ONCE]
        corners = part.T.astype(np.intp, order="C")
        # The first corner of each face, and the edges from it to the other two.
        xy_origin, xy_a, xy_b = (xy.take(corner) for corner in corners)
        z_origin, z_a, z_b = (z.take(corner) for corner in corners)
        xy_a -= xy_origin
        xy_b -= xy_origin
        z_a -= z_origin
        z_b -= z_origin

        xy_product = np.empty_like(xy_a)
        xy_product.real = xy_a.imag * z_b - z_a * xy_b.imag
        xy_product.imag = z_a * xy_b.real - xy_a.real * z_b
        z_product = xy_a.real * xy_b.imag - xy_a.imag * xy_b.real
        # Each product counts for the three vertices of its face.
        for corner in corners:
            np.add.at(xy_sums, corner, xy_product)
            np.add.at(z_sums, corner, z_product)
    return np.stack([xy_sums.real, xy_sums.imag, z_sums])
