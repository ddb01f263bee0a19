"""Text in pictures, and their encoding as PNG."""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.images import encode_png

__all__ = ["LETTER_HEIGHT", "LINE_HEIGHT", "cover_text", "encode_png", "measure_text"]

LINE_HEIGHT = 11
"""Height of a line of text at scale 1, with some space between lines."""

LETTER_HEIGHT = 7
"""Height of a capital letter at scale 1."""

# Five columns, and an empty one.
_LETTER_WIDTH = 6


def measure_text(text: str) -> int:
    """Return the width of a text at scale 1, in pixels."""
    return _LETTER_WIDTH * len(text)


def cover_text(text: str, scale: int = 1) -> NDArray[np.bool_]:
    """Return which pixels a line of text covers, bool (8 * scale, W).

    Characters outside ASCII become `?`.
    """
    font = _read_font()
    columns = b"".join(font.get(letter, font["?"]) + b"\0" for letter in text)
    # A byte is a column, its lowest bit is on top.
    column_bytes = np.frombuffer(columns, np.uint8)[np.newaxis]
    bits = np.unpackbits(column_bytes, axis=0, bitorder="little").astype(np.bool_)
    return bits.repeat(scale, axis=0).repeat(scale, axis=1)


@cache
def _read_font() -> dict[str, bytes]:
    """Read the five columns of each character from blank to tilde, a byte each."""
    path = resources.files("scannet_prep").joinpath("assets/font.txt")
    lines = path.read_text(encoding="ascii").splitlines()
    # A line is the character, a blank, and the columns in hexadecimal.
    return {line[0]: bytes.fromhex(line[2:]) for line in lines}
