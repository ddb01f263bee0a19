"""The sensor stream of a scan (`.sens`): the check that every frame is complete.

Version 4, little-endian (SensReader in ScanNet's repository): a header, which holds a name of any length; frames of 96
bytes, each followed by its color and its depth image; at times the number of inertial records, and those.
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

_VERSION = 4
_START = struct.Struct("<IQ")  # version, length of the name
_HEADER = struct.Struct("<64f2i4IfQ")
_FRAME = struct.Struct("<80x2Q")  # pose and time stamps, sizes of color and depth
_INERTIAL_BYTES = 128
_MAX_IMAGE_BYTES = 1 << 26  # a raw color image of 1296 x 968 has 3.8 MB
_BUFFER_BYTES = 1 << 20
_DEPTH_VALUE_BYTES = 2
_JPEG_COLOR = 2
_ZLIB_DEPTH = 1

# Within the compressed data of a JPEG, 0xFF is followed by 0x00 (a data byte), by a restart marker, or by more 0xFF.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JPEG_START = b"\xff\xd8"
_JPEG_START_MARKER = 0xD8
_JPEG_END_MARKER = 0xD9
_FIRST_JPEG_SEGMENT = 0xC0  # lower markers are reserved, and occur in damaged files only


def check_sensor_stream(path: Path, advance: Callable[[int], None] = lambda _: None) -> None:
    """Check that every frame of a sensor stream is complete, and that nothing is missing or added at the end.

    Depth images are decompressed, which compares their checksum. JPEG has no checksum: of color images, the markers are
    followed from the first to the last.

    Args:
        path: The stream.
        advance: Called with the number of bytes that were checked, frame by frame.

    Raises:
        FileError: The stream is truncated, or a frame is damaged.
    """
    with open_file(path, 1 << 40) as raw_file:
        size_bytes = os.fstat(raw_file.fileno()).st_size
        file = io.BufferedReader(raw_file, _BUFFER_BYTES)
        frame_count, depth_bytes = _read_header(file, path, size_bytes)
        for number in range(frame_count):
            name = f"frame {number:,} of {frame_count:,}"
            start = file.tell()
            images = _read_images(file)
            if images is None:
                raise FileError(
                    path, f"is truncated or damaged within {name}: {size_bytes:,} bytes"
                )
            color, depth = images
            problem = _find_jpeg_problem(color) or _find_depth_problem(depth, depth_bytes)
            if problem:
                raise FileError(path, f"{name} is damaged: {problem}")
            advance(file.tell() - start)
        _check_end(file, path, size_bytes)


def _read_header(file: BinaryIO, path: Path, size_bytes: int) -> tuple[int, int]:
    """Read the header; returns the number of frames, and the size in bytes of a decompressed depth image."""
    try:
        version, name_bytes = _START.unpack(file.read(_START.size))
        if version != _VERSION or name_bytes > size_bytes:
            raise FileError(path, f"is not a sensor stream of version {_VERSION}")
        file.seek(name_bytes, os.SEEK_CUR)
        (
            *_,
            color_compression,
            depth_compression,
            _,
            _,
            depth_width,
            depth_height,
            _,
            frame_count,
        ) = _HEADER.unpack(file.read(_HEADER.size))
    except struct.error:
        raise FileError(path, f"is truncated within its header: {size_bytes:,} bytes") from None
    if (color_compression, depth_compression) != (_JPEG_COLOR, _ZLIB_DEPTH):
        problem = f"color compression {color_compression} and depth compression {depth_compression}"
        raise FileError(
            path,
            f"its header has {problem}, expected {_JPEG_COLOR} (JPEG) and {_ZLIB_DEPTH} (zlib)",
        )
    if not frame_count:
        raise FileError(path, "has no frames")
    depth_bytes = depth_width * depth_height * _DEPTH_VALUE_BYTES
    if depth_bytes > _MAX_IMAGE_BYTES:
        raise FileError(
            path, f"its header is damaged: depth images of {depth_width:,} x {depth_height:,}"
        )
    return frame_count, depth_bytes


def _read_images(file: BinaryIO) -> tuple[bytes, bytes] | None:
    """Read the color and the depth image of the next frame, as they are stored; None if they are not all there."""
    sizes = file.read(_FRAME.size)
    if len(sizes) < _FRAME.size:
        return None
    color_bytes, depth_bytes = _FRAME.unpack(sizes)
    # Before anything is read: a damaged size would otherwise fill the memory.
    if max(color_bytes, depth_bytes) > _MAX_IMAGE_BYTES:
        return None
    color = file.read(color_bytes)
    depth = file.read(depth_bytes)
    if len(color) < color_bytes or len(depth) < depth_bytes:
        return None
    return color, depth


def _find_depth_problem(depth: bytes, expected_bytes: int) -> str:
    """Describe what is wrong with a compressed depth image; an empty text if nothing is."""
    problem = f"depth does not decompress to {expected_bytes:,} bytes"
    try:
        # Never decompresses to more than that, and compares zlib's checksum.
        image = deflate.zlib_decompress(depth, expected_bytes)
    except deflate.DeflateError:
        return problem
    return problem if len(image) != expected_bytes else ""


def _find_jpeg_problem(data: bytes) -> str:
    """Follow the markers of a JPEG image to its end; an empty text if they are in order.

    Bytes after the end are allowed, as decoders do.
    """
    if not data.startswith(_JPEG_START):
        return "color does not begin as a JPEG image"
    position = len(_JPEG_START)
    while True:
        match = _JPEG_MARKER.search(data, position)
        if match is None:
            return "color ends within a JPEG image"
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
    """Check that nothing follows the frames but inertial records, all of them."""
    rest_bytes = size_bytes - file.tell()
    if rest_bytes == 0:
        return
    record_count = int.from_bytes(file.read(8), "little")
    expected_bytes = 8 + record_count * _INERTIAL_BYTES
    if rest_bytes != expected_bytes:
        problem = f"{rest_bytes:,} bytes follow the frames, expected {expected_bytes:,}"
        raise FileError(path, f"is truncated, or damaged at its end: {problem}")
