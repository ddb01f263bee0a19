"""The slow loop of the geometry, compiled by numba where that is installed (the extra `fast`).

It only makes things faster: it adds in the same order as its counterpart in `geometry`, so that the bytes are the same.
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
def compile_face_loop() -> Callable[..., None] | None:
    """Compile the loop; the machine code is kept beside this module, so that it is done once. None without numba."""
    return compile_loop(_sum_face_normals, "void(float64[:, ::1], int32[:, ::1], float64[:, ::1])")


def compile_loop(function: Loop, signature: str) -> Loop | None:
    """Compile a function of arrays; `signature` is as numba writes it. None where numba is missing or does not work."""
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


def _sum_face_normals(points: NDArray[np.float64], faces: NDArray[np.int32], sums: NDArray[np.float64]) -> None:
    """Do what `geometry.sum_face_normals` does: points (3, V), faces (F, 3), and the array for the result, (3, V)."""
    x, y, z = points[0], points[1], points[2]
    shape = (points.shape[1], 3)
    first, second, third = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for face in range(faces.shape[0]):
        # Unsigned, or each access would ask whether the index counts from the end.
        i, j, k = np.uint32(faces[face, 0]), np.uint32(faces[face, 1]), np.uint32(faces[face, 2])
        ax, ay, az = x[j] - x[i], y[j] - y[i], z[j] - z[i]
        bx, by, bz = x[k] - x[i], y[k] - y[i], z[k] - z[i]
        cx, cy, cz = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
        limit = MIN_SINE_SQUARED * (ax * ax + ay * ay + az * az) * (bx * bx + by * by + bz * bz)
        if cx * cx + cy * cy + cz * cz <= limit:
            continue
        first[i, 0] += cx
        first[i, 1] += cy
        first[i, 2] += cz
        second[j, 0] += cx
        second[j, 1] += cy
        second[j, 2] += cz
        third[k, 0] += cx
        third[k, 1] += cy
        third[k, 2] += cz
    for vertex in range(points.shape[1]):
        for axis in range(3):
            sums[axis, vertex] = first[vertex, axis] + second[vertex, axis] + third[vertex, axis]
