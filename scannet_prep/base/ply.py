"""Binary PLY files of meshes and points."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# The names of types in PLY.
_TYPES = {"<f4": "float", "|u1": "uchar", "<u2": "ushort"}


def encode_ply(
    comment: str,
    points: NDArray[np.float32],
    colors: NDArray[np.uint8],
    faces: NDArray[np.int32] | None = None,
    **others: NDArray[Any],
) -> list[Any]:
    """Encode coloured points or a mesh as the pieces of a file, which are bytes or arrays.

    Args:
        comment: One line of ASCII text.
        points: float32 (V, 3).
        colors: uint8 (V, 3).
        faces: int32 (F, 3), indices of vertices; None for points alone.
        others: Further properties of the vertices by name, float32, uint8 or uint16 (V,).
    """
    names = ["x", "y", "z", "red", "green", "blue", *others]
    columns = [*points.T, *colors.T, *others.values()]
    header = [
        "ply",
        "format binary_little_endian 1.0",
        f"comment {comment}",
        f"element vertex {len(points)}",
    ]
    for name, column in zip(names, columns, strict=True):
        header.append(f"property {_TYPES[column.dtype.str]} {name}")
    body = [np.rec.fromarrays(columns)]
    if faces is not None:
        header += [f"element face {len(faces)}", "property list uchar int vertex_indices"]
        counts = np.full(len(faces), 3, np.uint8)
        body.append(np.rec.fromarrays([counts, faces], formats="u1, 3<i4"))
    header.append("end_header\n")
    return ["\n".join(header).encode("ascii"), *body]
