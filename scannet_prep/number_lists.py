"""Lists of whole numbers as text, read into arrays without an object for each."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ContentError

_ZERO = ord("0")
_NUMBER = re.compile(rb"[ \t]*(-?[0-9]{1,18})[ \t]*")


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


def parse_lines(text: bytes) -> NDArray[np.int64]:
    """Read whole numbers, one a line. Lines may end in CR LF, and the last one in nothing.

    Returns:
        int64 (lines,).

    Raises:
        ContentError: A line is something else; the message says which.
    """
    text = text.replace(b"\r\n", b"\n").rstrip(b"\n")
    if not text:
        return np.zeros(0, np.int64)
    if (values := parse_plain_list(text, b"\n")) is not None:
        return values
    lines = text.split(b"\n")
    matches = [_NUMBER.fullmatch(line) for line in lines]
    if None in matches:
        number = matches.index(None)
        raise ContentError(f"line {number + 1:,}: found {str(lines[number])[1:42]}, expected a whole number")
    return np.array([int(match[1]) for match in matches if match], np.int64)
