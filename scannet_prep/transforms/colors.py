"""Transforms of the colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scannet_prep.transforms.arguments import check_range, colors_as_given


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Shifts the colours of the scene, each channel by itself, and adds noise to those of each vertex.

    The shift of a channel is uniform in [-shift, shift], the noise normal. Colours stay uint8: rounded, and cut to
    0..255. To be put before `Normalize`.

    Attributes:
        shift: Largest shift, 0..255.
        noise: Standard deviation of the noise, 0..255.
    """

    shift: float = 12.0
    noise: float = 6.0

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_range(self, "shift", lowest=0, highest=255)
        check_range(self, "noise", lowest=0, highest=255)

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        """Change `colors`."""
        colors = colors_as_given(sample, self)
        shift = generator.uniform(-self.shift, self.shift, 3).astype(np.float32)
        changed = generator.standard_normal(colors.shape, np.float32)
        changed *= np.float32(self.noise)
        changed += shift
        changed += colors
        return {**sample, "colors": np.clip(np.rint(changed), 0, 255).astype(np.uint8)}
