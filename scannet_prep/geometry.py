"""Axis alignment and vertex normals, in double precision.

Coordinates are kept as one array an axis, (3, V): NumPy reads and writes those several times as fast as rows of three.
A compiled loop takes the place of this where numba is installed; the results are the same, bit for bit.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.compiled import MIN_SINE_SQUARED, compile_geometry

# Faces are gone through in parts whose arrays stay in the processor's cache.
_FACES_AT_ONCE = 16_384
# To load numba takes as long as it saves in so many scenes of the release.
_MESHES_WITHOUT_LOOP = 64
_meshes = itertools.count()


def points_and_normals(
    positions: NDArray[np.floating[Any]], faces: NDArray[np.int32], aligned_from_scan: NDArray[np.float64] | None
) -> tuple[NDArray[np.float32], NDArray[np.float16]]:
    """Compute what is saved of a mesh's geometry: points and normals, both in the same frame.

    Args:
        positions: (V, 3), metres, frame of the scan.
        faces: int32 (F, 3), indices into `positions`, in range.
        aligned_from_scan: float64 (4, 4), the `axisAlignment` of the scan; None to stay in the frame of the scan.

    Returns:
        Points, float32 (V, 3), metres, and normals, float16 (V, 3): weighted by the area of the faces around each
        vertex, of unit length; (0, 0, 0) where a vertex has no face, or only faces without area.
    """
    points, normals = points_and_exact_normals(positions, faces, aligned_from_scan)
    return points, normals.astype(np.float16)


def points_and_exact_normals(
    positions: NDArray[np.floating[Any]], faces: NDArray[np.int32], aligned_from_scan: NDArray[np.float64] | None
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Compute `points_and_normals`, with the normals as they are before they are rounded, float64 (V, 3)."""
    is_worth_it = compile_geometry.cache_info().currsize or next(_meshes) >= _MESHES_WITHOUT_LOOP
    loop = compile_geometry() if is_worth_it and positions.dtype == np.float32 else None
    if loop is not None:
        matrix = np.empty((0, 4)) if aligned_from_scan is None else np.ascontiguousarray(aligned_from_scan, np.float64)
        return loop(np.ascontiguousarray(positions), np.ascontiguousarray(faces), matrix)
    exact = np.ascontiguousarray(positions.T, np.float64)
    if aligned_from_scan is not None:
        exact = _align(exact, aligned_from_scan)
    points = np.empty(positions.shape, np.float32)
    for axis, column in enumerate(exact):
        points[:, axis] = column
    return points, _unit_normals(exact, faces)


def load_compiled_loop() -> bool:
    """Use the compiled loop from now on, as a process of many scenes does by itself; gives whether there is one."""
    return compile_geometry() is not None


def _align(points: NDArray[np.float64], aligned_from_scan: NDArray[np.float64]) -> NDArray[np.float64]:
    """Move points, float64 (3, V). Computing in float32 would be off by up to 1.4e-6 m."""
    aligned = np.empty_like(points)
    term = np.empty_like(points[0])
    # Written out, and not as a matrix product, so that the order of the additions is the same on every machine.
    for row, (a, b, c, shift) in zip(aligned, aligned_from_scan[:3], strict=True):
        np.multiply(points[0], a, out=row)
        row += np.multiply(points[1], b, out=term)
        row += np.multiply(points[2], c, out=term)
        row += shift
    return aligned


def _unit_normals(points: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    """Compute normals, float64 (V, 3), from points, float64 (3, V)."""
    # Added up in the order of the faces, and at each face in that of its corners, as the loop does.
    products = _cross_edges(points, faces)
    corners = faces.reshape(-1).astype(np.intp)
    sums = [np.bincount(corners, np.repeat(product, 3), points.shape[1]) for product in products]
    x, y, z = sums
    length = np.sqrt(x * x + y * y + z * z)
    length[length == 0.0] = 1.0
    normals = np.empty(points.shape[::-1], np.float64)
    for axis, total in enumerate(sums):
        np.divide(total, length, out=normals[:, axis])
    return normals


def _cross_edges(points: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    """Compute the cross product of two edges of each face, float64 (3, F); 0 where the face has no area."""
    products = np.empty((3, len(faces)), np.float64)
    # No edge is longer than the diagonal of the box around all points: only below this, a product can be too small.
    longest_squared = float(np.square(np.ptp(points, axis=1)).sum())
    suspicious = 2 * MIN_SINE_SQUARED * longest_squared**2
    for start in range(0, products.shape[1], _FACES_AT_ONCE):
        part = slice(start, start + _FACES_AT_ONCE)
        first, second, third = faces[part].T.astype(np.intp, order="C")
        edges = []
        for axis in points:
            origin = axis.take(first, mode="clip")  # all are in range: `clip` only spares NumPy a buffer
            edges.append((axis.take(second, mode="clip") - origin, axis.take(third, mode="clip") - origin))
        (ax, bx), (ay, by), (az, bz) = edges
        x, y, z = (products[axis, part] for axis in range(3))
        np.multiply(ay, bz, out=x)
        np.multiply(az, bx, out=y)
        np.multiply(ax, by, out=z)
        x -= az * by
        y -= ax * bz
        z -= ay * bx
        area = x * x + y * y + z * z
        few = np.flatnonzero(area <= suspicious)
        a, b = (np.stack([edge[few] for edge in axes]) for axes in ((ax, ay, az), (bx, by, bz)))
        limit = MIN_SINE_SQUARED * (a[0] * a[0] + a[1] * a[1] + a[2] * a[2])
        limit *= b[0] * b[0] + b[1] * b[1] + b[2] * b[2]
        products[:, start + few[area[few] <= limit]] = 0.0
    return products
