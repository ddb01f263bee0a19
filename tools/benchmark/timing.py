"""Timing of a call, and a plain loader for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def time_call(function: Callable[..., object], *arguments: object) -> float:
    """Return how many seconds a call takes."""
    start_s = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start_s


def load_npz(path: Path) -> dict[str, Any]:
    """Load all arrays of a file, as plain loaders do."""
    with np.load(path) as content:
        return {key: content[key] for key in content.files}
