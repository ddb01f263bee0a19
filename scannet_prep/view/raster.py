"""A software rasterizer: squares and triangles with a depth test, in NumPy.

While a picture is drawn, each pixel is one integer: the nearness in the upper half, the number of
the vertex or triangle in the lower half. The bit patterns of positive float32 numbers have the
order of their values. So the greatest integer is the nearest, and the depth test is a maximum.
0 stands for an empty pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.camera import Projected

SPREAD = 2.4
"""Size of a point, in mean distances between vertices: more than 1, as the distances vary."""

# The possible sides of squares, in pixels.
_SIDES = np.array([1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64])
# Cells of the grid of `estimate_spacing`, along each axis.
_CELLS = 64
# Pixels of triangles that are drawn at a time: their arrays fit into the cache.
_MAX_PIXELS = 1 << 14
# The lowest weight of a pixel inside a triangle, below 0 so that rounding leaves no gap.
_MIN_WEIGHT = -1e-3
# Twice the area, in square pixels, below which a triangle is not drawn.
_MIN_AREA = 1e-2


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The visible part of a scene.

    Attributes:
        pixels: Integers (P,), the pixels that are not empty: row * width + column.
        vertices: Integers, (1, P) for points, (3, P) for triangles: the vertices at each pixel.
        weights: float32, the same shape: the weight of each of them; together 1.
        nearness: float32 (P,), the nearness of the surface, as `Projected` has it.
    """

    pixels: NDArray[np.intp]
    vertices: NDArray[np.integer[Any]]
    weights: NDArray[np.float32]
    nearness: NDArray[np.float32]

    @classmethod
    def of_points(cls, keys: NDArray[np.uint64]) -> Seen:
        """Return what is visible in a picture of points, whose keys contain their vertices."""
        pixels, vertices, nearness = read_keys(keys)
        weights = np.ones((1, len(pixels)), np.float32)
        return cls(pixels, vertices[np.newaxis], weights, nearness)

    @property
    def nearest(self) -> NDArray[np.integer[Any]]:
        """The vertex with the greatest weight at each pixel, (P,)."""
        best_weights = self.weights[0]
        best_vertices = self.vertices[0]
        for weights, vertices in zip(self.weights[1:], self.vertices[1:], strict=True):
            is_better = weights > best_weights
            best_weights = np.where(is_better, weights, best_weights)
            best_vertices = np.where(is_better, vertices, best_vertices)
        return np.asarray(best_vertices)

    def blend(self, values: NDArray[np.number[Any]]) -> NDArray[np.float32]:
        """Interpolate values of vertices, (V, ...), at each pixel, (P, ...)."""
        return np.asarray(np.einsum("vp,vp...->p...", self.weights, values[self.vertices]))


def draw_points(
    points: Projected, shown: NDArray[np.bool_], spacing: float, width: int, height: int
) -> Seen:
    """Draw vertices as squares, large enough that neighbours leave no hole.

    Args:
        points: The vertices in the picture.
        shown: bool (V,), the vertices to draw.
        spacing: Distance between neighbours, in metres.
        width: Width of the picture, in pixels.
        height: Height of the picture, in pixels.
    """
    # The side of each square, (V,), in pixels. It is rounded up to one of `_SIDES`, because all
    # squares of one size are drawn together.
    exact_sides = np.ceil(points.scale * np.float32(spacing * SPREAD))
    size_indices = np.searchsorted(_SIDES, exact_sides.clip(1, _SIDES[-1]))
    sides = _SIDES[size_indices]

    # Only squares that touch the picture.
    x = np.rint(points.x)
    y = np.rint(points.y)
    reach = sides // 2
    is_in_width = (x >= -reach) & (x < width + reach)
    is_in_height = (y >= -reach) & (y < height + reach)
    shown = shown & is_in_width & is_in_height

    # Squares may extend beyond the picture, so it gets a border.
    keys = make_keys(points.nearness, np.arange(len(x)))
    border = int(_SIDES[-1])
    bordered_width = width + 2 * border
    pixels = np.zeros((height + 2 * border, bordered_width), np.uint64)
    # A view of the picture, so that changes of it change the picture.
    flat_pixels = pixels.reshape(-1)
    for side in np.unique(sides[shown]).tolist():
        # The N squares with this side.
        chosen = np.flatnonzero(shown & (sides == side))
        # The first column and the first row of each, (N,). The vertex is in the middle, so they are
        # half a side before it.
        half_side = (side - 1) // 2
        left = x[chosen].astype(np.intp) + border - half_side
        top = y[chosen].astype(np.intp) + border - half_side
        # All squares are drawn row by row. The columns and keys of a row of each, (N * side,), are
        # the same in all rows.
        columns = (left[:, np.newaxis] + np.arange(side)).reshape(-1)
        row_keys = keys[chosen].repeat(side)
        for row in range(side):
            row_starts = ((top + row) * bordered_width).repeat(side)
            np.maximum.at(flat_pixels, row_starts + columns, row_keys)

    return Seen.of_points(pixels[border:-border, border:-border])


def draw_triangles(points: Projected, faces: NDArray[np.int32], width: int, height: int) -> Seen:
    """Draw the triangles that face the camera.

    Args:
        points: The vertices in the picture.
        faces: (F, 3), indices of vertices; counter-clockwise from the front.
        width: Width of the picture, in pixels.
        height: Height of the picture, in pixels.
    """
    triangles = _Triangles.select(points, faces, width, height)
    pixels = triangles.draw(width, height)
    filled, numbers, nearness = read_keys(pixels)
    corners = triangles.corners.take(numbers, axis=1)
    rows, columns = np.divmod(filled, width)
    weights = triangles.weigh(numbers, rows, columns).clip(0)
    # These are the weights in the flat picture. In perspective, a corner counts for less the
    # farther away it is. Multiplied by the nearness, the weights are those of the point in space.
    if points.has_perspective:
        weights *= triangles.nearness.take(numbers, axis=1)
    return Seen(filled, corners, weights / weights.sum(axis=0), nearness)


def estimate_spacing(points: NDArray[np.float32]) -> float:
    """Estimate the distance between neighbours on a surface, in metres.

    The estimate is based on how many cells of a grid contain points.
    """
    columns = np.ascontiguousarray(points.T)
    columns = columns - columns.min(axis=1, keepdims=True)
    cell = float(columns.max()) / _CELLS
    if cell <= 0:
        return 0.0
    x, y, z = (columns / np.float32(cell)).astype(np.int32).clip(0, _CELLS - 1)
    is_filled = np.zeros(_CELLS**3, np.bool_)
    is_filled[(x * _CELLS + y) * _CELLS + z] = True
    # The surface has about the area of the filled cells, cell**2 each. If the points share it
    # equally, each has a square whose side is the distance to its neighbours.
    filled_count = np.count_nonzero(is_filled)
    return cell * math.sqrt(filled_count / len(points))


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """The pixels of triangles, row by row; a span may be empty.

    Attributes:
        numbers: Integers (S,), the triangle of each span.
        rows: Integers (S,), the row.
        left: Integers (S,), the first column.
        right: Integers (S,), the last column; smaller than the first if the span is empty.
        nearness: float32 (S,), the nearness at the first column.
        slopes: float32 (S,), its increase per column.
    """

    numbers: NDArray[np.intp]
    rows: NDArray[np.intp]
    left: NDArray[np.intp]
    right: NDArray[np.intp]
    nearness: NDArray[np.float32]
    slopes: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class _Triangles:
    """The triangles of a picture that face the camera and may cover the middle of a pixel.

    The first axis is that of the corners: sums and minima over whole rows are fast.

    Attributes:
        corners: (3, N), indices of vertices.
        x: float32 (3, N), pixels from the left.
        y: float32 (3, N), pixels from the top.
        nearness: float32 (3, N).
        areas: float32 (N,), twice the areas in square pixels; positive.
        top: Integers (N,), the first row of the box around each.
        bottom: Integers (N,), the last row.
    """

    corners: NDArray[np.int32]
    x: NDArray[np.float32]
    y: NDArray[np.float32]
    nearness: NDArray[np.float32]
    areas: NDArray[np.float32]
    top: NDArray[np.intp]
    bottom: NDArray[np.intp]

    @classmethod
    def select(
        cls, points: Projected, faces: NDArray[np.int32], width: int, height: int
    ) -> _Triangles:
        """Select the triangles to draw."""
        corners = np.ascontiguousarray(faces.T)
        x = points.x.take(corners)
        y = points.y.take(corners)

        # Those that face the camera.
        areas = _cross(x[1] - x[0], y[1] - y[0], x[2] - x[0], y[2] - y[0])
        front = np.flatnonzero(areas > _MIN_AREA)
        x = x.take(front, axis=1)
        y = y.take(front, axis=1)
        areas = areas.take(front)

        # Those whose box contains the middle of a pixel of the picture.
        left = np.ceil(x.min(axis=0)).clip(0)
        top = np.ceil(y.min(axis=0)).clip(0)
        right = np.floor(x.max(axis=0)).clip(None, width - 1)
        bottom = np.floor(y.max(axis=0)).clip(None, height - 1)
        drawn = np.flatnonzero((right >= left) & (bottom >= top))
        corners = corners.take(front.take(drawn), axis=1)
        return cls(
            corners=corners,
            x=x.take(drawn, axis=1),
            y=y.take(drawn, axis=1),
            nearness=points.nearness.take(corners),
            areas=areas.take(drawn),
            top=top[drawn].astype(np.intp),
            bottom=bottom[drawn].astype(np.intp),
        )

    def draw(self, width: int, height: int) -> NDArray[np.uint64]:
        """Draw the triangles row by row, and return the picture as keys.

        Returns:
            uint64 (height * width,), as `make_keys` makes them.
        """
        pixels = np.zeros(height * width, np.uint64)
        spans = self._find_spans(width)
        lengths = spans.right - spans.left + 1
        # Sorted by length, so that equally long ones are drawn together.
        order = np.argsort(lengths, kind="stable")
        sorted_lengths = lengths[order]
        for length in np.unique(sorted_lengths[sorted_lengths > 0]).tolist():
            first, last = np.searchsorted(sorted_lengths, [length, length + 1]).tolist()
            across = np.arange(length)
            step = max(1, _MAX_PIXELS // length)
            for start in range(first, last, step):
                chosen = order[start : min(start + step, last)]
                starts = (spans.rows[chosen] * width + spans.left[chosen])[:, np.newaxis]
                nearness = spans.nearness[chosen, np.newaxis] + spans.slopes[
                    chosen, np.newaxis
                ] * across.astype(np.float32)
                keys = make_keys(nearness, spans.numbers[chosen, np.newaxis])
                np.maximum.at(pixels, (starts + across).reshape(-1), keys.reshape(-1))
        return pixels

    def _find_spans(self, width: int) -> _Spans:
        """Find the pixels of each triangle in each row of the picture."""
        counts = self.bottom - self.top + 1
        numbers = np.repeat(np.arange(len(counts)), counts)
        indices = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = self.top.take(numbers) + indices

        # The weight of each corner is linear along a row: weight at column 0, and increase per
        # column. A pixel is inside if all weights are at least _MIN_WEIGHT.
        x = self.x.astype(np.float64).take(numbers, axis=1)
        y = self.y.astype(np.float64).take(numbers, axis=1) - rows
        left = np.zeros(len(numbers))
        right = np.full(len(numbers), width - 1.0)
        nearness_at_0 = np.zeros(len(numbers))
        slopes = np.zeros(len(numbers))
        areas = self.areas.astype(np.float64).take(numbers)
        for corner in range(3):
            first = (corner + 1) % 3
            last = (corner + 2) % 3
            at_0 = x[last] * y[first] - x[first] * y[last]
            increase = y[last] - y[first]
            with np.errstate(divide="ignore", invalid="ignore"):
                bound = (_MIN_WEIGHT - at_0) / increase
            left = np.where(increase > 0, np.maximum(left, bound), left)
            right = np.where(increase < 0, np.minimum(right, bound), right)
            right = np.where((increase == 0) & (at_0 < _MIN_WEIGHT), -1.0, right)
            share = self.nearness[corner].take(numbers) / areas
            nearness_at_0 += at_0 * share
            slopes += increase * share

        left = np.ceil(left.clip(0, width))
        right = np.floor(right.clip(-1, width - 1))
        # Outside by rounding, the nearness could have any value.
        lowest = self.nearness.min(axis=0).take(numbers)
        highest = self.nearness.max(axis=0).take(numbers)
        at_left = (nearness_at_0 + slopes * left).clip(lowest, highest)
        at_right = (nearness_at_0 + slopes * right).clip(lowest, highest)
        slopes = (at_right - at_left) / np.maximum(right - left, 1)
        return _Spans(
            numbers=numbers,
            rows=rows,
            left=left.astype(np.intp),
            right=right.astype(np.intp),
            nearness=at_left.astype(np.float32),
            slopes=slopes.astype(np.float32),
        )

    def weigh(
        self, numbers: NDArray[np.intp], rows: NDArray[np.intp], columns: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return twice the areas between a pixel and each edge of a triangle, float32 (3, M).

        They are positive inside, in the order of the opposite corners.

        Args:
            numbers: (M,), the triangles.
            rows: (M,), the rows of the pixels.
            columns: (M,), the columns of the pixels.
        """
        x = self.x.take(numbers, axis=1) - columns.astype(np.float32)
        y = self.y.take(numbers, axis=1) - rows.astype(np.float32)
        edges = ((1, 2), (2, 0), (0, 1))
        return np.stack([_cross(x[first], y[first], x[last], y[last]) for first, last in edges])


def _cross(
    x: NDArray[np.float32],
    y: NDArray[np.float32],
    other_x: NDArray[np.float32],
    other_y: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the cross product of vectors in a picture, whose y points down.

    It is positive if the turn from the first to the second is counter-clockwise.
    """
    return other_x * y - x * other_y


def make_keys(
    nearness: NDArray[np.float32], numbers: NDArray[np.integer[Any]]
) -> NDArray[np.uint64]:
    """Combine nearness and number in one integer."""
    upper = nearness.view(np.uint32).astype(np.uint64) << np.uint64(32)
    return upper | numbers.astype(np.uint64)


def read_keys(
    pixels: NDArray[np.uint64],
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Find the pixels that are not empty, and the number and the nearness at each."""
    flat = np.ascontiguousarray(pixels).reshape(-1)
    filled = np.flatnonzero(flat)
    keys = flat[filled]
    numbers = (keys & np.uint64(0xFFFFFFFF)).astype(np.intp)
    nearness = (keys >> np.uint64(32)).astype(np.uint32).view(np.float32)
    return filled, numbers, nearness
