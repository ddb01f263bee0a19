"""Pictures as PNG, and text in pictures."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from importlib import resources

import deflate
import numpy as np
from numpy.typing import NDArray

LINE_HEIGHT = 11
"""Of text, at scale 1, with some room between lines."""


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Encode a picture.

    Args:
        image: uint8 (H, W, 3), red, green, blue.
    """
    height, width, _ = image.shape
    rows = np.empty((height, 1 + 3 * width), np.uint8)
    rows[:, 0] = 2  # each row holds the difference to the one above
    rows[:, 1:] = np.diff(image.reshape(height, -1), axis=0, prepend=np.uint8(0))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", deflate.zlib_compress(rows.data, 6)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def measure_text(text: str) -> int:
    """How many pixels a text is wide at scale 1."""
    return 6 * len(text)


def draw_text(
    image: NDArray[np.uint8], x: int, y: int, text: str, color: tuple[int, int, int], scale: int = 1
) -> None:
    """Draw a line of text whose top left is at (x, y); what is not ASCII is shown as `?`."""
    font = _read_font()
    columns = b"".join(font.get(letter, font["?"]) + b"\0" for letter in text)
    bits = np.unpackbits(np.frombuffer(columns, np.uint8)[None], axis=0, bitorder="little").astype(
        np.bool_
    )
    glyphs = bits.repeat(scale, axis=0).repeat(scale, axis=1)
    part = image[y : y + glyphs.shape[0], x : x + glyphs.shape[1]]
    part[glyphs[: part.shape[0], : part.shape[1]]] = color


@cache
def _read_font() -> dict[str, bytes]:
    """Five columns of each character from blank to tilde, a byte each, the lowest bit on top."""
    text = resources.files("scannet_prep").joinpath("assets/font.txt").read_text(encoding="ascii")
    return {line[0]: bytes.fromhex(line[2:]) for line in text.splitlines()}
