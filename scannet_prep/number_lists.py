"""Whole numbers: lists of them as text, read into arrays without an object for each; and as arguments."""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError

_ZERO = ord("0")


def parse_plain_list(text: bytes, separator: bytes) -> NDArray[np.int64] | None:
    """Read numbers of at most 18 digits with one separator between each two. None where anything is unusual.

    Args:
        text: The list, without a separator at its end.
        separator: One character.
    """
    digits = np.frombuffer(text, np.uint8) - np.uint8(_ZERO)
    mark = (separator[0] - _ZERO) % 256
    if len(digits) % 2 and (digits[1::2] == mark).all() and (digits[::2] < 10).all():
        return digits[::2].astype(np.int64)  # one digit each, as masks have them
    ends = np.append(np.flatnonzero(digits == mark), len(text))
    lengths = np.diff(ends, prepend=-1) - 1
    is_plain = np.count_nonzero(digits < 10) == len(text) - len(ends) + 1 and 0 < lengths.min() <= lengths.max() < 19
    if not is_plain or ((lengths > 1) & (digits.take(ends - lengths, mode="clip") == 0)).any():
        return None
    values = np.zeros(len(ends), np.int64)
    for place in range(int(lengths.max())):
        ends -= 1
        values += np.multiply(digits.take(ends, mode="clip") * (lengths > place), 10**place, dtype=np.int64)
    return values


def check_number(value: int, name: str, smallest: int) -> int:
    """Check an argument that must be a whole number."""
    try:
        number = operator.index(value)  # arrays and tensors, too, have `__index__`, and then may not be one number
    except TypeError:
        number = smallest - 1
    if number < smallest:
        raise UsageError(f"{name} is {value!r:.80}, expected a whole number from {smallest}", f"{name}={smallest}")
    return number
