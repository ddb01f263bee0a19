"""Axis alignment and vertex normals, in double precision.

There are two implementations with identical results, bit for bit: NumPy, and loops compiled by numba where that is
installed, which take about a tenth of the time. Both add in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.compiled import compile_loop

# A face counts as having no area where the sine between two of its edges is below 1e-10. That is far below what float32
# coordinates can express (about 1e-7), and above the rounding of the rotation, which would otherwise turn three
# vertices on a line into a normal of arbitrary direction.
_MIN_SINE_SQUARED = 1e-20

# No rotation with a shift in metres comes near. Beyond, numbers may overflow, and NumPy knows best what comes of that.
_MAX_COMPILED_COEFFICIENT = 1e6


def points_and_normals(
    positions: NDArray[np.floating[Any]], faces: NDArray[np.int32], aligned_from_scan: NDArray[np.float64] | None
) -> tuple[NDArray[np.float32], NDArray[np.float16]]:
    """Compute `align` and then `vertex_normals`, and round both to what is saved.

    Args:
        positions: (V, 3), metres, frame of the scan.
        faces: int32 (F, 3), indices into `positions`, in range.
        aligned_from_scan: float64 (4, 4), the `axisAlignment` of the scan; None to stay in the frame of the scan.

    Returns:
        Points, float32 (V, 3), metres, and normals, float16 (V, 3), both in the same frame.
    """
    loops = _compile_loops()
    if loops is None or not _is_moderate(aligned_from_scan):
        exact = _exact_points(positions, aligned_from_scan)
        return exact.astype(np.float32), vertex_normals(exact, faces).astype(np.float16)
    if aligned_from_scan is None or positions.dtype != np.float32:
        exact = _exact_points(positions, aligned_from_scan)
        points = exact.astype(np.float32)
    else:
        exact, points = np.empty((len(positions), 3), np.float64), np.empty((len(positions), 3), np.float32)
        loops.align(positions, aligned_from_scan, exact, points)
    normals = np.empty((len(positions), 3), np.float16)
    loops.round_to_half(vertex_normals(exact, faces).reshape(-1), normals.reshape(-1).view(np.uint16))
    return points, normals


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
    loops = _compile_loops()
    if loops is None:
        return vertex_normals_numpy(positions, faces)
    return loops.vertex_normals(positions, faces)


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
    return _compile_loops() is not None


def _exact_points(
    positions: NDArray[np.floating[Any]], aligned_from_scan: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    return positions.astype(np.float64) if aligned_from_scan is None else align(positions, aligned_from_scan)


def _is_moderate(aligned_from_scan: NDArray[np.float64] | None) -> bool:
    return aligned_from_scan is None or bool(np.abs(aligned_from_scan).max() <= _MAX_COMPILED_COEFFICIENT)


class _Loops(NamedTuple):
    align: Callable[[NDArray[Any], NDArray[np.float64], NDArray[np.float64], NDArray[np.float32]], None]
    vertex_normals: Callable[[NDArray[np.float64], NDArray[np.int32]], NDArray[np.float64]]
    round_to_half: Callable[[NDArray[np.float64], NDArray[np.uint16]], None]


@cache
def _compile_loops() -> _Loops | None:
    align_loop = compile_loop(_align_loop, "void(float32[:, ::1], float64[:, ::1], float64[:, ::1], float32[:, ::1])")
    normals_loop = compile_loop(_vertex_normals_loop, "float64[:, ::1](float64[:, ::1], int32[:, ::1])")
    half_loop = compile_loop(_round_to_half_loop, "void(float64[::1], uint16[::1])")
    if align_loop is None or normals_loop is None or half_loop is None:
        return None
    return _Loops(align_loop, normals_loop, half_loop)


def _align_loop(
    positions: NDArray[np.float32],
    aligned_from_scan: NDArray[np.float64],
    aligned: NDArray[np.float64],
    points: NDArray[np.float32],
) -> None:
    """Compute what `align` does, in the same order of additions, and its rounding; compiled by numba."""
    m = aligned_from_scan
    for vertex in range(positions.shape[0]):
        x = np.float64(positions[vertex, 0])
        y = np.float64(positions[vertex, 1])
        z = np.float64(positions[vertex, 2])
        for axis in range(3):
            value = x * m[axis, 0] + y * m[axis, 1] + z * m[axis, 2] + m[axis, 3]
            aligned[vertex, axis] = value
            points[vertex, axis] = value


def _vertex_normals_loop(positions: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    """Compute what `vertex_normals_numpy` does, in the same order of additions; compiled by numba."""
    normals = np.zeros((positions.shape[0], 3), np.float64)
    for face in range(faces.shape[0]):
        # Unsigned, or each access would ask whether the index counts from the end.
        i, j, k = np.uint32(faces[face, 0]), np.uint32(faces[face, 1]), np.uint32(faces[face, 2])
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


def _round_to_half_loop(values: NDArray[np.float64], halves: NDArray[np.uint16]) -> None:
    """Compute the bits of `values.astype(np.float16)` for values from -2 to 2; compiled by numba."""
    bits = values.view(np.int64)
    for index in range(values.shape[0]):
        magnitude = bits[index] & np.int64(0x7FFFFFFFFFFFFFFF)
        # To the nearest, ties to even: 42 of 52 bits go, and the exponent counts from 15 instead of 1023.
        rounded = (magnitude + np.int64(0x1FFFFFFFFFF) + ((magnitude >> 42) & 1)) >> 42
        normal = rounded - np.int64((1023 - 15) << 10)
        # Below 2**-14, halves are multiples of 2**-24.
        subnormal = np.int64(np.rint(abs(values[index]) * 2.0**24))
        is_normal = magnitude >= np.int64((1023 - 14) << 52)
        halves[index] = np.uint16(((bits[index] >> 48) & 0x8000) | (normal if is_normal else subnormal))
