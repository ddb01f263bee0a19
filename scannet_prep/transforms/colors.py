"""Transforms of colours and normals.

Colours are uint8 (V, 3): red, green and blue, 0..255. `Normalize` and `NormalizeColor` convert them
to floats, which no other transform of this module accepts. Put these two last.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.transforms.arguments import Triple, number, optional, triple
from scannet_prep.transforms.draft import Columns, Draft
from scannet_prep.transforms.draws import choose, draw, normal_quantiles
from scannet_prep.transforms.motion import CenterShift
from scannet_prep.transforms.steps import Moving, Parameters, Transform

# All values that a channel can have, (256,).
_LEVELS = np.arange(256, dtype=np.float32)
# Weights of red, green and blue in a grey level, as in ITU-R BT.601.
_GRAY_WEIGHTS = (0.2989, 0.587, 0.114)


class ColorJitter(Transform, shift=number(0, 255), noise=number(0, 255)):
    """Shifts each colour channel of the scene, and adds noise to the colour of each vertex.

    The shift of a channel is uniform in [-shift, shift]. The noise is normal, and clipped at 4.3
    standard deviations. Colours stay uint8: they are rounded and clipped to 0..255. Put this
    transform before `Normalize`.

    The shift alone is Pointcept's `ChromaticTranslation(ratio=shift / 255)`, and albumentations'
    `RGBShift`, except that `RGBShift` rounds down. The noise alone is Pointcept's
    `ChromaticJitter(std=noise / 255)`.

    Attributes:
        shift: Largest shift in either direction, 0..255.
        noise: Standard deviation of the noise, 0..255.
    """

    shift: float = 12.0
    noise: float = 6.0

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `colors`."""
        shift = generator.uniform(-self.shift, self.shift, 3).astype(np.float32)
        # The noise is drawn later, for the vertices that remain. Its own generator keeps the
        # numbers that later steps draw independent of that.
        noise_generator = np.random.default_rng(generator.integers(1 << 63))

        def jitter(levels: Columns) -> Columns:
            if not self.noise:
                return _map_levels(levels, _LEVELS + shift[:, None])
            # One channel, (N,), after the other, in place.
            for offset, column in zip(shift, levels, strict=True):
                # All changes of this channel, equally likely. Each vertex gets one of them. They
                # are integers, because levels are, and rounding them here is faster.
                changes = normal_quantiles() * np.float32(self.noise) + offset
                changes = np.rint(changes).astype(np.int16)
                noisy = draw(changes, noise_generator, len(column))
                noisy += column
                column[...] = np.clip(noisy, 0, 255, out=noisy)
            return levels

        _change_colors(draft, self, jitter)
        return {"shift": shift}


class ChromaticAutoContrast(Transform, blend_factor=optional(number(0, 1))):
    """Stretches each channel to 0..255, and blends the result with the original colours.

    The result is rounded to uint8. A channel in which all vertices have the same value is
    unchanged.

    It is Pointcept's `ChromaticAutoContrast` (pointcept/datasets/transform.py), which its
    configurations apply with probability 0.2, and OctFormer's `_color_autocontrast`
    (datasets/scannet.py).

    Attributes:
        blend_factor: Weight of the stretched colours, 0..1; None to draw it uniformly from [0, 1].
    """

    blend_factor: float | None = None

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `colors`."""
        blend_factor = self.blend_factor
        if blend_factor is None:
            blend_factor = generator.random()
        weight = np.float32(blend_factor)

        def stretch(levels: Columns) -> Columns:
            # The extremes of each channel, (3, 1). `initial` is for scenes without vertices.
            lowest = levels.min(axis=1, keepdims=True, initial=255).astype(np.float32)
            highest = levels.max(axis=1, keepdims=True, initial=0).astype(np.float32)
            factors = np.float32(255) / np.maximum(highest - lowest, 1)

            # The new value of each level of each channel, (3, 256).
            stretched = (_LEVELS - lowest) * factors
            blended = _LEVELS + weight * (stretched - _LEVELS)
            return _map_levels(levels, np.where(highest > lowest, blended, _LEVELS))

        _change_colors(draft, self, stretch)
        # Reading the colours applies it now. After a later crop, the extremes would be others.
        draft.columns("colors")
        return {"blend_factor": weight}


class RandomBrightnessContrast(
    Transform,
    brightness_limit=number(0, 1),
    contrast_limit=number(0, 1),
):
    """Multiplies colours by 1 + contrast and adds 255 * brightness, both drawn for the scene.

    Contrast and brightness are uniform within their limits on either side of 0. The result is
    rounded and clipped to 0..255.

    It is albumentations' `RandomBrightnessContrast(brightness_by_max=True)`, as Mask3D applies it
    (conf/augmentation/albumentations_aug.yaml), except that albumentations rounds down.

    Attributes:
        brightness_limit: Largest brightness, 0..1.
        contrast_limit: Largest contrast, 0..1.
    """

    brightness_limit: float = 0.2
    contrast_limit: float = 0.2

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `colors`."""
        contrast = generator.uniform(-self.contrast_limit, self.contrast_limit)
        brightness = generator.uniform(-self.brightness_limit, self.brightness_limit)
        factor = np.float32(1 + contrast)
        offset = np.float32(255 * brightness)
        table = np.tile(_LEVELS * factor + offset, (3, 1))
        _change_colors(draft, self, lambda levels: _map_levels(levels, table))
        return {"contrast": contrast, "brightness": brightness}


class HueSaturationTranslation(Transform, hue_max=number(0, 1), saturation_max=number(0, 1)):
    """Shifts the hue of all colours, and multiplies their saturation. Grey does not change.

    Colours are converted to HSV, as by Python's `colorsys`:

    - A shift uniform in [-hue_max, hue_max] is added to the hue, in turns.
    - The saturation is multiplied by a factor uniform in [1 - saturation_max, 1 + saturation_max],
      and clipped at 1.
    - The value, which is the largest of the three channels, does not change.

    It is Pointcept's `HueSaturationTranslation` (pointcept/datasets/transform.py), except that
    Pointcept's rounds down. Put this transform before `Normalize`.

    Attributes:
        hue_max: Largest shift of the hue in either direction, in turns, 0..1.
        saturation_max: Largest difference of the saturation factor from 1, 0..1.
    """

    hue_max: float = 0.5
    saturation_max: float = 0.2

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `colors`."""
        hue_shift = generator.uniform(-self.hue_max, self.hue_max)
        saturation_factor = 1 + generator.uniform(-self.saturation_max, self.saturation_max)

        def shift_hues(levels: Columns) -> Columns:
            return _shift_hues(levels, hue_shift, saturation_factor)

        _change_colors(draft, self, shift_hues)
        return {"hue_shift": hue_shift, "saturation_factor": saturation_factor}


class RandomColorGrayScale(Transform):
    """Replaces each channel by the grey level, 0.2989 red + 0.587 green + 0.114 blue.

    It is Pointcept's `RandomColorGrayScale` (pointcept/datasets/transform.py), whose `p` becomes
    `Sometimes(RandomColorGrayScale(), p)`. Grey levels are rounded to uint8; Pointcept's stay
    floats. Put this transform before `Normalize`.
    """

    def change(self, draft: Draft, generator: Generator) -> Parameters:  # noqa: ARG002
        """Change `colors`."""
        _change_colors(draft, self, _make_gray)
        return {}


class RandomDropColor(Transform, drop_ratio=number(0, 1)):
    """Makes a random share of the vertices black.

    It is Pointcept's `RandomDropColor` (pointcept/datasets/transform.py), whose
    `drop_application_ratio` becomes `Sometimes(RandomDropColor(drop_ratio),
    drop_application_ratio)`. Put this transform before `Normalize`.

    Attributes:
        drop_ratio: Share of the vertices, 0..1. Their number is rounded down. If later steps of a
            `Compose` crop or sample, it is a share of the vertices that they leave.
    """

    drop_ratio: float = 0.2

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `colors`."""
        _change_colors(draft, self, _make_eraser(self.drop_ratio, generator))
        return {}


class RandomDropNormal(Transform, drop_ratio=number(0, 1)):
    """Sets the normals of a random share of the vertices to (0, 0, 0), like undefined normals.

    It is Pointcept's `RandomDropNormal` (pointcept/datasets/transform.py), whose
    `drop_application_ratio` becomes `Sometimes(RandomDropNormal(drop_ratio),
    drop_application_ratio)`.

    Attributes:
        drop_ratio: Share of the vertices, 0..1, as in `RandomDropColor`.
    """

    drop_ratio: float = 0.2

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `normals`."""
        draft.later("normals", _make_eraser(self.drop_ratio, generator))
        return {}


class NormalizeColor(
    Transform,
    mean=triple(number(0, 1), "numbers from 0 to 1"),
    std=triple(number(1e-6, 1), "numbers from 1e-06 to 1"),
):
    """Converts colours to float32: (color / 255 - mean) / std in each channel. Not random.

    The defaults are Mask3D's for ScanNet (datasets/semseg.py). With mean 0 and std 1 it is
    Pointcept's `NormalizeColor`. `scannet_prep.convert` refuses these colours: it accepts uint8,
    and the result of `Normalize`.

    Attributes:
        mean: Means of red, green and blue, 0..1.
        std: Standard deviations of red, green and blue, 0..1.
    """

    mean: Triple = (0.47793125906962, 0.4303257521323044, 0.3749598901421883)
    std: Triple = (0.2834475483823543, 0.27566157565723015, 0.27018971370874995)

    def change(self, draft: Draft, generator: Generator) -> Parameters:  # noqa: ARG002
        """Change `colors`."""
        # The formula as color * factor - offset. Both are (3, 1), to be combined with (3, N).
        factors = (1 / (255 * np.array(self.std)[:, None])).astype(np.float32)
        offsets = (np.array(self.mean) / self.std).astype(np.float32)[:, None]
        _change_colors(draft, self, lambda levels: levels * factors - offsets)
        return {}


class Normalize(Moving):
    """Centres the scene at x = y = 0, puts its lowest point at z = 0, and scales its colours.

    The centre is that of the bounding box. Colours become float32 in [-1, 1]: color / 127.5 - 1.
    Not random.
    """

    def change(self, draft: Draft, generator: Generator) -> Parameters:
        """Change `points` and `colors`."""
        if not draft.count:
            raise UsageError("Normalize: there are no points, expected at least one")
        parameters = CenterShift().change(draft, generator)
        _change_colors(draft, self, lambda levels: levels / np.float32(127.5) - np.float32(1))
        return parameters


def _change_colors(draft: Draft, transform: object, change: Callable[[Columns], Columns]) -> None:
    """Register a function to be applied to the colours, uint8 (3, N), after the last selection.

    The type is checked when the function is applied, because an earlier step may change it.
    """

    def change_levels(colors: Columns) -> Columns:
        if colors.dtype != np.uint8:
            name = type(transform).__name__
            raise UsageError(
                f"{name}: colors are {colors.dtype}, expected uint8",
                f"Compose({name}(), Normalize()): colors become floats in the last step",
            )
        return change(colors)

    draft.later("colors", change_levels)


def _map_levels(levels: Columns, table: NDArray[np.float32]) -> Columns:
    """Replace each level of each channel by its entry in a table (3, 256), rounded and clipped."""
    rounded = np.clip(np.rint(table), 0, 255).astype(np.uint8)
    return np.stack([new.take(old) for new, old in zip(rounded, levels, strict=True)])


def _make_eraser(share: float, generator: Generator) -> Callable[[Columns], Columns]:
    """Return a function that sets a random share of the vertices to 0.

    The function is called later, for the vertices that remain. Its own generator keeps the numbers
    that later steps draw independent of that.
    """
    own_generator = np.random.default_rng(generator.integers(1 << 63))

    def erase(columns: Columns) -> Columns:
        columns[:, choose(own_generator, columns.shape[1], share)] = 0
        return columns

    return erase


def _make_gray(levels: Columns) -> Columns:
    """Replace colours, uint8 (3, N), by their grey levels."""
    gray = np.zeros(levels.shape[1], np.float32)
    for weight, column in zip(_GRAY_WEIGHTS, levels.astype(np.float32), strict=True):
        gray += np.float32(weight) * column
    return np.tile(np.rint(gray).astype(np.uint8), (3, 1))


def _shift_hues(levels: Columns, hue_shift: float, saturation_factor: float) -> Columns:
    """Shift the hues of colours, uint8 (3, N), by a number of turns, and multiply saturations.

    Value, chroma and hue are computed as floats (N,). Value and chroma are in 0..255.
    """
    red, green, blue = levels.astype(np.float32)
    value = np.maximum(np.maximum(red, green), blue)
    chroma = value - np.minimum(np.minimum(red, green), blue)
    # The chroma of grey is 0. Its hue has no effect.
    divisor = np.maximum(chroma, 1)

    # Hue in sixths of a turn: 0 red, 2 green, 4 blue.
    hue = np.where(
        red == value,
        (green - blue) / divisor,
        np.where(green == value, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    hue += np.float32(6 * hue_shift)

    # The saturation is chroma / value, and at most 1 afterwards.
    chroma = np.minimum(chroma * np.float32(saturation_factor), value)

    # A channel has the full value within a sixth of a turn of its own hue, and value - chroma
    # beyond a third of a turn. In between, it is linear in the hue. The offsets move the own hue of
    # each channel (red 0, green 2, blue 4) to position 5, in the middle of the full range 4..6.
    result = np.empty_like(levels)
    for channel, offset in enumerate((5, 3, 1)):
        position = np.mod(hue + np.float32(offset), np.float32(6))
        loss = np.clip(np.minimum(position, 4 - position), 0, 1)
        result[channel] = np.rint(value - chroma * loss)
    return result
