"""Check the markers of a JPEG image, without decoding it."""

from __future__ import annotations

import re

# In the compressed data of a JPEG, 0xFF is followed by 0x00 (a data byte), a restart marker, or
# another 0xFF. Any other byte after it is a marker.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_START = b"\xff\xd8"
_START_MARKER = 0xD8
_END_MARKER = 0xD9
# Lower markers are reserved, and occur in damaged files only.
_FIRST_SEGMENT = 0xC0
_SCAN_MARKER = 0xDA
# The segments that contain the size of the image. The other three numbers of this range are tables.
_FRAME_HEADERS = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def find_jpeg_problem(data: bytes, size: tuple[int, int] | None = None) -> str:
    """Follow the markers of a JPEG image to its end, and describe damage; empty if there is none.

    An image has a frame header with its size, then at least one scan with its pixels. Bytes after
    the end are allowed, as in decoders.

    Args:
        data: The image.
        size: The expected width and height; None if the size does not matter.
    """
    if not data.startswith(_START):
        return "color does not begin as a JPEG image"
    actual_size = None
    has_scan = False
    position = len(_START)
    while True:
        match = _MARKER.search(data, position)
        if match is None:
            return "color ends within a JPEG image"
        # The match ends after the two bytes of the marker, 0xFF and its number.
        start = match.end()
        marker = data[start - 1]
        if marker == _END_MARKER:
            break
        if marker < _FIRST_SEGMENT or marker == _START_MARKER:
            return f"color has the JPEG marker 0x{marker:02x} in the wrong place"
        # The length of a segment includes the two bytes that it is stored in.
        length = int.from_bytes(data[start : start + 2], "big")
        position = start + length
        if length < 2 or position > len(data):
            return "color has a JPEG segment of a wrong length"
        if marker in _FRAME_HEADERS:
            # Length, bits per sample, height, width.
            height = int.from_bytes(data[start + 3 : start + 5], "big")
            width = int.from_bytes(data[start + 5 : start + 7], "big")
            actual_size = (width, height)
        if marker == _SCAN_MARKER:
            has_scan = True

    if actual_size is None or not has_scan:
        return "color is a JPEG image without pixels"
    if size is not None and actual_size != size:
        return (
            f"color has {actual_size[0]} x {actual_size[1]} pixels, expected {size[0]} x {size[1]}"
        )
    return ""
