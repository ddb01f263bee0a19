"""Reference for `superpoints`: weights in NumPy, then a plain loop over lists of all edges."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_FLOAT32 = struct.Struct("f")


def segment_in_loop(
    points: NDArray[np.float32], faces: NDArray[np.int32], threshold: float, min_vertices: int
) -> list[int]:
    """Segment a mesh; the result is the root of each vertex, in any numbers."""
    starts = faces[:, [0, 0, 2]].reshape(-1)
    ends = faces[:, [1, 2, 1]].reshape(-1)
    weights = _weigh_edges(points, _average_normals(points, faces), starts, ends)
    order = np.argsort(weights, kind="stable")
    edges = list(
        zip(starts[order].tolist(), ends[order].tolist(), weights[order].tolist(), strict=True)
    )

    parents = list(range(len(points)))
    ranks = [0] * len(points)
    sizes = [1] * len(points)
    first_threshold = _round(threshold)
    thresholds = [first_threshold] * len(points)
    for start, end, weight in edges:
        a = _find(parents, start)
        b = _find(parents, end)
        if a != b and weight <= thresholds[a] and weight <= thresholds[b]:
            root = _join(parents, ranks, sizes, a, b)
            thresholds[root] = _round(weight + _round(first_threshold / sizes[root]))
    for start, end, _ in edges:
        a = _find(parents, start)
        b = _find(parents, end)
        if a != b and (sizes[a] < min_vertices or sizes[b] < min_vertices):
            _join(parents, ranks, sizes, a, b)
    return [_find(parents, vertex) for vertex in range(len(points))]


def _round(number: float) -> float:
    """Round to float32."""
    rounded: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
    return rounded


def _find(parents: list[int], vertex: int) -> int:
    root = vertex
    while parents[root] != root:
        root = parents[root]
    parents[vertex] = root
    return root


def _join(parents: list[int], ranks: list[int], sizes: list[int], a: int, b: int) -> int:
    """Join two sets by rank, and return the root of the result."""
    if ranks[a] > ranks[b]:
        a, b = b, a
    parents[a] = b
    sizes[b] += sizes[a]
    if ranks[a] == ranks[b]:
        ranks[b] += 1
    return b


def _average_normals(points: NDArray[np.float32], faces: NDArray[np.int32]) -> NDArray[np.float32]:
    """Compute the running means of the normals of the faces around each vertex, (V, 3)."""
    origins = points[faces[:, 0]]
    face_normals = _cross(points[faces[:, 1]] - origins, points[faces[:, 2]] - origins)
    face_normals /= np.sqrt(_dot(face_normals, face_normals))[:, None]

    corners = faces.reshape(-1)
    order = np.argsort(corners, kind="stable")
    counts = np.bincount(corners, minlength=len(points))
    bounds = np.cumsum(counts) - counts
    normals = np.zeros_like(points)
    for rank in range(counts.max()):
        vertices = np.flatnonzero(counts > rank)
        share = np.float32(1) / np.float32(rank + 1)
        added = face_normals[order[bounds[vertices] + rank] // 3]
        normals[vertices] = share * added + (np.float32(1) - share) * normals[vertices]
    return normals


def _weigh_edges(
    points: NDArray[np.float32],
    normals: NDArray[np.float32],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
) -> NDArray[np.float32]:
    directions = points[ends] - points[starts]
    directions /= np.sqrt(_dot(directions, directions))[:, None]
    weights = np.float32(1) - _dot(normals[starts], normals[ends])
    is_convex = _dot(normals[ends], directions) > 0
    return np.where(is_convex, weights * weights, weights)


def _cross(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    axes: Sequence[tuple[int, int]] = ((1, 2), (2, 0), (0, 1))
    return np.stack([a[:, i] * b[:, j] - a[:, j] * b[:, i] for i, j in axes], axis=1)


def _dot(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    products: NDArray[np.float32] = a[:, 0] * b[:, 0] + a[:, 1] * b[:, 1] + a[:, 2] * b[:, 2]
    return products
