"""Encode and decode images: PNG files are encoded here, everything else by Pillow."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from typing import Any, TypeAlias

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ContentError

GrayImage: TypeAlias = NDArray[np.uint8] | NDArray[np.uint16]

# Width, height, bits of a sample, colour type; the methods of compression, filtering and
# interlacing are 0.
_PNG_HEADER = struct.Struct(">2I2B3x")
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_FILTER_UP = 2
_JPEG_QUALITY = 95
# The kind of the last chunk of a file.
_PNG_END = b"IEND"
# The bits of a sample, and the colour type.
_PNG_DEPTH = slice(24, 26)
# Colour types, by the rest of the shape: grey; red, green, blue; and these with opacity.
_GRAY = 0
_COLOR_TYPES = {(): _GRAY, (3,): 2, (4,): 6}


def encode_png(image: NDArray[np.uint8] | NDArray[np.uint16], level: int = 6) -> bytes:
    """Encode an image as PNG.

    Args:
        image: uint8 (H, W, 3), red, green, blue, or (H, W, 4), with opacity; or uint8 or uint16
            (H, W), grey.
        level: Level of compression, 1 to 12.
    """
    height, width = image.shape[:2]
    # PNG stores the high byte of a number first.
    big_endian = image.dtype.newbyteorder(">")
    samples = np.ascontiguousarray(image, big_endian)
    image_bytes = samples.view(np.uint8).reshape(height, -1)
    # Each row begins with its filter, and holds the difference from the row above.
    row_bytes = image_bytes.shape[1]
    rows = np.empty((height, 1 + row_bytes), np.uint8)
    rows[:, 0] = _FILTER_UP
    differences = rows[:, 1:]
    differences[0] = image_bytes[0]
    np.subtract(image_bytes[1:], image_bytes[:-1], out=differences[1:])
    header = _PNG_HEADER.pack(width, height, 8 * image.itemsize, _COLOR_TYPES[image.shape[2:]])
    compressed = deflate.zlib_compress(rows.data, level)
    chunks = [
        _encode_chunk(b"IHDR", header),
        _encode_chunk(b"IDAT", bytes(compressed)),
        _encode_chunk(_PNG_END, b""),
    ]
    return _PNG_SIGNATURE + b"".join(chunks)


def encode_pgm(image: GrayImage) -> bytes:
    """Encode millimetres, uint16 (H, W), as a binary PGM, which has the high byte first."""
    height, width = image.shape
    # The comment is that of SensReader.
    header = b"P5\n# data values are 16-bit each; depth shift is 1000\n%d %d\n65535\n"
    return header % (width, height) + image.astype(">u2").tobytes()


def encode_jpeg(image: NDArray[np.uint8]) -> bytes:
    """Encode uint8 (H, W, 3), red, green, blue, as JPEG."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue()


def decode_color(data: bytes, size: tuple[int, int], *formats: str) -> NDArray[np.uint8]:
    """Decode an image in colour.

    Args:
        data: The file.
        size: The expected width and height.
        formats: `JPEG`, `PNG` or both.

    Returns:
        uint8 (H, W, 3), red, green, blue.

    Raises:
        ContentError: It is damaged, or has another size.
    """
    image = _decode(data, size, *formats)
    return np.array(image.convert("RGB"), np.uint8)


def decode_gray(data: bytes, size: tuple[int, int]) -> GrayImage:
    """Decode an image of numbers, PNG or PGM.

    Args:
        data: The file.
        size: The expected width and height.

    Returns:
        uint8 or uint16 (H, W), by the bits of the file.

    Raises:
        ContentError: It is damaged, of another kind, or has another size.
    """
    if not data.startswith(b"P5"):
        check_gray_png(data, size)
    image = np.array(_decode(data, size, "PNG", "PPM"))
    # Pillow turns 16 bits into integers of 32 bits: of PGM, and in older versions of PNG.
    return image if image.dtype == np.uint8 else image.astype(np.uint16)


def check_gray_png(data: bytes, size: tuple[int, int]) -> None:
    """Check that an image is a PNG image of numbers and has an end, without decoding it.

    Args:
        data: The file.
        size: The expected width and height.

    Raises:
        ContentError: It is of another kind, has another size, or is truncated.
    """
    _decode(data, size, "PNG", only_header=True)
    # Pillow would not reject images of fewer bits, but scale their numbers.
    bits, color_type = data[_PNG_DEPTH]
    if bits not in {8, 16} or color_type != _GRAY:
        raise ContentError(
            f"has {bits} bits and the colour type {color_type}, expected 8 or 16 bits of grey"
        )
    if _PNG_END not in data:
        raise ContentError(f"is a truncated PNG image of {len(data):,} bytes: it has no end")


def resize_color(
    image: NDArray[np.uint8], size: tuple[int, int], side: int = 0
) -> NDArray[np.uint8]:
    """Resize an image; each new pixel is the mean of the area that it covers.

    Args:
        image: uint8 (H, W, 3).
        size: New width and height.
        side: Side of the square in its middle, to resize only that; 0 for the whole image.
    """
    from PIL import Image

    old = Image.fromarray(image)
    width, height = (side, side) if side else old.size
    left = (old.width - width) // 2
    top = (old.height - height) // 2
    box = (left, top, left + width, top + height)
    return np.array(old.resize(size, Image.Resampling.BOX, box), np.uint8)


def resize_nearest(image: GrayImage, size: tuple[int, int]) -> GrayImage:
    """Resize an image of numbers; each new pixel is the old one that contains its middle.

    Args:
        image: (H, W).
        size: New width and height.
    """
    width, height = size
    if image.shape == (height, width):
        return image
    rows = _find_middles(image.shape[0], height)
    columns = _find_middles(image.shape[1], width)
    resized: GrayImage = image[rows[:, np.newaxis], columns]
    return resized


def _find_middles(old_count: int, new_count: int) -> NDArray[np.int64]:
    """Find the old row, or column, that contains the middle of each new one."""
    # The middle of new row i lies at (i + 1/2) * old count / new count in old rows. Numerator and
    # denominator are doubled, so that both are integers.
    odd_numbers = 2 * np.arange(new_count) + 1
    return odd_numbers * old_count // (2 * new_count)


def _decode(
    data: bytes,
    size: tuple[int, int],
    *formats: str,
    only_header: bool = False,
) -> Any:  # noqa: ANN401 - an image of Pillow
    """Decode an image of one of these formats, or only its header, with Pillow.

    Raises:
        ContentError: It is damaged, or has another size.
    """
    from PIL import Image

    try:
        # Pillow warns of odd metadata, which does not matter here, and of huge images. The size is
        # checked before anything is decoded.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=formats)
            has_size = image.size == size
            if has_size and not only_header:
                image.load()
    except Exception as error:  # noqa: BLE001 - Pillow raises many classes, such as SyntaxError
        problem = f"is not a {' or '.join(formats)} image that can be decoded: {error}"
        # The text of Pillow may end with the address of an object.
        raise ContentError(problem[:200].partition(" <")[0]) from None
    if not has_size:
        width, height = image.size
        expected_width, expected_height = size
        raise ContentError(
            f"is an image of {width} x {height}, expected {expected_width} x {expected_height}"
        )
    return image


def _encode_chunk(kind: bytes, data: bytes) -> bytes:
    """Encode a chunk of a PNG file."""
    length = struct.pack(">I", len(data))
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return length + kind + data + checksum
