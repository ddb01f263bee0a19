"""Points drawn as discs on their surface, which look like the surface itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.camera import Projected
from scannet_prep.view.raster import Seen, make_keys

# From the middle of a disc to its rim, in mean distances between vertices: flat surfaces of the
# release have fewer vertices than others, and must have no holes either.
_RADIUS = 1.6
# Discs that are seen from the side are drawn as if they were turned to this cosine: they keep a
# width, and no pixel of them is far away from its vertex.
_MIN_COSINE = 0.25
# The largest disc that is drawn, in pixels from its middle to its rim.
_MAX_REACH = 96
# Pairs of a disc and a pixel that are tested at a time: their arrays fit into the cache.
_MAX_TESTS = 1 << 15


def draw_splats(
    points: Projected,
    normals: NDArray[np.float32],
    facing: NDArray[np.float32],
    is_shown: NDArray[np.bool_],
    spacing: float,
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
        spacing: Distance between neighbours, in metres.
        width: Width of the picture, in pixels.
        height: Height of the picture, in pixels.
    """
    # In pixels; at least half a pixel, so that every disc covers the middle of a pixel.
    radii = (points.scale * np.float32(spacing * _RADIUS)).clip(0.75, _MAX_REACH)
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
    border = 2 * _MAX_REACH + 1
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
