"""Colours that cover a part of a picture, or a part of each pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.categories import Color


def cover(
    image: NDArray[np.uint8], x: int, y: int, coverage: NDArray[np.floating[Any]], color: Color
) -> None:
    """Cover a part of a picture with a colour.

    Args:
        image: uint8 (H, W, 3), or (H, W, 4) with opacity.
        x: The first column of the part; the part may extend beyond the picture.
        y: Its first row.
        coverage: float32 (height, width), from 0 to 1.
        color: Red, green, blue.
    """
    height, width = coverage.shape
    part = image[max(0, y) : max(0, y + height), max(0, x) : max(0, x + width)]
    visible = coverage[max(0, -y) :, max(0, -x) :][: part.shape[0], : part.shape[1]]
    part[:] = mix(part, visible, color)


def mix(
    pixels: NDArray[np.uint8], coverage: NDArray[np.floating[Any]], color: Color
) -> NDArray[np.uint8]:
    """Return pixels, (..., C), that a colour covers in part, by a coverage of 0 to 1, (...)."""
    opacity_above = coverage[..., np.newaxis]
    opacity_below = 1 - opacity_above
    if pixels.shape[-1] == 4:
        opacity_below = opacity_below * (pixels[..., 3:] / 255)
    opacity = opacity_above + opacity_below
    sums = np.array(color, np.float32) * opacity_above + pixels[..., :3] * opacity_below
    values = np.rint(sums / opacity.clip(1e-6)).astype(np.uint8)
    if pixels.shape[-1] == 4:
        values = np.concatenate([values, np.rint(255 * opacity).astype(np.uint8)], axis=-1)
    return np.asarray(values)
