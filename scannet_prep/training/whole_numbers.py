"""Whole numbers as arguments of functions."""

from __future__ import annotations

import operator

from scannet_prep.errors import UsageError


def check_number(value: int, name: str, smallest: int) -> int:
    """Check an argument that must be a whole number, and return it as an int.

    Args:
        value: The argument, also as a NumPy integer, or as an array or tensor of one integer.
        name: Its name, for messages.
        smallest: The smallest value that is allowed.

    Raises:
        UsageError: It is not a whole number, or is too small.
    """
    try:
        # Arrays and tensors have `__index__` too, and raise a TypeError unless they are one number.
        number = operator.index(value)
    except TypeError:
        number = smallest - 1  # refused below
    if number < smallest:
        raise UsageError(
            f"{name} is {value!r:.80}, expected a whole number from {smallest}",
            f"{name}={smallest}",
        )
    return number
