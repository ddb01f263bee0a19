"""Checks of what transforms are made with, and of what they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError


def check_range(
    transform: object, name: str, *, lowest: float, highest: float = np.inf, is_whole: bool = False
) -> None:
    """Refuse a number that makes no sense.

    Raises:
        UsageError: It is not in the range, or no number.
    """
    value = getattr(transform, name)
    types = int | np.integer if is_whole else int | float | np.number
    if not isinstance(value, types) or not lowest <= value <= highest:
        expected = f"at least {lowest:g}" if highest == np.inf else f"from {lowest:g} to {highest:g}"
        raise UsageError(
            f"{type(transform).__name__}: {name} is {value!r}, expected a {'whole ' * is_whole}number {expected}"
        )


def colors_as_given(sample: dict[str, Any], transform: object) -> NDArray[np.uint8]:
    """The colours of a sample, which must not have been normalized yet.

    Raises:
        UsageError: They are of another type than uint8.
    """
    colors: NDArray[np.uint8] = sample["colors"]
    if colors.dtype != np.uint8:
        raise UsageError(
            f"{type(transform).__name__}: colors are {colors.dtype}, expected uint8, 0..255", "put it before Normalize"
        )
    return colors
