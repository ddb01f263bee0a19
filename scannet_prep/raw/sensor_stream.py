"""Read the sensor stream of a scan (`.sens`): cameras, poses, colour and depth images.

Layout of version 4, little-endian (SensReader in ScanNet's repository):

    version              uint32, 4
    sensor name          uint64 length, then the name
    header               `_HEADER`: cameras, compressions, sizes, depth shift, number of frames
    frames               96 bytes each (`_FRAME_HEAD`), then the colour and the depth image
    inertial records     uint64 number, then 128 bytes each; some files end before the number

Opening a stream skips from frame to frame to the end: only the 96 bytes of each are read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import open_file
from scannet_prep.base.images import decode_color
from scannet_prep.errors import ContentError, FileError
from scannet_prep.raw.jpeg import check_jpeg

# A raw colour image of 1296 x 968 has 3.8 MB.
_MAX_IMAGE_BYTES = 1 << 26
_VERSION = 4
_JPEG_COLOR = 2
_ZLIB_DEPTH = 1
# Version, length of the name.
_START = struct.Struct("<IQ")
_HEADER = np.dtype(
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
_FRAME_HEAD = np.dtype(
    [
        ("pose", "<f4", (4, 4)),
        ("timestamps", "<u8", (2,)),
        ("color_bytes", "<u8"),
        ("depth_bytes", "<u8"),
    ]
)
# The sizes of both images are at the end of the head of a frame.
_IMAGE_SIZES = struct.Struct("<80x2Q")
_INERTIAL_BYTES = 128
_DEPTH_VALUE_BYTES = 2
_MILLIMETRES = 1000.0
_MAX_DEPTH = 65_535
_HINT_HEADER = (
    "download it again if it is from the release; a stream of another recorder has to be written "
    "anew, with JPEG and zlib"
)
# Largest deviation of `R @ R.T` from the identity. Tracking computes rotations in float32.
_ROTATION_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True, eq=False)
class SensorCamera:
    """The colour camera or the depth camera of a stream.

    Attributes:
        size: Width and height of the images, in pixels.
        intrinsic: float32 (4, 4), in pixels of an image of `size`: fx 0 cx / 0 fy cy / 0 0 1. Whole
            numbers are the middles of pixels.
        extrinsic: float32 (4, 4), as stored. In most scans it is the identity for both cameras.
    """

    size: tuple[int, int]
    intrinsic: NDArray[np.float32]
    extrinsic: NDArray[np.float32]

    def resized(self, size: tuple[int, int]) -> SensorCamera:
        """Return the camera for images that were resized to another width and height.

        Columns and rows are scaled by their own factors. As whole numbers are the middles of
        pixels, cx becomes `(cx + 0.5) * factor - 0.5`.
        """
        factors = np.divide(size, self.size)
        intrinsic = self.intrinsic.astype(np.float64)
        intrinsic[:2] *= factors[:, np.newaxis]
        intrinsic[:2, 2] += 0.5 * factors - 0.5
        return SensorCamera(size, intrinsic.astype(np.float32), self.extrinsic)

    def cropped(self, side: int) -> SensorCamera:
        """Return the camera for a square of this side, cut out of the middle of the images."""
        intrinsic = self.intrinsic.copy()
        borders = np.subtract(self.size, side)
        intrinsic[:2, 2] -= borders // 2
        return SensorCamera((side, side), intrinsic, self.extrinsic)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One frame of a stream. Its images are read from the file when they are used.

    Attributes:
        number: Its number in the stream, from 0.
        pose: float32 (4, 4), scan <- camera, metres. Not finite if tracking was lost.
        offset: Its first byte in the file.
        color_bytes: Size of the stored colour image.
        depth_bytes: Size of the stored depth image.
        stream: Its stream.
    """

    number: int
    pose: NDArray[np.float32]
    offset: int
    color_bytes: int
    depth_bytes: int
    stream: SensorStream

    @property
    def jpeg(self) -> bytes:
        """The colour image as stored."""
        return self.stream.read_at(self.offset + _FRAME_HEAD.itemsize, self.color_bytes)

    def checked_jpeg(self) -> bytes:
        """Return the colour image as stored, after following its markers from start to end.

        JPEG has no checksum.

        Raises:
            FileError: It is damaged, or has another size than the colour camera.
        """
        jpeg = self.jpeg
        with self._naming_image("color"):
            check_jpeg(jpeg, self.stream.color_camera.size)
        return jpeg

    def color(self) -> NDArray[np.uint8]:
        """Decode the colour image, with Pillow.

        Returns:
            uint8 (H, W, 3), red, green, blue.

        Raises:
            FileError: It is damaged.
        """
        with self._naming_image("color"):
            return decode_color(self.jpeg, self.stream.color_camera.size, "JPEG")

    def depth(self) -> NDArray[np.uint16]:
        """Decode the depth image.

        Returns:
            uint16 (H, W), millimetres whatever the depth shift is; 0 where nothing was measured.

        Raises:
            FileError: It is damaged.
        """
        width, height = self.stream.depth_camera.size
        image_bytes = width * height * _DEPTH_VALUE_BYTES
        start = self.offset + _FRAME_HEAD.itemsize + self.color_bytes
        compressed = self.stream.read_at(start, self.depth_bytes)
        with self._naming_image("depth"):
            try:
                # Never decompresses to more than the given size. Verifies the checksum of zlib.
                data = bytes(deflate.zlib_decompress(compressed, image_bytes))
            except deflate.DeflateError:
                data = b""
            if len(data) != image_bytes:
                raise ContentError(f"does not decompress to {image_bytes:,} bytes")
            stored = np.frombuffer(data, "<u2").reshape(height, width)
            if self.stream.depth_shift == _MILLIMETRES:
                return stored.astype(np.uint16)
            depth = np.rint(stored * (_MILLIMETRES / self.stream.depth_shift))
            if depth.max() > _MAX_DEPTH:
                metres = depth.max() / _MILLIMETRES
                raise ContentError(f"reaches {metres:.1f} m, expected at most 65.5 m")
        return depth.astype(np.uint16)

    @contextmanager
    def _naming_image(self, image: str) -> Iterator[None]:
        """Turn a ContentError of the enclosed code into a FileError of this image."""
        try:
            yield
        except ContentError as error:
            raise FileError(
                self.stream.path,
                f"frame {self.number} of {len(self.stream)} is damaged: "
                f"{image} {error.message} "
                f"(it begins at byte {self.offset:,})",
            ) from None


class SensorStream(AbstractContextManager["SensorStream"], Sequence[Frame]):
    """A sensor stream: a sequence of frames, which are read one at a time, in any order.

    It is a context manager.

    Args:
        path: The file `<scene>.sens`.

    Attributes:
        path: As given.
        size_bytes: Size of the file.
        offsets: The first byte of each frame in the file.
        sensor_name: As stored.
        color_camera: The colour camera.
        depth_camera: The depth camera.
        depth_shift: Stored depth per metre.
        poses: The poses of all frames, float32 (N, 4, 4), scan <- camera, metres.
        is_tracked: Whether each frame has a usable pose, bool (N,); see `find_tracked`.

    Raises:
        MissingFileError: There is no such file.
        FileError: It is not a sensor stream of version 4, it is truncated or damaged, or its images
            are not compressed like those of the release.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with ExitStack() as stack:
            self._file = stack.enter_context(open_file(self.path))
            self.size_bytes = os.fstat(self._file.fileno()).st_size
            header, frames_offset = self._read_header()
            frame_count = int(header["frame_count"])
            self.offsets, self._heads = self._find_frames(frames_offset, frame_count)
            self._stack = stack.pop_all()
        self.color_camera = _make_camera(header, "color")
        self.depth_camera = _make_camera(header, "depth")
        self.depth_shift = float(header["depth_shift"])
        self.poses = self._heads["pose"].copy()
        self.is_tracked = find_tracked(self.poses)

    def __exit__(self, *_error: object) -> None:
        """Close the file."""
        self._stack.close()

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self._heads)

    def __getitem__(self, number: int) -> Frame:  # type: ignore[override]
        """Return a frame by its number.

        Raises:
            IndexError: The stream has fewer frames.
        """
        number = range(len(self))[number]
        head = self._heads[number]
        return Frame(
            number=number,
            pose=self.poses[number],
            offset=self.offsets[number],
            color_bytes=int(head["color_bytes"]),
            depth_bytes=int(head["depth_bytes"]),
            stream=self,
        )

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes of the file.

        Raises:
            FileError: They cannot be read, or the file has become shorter.
        """
        try:
            # Forked processes and threads share the position of a file, which `pread` does not use.
            data = os.pread(self._file.fileno(), size_bytes, offset)
        except (OSError, ValueError, OverflowError) as error:
            # ValueError: the stream is closed. OverflowError: no file has so many bytes.
            raise FileError(self.path, f"cannot be read: {error}") from error
        if len(data) != size_bytes:
            raise FileError(
                self.path, f"is truncated: {size_bytes:,} bytes at byte {offset:,} are missing"
            )
        return data

    def _read_header(self) -> tuple[Any, int]:
        """Read and check the header, a scalar of the type `_HEADER`, and find its end."""
        start = self.read_at(0, _START.size)
        version, name_bytes = _START.unpack(start)
        if version != _VERSION:
            raise FileError(
                self.path,
                f"is not a sensor stream of version {_VERSION}: its version is {version:,}",
                _HINT_HEADER,
            )
        offset = _START.size + name_bytes
        data = self.read_at(offset, _HEADER.itemsize)
        name = self.read_at(_START.size, name_bytes)
        self.sensor_name = name.decode("utf-8", "replace")
        header = np.frombuffer(data, _HEADER)[0].copy()
        problem = _find_problem(header)
        if problem:
            raise FileError(self.path, f"its header has {problem}", _HINT_HEADER)
        return header, offset + _HEADER.itemsize

    def _find_frames(
        self,
        offset: int,
        frame_count: int,
    ) -> tuple[list[int], NDArray[Any]]:
        """Find the offsets of the frames, and read their heads.

        Raises:
            FileError: The file is truncated, a size is damaged, or something other than inertial
                records follows the frames.
        """
        offsets = []
        heads = []
        for number in range(frame_count):
            offsets.append(offset)
            end = offset + _FRAME_HEAD.itemsize
            if end <= self.size_bytes:
                head = self.read_at(offset, _FRAME_HEAD.itemsize)
                end += sum(_IMAGE_SIZES.unpack(head))
            if end > self.size_bytes:
                raise FileError(
                    self.path,
                    f"is truncated or damaged within frame {number} of {frame_count}, "
                    f"which begins at byte {offset:,}: the file has {self.size_bytes:,} bytes",
                )
            heads.append(head)
            offset = end
        rest_bytes = self.size_bytes - offset
        stored_count = self.read_at(offset, min(rest_bytes, 8))
        record_count = int.from_bytes(stored_count, "little")
        expected_bytes = 8 + record_count * _INERTIAL_BYTES
        if rest_bytes not in (0, expected_bytes):
            raise FileError(
                self.path,
                "is truncated, or damaged at its end: "
                f"{rest_bytes:,} bytes follow the frames, expected {expected_bytes:,}",
            )
        return offsets, np.frombuffer(b"".join(heads), _FRAME_HEAD)


def find_tracked(poses: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Find the poses that are usable, bool (N,).

    Their numbers are finite, their last row is 0 0 0 1, and they contain a rotation. Where tracking
    was lost, the release has poses of -inf, and some of 0 or NaN.

    Args:
        poses: (N, 4, 4).
    """
    is_finite = np.isfinite(poses).all(axis=(1, 2), keepdims=True)
    # float64, so that even the product of the greatest numbers of float32 is finite. Some values
    # of NaN cannot be converted without a warning.
    finite = np.where(is_finite, poses, 0).astype(np.float64)
    rotations = finite[:, :3, :3]
    transposed = rotations.transpose(0, 2, 1)
    deviations = np.abs(rotations @ transposed - np.eye(3))
    is_orthonormal = (deviations < _ROTATION_TOLERANCE).all(axis=(1, 2))
    # The determinant of a reflection is negative.
    determinants = np.linalg.det(rotations)
    is_rotation = is_orthonormal & (determinants > 0)
    has_last_row = (finite[:, 3] == (0, 0, 0, 1)).all(axis=1)
    return np.asarray(is_rotation & has_last_row)


def check_sensor_stream(path: Path) -> None:
    """Check that a sensor stream can be opened, and that every frame of it is complete.

    Depth images are decompressed, which verifies their checksum. JPEG has no checksum, so colour
    images are checked by following their markers from the first to the last.

    Args:
        path: The stream.

    Raises:
        FileError: The stream is truncated, or a frame is damaged.
    """
    with SensorStream(path) as stream:
        for frame in stream:
            frame.checked_jpeg()
            frame.depth()


def _find_problem(header: Any) -> str:  # noqa: ANN401 - a structured scalar
    """Describe why a header cannot be used; empty if it can."""
    color = int(header["color_compression"])
    depth = int(header["depth_compression"])
    if color != _JPEG_COLOR or depth != _ZLIB_DEPTH:
        return (
            f"color compression {color} and depth compression {depth}, "
            f"expected {_JPEG_COLOR} (JPEG) and {_ZLIB_DEPTH} (zlib)"
        )
    for name in ("color", "depth"):
        width, height = header[f"{name}_size"].tolist()
        image_bytes = width * height * _DEPTH_VALUE_BYTES
        if not 0 < image_bytes <= _MAX_IMAGE_BYTES:
            return f"{name} images of {width:,} x {height:,}"
        intrinsic = header[f"{name}_intrinsic"]
        extrinsic = header[f"{name}_extrinsic"]
        if not np.isfinite([intrinsic, extrinsic]).all():
            return "a matrix that is not finite"
        if intrinsic.diagonal()[:2].min() <= 0:
            return f"a focal length of the {name} camera that is not positive"
    # NaN is not positive.
    if not header["depth_shift"] > 0:
        return f"a depth shift of {header['depth_shift']}, expected a positive number"
    return ""


def _make_camera(header: Any, name: str) -> SensorCamera:  # noqa: ANN401 - a structured scalar
    width, height = header[f"{name}_size"].tolist()
    return SensorCamera((width, height), header[f"{name}_intrinsic"], header[f"{name}_extrinsic"])
