"""PNG encoding, and text in pictures."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from importlib import resources

import deflate
import numpy as np
from numpy.typing import NDArray

LINE_HEIGHT = 11
"""Height of a line of text at scale 1, with some space between lines."""

# Five columns, and an empty one.
_LETTER_WIDTH = 6
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COMPRESSION_LEVEL = 6
_FILTER_UP = 2
# Colour types, by the number of channels.
_COLOR_TYPES = {3: 2, 4: 6}


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Encode a picture.

    Args:
        image: uint8 (H, W, 3), red, green, blue; or (H, W, 4), with opacity.
    """
    height, width, channels = image.shape
    # Each row begins with its filter, and holds the difference from the row above.
    rows = np.empty((height, 1 + channels * width), np.uint8)
    rows[:, 0] = _FILTER_UP
    rows[:, 1:] = np.diff(image.reshape(height, -1), axis=0, prepend=np.uint8(0))
    # Width, height, bits per channel, colour type; compression, filters and interlacing by default.
    color_type = _COLOR_TYPES[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    chunks = [
        _encode_chunk(b"IHDR", header),
        _encode_chunk(b"IDAT", bytes(deflate.zlib_compress(rows.data, _COMPRESSION_LEVEL))),
        _encode_chunk(b"IEND", b""),
    ]
    return _SIGNATURE + b"".join(chunks)


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


def _encode_chunk(kind: bytes, data: bytes) -> bytes:
    """Encode a chunk of a PNG file."""
    length = struct.pack(">I", len(data))
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return length + kind + data + checksum


@cache
def _read_font() -> dict[str, bytes]:
    """Read the five columns of each character from blank to tilde, a byte each."""
    path = resources.files("scannet_prep").joinpath("assets/font.txt")
    lines = path.read_text(encoding="ascii").splitlines()
    # A line is the character, a blank, and the columns in hexadecimal.
    return {line[0]: bytes.fromhex(line[2:]) for line in lines}
