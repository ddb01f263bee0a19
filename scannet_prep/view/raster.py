"""What is seen at each pixel: squares and triangles with a depth test, in NumPy.

While it is drawn, a pixel is one number, nearness above the number of the vertex or triangle: the bits of a positive
float32 are in the order of its values, so that the greatest number is the nearest, and a maximum is the depth test. 0
is where nothing is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.camera import Projected

_SIDES = np.array([1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64])
SPREAD = 2.4  # of the distance between vertices, which lie unevenly
_CELLS = 64
_MAX_TESTS = 1 << 14  # at a time, of a pixel and a triangle: what fits into the cache
_EDGE = -1e-3  # so that rounding leaves no gap between triangles
_MIN_AREA = 1e-2


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What is seen of a scene.

    Attributes:
        pixels: Integers (P,), where something is: row * width + column.
        vertices: Integers (1, P) for points, (3, P) for triangles: which vertices.
        weights: float32, the same shape: how much each of them counts there; together 1.
    """

    pixels: NDArray[np.intp]
    vertices: NDArray[np.integer[Any]]
    weights: NDArray[np.float32]

    @property
    def nearest(self) -> NDArray[np.integer[Any]]:
        """The vertex that counts most at each pixel, (P,)."""
        best = self.weights[0], self.vertices[0]
        for weights, vertices in zip(self.weights[1:], self.vertices[1:], strict=True):
            is_more = weights > best[0]
            best = np.where(is_more, weights, best[0]), np.where(is_more, vertices, best[1])
        return np.asarray(best[1])

    def blend(self, values: NDArray[np.number[Any]]) -> NDArray[np.float32]:
        """Values at each pixel, (P, ...), of values at each vertex, (V, ...)."""
        return np.asarray(np.einsum("vp,vp...->p...", self.weights, values[self.vertices]))


def draw_points(
    points: Projected, shown: NDArray[np.bool_], spacing: float, width: int, height: int
) -> Seen:
    """Draw vertices as squares, large enough that those `spacing` metres apart leave no hole.

    Args:
        points: Where they are.
        shown: bool (V,), which are drawn.
        spacing: Between neighbours, in metres.
        width: Of the picture, in pixels.
        height: Of the picture, in pixels.
    """
    wanted = np.ceil(points.scale * np.float32(spacing * SPREAD))
    sides = _SIDES[np.searchsorted(_SIDES, wanted.clip(1, _SIDES[-1]))]
    x, y = np.rint(points.x), np.rint(points.y)
    reach = sides // 2
    shown = shown & (x >= -reach) & (y >= -reach) & (x < width + reach) & (y < height + reach)
    keys = _make_keys(points.nearness, np.arange(len(x)))
    border = int(_SIDES[-1])  # so that squares may reach over it
    pixels = np.zeros((height + 2 * border, width + 2 * border), np.uint64)
    for side in np.unique(sides[shown]).tolist():
        chosen = np.flatnonzero(shown & (sides == side))
        left, top = (axis[chosen].astype(np.intp) + (border - (side - 1) // 2) for axis in (x, y))
        columns, repeated = (
            (left[:, np.newaxis] + np.arange(side)).reshape(-1),
            keys[chosen].repeat(side),
        )
        for down in range(side):
            np.maximum.at(
                pixels.reshape(-1),
                ((top + down) * pixels.shape[1]).repeat(side) + columns,
                repeated,
            )
    places, vertices = _read_keys(pixels[border:-border, border:-border])
    return Seen(places, vertices[None], np.ones((1, len(places)), np.float32))


def draw_triangles(points: Projected, faces: NDArray[np.int32], width: int, height: int) -> Seen:
    """Draw triangles that are seen from their front.

    Args:
        points: Where the vertices are.
        faces: (F, 3), indices of vertices; counter-clockwise from the front.
        width: Of the picture, in pixels.
        height: Of the picture, in pixels.
    """
    corners = np.ascontiguousarray(
        faces.T
    )  # rows that lie together: sums and minima over them are fast
    x, y = points.x.take(corners), points.y.take(corners)
    areas = _cross(x[1] - x[0], y[1] - y[0], x[2] - x[0], y[2] - y[0])
    front = np.flatnonzero(areas > _MIN_AREA)
    x, y, areas = (array.take(front, axis=-1) for array in (x, y, areas))
    left, top = np.ceil(x.min(axis=0)).clip(0), np.ceil(y.min(axis=0)).clip(0)
    right, bottom = (
        np.floor(x.max(axis=0)).clip(None, width - 1),
        np.floor(y.max(axis=0)).clip(None, height - 1),
    )
    drawn = np.flatnonzero((right >= left) & (bottom >= top))
    x, y, areas = (array.take(drawn, axis=-1) for array in (x, y, areas))
    corners = corners.take(front.take(drawn), axis=1)
    nearness = points.nearness.take(corners)
    left, top, right, bottom = (edge[drawn].astype(np.intp) for edge in (left, top, right, bottom))
    across, counts = (
        right - left + 1,
        (right - left + 1) * (bottom - top + 1),
    )  # of the box of each triangle
    ends, shares = np.cumsum(counts), nearness / areas
    starts, total = ends - counts, int(counts.sum())
    pixels = np.zeros(height * width, np.uint64)
    for first in range(0, total, _MAX_TESTS):
        last = min(first + _MAX_TESTS, total)
        low, high = np.searchsorted(ends, [first, last - 1], side="right").tolist()
        parts = ends[low : high + 1].clip(None, last) - starts[low : high + 1].clip(first)
        which = np.repeat(np.arange(low, high + 1), parts)
        row, column = np.divmod(np.arange(first, last) - starts.take(which), across.take(which))
        row, column = row + top.take(which), column + left.take(which)
        weights = _weigh(x.take(which, axis=1), y.take(which, axis=1), row, column)
        inside = np.flatnonzero(weights.min(axis=0) >= _EDGE)
        which, places = which.take(inside), (row * width + column).take(inside)
        near = (weights.take(inside, axis=1) * shares.take(which, axis=1)).sum(axis=0)
        np.maximum.at(pixels, places, _make_keys(near, which))
    places, found = _read_keys(pixels)
    corners = corners.take(found, axis=1)
    weights = _weigh(x.take(found, axis=1), y.take(found, axis=1), *np.divmod(places, width)).clip(
        0
    )
    weights *= nearness.take(found, axis=1)  # as perspective has it
    return Seen(places, corners, weights / weights.sum(axis=0))


def estimate_spacing(points: NDArray[np.float32]) -> float:
    """About how far apart vertices of a surface are, in metres, from how many cells of a grid they are in."""
    columns = np.ascontiguousarray(points.T)
    columns = columns - columns.min(axis=1, keepdims=True)
    cell = float(columns.max()) / _CELLS
    if cell <= 0:
        return 0.0
    x, y, z = (columns / np.float32(cell)).astype(np.int32).clip(0, _CELLS - 1)
    is_filled = np.zeros(_CELLS**3, np.bool_)
    is_filled[(x * _CELLS + y) * _CELLS + z] = True
    return cell * math.sqrt(np.count_nonzero(is_filled) / len(points))


def _weigh(
    x: NDArray[np.float32], y: NDArray[np.float32], row: NDArray[np.intp], column: NDArray[np.intp]
) -> NDArray[np.float32]:
    """Twice the areas between each edge of triangles (3, N) and a pixel, by the opposite corner; positive inside."""
    x, y = x - column.astype(np.float32), y - row.astype(np.float32)
    return np.stack(
        [_cross(x[first], y[first], x[last], y[last]) for first, last in ((1, 2), (2, 0), (0, 1))]
    )


def _cross(
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    other_x: NDArray[np.float32],
    other_y: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Positive where a turn from the one to the other is counter-clockwise in a picture, whose y points down."""
    return other_x * y - x * other_y


def _make_keys(
    nearness: NDArray[np.float32], numbers: NDArray[np.integer[Any]]
) -> NDArray[np.uint64]:
    return (nearness.view(np.uint32).astype(np.uint64) << np.uint64(32)) | numbers.astype(np.uint64)


def _read_keys(pixels: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where something is, and the number of what it is."""
    flat = np.ascontiguousarray(pixels).reshape(-1)
    places = np.flatnonzero(flat)
    return places, (flat[places] & np.uint64(0xFFFFFFFF)).astype(np.intp)
