"""Straight lines in space, and in pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.blending import mix
from scannet_prep.view.camera import NEAR, PlacedCamera
from scannet_prep.view.categories import Color

# Lines cover pixels in part up to half a pixel beyond their width.
_SMOOTH = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class ProjectedLines:
    """The visible parts of lines in a picture.

    Attributes:
        numbers: Integers (P,), the line that each is a part of.
        ends: float32 (P, 2, 2), x and y of both ends; whole numbers are the middles of pixels.
        nearness: float32 (P, 2), as `Projected` has it.
    """

    numbers: NDArray[np.intp]
    ends: NDArray[np.float32]
    nearness: NDArray[np.float32]


def project_lines(
    lines: NDArray[np.float64], camera: PlacedCamera, width: int, height: int
) -> ProjectedLines:
    """Project lines, and leave out what is behind the camera.

    Args:
        lines: float64 (L, 2, 3), both ends, in metres.
        camera: The camera.
        width: Width of the picture, in pixels.
        height: Height of the picture, in pixels.
    """
    numbers = np.arange(len(lines))
    if camera.has_perspective:
        depths = camera.find_depths(lines)
        numbers = np.flatnonzero((depths >= NEAR).any(axis=1))
        lines = _cut_near(lines[numbers], depths[numbers])
    projected = camera.project(lines.reshape(-1, 3).astype(np.float32), width, height)
    ends = np.stack([projected.x, projected.y], axis=1).reshape(-1, 2, 2)
    return ProjectedLines(numbers, ends, projected.nearness.reshape(-1, 2))


def _cut_near(lines: NDArray[np.float64], depths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the parts of lines, (L, 2, 3), in front of the camera, by the depths of their ends."""
    other_ends = lines[:, ::-1]
    other_depths = depths[:, ::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        cut = (other_depths - NEAR) / (other_depths - depths)
    shares = np.where(depths < NEAR, cut, 1)
    return other_ends + (lines - other_ends) * shares[..., np.newaxis]


@dataclass(frozen=True, slots=True, eq=False)
class LinePixels:
    """The pixels around a line in a picture.

    Attributes:
        rows: Integers (P,).
        columns: Integers (P,).
        shares: float64 (P,), the position along the line: 0 at its start, 1 at its end.
        coverage: float32 (P,), how much of each pixel the line covers, up to 1; positive.
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    shares: NDArray[np.float64]
    coverage: NDArray[np.float32]


def find_pixels(
    ends: NDArray[np.float32], line_width: float, width: int, height: int
) -> LinePixels:
    """Find the pixels of a line.

    Args:
        ends: float32 (2, 2), x and y of both ends; whole numbers are the middles of pixels.
        line_width: Width of the line, in pixels.
        width: Width of the picture, in pixels.
        height: Height of the picture, in pixels.
    """
    start, end = ends.astype(np.float64)
    vector = end - start
    length = max(float(np.hypot(*vector)), 1e-9)
    # Go along the longer side. A row of an array is a step, with the pixels across the line.
    longer = int(np.abs(vector).argmax())
    shorter = 1 - longer
    limit = (width, height)[longer] - 1
    first, last = sorted((start[longer], end[longer]))
    steps = np.arange(max(0, np.floor(first)), min(limit, np.ceil(last)) + 1)[:, np.newaxis]
    slope = vector[shorter] / vector[longer] if vector[longer] else 0.0
    middles = start[shorter] + (steps - start[longer]) * slope
    reach = int(np.ceil(line_width)) + 1
    offsets = np.rint(middles) + np.arange(-reach, reach + 1)

    across = np.abs((offsets - middles) * vector[longer]) / length
    along = (steps - start[longer]) * vector[longer] + (offsets - start[shorter]) * vector[shorter]
    along /= length
    to_end = np.minimum(along, length - along)
    coverage = (line_width / 2 + _SMOOTH - across).clip(0, 1) * (to_end + _SMOOTH).clip(0, 1)

    steps = np.broadcast_to(steps, offsets.shape)
    columns, rows = (steps, offsets) if longer == 0 else (offsets, steps)
    is_in_width = (columns >= 0) & (columns < width)
    is_in_height = (rows >= 0) & (rows < height)
    chosen = (coverage > 0) & is_in_width & is_in_height
    return LinePixels(
        rows=rows[chosen].astype(np.intp),
        columns=columns[chosen].astype(np.intp),
        shares=(along[chosen] / length).clip(0, 1),
        coverage=coverage[chosen].astype(np.float32),
    )


def draw_line(
    image: NDArray[np.uint8], ends: NDArray[np.float32], line_width: float, color: Color
) -> None:
    """Draw a line with smooth edges.

    Args:
        image: uint8 (H, W, 3), or (H, W, 4) with opacity.
        ends: float32 (2, 2), x and y of both ends; whole numbers are the middles of pixels.
        line_width: Width of the line, in pixels.
        color: Red, green, blue.
    """
    height, width = image.shape[:2]
    line = find_pixels(ends, line_width, width, height)
    pixels = line.rows, line.columns
    image[pixels] = mix(image[pixels], line.coverage, color)
