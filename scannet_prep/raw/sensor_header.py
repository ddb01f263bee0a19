"""The header of a sensor stream (`.sens`): its cameras, and how its images are stored.

`sensor_stream` describes the layout of the whole file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import FileError

# A raw color image of 1296 x 968 has 3.8 MB.
MAX_IMAGE_BYTES = 1 << 26
DEPTH_VALUE_BYTES = 2
# Far more than the largest file could hold. Python limits the length of a sequence, too.
_MAX_FRAMES = 1 << 32
_VERSION = 4
# Version, length of the name.
_START = struct.Struct("<IQ")
# The fields of the header after the name.
_FIELDS = np.dtype(
    [
        ("color_intrinsic", "<f4", (4, 4)),
        ("color_extrinsic", "<f4", (4, 4)),
        ("depth_intrinsic", "<f4", (4, 4)),
        ("depth_extrinsic", "<f4", (4, 4)),
        ("color_compression", "<i4"),
        ("depth_compression", "<i4"),
        ("color_size", "<u4", (2,)),
        ("depth_size", "<u4", (2,)),
        ("depth_shift", "<f4"),
        ("frame_count", "<u8"),
    ]
)
# From here on, the largest stored value, 65,535, is at most half a millimetre: all depths are 0.
_MAX_DEPTH_SHIFT = 131_070_000
_JPEG_COLOR = 2
_ZLIB_DEPTH = 1


@dataclass(frozen=True, slots=True, eq=False)
class SensorCamera:
    """The color camera or the depth camera of a stream.

    Attributes:
        intrinsic: float32 (4, 4), in pixels of an image of `size`: fx 0 cx / 0 fy cy / 0 0 1. Whole
            numbers are the middles of pixels.
        extrinsic: float32 (4, 4), as stored. In most scans it is the identity for both cameras.
        size: Width and height of the images, in pixels.
    """

    intrinsic: NDArray[np.float32]
    extrinsic: NDArray[np.float32]
    size: tuple[int, int]

    @property
    def is_finite(self) -> bool:
        """Whether all numbers of both matrices are finite."""
        return bool(np.isfinite([self.intrinsic, self.extrinsic]).all())

    def resized(self, size: tuple[int, int]) -> SensorCamera:
        """Return the camera for images that were resized to another width and height.

        Columns and rows are scaled by their own factors. As whole numbers are the middles of
        pixels, cx becomes `(cx + 0.5) * factor - 0.5`.
        """
        if size == self.size:
            return self
        scaling = np.eye(4)
        for axis in (0, 1):
            factor = size[axis] / self.size[axis]
            scaling[axis, axis] = factor
            scaling[axis, 2] = 0.5 * factor - 0.5
        intrinsic = (scaling @ self.intrinsic).astype(np.float32)
        return SensorCamera(intrinsic, self.extrinsic, size)


@dataclass(frozen=True, slots=True, eq=False)
class SensorHeader:
    """The header of a stream.

    Attributes:
        color_camera: The color camera.
        depth_camera: The depth camera.
        depth_shift: Stored depth per metre.
        frame_count: The number of frames.
        size_bytes: Size of the header, after which the first frame begins.
    """

    color_camera: SensorCamera
    depth_camera: SensorCamera
    depth_shift: float
    frame_count: int
    size_bytes: int


def read_header(path: Path, file_bytes: int, read_at: Callable[[int, int], bytes]) -> SensorHeader:
    """Read the header of a stream.

    Args:
        path: The file, for messages.
        file_bytes: Its size.
        read_at: Reads bytes, given their offset and their number.

    Raises:
        FileError: The file is not a sensor stream of version 4, its header is damaged, or its
            images are compressed in another way than those of the release.
    """
    truncation = f"is truncated within its header: {file_bytes:,} bytes"
    if file_bytes < _START.size + _FIELDS.itemsize:
        raise FileError(path, truncation)
    version, name_bytes = _START.unpack(read_at(0, _START.size))
    if version != _VERSION or name_bytes > file_bytes:
        raise FileError(
            path,
            f"is not a sensor stream of version {_VERSION}: its version is {version:,}, "
            f"and the name of its sensor has {name_bytes:,} bytes",
        )
    fields_offset = _START.size + name_bytes
    size_bytes = fields_offset + _FIELDS.itemsize
    if size_bytes > file_bytes:
        raise FileError(path, truncation)

    fields = np.frombuffer(read_at(fields_offset, _FIELDS.itemsize), _FIELDS)[0]
    problem = _find_problem(fields)
    if problem:
        raise FileError(path, problem)
    return SensorHeader(
        color_camera=_make_camera(fields, "color"),
        depth_camera=_make_camera(fields, "depth"),
        depth_shift=float(fields["depth_shift"]),
        frame_count=int(fields["frame_count"]),
        size_bytes=size_bytes,
    )


def _find_problem(fields: Any) -> str:  # noqa: ANN401 - a structured scalar
    """Describe why a header cannot be used; empty if it can."""
    color_compression = int(fields["color_compression"])
    depth_compression = int(fields["depth_compression"])
    if (color_compression, depth_compression) != (_JPEG_COLOR, _ZLIB_DEPTH):
        return (
            f"its header has color compression {color_compression} and depth compression "
            f"{depth_compression}, expected {_JPEG_COLOR} (JPEG) and {_ZLIB_DEPTH} (zlib)"
        )
    frame_count = int(fields["frame_count"])
    if frame_count == 0:
        return "has no frames"
    if frame_count > _MAX_FRAMES:
        return f"its header is damaged: {frame_count:,} frames"
    for name in ("color", "depth"):
        width, height = fields[f"{name}_size"].tolist()
        if not 0 < width * height * DEPTH_VALUE_BYTES <= MAX_IMAGE_BYTES:
            return f"its header is damaged: {name} images of {width:,} x {height:,}"
    depth_shift = float(fields["depth_shift"])
    if not 0 < depth_shift < _MAX_DEPTH_SHIFT:
        return (
            f"its header is damaged: a depth shift of {depth_shift}, expected a positive number "
            f"below {_MAX_DEPTH_SHIFT:,}"
        )
    return ""


def _make_camera(fields: Any, name: str) -> SensorCamera:  # noqa: ANN401 - a structured scalar
    width, height = fields[f"{name}_size"].tolist()
    intrinsic = np.array(fields[f"{name}_intrinsic"], np.float32)
    extrinsic = np.array(fields[f"{name}_extrinsic"], np.float32)
    return SensorCamera(intrinsic, extrinsic, (width, height))
