"""The two slow loops, compiled by numba if it is installed (the extra `fast`).

They return the same bytes as their counterparts in NumPy, `processed.geometry` and `raw.segments`.
For the sums of normals, this means that they add in the same order.

Loading numba takes as long as it saves in `MIN_SCENES` scenes of the release. So the run decides
whether to use it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_SCENES = 40
"""Number of scenes per worker from which loading numba pays."""

_ZERO = 48
_COMMA = 44
# The most digits that int64 holds, whatever they are.
_MAX_DIGITS = 18


@cache
def compile_geometry() -> Callable[..., tuple[NDArray[np.float32], NDArray[np.float64]]] | None:
    """Compile the loops over vertices and faces; None if numba cannot be used.

    Returns:
        A function of the positions, float32 (V, 3); the faces, int32 (F, 3); the matrix of the
        alignment, float64 (4, 4); and the matrix for cross products, float64 (3, 3). Matrices
        without rows, (0, 4) and (0, 3), leave the points where they are. It returns points,
        float32 (V, 3), and normals, float64 (V, 3).
    """
    arguments = ", ".join(
        f"Array({dtype}, 2, 'C', readonly=True)"
        for dtype in ("float32", "int32", "float64", "float64")
    )
    result = "Tuple((float32[:, ::1], float64[:, ::1]))"
    return compile_loop(_points_and_normals, f"{result}({arguments})")


@cache
def compile_parser() -> Callable[[NDArray[np.uint8], NDArray[np.int64]], int] | None:
    """Compile the loop over the text of a list of numbers; None if numba cannot be used.

    Returns:
        A function of the text, uint8 (N,), and of an array for the numbers, int64. It fills the
        array and returns how many numbers there are; 0 if the text has anything unusual.
    """
    return compile_loop(_parse_numbers, "int64(Array(uint8, 1, 'C', readonly=True), int64[::1])")


def compile_loop(function: Callable[..., Any], signature: str) -> Callable[..., Any] | None:
    """Compile a function of arrays.

    Args:
        function: The function; it uses only what numba can compile.
        signature: Types of result and arguments, as numba writes them.

    Returns:
        The compiled function; None if numba is not installed or does not work.
    """
    # Keeping the code on disk can fail, because the disk is full or the kept file is damaged. If
    # it fails without that too, numba is not installed or does not fit the installed NumPy.
    for keeps_code in (True, False):
        with suppress(Exception):
            import numba

            return numba.njit(signature, cache=keeps_code, error_model="numpy")(function)
    return None


def _points_and_normals(
    positions: NDArray[np.float32],
    faces: NDArray[np.int32],
    aligned_from_scan: NDArray[np.float64],
    cofactors: NDArray[np.float64],
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    count = len(positions)
    points = np.empty((count, 3), np.float32)
    normals = np.empty((count, 3), np.float64)

    # Each row holds the position of a vertex (columns 0 to 2) and the sum of the cross products
    # around it (columns 3 to 5). They are used together, so they lie together in memory.
    rows = np.empty((count, 6))
    for vertex in range(count):
        for axis in range(3):
            rows[vertex, axis] = positions[vertex, axis]
            rows[vertex, axis + 3] = 0.0

    # Add the cross product of each face to its three vertices.
    for face in range(len(faces)):
        # Unsigned: numba would check at each access whether a signed index counts from the end.
        i = np.uint32(faces[face, 0])
        j = np.uint32(faces[face, 1])
        k = np.uint32(faces[face, 2])
        # The edges a, from i to j, and b, from i to k.
        ax = rows[j, 0] - rows[i, 0]
        ay = rows[j, 1] - rows[i, 1]
        az = rows[j, 2] - rows[i, 2]
        bx = rows[k, 0] - rows[i, 0]
        by = rows[k, 1] - rows[i, 1]
        bz = rows[k, 2] - rows[i, 2]
        nx = ay * bz - az * by
        ny = az * bx - ax * bz
        nz = ax * by - ay * bx
        for corner in (i, j, k):
            rows[corner, 3] += nx
            rows[corner, 4] += ny
            rows[corner, 5] += nz

    # Move positions and sums into the aligned frame, and scale the sums to unit length.
    m = aligned_from_scan
    c = cofactors
    for vertex in range(count):
        x, y, z, nx, ny, nz = rows[vertex]
        if len(m):
            points[vertex, 0] = x * m[0, 0] + y * m[0, 1] + z * m[0, 2] + m[0, 3]
            points[vertex, 1] = x * m[1, 0] + y * m[1, 1] + z * m[1, 2] + m[1, 3]
            points[vertex, 2] = x * m[2, 0] + y * m[2, 1] + z * m[2, 2] + m[2, 3]
            aligned_nx = nx * c[0, 0] + ny * c[0, 1] + nz * c[0, 2]
            aligned_ny = nx * c[1, 0] + ny * c[1, 1] + nz * c[1, 2]
            aligned_nz = nx * c[2, 0] + ny * c[2, 1] + nz * c[2, 2]
        else:
            points[vertex, 0] = x
            points[vertex, 1] = y
            points[vertex, 2] = z
            aligned_nx = nx
            aligned_ny = ny
            aligned_nz = nz
        length = np.sqrt(
            aligned_nx * aligned_nx + aligned_ny * aligned_ny + aligned_nz * aligned_nz
        )
        if length == 0.0:  # a vertex without faces, or with faces that cancel
            length = 1.0
        normals[vertex, 0] = aligned_nx / length
        normals[vertex, 1] = aligned_ny / length
        normals[vertex, 2] = aligned_nz / length
    return points, normals


def _parse_numbers(text: NDArray[np.uint8], values: NDArray[np.int64]) -> int:
    count = 0
    value = np.int64(0)
    digit_count = 0
    for character in text:
        # Characters that are not digits become numbers from 10 on, because uint8 wraps around.
        digit = np.uint8(character - np.uint8(_ZERO))
        has_leading_zero = digit_count > 0 and value == 0
        if digit < 10 and not has_leading_zero:
            value = value * 10 + np.int64(digit)
            digit_count += 1
        elif character == _COMMA and 0 < digit_count <= _MAX_DIGITS:
            values[count] = value
            count += 1
            value = np.int64(0)
            digit_count = 0
        else:
            return 0
    if not 0 < digit_count <= _MAX_DIGITS:
        return 0
    values[count] = value
    return count + 1
