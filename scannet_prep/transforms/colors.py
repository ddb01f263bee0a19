"""Transforms of colours.

Colours are uint8 (V, 3): red, green and blue, 0..255. `Normalize` converts them to floats, which no
other transform of this module accepts. Put it after them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from scannet_prep.errors import UsageError
from scannet_prep.transforms.draft import Change, Columns, Draft
from scannet_prep.transforms.motion import CenterShift
from scannet_prep.transforms.noise import draw_normal
from scannet_prep.transforms.steps import Moving, Transform

# All values that a channel can have, (256,).
_LEVELS = np.arange(256, dtype=np.float32)


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Shifts each colour channel of the scene, and adds noise to the colour of each vertex.

    The shift of a channel is uniform in [-shift, shift]. The noise is normal. Colours stay uint8:
    they are rounded and clipped to 0..255. Put this transform before `Normalize`.

    The shift alone is Pointcept's `ChromaticTranslation(ratio=shift / 255)`, the noise alone its
    `ChromaticJitter(std=noise / 255)`.

    Attributes:
        shift: Largest shift in either direction, 0..255.
        noise: Standard deviation of the noise, 0..255.
    """

    shift: float = 12.0
    noise: float = 6.0

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `colors`."""
        shift = generator.uniform(-self.shift, self.shift, 3)
        shift = shift.astype(np.float32)
        # The noise is drawn later, for the vertices that remain. Its own generator keeps the
        # numbers that later steps draw independent of that.
        noise_seed = generator.integers(1 << 63)
        noise_generator = np.random.default_rng(noise_seed)

        def jitter(levels: Columns) -> Columns:
            if not self.noise:
                return _map_levels(levels, _LEVELS + shift[:, None])
            # One channel, (N,), after the other, in place.
            for offset, column in zip(shift, levels, strict=True):
                noisy = draw_normal(noise_generator, len(column))
                noisy *= np.float32(self.noise)
                noisy += column
                # Adding a half, and truncating by the conversion, rounds.
                noisy += offset + np.float32(0.5)
                np.clip(noisy, 0, 255, out=noisy)
                column[...] = noisy
            return levels

        _change_colors(draft, jitter)


@dataclass(frozen=True)
class ChromaticAutoContrast(Transform):
    """Stretches each channel to 0..255, and blends the result with the original colours.

    The weight of the stretched colours is uniform in [0, 1]. The result is rounded to uint8. A
    channel in which all vertices have the same value is unchanged.

    It is Pointcept's `ChromaticAutoContrast` (pointcept/datasets/transform.py), which its
    configurations apply with probability 0.2, and OctFormer's `_color_autocontrast`
    (datasets/scannet.py).
    """

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `colors`."""
        # At once, not after a later crop, whose extremes would be others.
        levels = draft.columns("colors")
        _check_levels(draft.step_name, levels)
        # The extremes of each channel, (3, 1). `initial` is for scenes without vertices.
        lowest = levels.min(axis=1, keepdims=True, initial=255)
        highest = levels.max(axis=1, keepdims=True, initial=0)
        lowest = lowest.astype(np.float32)
        extent = highest - lowest

        # The new value of each level of each channel, (3, 256).
        gain = 255 / np.maximum(extent, 1)
        change = (_LEVELS - lowest) * gain - _LEVELS
        change *= np.float32(generator.random())
        change[extent[:, 0] == 0] = 0
        table = _LEVELS + change
        levels[...] = _map_levels(levels, table)


@dataclass(frozen=True)
class Normalize(Moving):
    """Centres the scene at x = y = 0, puts its lowest point at z = 0, and scales its colours.

    The centre is that of the bounding box. Colours become float32 in [-1, 1]: colour / 127.5 - 1.
    Not random.
    """

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points` and `colors`."""
        CenterShift().change(draft, generator)
        _change_colors(draft, _scale_levels)


def _scale_levels(levels: Columns) -> Columns:
    """Scale colours from 0..255 to [-1, 1]."""
    colors = levels / np.float32(127.5)
    colors -= np.float32(1)
    return colors


def _change_colors(draft: Draft, change: Change) -> None:
    """Register a function to be applied to the colours, uint8 (3, N), after the last selection."""
    step_name = draft.step_name

    def change_levels(colors: Columns) -> Columns:
        # Checked now, because an earlier step may have changed the type.
        _check_levels(step_name, colors)
        return change(colors)

    draft.later("colors", change_levels)


def _check_levels(step_name: str, colors: Columns) -> None:
    if colors.dtype != np.uint8:
        raise UsageError(
            f"{step_name}: colors are {colors.dtype}, expected uint8",
            "put Normalize, which makes floats of them, after it",
        )


def _map_levels(levels: Columns, table: Columns) -> Columns:
    """Replace each level of each channel by its entry in a table (3, 256), rounded and clipped."""
    rounded = np.rint(table).clip(0, 255)
    result = np.empty_like(levels)
    new_levels = rounded.astype(np.uint8)
    for axis, channel in enumerate(levels):
        result[axis] = new_levels[axis].take(channel)
    return result
