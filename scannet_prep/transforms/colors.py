"""Transforms of colours: uint8 (V, 3), red, green, blue, 0..255. They are to be put before what makes them floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.transforms.motion import CenterShift
from scannet_prep.transforms.steps import Columns, Draft, Moving, Transform, Triple, draw, normal_quantiles

_LEVELS = np.arange(256, dtype=np.float32)


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

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `colors`."""
        shift = generator.uniform(-self.shift, self.shift, 3).astype(np.float32)
        noise_generator = np.random.default_rng(generator.integers(1 << 63))  # so that later steps do not wait for it

        def jitter(levels: Columns) -> Columns:
            if not self.noise:
                return _map_levels(levels, _LEVELS + shift[:, None])
            for number, column in zip(shift, levels, strict=True):
                steps = np.rint(normal_quantiles() * np.float32(self.noise) + number).astype(np.int16)
                noisy = draw(steps, noise_generator, len(column))
                noisy += column
                column[...] = np.clip(noisy, 0, 255, out=noisy)
            return levels

        _change_colors(draft, self, jitter)


class ChromaticAutoContrast(Transform, blend_factor=(0, 1)):
    """Stretches each channel to 0..255, and blends the result with the colours from before.

    Pointcept's `ChromaticAutoContrast` (pointcept/datasets/transform.py), which its configurations apply with
    probability 0.2, and `_color_autocontrast` of OctFormer (datasets/scannet.py). Rounded to uint8; a channel with one
    value stays as it is.

    Attributes:
        blend_factor: Share of the stretched colours, 0..1; None for one that is uniform in [0, 1].
    """

    blend_factor: float | None = None

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `colors`."""
        share = np.float32(generator.random() if self.blend_factor is None else self.blend_factor)

        def stretch(levels: Columns) -> Columns:
            lowest = levels.min(axis=1, keepdims=True, initial=255).astype(np.float32)
            highest = levels.max(axis=1, keepdims=True, initial=0).astype(np.float32)
            stretched = (_LEVELS - lowest) * (np.float32(255) / np.maximum(highest - lowest, 1))
            return _map_levels(levels, np.where(highest > lowest, _LEVELS + share * (stretched - _LEVELS), _LEVELS))

        _change_colors(draft, self, stretch)
        draft.columns("colors")  # now, because a crop would leave other extremes


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

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `colors`."""
        factor = np.float32(1 + generator.uniform(-self.contrast_limit, self.contrast_limit))
        offset = np.float32(255 * generator.uniform(-self.brightness_limit, self.brightness_limit))
        _change_colors(draft, self, lambda levels: _map_levels(levels, np.tile(_LEVELS * factor + offset, (3, 1))))


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

    def change(self, draft: Draft, generator: Generator) -> None:  # noqa: ARG002
        """Change `colors`."""
        factors = (1 / (255 * np.array(self.std)[:, None])).astype(np.float32)
        offsets = (np.array(self.mean) / self.std).astype(np.float32)[:, None]
        _change_colors(draft, self, lambda levels: levels * factors - offsets)


class Normalize(Moving):
    """Puts the scene's middle at x = y = 0 and its lowest point at z = 0, and colours into [-1, 1]. Nothing is random.

    The middle is that of the bounding box. Colours become float32, c / 127.5 - 1.
    """

    def change(self, draft: Draft, generator: Generator) -> None:
        """Change `points` and `colors`."""
        if not draft.count:
            raise UsageError("Normalize: there are no points")
        CenterShift().change(draft, generator)
        _change_colors(draft, self, lambda levels: levels / np.float32(127.5) - np.float32(1))


def _change_colors(draft: Draft, transform: object, change: Callable[[Columns], Columns]) -> None:
    """Change colours later, by a function of uint8 (3, N); those that have been normalized are refused."""

    def change_levels(colors: Columns) -> Columns:
        if colors.dtype != np.uint8:
            message = f"{type(transform).__name__}: colors are {colors.dtype}, expected uint8"
            raise UsageError(message, "put it before Normalize and NormalizeColor")
        return change(colors)

    draft.later("colors", change_levels)


def _map_levels(levels: Columns, table: NDArray[np.float32]) -> Columns:
    """Replace each level of each channel, by a table (3, 256); rounded, cut to 0..255."""
    rounded = np.clip(np.rint(table), 0, 255).astype(np.uint8)
    return np.stack([new.take(old) for new, old in zip(rounded, levels, strict=True)])
