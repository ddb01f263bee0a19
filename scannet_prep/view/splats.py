"""Points drawn as discs on their surface, which look like the surface itself, as in the page."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.camera import Projected
from scannet_prep.view.raster import SPREAD, Seen, estimate_spacing, make_keys

# From the middle of a disc to its rim, in distances between neighbours: the discs of a surface
# leave no hole. This number and the next six are those of `splats.js`.
_RADIUS = 1.2
# Limits, as factors of the mean radius.
_MIN_RADIUS = 0.4
_MAX_RADIUS = 1.6
# Steps along the longest side of the scene, as the page stores positions.
_STEPS = 65535
# The widths of cells in steps, as powers of 2: at least this, and of smaller cells in them.
_CELL_BITS = 10
_SMALLEST_BITS = 5
# Discs that are seen from the side are drawn as if they were turned to this cosine: they keep a
# width, and no pixel of them is far away from its vertex.
_MIN_COSINE = 0.3
# The smallest disc, in pixels from its middle to its rim: it covers the middle of a pixel.
_MIN_PIXELS = 0.75
# The largest one, as a share of the shorter side of the picture.
_MAX_SHARE = 1 / 6
# Pairs of a disc and a pixel that are tested at a time: their arrays fit into the cache.
_MAX_TESTS = 1 << 15


def estimate_radii(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Estimate the radius of the disc of each vertex from the density around it.

    The area of a surface in a cell is the number of smaller cells that it passes through. The
    square root of area divided by vertices is their distance.

    Args:
        points: float32 (V, 3), in metres.

    Returns:
        float32 (V,), in metres.
    """
    mean_radius = estimate_spacing(points) * SPREAD / 2
    low = points.min(axis=0)
    step = float((points.max(axis=0) - low).max()) / _STEPS
    if mean_radius <= 0 or step <= 0:
        return np.zeros(len(points), np.float32)
    small_bits = max(_SMALLEST_BITS, math.ceil(math.log2(1.4 * mean_radius / step)))
    cell_bits = max(_CELL_BITS, small_bits + 2)

    # One number for each cell along the three axes, (V,): 16 bits are enough for each axis.
    steps = np.rint((points - low) / np.float32(step)).astype(np.int64)
    x, y, z = (steps >> small_bits).T
    smaller_cells = (x << 32) | (y << 16) | z
    passed, numbers = np.unique(smaller_cells, return_inverse=True)
    shift = cell_bits - small_bits
    x, y, z = passed >> 32, passed >> 16 & 0xFFFF, passed & 0xFFFF
    cells = (x >> shift << 32) | (y >> shift << 16) | z >> shift
    _, cell_numbers, areas = np.unique(cells, return_inverse=True, return_counts=True)

    # The number of the cell of each vertex, (V,), and the vertices of each cell.
    vertex_cells = cell_numbers[numbers]
    distances = 2**small_bits * step * np.sqrt(areas / np.bincount(vertex_cells))
    radii = (_RADIUS * distances).clip(_MIN_RADIUS * mean_radius, _MAX_RADIUS * mean_radius)
    return np.asarray(radii[vertex_cells].astype(np.float32))


def project_radii(
    radii: NDArray[np.float32], points: Projected, shorter_side: int
) -> NDArray[np.float32]:
    """Return radii of discs in a picture, in pixels, (V,), from those in metres.

    Args:
        radii: float32 (V,), in metres.
        points: The vertices in the picture.
        shorter_side: The shorter side of the picture, in pixels.
    """
    return np.asarray((radii * points.scale).clip(_MIN_PIXELS, _MAX_SHARE * shorter_side))


def draw_splats(
    points: Projected,
    normals: NDArray[np.float32],
    facing: NDArray[np.float32],
    is_shown: NDArray[np.bool_],
    radii: NDArray[np.float32],
    width: int,
    height: int,
) -> Seen:
    """Draw vertices as discs, large enough that neighbours leave no hole.

    Args:
        points: The vertices in the picture.
        normals: float32 (V, 3), unit normals along the axes of the camera; (0, 0, 0) where
            undefined: these vertices are drawn as if they faced the camera.
        facing: float32 (V,), the products of normals and vectors to the camera, which are as long
            as they are deep: 1 metre per metre in front of the camera. Negative from behind.
        is_shown: bool (V,), the vertices to draw.
        radii: float32 (V,), from the middle of each disc to its rim, in pixels.
        width: Width of the picture, in pixels.
        height: Height of the picture, in pixels.
    """
    squared_radii = radii**2
    reaches = np.ceil(radii).astype(np.intp)
    columns = np.rint(points.x)
    rows = np.rint(points.y)
    is_in_width = (columns >= -reaches) & (columns < width + reaches)
    is_in_height = (rows >= -reaches) & (rows < height + reaches)
    is_shown = is_shown & is_in_width & is_in_height

    # A disc comes towards the camera by these factors to the right and upwards.
    cosines = np.where(normals.any(axis=1), facing, np.float32(1))
    is_back = cosines < 0
    cosines = np.maximum(np.abs(cosines), np.float32(_MIN_COSINE))
    cosines[is_back] *= -1
    slope_right = -normals[:, 0] / cosines
    slope_up = -normals[:, 1] / cosines

    # Discs may extend beyond the picture, so it gets a border.
    border = 2 * int(reaches.max(where=is_shown, initial=0)) + 1
    row_length = width + 2 * border
    pixels = np.zeros((height + 2 * border) * row_length, np.uint64)
    centers = np.zeros(len(columns), np.intp)
    centers[is_shown] = (rows[is_shown] + border) * row_length + columns[is_shown] + border
    for reach in np.unique(reaches[is_shown]).tolist():
        # The offsets of the pixels of the largest disc, from the pixel of its vertex.
        down, across = np.indices((2 * reach + 1, 2 * reach + 1)).reshape(2, -1) - reach
        is_near = down**2 + across**2 <= (reach + 1) ** 2
        down = down[is_near]
        across = across[is_near]
        offsets = down * row_length + across
        vertices = np.flatnonzero(is_shown & (reaches == reach))
        step = max(1, _MAX_TESTS // len(offsets))
        for start in range(0, len(vertices), step):
            # Arrays of a row for each vertex, and a column for each offset.
            chosen = vertices[start : start + step, np.newaxis]
            right = across.astype(np.float32) + (columns[chosen] - points.x[chosen])
            up = (points.y[chosen] - rows[chosen]) - down.astype(np.float32)
            towards = slope_right[chosen] * right + slope_up[chosen] * up
            is_inside = right**2 + up**2 + towards**2 <= squared_radii[chosen]
            # A thin disc also covers the pixel of its vertex.
            is_inside |= offsets == 0
            disc, pixel = np.nonzero(is_inside)
            covering = chosen[disc, 0]
            nearness = points.approach(covering, towards[disc, pixel] / points.scale[covering])
            keys = make_keys(nearness, covering)
            np.maximum.at(pixels, centers[covering] + offsets[pixel], keys)
    return Seen.of_points(pixels.reshape(-1, row_length)[border:-border, border:-border])
