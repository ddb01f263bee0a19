"""The two slow loops, compiled by numba where that is installed (the extra `fast`).

They only make things faster. Each gives the same bytes as its counterpart, in `geometry` and `raw.segments`; the first
adds in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# A face counts as having no area where the sine between two of its edges is below 1e-10. That is far below what float32
# coordinates can express (about 1e-7), and above the rounding of the rotation, which would otherwise turn three
# vertices on a line into a normal of arbitrary direction.
MIN_SINE_SQUARED = 1e-20

Loop = TypeVar("Loop", bound=Callable[..., Any])


@cache
def compile_normals() -> Callable[[NDArray[np.float64], NDArray[np.int32]], NDArray[np.float64]] | None:
    """Compile the loop over faces: points, float64 (3, V), and faces, int32 (F, 3), to unit normals, float64 (V, 3)."""
    return compile_loop(_unit_normals, "float64[:, ::1](float64[:, ::1], int32[:, ::1])")


@cache
def compile_parser() -> Callable[[NDArray[np.uint8], NDArray[np.int64]], int] | None:
    """Compile the loop over text: fills an array with the numbers and tells how many, 0 where the text is not plain."""
    return compile_loop(_parse_numbers, "int64(Array(uint8, 1, 'C', readonly=True), int64[::1])")


def compile_loop(function: Loop, signature: str) -> Loop | None:
    """Compile a function of arrays; `signature` is as numba writes it. None where numba is missing or does not work.

    The machine code is kept beside this module, so that it is compiled once.
    """
    # Beside a missing numba, there are ones that do not fit the NumPy at hand, disks that are full or read-only where
    # the machine code is kept, and damaged files of machine code.
    for keeps_code in (True, False):
        try:
            import numba

            compiled: Any = numba.njit(signature, cache=keeps_code, error_model="numpy")(function)
        except Exception:  # noqa: BLE001, S112 - see above
            continue
        return compiled  # type: ignore[no-any-return]
    return None


def _unit_normals(points: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    rows = np.empty((points.shape[1], 3))  # the three numbers of a vertex side by side, as they are needed together
    for axis in range(3):
        for vertex in range(points.shape[1]):
            rows[vertex, axis] = points[axis, vertex]
    normals = np.zeros_like(rows)
    for face in range(faces.shape[0]):
        # Unsigned, or each access would ask whether the index counts from the end.
        i, j, k = np.uint32(faces[face, 0]), np.uint32(faces[face, 1]), np.uint32(faces[face, 2])
        ax, ay, az = rows[j, 0] - rows[i, 0], rows[j, 1] - rows[i, 1], rows[j, 2] - rows[i, 2]
        bx, by, bz = rows[k, 0] - rows[i, 0], rows[k, 1] - rows[i, 1], rows[k, 2] - rows[i, 2]
        x, y, z = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
        limit = MIN_SINE_SQUARED * (ax * ax + ay * ay + az * az) * (bx * bx + by * by + bz * bz)
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
            normals[vertex, 0], normals[vertex, 1], normals[vertex, 2] = x / length, y / length, z / length
    return normals


def _parse_numbers(text: NDArray[np.uint8], values: NDArray[np.int64]) -> int:
    count, value, digit_count = 0, np.int64(0), 0
    for character in text:
        digit = np.uint8(character - np.uint8(48))
        if digit < 10:
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
