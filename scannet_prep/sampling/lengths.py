"""Vertex counts as samplers take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.errors import UsageError

_HINT = "give dataset.lengths"


def check_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    """Check the vertex counts of the scenes, and copy them.

    Raises:
        UsageError: They are not whole numbers in one dimension, there are none, or one is negative.
    """
    if hasattr(lengths, "lengths"):  # as an array, it would be read scene by scene
        raise UsageError(f"lengths is a {type(lengths).__name__}, expected one number for each scene", _HINT)
    array = np.asarray(lengths)
    if array.ndim != 1 or not len(array):
        raise UsageError(f"lengths has the shape {array.shape}, expected one number for each scene", _HINT)
    if not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"lengths is of type {array.dtype}, expected whole numbers", _HINT)
    array = array.astype(np.int64)
    if array.min() < 0:
        raise UsageError(f"lengths has {array.min()} at position {array.argmin()}, expected numbers from 0", _HINT)
    return array
