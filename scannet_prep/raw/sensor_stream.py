"""Check that every frame of the sensor stream of a scan (`.sens`) is complete.

Layout of version 4, little-endian (SensReader in ScanNet's repository):

    header           with a name of any length
    frames           96 bytes each, followed by the color image and the depth image
    inertial records their number, then 128 bytes each; some files end before the number
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import deflate

from scannet_prep.base.errors import FileError
from scannet_prep.base.files import open_file

# No file of the release is larger.
_MAX_FILE_BYTES = 1 << 40
_VERSION = 4
# Version, length of the name.
_START = struct.Struct("<IQ")
# Four matrices; color and depth compression; color and depth width and height; depth shift; number
# of frames.
_HEADER = struct.Struct("<64f2i4IfQ")
# Pose and time stamps, which are skipped; sizes of the color and the depth image.
_FRAME = struct.Struct("<80x2Q")
_INERTIAL_BYTES = 128
# A raw color image of 1296 x 968 has 3.8 MB.
_MAX_IMAGE_BYTES = 1 << 26
_BUFFER_BYTES = 1 << 20
_DEPTH_VALUE_BYTES = 2
_JPEG_COLOR = 2
_ZLIB_DEPTH = 1

# In the compressed data of a JPEG, 0xFF is followed by 0x00 (a data byte), a restart marker, or
# another 0xFF. Any other byte after it is a marker.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JPEG_START = b"\xff\xd8"
_JPEG_START_MARKER = 0xD8
_JPEG_END_MARKER = 0xD9
# Lower markers are reserved, and occur in damaged files only.
_FIRST_JPEG_SEGMENT = 0xC0


def check_sensor_stream(path: Path, advance: Callable[[int], None] = lambda _: None) -> None:
    """Check that every frame of a sensor stream is complete, and that nothing else follows.

    Depth images are decompressed, which verifies their checksum. JPEG has no checksum, so color
    images are checked by following their markers from the first to the last.

    Args:
        path: The stream.
        advance: Called with the number of bytes that were checked, frame by frame.

    Raises:
        FileError: The stream is truncated, or a frame is damaged.
    """
    with open_file(path, _MAX_FILE_BYTES) as raw_file:
        size_bytes = os.fstat(raw_file.fileno()).st_size
        file = io.BufferedReader(raw_file, _BUFFER_BYTES)
        frame_count, depth_bytes = _read_header(file, path, size_bytes)
        for number in range(frame_count):
            name = f"frame {number:,} of {frame_count:,}"
            start = file.tell()
            images = _read_images(file)
            if images is None:
                problem = f"is truncated or damaged within {name}: {size_bytes:,} bytes"
                raise FileError(path, problem)
            color, depth = images
            problem = _find_jpeg_problem(color) or _find_depth_problem(depth, depth_bytes)
            if problem:
                raise FileError(path, f"{name} is damaged: {problem}")
            advance(file.tell() - start)
        _check_end(file, path, size_bytes)


def _read_header(file: BinaryIO, path: Path, size_bytes: int) -> tuple[int, int]:
    """Read the number of frames, and the size in bytes of a decompressed depth image."""
    try:
        version, name_bytes = _START.unpack(file.read(_START.size))
        if version != _VERSION or name_bytes > size_bytes:
            raise FileError(path, f"is not a sensor stream of version {_VERSION}")
        file.seek(name_bytes, os.SEEK_CUR)
        fields = _HEADER.unpack(file.read(_HEADER.size))
    except struct.error:
        raise FileError(path, f"is truncated within its header: {size_bytes:,} bytes") from None
    # The first 64 fields are the matrices; 66 and 67 are the size of a color image, which is not
    # needed, and 70 is the depth shift.
    color_compression, depth_compression = fields[64:66]
    depth_width, depth_height = fields[68:70]
    frame_count = fields[71]
    if color_compression != _JPEG_COLOR or depth_compression != _ZLIB_DEPTH:
        raise FileError(
            path,
            f"its header has color compression {color_compression} and depth compression "
            f"{depth_compression}, expected {_JPEG_COLOR} (JPEG) and {_ZLIB_DEPTH} (zlib)",
        )
    if not frame_count:
        raise FileError(path, "has no frames")
    depth_bytes = depth_width * depth_height * _DEPTH_VALUE_BYTES
    if depth_bytes > _MAX_IMAGE_BYTES:
        problem = f"its header is damaged: depth images of {depth_width:,} x {depth_height:,}"
        raise FileError(path, problem)
    return frame_count, depth_bytes


def _read_images(file: BinaryIO) -> tuple[bytes, bytes] | None:
    """Read the stored color and depth image of the next frame; None if they are incomplete."""
    sizes = file.read(_FRAME.size)
    if len(sizes) < _FRAME.size:
        return None
    color_bytes, depth_bytes = _FRAME.unpack(sizes)
    # Checked before anything is read, because a damaged size could fill the memory.
    if max(color_bytes, depth_bytes) > _MAX_IMAGE_BYTES:
        return None
    color = file.read(color_bytes)
    depth = file.read(depth_bytes)
    if len(color) < color_bytes or len(depth) < depth_bytes:
        return None
    return color, depth


def _find_depth_problem(depth: bytes, expected_bytes: int) -> str:
    """Describe the damage of a compressed depth image; empty if there is none."""
    problem = f"depth does not decompress to {expected_bytes:,} bytes"
    try:
        # This verifies zlib's checksum, and never decompresses to more than the given size.
        image = deflate.zlib_decompress(depth, expected_bytes)
    except deflate.DeflateError:
        return problem
    return problem if len(image) != expected_bytes else ""


def _find_jpeg_problem(data: bytes) -> str:
    """Follow the markers of a JPEG image to its end, and describe damage; empty if there is none.

    Bytes after the end are allowed, as in decoders.
    """
    if not data.startswith(_JPEG_START):
        return "color does not begin as a JPEG image"
    position = len(_JPEG_START)
    while True:
        match = _JPEG_MARKER.search(data, position)
        if match is None:
            return "color ends within a JPEG image"
        # The match ends after the two bytes of the marker, 0xFF and its number.
        marker = data[match.end() - 1]
        if marker == _JPEG_END_MARKER:
            return ""
        if marker < _FIRST_JPEG_SEGMENT or marker == _JPEG_START_MARKER:
            return f"color has the JPEG marker 0x{marker:02x} in the wrong place"
        # The length of a segment includes the two bytes that it is stored in.
        length = int.from_bytes(data[match.end() : match.end() + 2], "big")
        position = match.end() + length
        if length < 2 or position > len(data):
            return "color has a JPEG segment of a wrong length"


def _check_end(file: BinaryIO, path: Path, size_bytes: int) -> None:
    """Check that only inertial records follow the frames, and that they are complete."""
    rest_bytes = size_bytes - file.tell()
    if rest_bytes == 0:
        return
    record_count = int.from_bytes(file.read(8), "little")
    expected_bytes = 8 + record_count * _INERTIAL_BYTES
    if rest_bytes != expected_bytes:
        problem = f"{rest_bytes:,} bytes follow the frames, expected {expected_bytes:,}"
        raise FileError(path, f"is truncated, or damaged at its end: {problem}")
