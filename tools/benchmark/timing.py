"""How long something takes, and what it is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def time_call(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start_s = time.perf_counter()
    function()
    return time.perf_counter() - start_s


def load_npz(path: Path) -> dict[str, Any]:
    """All arrays of a file, as a plain loader reads them."""
    with np.load(path) as content:
        return {key: content[key] for key in content.files}
