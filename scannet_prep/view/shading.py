"""How dark light may make the colours of classes: not so dark that they look like another class."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.color_distance import measure_distances, to_lab

# Pages store brightness in a byte.
_LEVELS = 255
_AMBIENT_LEVEL = 235

AMBIENT = _AMBIENT_LEVEL / _LEVELS
"""Brightness of surfaces that face away from the light; 1 is the full brightness.

From 0.91 on, each shaded colour of ScanNet20 is nearer to its own colour than to any other.
"""

# Shades are compared with so many of the most similar colours.
_RIVALS = 8
# A distance is clearly less than another one below this share of it: renderers also round colours.
_CLEAR = 0.9


@functools.cache
def find_ambients(colors: tuple[tuple[int, int, int], ...]) -> tuple[float, ...]:
    """Find the lowest brightness for each colour of a label set, from `AMBIENT` to 1.

    From there on, each shade is nearer to its own colour than to any other, both as people see it
    (CIEDE2000) and in red, green and blue.
    """
    rgb = np.array(colors, np.float64)
    lab = to_lab(rgb)
    # The most similar colours of each colour, (C, R); the first one is itself.
    by_eye = measure_distances(lab[:, np.newaxis], lab).argsort(axis=1)[:, :_RIVALS]
    by_number = _measure_rgb(rgb[:, np.newaxis], rgb).argsort(axis=1)[:, :_RIVALS]

    ambients = np.ones(len(rgb))
    is_clear = np.ones(len(rgb), np.bool_)
    for level in range(_LEVELS - 1, _AMBIENT_LEVEL - 1, -1):
        brightness = level / _LEVELS
        shades = np.floor(brightness * rgb)
        is_clear &= _is_first_nearest(measure_distances(to_lab(shades)[:, np.newaxis], lab[by_eye]))
        is_clear &= _is_first_nearest(_measure_rgb(shades[:, np.newaxis], rgb[by_number]))
        ambients[is_clear] = brightness
    return tuple(ambients.tolist())


def _is_first_nearest(distances: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether the first distance of each row, (C, R), is clearly less than all others, (C,)."""
    return np.asarray(distances[:, 0] < _CLEAR * distances[:, 1:].min(axis=1))


def _measure_rgb(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distances of colours, (..., 3); the shapes are broadcast."""
    return np.asarray(np.linalg.norm(first - second, axis=-1))
