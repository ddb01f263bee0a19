"""Lists of whole numbers as text, read into arrays without an object for each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
