"""The part of a mesh that a camera sees, at each pixel: a z-buffer.

While triangles are drawn, each pixel is one integer: the nearness in the upper half, the number of
the triangle in the lower half. The bit patterns of positive float32 numbers have the order of their
values. So the greatest integer is the nearest, and the depth test is a maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float32s: TypeAlias = NDArray[np.float32]
PixelNumbers: TypeAlias = NDArray[np.integer[Any]]
ImageCoordinates: TypeAlias = NDArray[np.floating[Any]]

# Twice the area, in square pixels, below which a triangle is not drawn.
_MIN_AREA = 1e-2
# The lowest weight of a pixel inside a triangle, below 0 so that rounding leaves no gap.
_MIN_WEIGHT = -1e-3
# Half of the bits of a key.
_HALF = np.uint64(32)
# Triangles that are drawn at a time, to bound the memory.
_TRIANGLES = 1 << 14


@dataclass(frozen=True, slots=True, eq=False)
class ImagePoints:
    """The vertices of a mesh in an image.

    Attributes:
        x: float32 (V,), pixels from the left; whole numbers are the middles of pixels.
        y: float32 (V,), pixels from the top.
        nearness: float32 (V,), 1 / depth, positive.
    """

    x: Float32s
    y: Float32s
    nearness: Float32s


@dataclass(frozen=True, slots=True, eq=False)
class Visible:
    """The visible part of a mesh.

    Attributes:
        pixels: Integers (P,), the pixels that are not empty: row * width + column.
        corners: Integers (3, P), the corners of the triangle at each of them.
        weights: float32 (3, P), the weight of each corner; together 1.
    """

    pixels: PixelNumbers
    corners: PixelNumbers
    weights: Float32s

    @property
    def nearest(self) -> PixelNumbers:
        """The corner with the greatest weight at each pixel, (P,)."""
        best = self.weights.argmax(axis=0)
        found = np.take_along_axis(self.corners, best[np.newaxis], axis=0)
        return np.asarray(found[0])

    def blend(self, values: NDArray[np.number[Any]]) -> Float32s:
        """Interpolate values of vertices, (V, ...), at each pixel, (P, ...)."""
        corner_values = values[self.corners]
        blended = np.einsum("vp,vp...->p...", self.weights, corner_values)
        return np.asarray(blended)


def draw_triangles(
    points: ImagePoints, faces: NDArray[np.int32], width: int, height: int
) -> Visible:
    """Draw the triangles that face the camera.

    Args:
        points: The vertices in the image.
        faces: (F, 3), indices of vertices; counter-clockwise from the front.
        width: Width of the image, in pixels.
        height: Height of the image, in pixels.
    """
    x = points.x[faces.T]
    y = points.y[faces.T]
    first_x, second_x, third_x = x
    first_y, second_y, third_y = y
    areas = _cross(
        second_x - first_x,
        second_y - first_y,
        third_x - first_x,
        third_y - first_y,
    )
    faces = faces[areas > _MIN_AREA]
    keys = np.zeros(height * width, np.uint64)
    for start in range(0, len(faces), _TRIANGLES):
        end = min(start + _TRIANGLES, len(faces))
        numbers = np.arange(start, end)
        _draw(points, faces, numbers, keys, width)

    pixels = np.flatnonzero(keys)
    drawn = keys[pixels] & np.uint64(0xFFFFFFFF)
    corners = faces[drawn.astype(np.intp)].T
    rows, columns = np.divmod(pixels, width)
    weights = _weigh(
        points.x[corners],
        points.y[corners],
        rows,
        columns,
    )
    weights = weights.clip(0)
    # These are the weights in the flat image. In space, a corner counts for less the farther away
    # it is.
    weights *= points.nearness[corners]
    weights /= weights.sum(axis=0)
    return Visible(pixels, corners, weights)


def _draw(
    points: ImagePoints,
    faces: NDArray[np.int32],
    numbers: PixelNumbers,
    keys: NDArray[np.uint64],
    width: int,
) -> None:
    """Draw some of the triangles, given by their numbers, into an image of keys, (H * W,)."""
    height = len(keys) // width
    x = points.x[faces[numbers]]
    y = points.y[faces[numbers]]
    # The pixels in the box around each triangle.
    left, widths = _find_span(x, width)
    top, heights = _find_span(y, height)
    counts = widths * heights
    # All these pixels, (P,): the triangle of each, and its number within the box.
    triangle_numbers = np.arange(len(numbers))
    triangles = np.repeat(triangle_numbers, counts)
    firsts = np.cumsum(counts) - counts
    indices = np.arange(len(triangles)) - firsts[triangles]
    down, across = np.divmod(indices, widths[triangles])
    rows = top[triangles] + down
    columns = left[triangles] + across

    corners = faces[numbers[triangles]].T
    # float32 would decide differently at some edges.
    weights = _weigh(
        points.x[corners].astype(np.float64),
        points.y[corners].astype(np.float64),
        rows,
        columns,
    )
    is_inside = (weights >= _MIN_WEIGHT).all(axis=0)
    weights = weights[:, is_inside]
    corner_nearness = points.nearness[corners[:, is_inside]]
    nearness = (weights * corner_nearness).sum(axis=0)
    nearness /= weights.sum(axis=0)
    # Outside by rounding, the nearness could have any value.
    lowest = corner_nearness.min(axis=0)
    highest = corner_nearness.max(axis=0)
    nearness = nearness.clip(lowest, highest).astype(np.float32)
    bits = nearness.view(np.uint32).astype(np.uint64)
    drawn_numbers = numbers[triangles[is_inside]]
    drawn = bits << _HALF | drawn_numbers.astype(np.uint64)
    pixels = rows * width + columns
    np.maximum.at(keys, pixels[is_inside], drawn)


def _find_span(
    coordinates: Float32s,
    size: int,
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find the pixels that triangles, (T, 3), cover along one axis: the first, and how many."""
    lowest = np.ceil(coordinates.min(axis=1))
    highest = np.floor(coordinates.max(axis=1))
    first = lowest.clip(0).astype(np.intp)
    last = highest.clip(None, size - 1).astype(np.intp)
    counts = last - first + 1
    return first, counts.clip(0)


def _weigh(
    x: ImageCoordinates,
    y: ImageCoordinates,
    rows: PixelNumbers,
    columns: PixelNumbers,
) -> ImageCoordinates:
    """Return twice the areas between pixels and the edges of triangles, (3, P).

    They are positive inside, in the order of the opposite corners.

    Args:
        x: (3, P), the corners of the triangle of each pixel, pixels from the left.
        y: (3, P), pixels from the top.
        rows: (P,), the rows of the pixels.
        columns: (P,), the columns of the pixels.
    """
    x = x - columns.astype(x.dtype)
    y = y - rows.astype(y.dtype)
    areas = np.empty_like(x)
    for index in range(3):
        first = (index + 1) % 3
        last = (index + 2) % 3
        areas[index] = _cross(
            x[first],
            y[first],
            x[last],
            y[last],
        )
    return areas


def _cross(
    x: ImageCoordinates,
    y: ImageCoordinates,
    other_x: ImageCoordinates,
    other_y: ImageCoordinates,
) -> ImageCoordinates:
    """Return the cross product of vectors in an image, whose y points down.

    It is positive if the turn from the first to the second is counter-clockwise.
    """
    return other_x * y - x * other_y
