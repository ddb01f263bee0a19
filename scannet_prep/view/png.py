"""Text in pictures, and their encoding as PNG."""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.images import encode_png

__all__ = ["LINE_HEIGHT", "draw_text", "encode_png", "measure_text"]

LINE_HEIGHT = 11
"""Height of a line of text at scale 1, with some space between lines."""

# Five columns, and an empty one.
_LETTER_WIDTH = 6


def measure_text(text: str) -> int:
    """Return the width of a text at scale 1, in pixels."""
    return _LETTER_WIDTH * len(text)


def draw_text(
    image: NDArray[np.uint8],
    x: int,
    y: int,
    text: str,
    color: tuple[int, ...],
    scale: int = 1,
) -> None:
    """Draw a line of text whose top left is at (x, y); characters outside ASCII become `?`."""
    font = _read_font()
    columns = b"".join(font.get(letter, font["?"]) + b"\0" for letter in text)
    # Bits of the text, (8, W): a byte is a column, its lowest bit is on top.
    column_bytes = np.frombuffer(columns, np.uint8)[np.newaxis]
    bits = np.unpackbits(column_bytes, axis=0, bitorder="little").astype(np.bool_)
    glyphs = bits.repeat(scale, axis=0).repeat(scale, axis=1)
    # The part of the picture that the text covers; smaller at its edges.
    part = image[y : y + glyphs.shape[0], x : x + glyphs.shape[1]]
    part[glyphs[: part.shape[0], : part.shape[1]]] = color


@cache
def _read_font() -> dict[str, bytes]:
    """Read the five columns of each character from blank to tilde, a byte each."""
    path = resources.files("scannet_prep").joinpath("assets/font.txt")
    lines = path.read_text(encoding="ascii").splitlines()
    # A line is the character, a blank, and the columns in hexadecimal.
    return {line[0]: bytes.fromhex(line[2:]) for line in lines}
