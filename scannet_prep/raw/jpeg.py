"""Check the markers of a JPEG image, without decoding it."""

from __future__ import annotations

import re
import struct

from scannet_prep.errors import ContentError

# In the compressed data of a JPEG, 0xFF is followed by 0x00 (a data byte), a restart marker, or
# another 0xFF. Any other byte after it is a marker.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_START = b"\xff\xd8"
_SIZE = struct.Struct(">HH")
_START_MARKER = 0xD8
_END_MARKER = 0xD9
# Lower markers are reserved, and occur in damaged files only.
_FIRST_SEGMENT = 0xC0
_SCAN_MARKER = 0xDA
# The segments that contain the size of the image. The other three numbers of this range are tables.
_FRAME_HEADERS = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def check_jpeg(data: bytes, size: tuple[int, int]) -> None:
    """Follow the markers of a JPEG image from its start to its end.

    An image has a frame header with its size, then at least one scan with its pixels. Bytes after
    the end are allowed, as in decoders.

    Args:
        data: The image.
        size: The expected width and height.

    Raises:
        ContentError: The image is damaged, or has another size.
    """
    if not data.startswith(_START):
        raise ContentError("does not begin as a JPEG image")
    position = len(_START)
    actual_size = (0, 0)  # without a frame header
    marker = _START_MARKER
    markers = set()
    while marker != _END_MARKER:
        match = _MARKER.search(data, position)
        if match is None:
            raise ContentError("ends within a JPEG image")
        # The match ends after the two bytes of the marker, 0xFF and its number.
        start = match.end()
        marker = data[start - 1]
        markers.add(marker)
        if marker < _FIRST_SEGMENT or marker == _START_MARKER:
            raise ContentError(f"has the JPEG marker 0x{marker:02x} in the wrong place")
        # The length of a segment includes the two bytes that it is stored in.
        stored_length = data[start : start + 2]
        length = int.from_bytes(stored_length, "big")
        position = start + length
        is_whole = length >= 2 and position <= len(data)
        if marker != _END_MARKER and not is_whole:
            raise ContentError("has a JPEG segment of a wrong length")
        if marker in _FRAME_HEADERS:
            # Length, bits per sample, height, width.
            size_start = start + 3
            height, width = _SIZE.unpack_from(data.ljust(size_start + 4), size_start)
            actual_size = (width, height)

    if _SCAN_MARKER not in markers:
        raise ContentError("is a JPEG image without pixels")
    if actual_size != size:
        width, height = actual_size
        expected_width, expected_height = size
        raise ContentError(
            f"has {width} x {height} pixels, expected {expected_width} x {expected_height}"
        )
