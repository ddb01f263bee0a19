"""The grid of metres on the floor of a scene, and its axes, as `drawing.js` draws them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.visibility import find_floor

_GRID_COLOR = (128, 128, 128)
_AXIS_COLORS = ((230, 64, 64), (51, 178, 77), (77, 128, 255))
# Larger scenes have a stray vertex, and no grid.
_MAX_GRID_M = 1000
# Of the axes above the grid, in metres.
_AXIS_HEIGHT = 0.002


def make_grid(points: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Return the lines of the grid and of the axes, and their colours.

    Args:
        points: float32 (V, 3), the points of a scene, in metres.

    Returns:
        float64 (L, 2, 3), the ends of the lines, and uint8 (L, 3).
    """
    floor = find_floor(points)
    low = np.floor(points.min(axis=0)[:2]).astype(np.float64)
    high = np.ceil(points.max(axis=0)[:2]).astype(np.float64)
    lines: list[list[list[float]]] = []
    if np.ptp(points, axis=0).max() <= _MAX_GRID_M:
        columns = np.arange(low[0], high[0] + 1)
        rows = np.arange(low[1], high[1] + 1)
        lines += [[[x, low[1], floor], [x, high[1], floor]] for x in columns]
        lines += [[[low[0], y, floor], [high[0], y, floor]] for y in rows]
    corner = np.array([*low, floor + _AXIS_HEIGHT])
    axes = [[corner, corner + axis] for axis in np.eye(3)]
    colors = [_GRID_COLOR] * len(lines) + list(_AXIS_COLORS)
    return np.array([*lines, *axes], np.float64), np.array(colors, np.uint8)
