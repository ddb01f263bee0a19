"""How different colours look: CIEDE2000.

The formula is that of Sharma, Wu and Dalal, "The CIEDE2000 color-difference formula" (2005), and
the names are theirs. The smallest difference that people see is about 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# XYZ of red, green and blue in sRGB (IEC 61966-2-1).
_XYZ_FROM_RGB = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
_WHITE = _XYZ_FROM_RGB.sum(axis=1)
_POWER = 25.0**7


def to_lab(colors: NDArray[Any]) -> NDArray[np.float64]:
    """Convert colours, red, green, blue from 0 to 255, (..., 3), to CIELAB, (..., 3)."""
    shares = np.asarray(colors, np.float64) / 255
    linear = np.where(shares > 0.04045, ((shares + 0.055) / 1.055) ** 2.4, shares / 12.92)
    xyz = linear @ _XYZ_FROM_RGB.T / _WHITE
    x, y, z = np.moveaxis(np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116), -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def measure_distances(
    first: NDArray[np.float64], second: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the CIEDE2000 distances of colours in CIELAB; the shapes are broadcast.

    Args:
        first: (..., 3), lightness, a, b.
        second: (..., 3), likewise.

    Returns:
        (...), 0 for equal colours; black and white are 100 apart.
    """
    lightness_1, a_1, b_1 = np.moveaxis(first, -1, 0)
    lightness_2, a_2, b_2 = np.moveaxis(second, -1, 0)

    # Chroma and hue, after a stretch of the axis a that makes grays even.
    mean_chroma = (np.hypot(a_1, b_1) + np.hypot(a_2, b_2)) / 2
    stretch = 1.5 - 0.5 * _saturation(mean_chroma)
    chroma_1 = np.hypot(stretch * a_1, b_1)
    chroma_2 = np.hypot(stretch * a_2, b_2)
    hue_1 = np.arctan2(b_1, stretch * a_1)
    hue_2 = np.arctan2(b_2, stretch * a_2)

    # The difference of two hues, from -pi to pi, and the hue half-way.
    turn = (hue_2 - hue_1 + np.pi) % (2 * np.pi) - np.pi
    hue = hue_1 + turn / 2
    lightness = (lightness_1 + lightness_2) / 2
    chroma = (chroma_1 + chroma_2) / 2

    # People see differences of lightness, chroma and hue less well in some colours.
    squared = (lightness - 50) ** 2
    lightness_scale = 1 + 0.015 * squared / np.sqrt(20 + squared)
    chroma_scale = 1 + 0.045 * chroma
    weight = (
        1
        - 0.17 * np.cos(hue - np.radians(30))
        + 0.24 * np.cos(2 * hue)
        + 0.32 * np.cos(3 * hue + np.radians(6))
        - 0.20 * np.cos(4 * hue - np.radians(63))
    )
    hue_scale = 1 + 0.015 * chroma * weight
    by_lightness = (lightness_2 - lightness_1) / lightness_scale
    by_chroma = (chroma_2 - chroma_1) / chroma_scale
    by_hue = 2 * np.sqrt(chroma_1 * chroma_2) * np.sin(turn / 2) / hue_scale

    # In blue, chroma and hue are not independent.
    blueness = np.exp(-(((np.degrees(hue) % 360 - 275) / 25) ** 2))
    rotation = -2 * _saturation(chroma) * np.sin(np.radians(60) * blueness)
    total = by_lightness**2 + by_chroma**2 + by_hue**2 + rotation * by_chroma * by_hue
    return np.asarray(np.sqrt(np.maximum(total, 0)))


def _saturation(chroma: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a number from 0 for grays to 1 for the strongest colours."""
    return np.asarray(np.sqrt(chroma**7 / (chroma**7 + _POWER)))
