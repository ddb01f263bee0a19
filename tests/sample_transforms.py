"""Transforms for tests, at module level so that they pickle."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np


def draw(sample: dict[str, Any], generator: np.random.Generator) -> list[int]:
    """What the generator gives."""
    return generator.integers(0, 1 << 30, 3).tolist()


def draw_in_sample(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    return sample | {"drawn": int(generator.integers(0, 1 << 30))}


def fail_on_third_scene(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    if sample["scene_id"] == "scene0000_02":
        raise ZeroDivisionError("no such voxel")
    return sample


def die_on_third_scene(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Die as from the kernel's out-of-memory killer."""
    if sample["scene_id"] == "scene0000_02":
        os.kill(os.getpid(), signal.SIGKILL)
    return sample
