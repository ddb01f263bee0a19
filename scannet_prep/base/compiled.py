"""The two slow loops, compiled by numba if that is installed (the extra `fast`).

They give the same bytes as their counterparts in `geometry` and `raw.segments`: the first adds in the same order.
To load numba takes as long as it saves in `MIN_SCENES` scenes of the release, so the run decides whether to use it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_SCENES = 40
"""The number of scenes per worker from which loading numba pays."""


@cache
def compile_geometry() -> Callable[..., tuple[NDArray[np.float32], NDArray[np.float64]]] | None:
    """Compile the loops over vertices and faces; the matrices, (4, 4) and (3, 3), have no rows where nothing moves."""
    arrays = (
        f"Array({kind}, 2, 'C', readonly=True)"
        for kind in ("float32", "int32", "float64", "float64")
    )
    return compile_loop(
        _points_and_normals, f"Tuple((float32[:, ::1], float64[:, ::1]))({', '.join(arrays)})"
    )


@cache
def compile_parser() -> Callable[[NDArray[np.uint8], NDArray[np.int64]], int] | None:
    """Compile the loop over text. It fills an array with the numbers and returns their count, 0 for unusual text."""
    return compile_loop(_parse_numbers, "int64(Array(uint8, 1, 'C', readonly=True), int64[::1])")


def compile_loop(function: Callable[..., Any], signature: str) -> Callable[..., Any] | None:
    """Compile a function of arrays; `signature` is as numba writes it. None where numba is missing or does not work."""
    for keeps_code in (True, False):
        with suppress(
            Exception
        ):  # it may not fit the NumPy at hand; where code is kept, disks are full, files damaged
            import numba

            return numba.njit(signature, cache=keeps_code, error_model="numpy")(function)
    return None


def _points_and_normals(
    positions: NDArray[np.float32],
    faces: NDArray[np.int32],
    m: NDArray[np.float64],
    turn: NDArray[np.float64],
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    count = len(positions)
    points, normals = np.empty((count, 3), np.float32), np.empty((count, 3), np.float64)
    rows = np.empty(
        (count, 6)
    )  # of each vertex the position, and the sum of the products: they are needed together
    for vertex in range(count):
        for axis in range(3):
            rows[vertex, axis], rows[vertex, axis + 3] = positions[vertex, axis], 0.0
    for face in range(len(faces)):
        # Unsigned, or each access would ask whether the index counts from the end.
        i, j, k = np.uint32(faces[face, 0]), np.uint32(faces[face, 1]), np.uint32(faces[face, 2])
        ax, ay, az = rows[j, 0] - rows[i, 0], rows[j, 1] - rows[i, 1], rows[j, 2] - rows[i, 2]
        bx, by, bz = rows[k, 0] - rows[i, 0], rows[k, 1] - rows[i, 1], rows[k, 2] - rows[i, 2]
        x, y, z = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
        for corner in (i, j, k):
            rows[corner, 3] += x
            rows[corner, 4] += y
            rows[corner, 5] += z
    for vertex in range(count):
        x, y, z, a, b, c = rows[vertex]
        if len(m):
            x, y, z = (
                x * m[0, 0] + y * m[0, 1] + z * m[0, 2] + m[0, 3],
                x * m[1, 0] + y * m[1, 1] + z * m[1, 2] + m[1, 3],
                x * m[2, 0] + y * m[2, 1] + z * m[2, 2] + m[2, 3],
            )
            a, b, c = (
                a * turn[0, 0] + b * turn[0, 1] + c * turn[0, 2],
                a * turn[1, 0] + b * turn[1, 1] + c * turn[1, 2],
                a * turn[2, 0] + b * turn[2, 1] + c * turn[2, 2],
            )
        points[vertex, 0], points[vertex, 1], points[vertex, 2] = x, y, z
        length = np.sqrt(a * a + b * b + c * c) or 1.0
        normals[vertex, 0], normals[vertex, 1], normals[vertex, 2] = (
            a / length,
            b / length,
            c / length,
        )
    return points, normals


def _parse_numbers(text: NDArray[np.uint8], values: NDArray[np.int64]) -> int:
    count, value, digit_count = 0, np.int64(0), 0
    for character in text:
        digit = np.uint8(character - np.uint8(48))
        if digit < 10 and (value or not digit_count):  # no zero before other digits
            value = value * 10 + np.int64(digit)
            digit_count += 1
        elif character == 44 and 0 < digit_count < 19:
            values[count] = value
            count, value, digit_count = count + 1, np.int64(0), 0
        else:
            return 0
    if not 0 < digit_count < 19:
        return 0
    values[count] = value
    return count + 1
