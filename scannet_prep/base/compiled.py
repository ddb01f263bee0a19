"""The two slow loops, compiled by numba if it is installed (the extra `fast`).

They give the same bytes as their counterparts in NumPy, `processed.geometry` and
`parse_plain_list`. To do so, the loop over faces adds numbers in the same order as NumPy. Loading
numba takes as long as it saves in `MIN_SCENES` scenes of the release, so the run decides whether
workers use it.
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

_ZERO = ord("0")
_COMMA = ord(",")
# Numbers of at most 18 digits fit into int64.
_TOO_MANY_DIGITS = 19


@cache
def compile_geometry() -> Callable[..., tuple[NDArray[np.float32], NDArray[np.float64]]] | None:
    """Compile the loops over vertices and faces.

    Returns:
        A function of positions, float32 (V, 3), faces, int32 (F, 3), a matrix, float64 (4, 4), and
        its cofactor matrix, float64 (3, 3). Both matrices have no rows if nothing moves. The
        function returns points, float32 (V, 3), and normals, float64 (V, 3). None if numba is
        missing.
    """
    types = ("float32", "int32", "float64", "float64")
    arrays = [f"Array({name}, 2, 'C', readonly=True)" for name in types]
    result = "Tuple((float32[:, ::1], float64[:, ::1]))"
    return compile_loop(_points_and_normals, f"{result}({', '.join(arrays)})")


@cache
def compile_parser() -> Callable[[NDArray[np.uint8], NDArray[np.int64]], int] | None:
    """Compile the loop over text.

    Returns:
        A function of a text of numbers and commas, uint8 (N,), and of an array that it fills with
        the numbers. It returns their count, or 0 if anything is unusual. None if numba is missing.
    """
    text = "Array(uint8, 1, 'C', readonly=True)"
    return compile_loop(_parse_numbers, f"int64({text}, int64[::1])")


def compile_loop(function: Callable[..., Any], signature: str) -> Callable[..., Any] | None:
    """Compile a function of arrays.

    Args:
        function: The function, in the part of Python that numba knows.
        signature: The types of its result and arguments, as numba writes them.

    Returns:
        The compiled function; None if numba is missing or does not work here.
    """
    # The first attempt uses the machine code that numba has kept on disk. It fails if that disk is
    # full or the code damaged. The second one fails only if numba does not fit the installed NumPy.
    for keeps_code in (True, False):
        with suppress(Exception):
            import numba

            return numba.njit(signature, cache=keeps_code, error_model="numpy")(function)
    return None


def _points_and_normals(
    positions: NDArray[np.float32],
    faces: NDArray[np.int32],
    matrix: NDArray[np.float64],
    cofactors: NDArray[np.float64],
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Compute points and normals; see `compile_geometry`."""
    count = len(positions)
    points = np.empty((count, 3), np.float32)
    normals = np.empty((count, 3), np.float64)

    # Float64 (V, 6). Each row has the position of a vertex and the sum of the cross products of
    # its faces, which are used together.
    rows = np.empty((count, 6))
    for vertex in range(count):
        for axis in range(3):
            rows[vertex, axis] = positions[vertex, axis]
            rows[vertex, axis + 3] = 0.0

    # Add the cross product of two edges of each face to its corners.
    for face in range(len(faces)):
        # With unsigned indices, numba omits the test for negative ones, which count from the end.
        i = np.uint32(faces[face, 0])
        j = np.uint32(faces[face, 1])
        k = np.uint32(faces[face, 2])
        ax = rows[j, 0] - rows[i, 0]
        ay = rows[j, 1] - rows[i, 1]
        az = rows[j, 2] - rows[i, 2]
        bx = rows[k, 0] - rows[i, 0]
        by = rows[k, 1] - rows[i, 1]
        bz = rows[k, 2] - rows[i, 2]
        x = ay * bz - az * by
        y = az * bx - ax * bz
        z = ax * by - ay * bx
        for corner in (i, j, k):
            rows[corner, 3] += x
            rows[corner, 4] += y
            rows[corner, 5] += z

    # Move positions (x, y, z) and sums (a, b, c), and scale the sums to unit length.
    for vertex in range(count):
        x, y, z, a, b, c = rows[vertex]
        if len(matrix):
            x, y, z = (
                x * matrix[0, 0] + y * matrix[0, 1] + z * matrix[0, 2] + matrix[0, 3],
                x * matrix[1, 0] + y * matrix[1, 1] + z * matrix[1, 2] + matrix[1, 3],
                x * matrix[2, 0] + y * matrix[2, 1] + z * matrix[2, 2] + matrix[2, 3],
            )
            a, b, c = (
                a * cofactors[0, 0] + b * cofactors[0, 1] + c * cofactors[0, 2],
                a * cofactors[1, 0] + b * cofactors[1, 1] + c * cofactors[1, 2],
                a * cofactors[2, 0] + b * cofactors[2, 1] + c * cofactors[2, 2],
            )
        points[vertex, 0] = x
        points[vertex, 1] = y
        points[vertex, 2] = z
        # A vertex without a face of some area has a sum of length 0, and keeps (0, 0, 0).
        length = np.sqrt(a * a + b * b + c * c) or 1.0
        normals[vertex, 0] = a / length
        normals[vertex, 1] = b / length
        normals[vertex, 2] = c / length
    return points, normals


def _parse_numbers(text: NDArray[np.uint8], values: NDArray[np.int64]) -> int:
    """Parse numbers separated by single commas; see `compile_parser`."""
    count = 0
    value = np.int64(0)
    digit_count = 0
    for character in text:
        # Characters before "0" wrap around to large numbers, so one comparison is enough.
        digit = np.uint8(character - np.uint8(_ZERO))
        is_digit = digit < 10
        # If the value is 0 after a digit, that digit was a zero. No digit may follow it.
        is_after_leading_zero = value == 0 and digit_count > 0
        if is_digit and not is_after_leading_zero:
            # Too many digits overflow. Such a number is refused below, at its end.
            value = value * 10 + np.int64(digit)
            digit_count += 1
        elif character == _COMMA and 0 < digit_count < _TOO_MANY_DIGITS:
            values[count] = value
            count += 1
            value = np.int64(0)
            digit_count = 0
        else:
            return 0
    if not 0 < digit_count < _TOO_MANY_DIGITS:
        return 0
    values[count] = value
    return count + 1
