"""The samples of a picture, on which lines and edges are drawn as in the page, and their mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.categories import Color
from scannet_prep.view.lines import ProjectedLines, find_pixels
from scannet_prep.view.raster import Seen

# How much darker edges are, at most to this share of the brightness: as in `shaders.js`.
_STRENGTH = 16.0
_DARKEST = 0.45
# Steps down and across to one of two opposite sides of a sample.
_SIDES = ((0, 1), (1, 0), (1, 1), (-1, 1))


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The samples of some rows of a picture.

    Attributes:
        values: uint8 (H, W, 4), red, green, blue, and 1 for samples that are not empty.
        nearness: float32 (H, W), as `Projected` has it; 0 for empty samples.
    """

    values: NDArray[np.uint8]
    nearness: NDArray[np.float32]

    @classmethod
    def of(cls, seen: Seen, colors: NDArray[np.uint8], width: int, height: int) -> Samples:
        """Return all samples.

        Args:
            seen: Those that are not empty.
            colors: uint8 (P, 3), the colour of each of these.
            width: Number of samples in a row.
            height: Number of rows.
        """
        values = np.zeros((height * width, 4), np.uint8)
        values[seen.pixels, :3] = colors
        values[seen.pixels, 3] = 1
        nearness = np.zeros(height * width, np.float32)
        nearness[seen.pixels] = seen.nearness
        return cls(values.reshape(height, width, 4), nearness.reshape(height, width))

    def draw_lines(
        self, lines: ProjectedLines, colors: NDArray[np.uint8], line_width: float, top: int
    ) -> None:
        """Draw lines where no surface is before them. They do not change the nearness.

        Args:
            lines: Lines in the picture.
            colors: uint8 (L, 3), the colour of each line.
            line_width: Width of the lines, in samples.
            top: The first row of these samples in the picture.
        """
        height, width = self.nearness.shape
        start = np.array([0, top], np.float32)
        parts = zip(lines.ends - start, lines.nearness, colors[lines.numbers], strict=True)
        for ends, (near_start, near_end), color in parts:
            line = find_pixels(ends, line_width, width, height)
            nearness = near_start + (near_end - near_start) * line.shares
            is_drawn = (line.coverage >= 0.5) & (nearness > self.nearness[line.rows, line.columns])
            pixels = line.rows[is_drawn], line.columns[is_drawn]
            self.values[pixels] = (*color, 1)

    def shade_edges(self, reach: int, empty: float, unit: float | None) -> None:
        """Darken samples behind those around them (eye-dome lighting, Boucheny 2009).

        Samples on opposite sides are averaged, so that a plane stays even at any angle: its
        nearness is linear in the picture.

        Args:
            reach: Distance to the samples on both sides, in samples.
            empty: The nearness of empty samples.
            unit: The nearness that steps are relative to; None for that of each sample.
        """
        height, width = self.nearness.shape
        is_filled = self.nearness > 0
        nearness = np.where(is_filled, self.nearness, np.float32(empty))
        padded = np.pad(nearness, reach, mode="edge")

        def move(down: int, across: int) -> NDArray[np.float32]:
            rows = slice(reach + reach * down, reach + reach * down + height)
            columns = slice(reach + reach * across, reach + reach * across + width)
            return np.asarray(padded[rows, columns])

        shadows = np.zeros_like(nearness)
        for down, across in _SIDES:
            one = move(down, across)
            other = move(-down, -across)
            # Two empty samples are no neighbours.
            is_near = np.maximum(one, other) > empty
            shadows += np.where(is_near, (one + other) / 2 - nearness, 0).clip(0)
        shadows /= nearness if unit is None else np.float32(unit)
        light = np.exp(-_STRENGTH * shadows).clip(_DARKEST, 1)
        light[~is_filled] = 1
        self.values[..., :3] = np.rint(self.values[..., :3] * light[..., np.newaxis])

    def mix(self, side: int, background: Color | None) -> NDArray[np.uint8]:
        """Return the mean colour of the samples of each pixel, uint8 (H, W, C).

        Args:
            side: Number of samples along each side of a pixel.
            background: Its colour; None for a transparent one.
        """
        height, width = self.nearness.shape
        sums = np.zeros((height // side, width // side, 4), np.uint16)
        for down in range(side):
            for across in range(side):
                sums += self.values[down::side, across::side]

        counts = sums[..., 3:]
        all_count = side**2
        if background is None:
            means = np.rint(sums[..., :3] / np.maximum(counts, 1))
            opacities = np.rint(counts * np.float32(255 / all_count))
            return np.concatenate([means, opacities], axis=2).astype(np.uint8)
        mixed = sums[..., :3] + (all_count - counts) * np.array(background, np.uint16)
        # Adding half of the divisor rounds.
        return np.asarray(((mixed + all_count // 2) // all_count).astype(np.uint8))
