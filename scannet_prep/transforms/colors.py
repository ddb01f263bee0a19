"""Transforms of colours: uint8 (V, 3), red, green, blue, 0..255. They are to be put before what makes them floats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.transforms.motion import Triple
from scannet_prep.transforms.steps import Sample, Transform, colors_as_given, draw, normal_quantiles

_LEVELS = np.arange(256, dtype=np.float32)[:, None]


@dataclass(frozen=True)
class ColorJitter(Transform, shift=(0, 255), noise=(0, 255)):
    """Shifts the colours of the scene, each channel by itself, and adds noise to those of each vertex.

    The shift of a channel is uniform in [-shift, shift], the noise normal (cut at 4.3 times its deviation). Colours
    stay uint8: rounded, and cut to 0..255. To be put before `Normalize`. The shift alone is Pointcept's
    `ChromaticTranslation(ratio=shift / 255)` and albumentations' `RGBShift`, the noise alone Pointcept's
    `ChromaticJitter(std=noise / 255)`.

    Attributes:
        shift: Largest shift, 0..255.
        noise: Standard deviation of the noise, 0..255.
    """

    shift: float = 12.0
    noise: float = 6.0

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Change `colors`."""
        colors = colors_as_given(sample, self)
        shift = generator.uniform(-self.shift, self.shift, 3).astype(np.float32)
        if not self.noise:
            return {**sample, "colors": _map_channels(colors, _LEVELS + shift)}
        changed = np.empty_like(colors)
        for channel in range(3):  # column by column: much faster than three numbers at a time
            steps = np.rint(normal_quantiles() * np.float32(self.noise) + shift[channel]).astype(np.int16)
            noisy = draw(steps, generator, len(colors))
            noisy += colors[:, channel]
            changed[:, channel] = np.clip(noisy, 0, 255, out=noisy)
        return {**sample, "colors": changed}


@dataclass(frozen=True)
class ChromaticAutoContrast(Transform, blend_factor=(0, 1)):
    """Stretches each channel to 0..255, and blends the result with the colours from before.

    Pointcept's `ChromaticAutoContrast` (pointcept/datasets/transform.py), which its configurations apply with
    probability 0.2, and `_color_autocontrast` of OctFormer (datasets/scannet.py). Rounded to uint8; a channel with one
    value stays as it is.

    Attributes:
        blend_factor: Share of the stretched colours, 0..1; None for one that is uniform in [0, 1].
    """

    blend_factor: float | None = None

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Change `colors`."""
        colors = colors_as_given(sample, self)
        share = generator.random() if self.blend_factor is None else self.blend_factor
        if not len(colors):
            return dict(sample)
        columns = colors.T.copy()
        lowest, highest = columns.min(axis=1).astype(np.float32), columns.max(axis=1).astype(np.float32)
        stretched = (_LEVELS - lowest) * (np.float32(255) / np.maximum(highest - lowest, 1))
        table = np.where(highest > lowest, _LEVELS + np.float32(share) * (stretched - _LEVELS), _LEVELS)
        return {**sample, "colors": _map_channels(colors, table)}


@dataclass(frozen=True)
class RandomBrightnessContrast(Transform, brightness_limit=(0, 1), contrast_limit=(0, 1)):
    """Multiplies colours by 1 + a, and adds 255 b, with a and b uniform within their limits. Rounded, cut to 0..255.

    albumentations' `RandomBrightnessContrast(brightness_by_max=True)`, as Mask3D applies it
    (conf/augmentation/albumentations_aug.yaml).

    Attributes:
        brightness_limit: Largest b on either side of 0.
        contrast_limit: Largest a on either side of 0.
    """

    brightness_limit: float = 0.2
    contrast_limit: float = 0.2

    def __call__(self, sample: Sample, generator: Generator) -> Sample:
        """Change `colors`."""
        factor = np.float32(1 + generator.uniform(-self.contrast_limit, self.contrast_limit))
        offset = np.float32(255 * generator.uniform(-self.brightness_limit, self.brightness_limit))
        table = np.repeat(_LEVELS * factor + offset, 3, axis=1)
        return {**sample, "colors": _map_channels(colors_as_given(sample, self), table)}


@dataclass(frozen=True)
class NormalizeColor(Transform, mean=(0, 1), std=(1e-6, 1)):
    """Makes colours float32, (c / 255 - mean) / std for each channel. Nothing is random.

    The defaults are Mask3D's for ScanNet (datasets/semseg.py); mean 0 and std 1 are Pointcept's `NormalizeColor`.
    `scannet_prep.convert` takes colours as they are or from `Normalize`, and refuses these.

    Attributes:
        mean: Of red, green and blue, 0..1.
        std: Their standard deviations, 0..1.
    """

    mean: Triple = (0.47793125906962, 0.4303257521323044, 0.3749598901421883)
    std: Triple = (0.2834475483823543, 0.27566157565723015, 0.27018971370874995)

    def __call__(self, sample: Sample, generator: Generator) -> Sample:  # noqa: ARG002
        """Change `colors`."""
        factors = 1 / (255 * np.array(self.std))
        offsets = np.array(self.mean) / self.std
        colors = colors_as_given(sample, self) * factors.astype(np.float32) - offsets.astype(np.float32)
        return {**sample, "colors": colors}


def _map_channels(colors: NDArray[np.uint8], table: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Replace each level of each channel, by a table (256, 3); rounded, cut to 0..255."""
    levels = np.clip(np.rint(table), 0, 255).astype(np.uint8)
    result = np.empty_like(colors)
    for channel in range(3):
        result[:, channel] = levels[:, channel].take(colors[:, channel])
    return result
