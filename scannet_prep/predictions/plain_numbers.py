"""Lists of whole numbers as text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ZERO = ord("0")
# Any number of 18 digits fits into int64; not every one of 19 does.
_MAX_DIGITS = 18


def parse_plain_list(text: bytes, separator: bytes) -> NDArray[np.int64] | None:
    """Parse a list of numbers without making a Python object for each.

    A number has at most 18 digits and no leading zero. One separator is between two numbers.

    Args:
        text: The list, without a separator at its end.
        separator: One character.

    Returns:
        int64 (N,); None if the text has anything unusual and must be parsed in another way.
    """
    # The value of each digit, uint8 (len(text),). Other characters become numbers from 10 on: those
    # before "0" wrap around, so that a comma is 252.
    digits = np.frombuffer(text, np.uint8) - np.uint8(_ZERO)
    is_digit = digits < 10
    separator_value = (separator[0] - _ZERO) % 256

    # Shortcut for numbers of one digit each, as in masks. They are at the even positions, with the
    # separators between them.
    has_odd_length = len(digits) % 2 == 1
    if has_odd_length and (digits[1::2] == separator_value).all() and is_digit[::2].all():
        return digits[::2].astype(np.int64)

    # Index of the character after each number, and how many digits the number has, (N,).
    ends = np.append(np.flatnonzero(digits == separator_value), len(text))
    lengths = np.diff(ends, prepend=-1) - 1

    # All characters must be digits or separators, and no number may have a leading zero.
    separator_count = len(ends) - 1
    if np.count_nonzero(is_digit) != len(text) - separator_count:
        return None
    if lengths.min() < 1 or lengths.max() > _MAX_DIGITS:
        return None
    first_digits = digits.take(ends - lengths, mode="clip")
    if ((lengths > 1) & (first_digits == 0)).any():
        return None

    # Add up the ones of all numbers, then the tens, and so on. For numbers that are shorter, the
    # position is that of another character, or negative (clipped); it is multiplied by 0.
    values = np.zeros(len(ends), np.int64)
    for exponent in range(int(lengths.max())):
        digit_positions = ends - 1 - exponent
        has_digit = lengths > exponent
        column = digits.take(digit_positions, mode="clip") * has_digit
        values += np.multiply(column, 10**exponent, dtype=np.int64)
    return values
