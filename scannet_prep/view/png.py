"""Pictures as PNG, and text in pictures."""

from __future__ import annotations

import struct
import zlib

import deflate
import numpy as np
from numpy.typing import NDArray

LINE_HEIGHT = 11
"""Of text, at scale 1, with some room between lines."""

# Five columns of each character from blank to tilde, a byte each, the lowest bit on top.
_FONT = bytes.fromhex(
    "000000000000005f00000007000700147f147f14242a7f2a12231308646236495522500005030000001c2241000041221c00"
    "14083e081408083e0808005030000008080808080060600000201008040"
    "23e5149453e00427f400042615149462141454b31"
    "1814127f1027454545393c4a49493001710905033649494936064949291e0036360000005636000008142241001414141414"
    "0041221408020151090632497941"
    "3e7e1111117e7f494949363e414141227f4141221c7f494949417f090909013e4149497a"
    "7f0808087f00417f41002040413f017f081422417f404040407f020c027f7f0408107f3e4141413e7f090909063e4151215e"
    "7f09192946464949493101017f01013f4040403f1f2040201f3f4038403f63140814630708700807615149454300"
    "7f414100"
    "02040810200041417f000402010204404040404000010204002054545478"
    "7f484444383844444420384444487f3854545418"
    "087e090102"
    "18a4a4a47c7f0804047800447d40004080847d007f1028440000417f40007c041804787c08040478384444443"
    "8"
    "fc24242418182424"
    "24fc7c080404084854545420043f4440203c4040207c1c2040201c3c4030403c44281028441ca0a0a07c"
    "4464544c440008364100"
    "00007f00000041360800"
    "0804081008"
)


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
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def measure_text(text: str) -> int:
    """How many pixels a text is wide at scale 1."""
    return 6 * len(text)


def draw_text(image: NDArray[np.uint8], x: int, y: int, text: str, color: tuple[int, int, int], scale: int = 1) -> None:
    """Draw a line of text whose top left is at (x, y); what is not ASCII is shown as `?`."""
    glyphs = _rasterize(text).repeat(scale, axis=0).repeat(scale, axis=1)
    part = image[y : y + glyphs.shape[0], x : x + glyphs.shape[1]]
    part[glyphs[: part.shape[0], : part.shape[1]]] = color


def _rasterize(text: str) -> NDArray[np.bool_]:
    """The pixels of a text, bool (8, width)."""
    columns = bytearray()
    for letter in text:
        start = 5 * (ord(letter if " " <= letter <= "~" else "?") - ord(" "))
        columns += _FONT[start : start + 5] + b"\0"
    return np.unpackbits(np.frombuffer(columns, np.uint8)[None], axis=0, bitorder="little").astype(np.bool_)
