"""Read the sensor stream of a scan (`.sens`): cameras, poses, color and depth images.

Layout of version 4, little-endian (SensReader in ScanNet's repository):

    header (see `sensor_header`)
        version          uint32, 4
        sensor name      uint64 length, then the name
        cameras          intrinsic and extrinsic matrix of color, then of depth: float32 (4, 4) each
        compressions     int32 of color and of depth: 2 (JPEG) and 1 (zlib, uint16) in the release
        image sizes      uint32 each: color width and height, depth width and height
        depth shift      float32: a stored value divided by it is in metres
        frame count      uint64
    frames               96 bytes each (`_FRAME_HEAD`), then the color and the depth image
    inertial records     uint64 number, then 128 bytes each; some files end before the number

The index is made by skipping from frame to frame: only the 96 bytes of each are read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import deflate
import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import open_file
from scannet_prep.base.images import decode_color
from scannet_prep.errors import ContentError, FileError
from scannet_prep.raw.jpeg import check_jpeg
from scannet_prep.raw.sensor_header import DEPTH_VALUE_BYTES, MAX_IMAGE_BYTES, read_header

# No file of the release is larger.
_MAX_FILE_BYTES = 1 << 40
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
_MILLIMETRES = 1000.0
_MAX_DEPTH = 65_535
# Largest deviation of `R @ R.T` from the identity. Tracking computes rotations in float32.
_ROTATION_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One frame of a stream. Its images are read from the file when they are used.

    Attributes:
        number: Its number in the stream, from 0.
        pose: float32 (4, 4), scan <- camera, metres. Not finite if tracking was lost.
        color_timestamp: Microseconds; often 0, and sometimes not in order.
        depth_timestamp: The same for the depth image.
        offset: Its first byte in the file.
        color_bytes: Size of the stored color image.
        depth_bytes: Size of the stored depth image.
    """

    number: int
    pose: NDArray[np.float32]
    color_timestamp: int
    depth_timestamp: int
    offset: int
    color_bytes: int
    depth_bytes: int
    _stream: SensorStream

    @property
    def jpeg(self) -> bytes:
        """The color image as stored."""
        return self._stream.read_at(self.offset + _FRAME_HEAD.itemsize, self.color_bytes)

    @property
    def compressed_depth(self) -> bytes:
        """The depth image as stored, compressed with zlib."""
        start = self.offset + _FRAME_HEAD.itemsize + self.color_bytes
        return self._stream.read_at(start, self.depth_bytes)

    def checked_jpeg(self) -> bytes:
        """Return the color image as stored, after following its markers from start to end.

        JPEG has no checksum.

        Raises:
            FileError: It is damaged, or has another size than the color camera.
        """
        return self._check_jpeg(self._stream.color_camera.size)

    def color(self) -> NDArray[np.uint8]:
        """Decode the color image, with Pillow.

        Returns:
            uint8 (H, W, 3), red, green, blue.

        Raises:
            FileError: It is damaged.
            UsageError: Pillow is not installed.
        """
        try:
            return decode_color(self.jpeg, self._stream.color_camera.size)
        except ContentError as error:
            raise self.damage(f"color {error.message}") from None

    def depth(self) -> NDArray[np.uint16]:
        """Decode the depth image.

        Returns:
            uint16 (H, W), millimetres whatever the depth shift is; 0 where nothing was measured.

        Raises:
            FileError: It is damaged.
        """
        width, height = self._stream.depth_camera.size
        stored = np.frombuffer(self._decompress_depth(), "<u2").reshape(height, width)
        if self._stream.depth_shift == _MILLIMETRES:
            return stored.astype(np.uint16)
        depth = np.rint(stored * (_MILLIMETRES / self._stream.depth_shift))
        if depth.max(initial=0) > _MAX_DEPTH:
            farthest = depth.max() / _MILLIMETRES
            limit = _MAX_DEPTH / _MILLIMETRES
            raise self.damage(f"depth reaches {farthest:.1f} m, expected at most {limit:.1f} m")
        return depth.astype(np.uint16)

    def check(self) -> None:
        """Check both images: the markers of the color image, and the checksum of the depth image.

        Raises:
            FileError: One of them is damaged.
        """
        self._check_jpeg(size=None)
        self._decompress_depth()

    def damage(self, problem: str) -> FileError:
        """Make the error for a damaged frame."""
        name = f"frame {self.number:,} of {len(self._stream):,}"
        message = f"{name} is damaged: {problem} (it begins at byte {self.offset:,})"
        return FileError(self._stream.path, message)

    def _check_jpeg(self, size: tuple[int, int] | None) -> bytes:
        """Return the color image as stored, after following its markers."""
        jpeg = self.jpeg
        try:
            check_jpeg(jpeg, size)
        except ContentError as error:
            raise self.damage(f"color {error.message}") from None
        return jpeg

    def _decompress_depth(self) -> bytes:
        """Decompress the depth image, which verifies zlib's checksum."""
        width, height = self._stream.depth_camera.size
        expected_bytes = width * height * DEPTH_VALUE_BYTES
        problem = f"depth does not decompress to {expected_bytes:,} bytes"
        try:
            # Never decompresses to more than the given size.
            image = deflate.zlib_decompress(self.compressed_depth, expected_bytes)
        except deflate.DeflateError:
            raise self.damage(problem) from None
        if len(image) != expected_bytes:
            raise self.damage(problem)
        return bytes(image)


class _Index(NamedTuple):
    """The heads of the readable frames.

    Attributes:
        offsets: The first byte of each frame.
        heads: Structured array (N,), of the type `_FRAME_HEAD`.
        fault: The reason why the other frames cannot be read; None if all can be read.
    """

    offsets: list[int]
    heads: NDArray[Any]
    fault: FileError | None


class SensorStream:
    """A sensor stream: a sequence of frames, read one at a time, and at random.

    It is a context manager. Iterating reads the file from its beginning to its end. If the file is
    truncated or damaged, the frames before that place can be read, and others raise the error.

    Args:
        path: The file `<scene>.sens`.

    Attributes:
        path: As given.
        size_bytes: Size of the file.
        color_camera: The color camera.
        depth_camera: The depth camera.
        depth_shift: Stored depth per metre.

    Raises:
        MissingFileError: There is no such file.
        FileError: It is not a sensor stream of version 4, its header is damaged, or its images are
            compressed in another way than those of the release.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with ExitStack() as stack:
            self._file = stack.enter_context(open_file(self.path, _MAX_FILE_BYTES))
            self.size_bytes = os.fstat(self._file.fileno()).st_size
            self._header = read_header(self.path, self.size_bytes, self.read_at)
            self._stack = stack.pop_all()
        self.color_camera = self._header.color_camera
        self.depth_camera = self._header.depth_camera
        self.depth_shift = self._header.depth_shift

    def __enter__(self) -> SensorStream:
        """Return the stream, which is open already."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def __len__(self) -> int:
        """Return the number of frames in the header."""
        return self._header.frame_count

    def __iter__(self) -> Iterator[Frame]:
        """Iterate over the frames in their order, without making the index.

        Raises:
            FileError: The file is truncated or damaged within the next frame.
        """
        for number, (offset, head) in enumerate(self._iter_heads()):
            yield self._make_frame(number, offset, np.frombuffer(head, _FRAME_HEAD)[0])

    def __getitem__(self, number: int) -> Frame:
        """Return a frame by its number.

        Raises:
            IndexError: The stream has fewer frames.
            FileError: The file is truncated or damaged before the end of this frame.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"{self.path}: has no frame {number}, only {len(self):,} frames")
        offsets, heads, fault = self._index
        if fault is not None and number >= len(offsets):
            raise fault
        return self._make_frame(number, offsets[number], heads[number])

    @property
    def readable_count(self) -> int:
        """Number of frames before the first fault; all, if the file has none."""
        return len(self._index.offsets)

    @property
    def poses(self) -> NDArray[np.float32]:
        """The poses of all frames, float32 (N, 4, 4), scan <- camera, metres.

        Raises:
            FileError: The file is truncated or damaged.
        """
        return np.array(self._whole_heads()["pose"], np.float32)

    @property
    def is_tracked(self) -> NDArray[np.bool_]:
        """Whether each frame has a usable pose, bool (N,).

        Its numbers are finite, its last row is 0 0 0 1, and it contains a rotation. Where tracking
        was lost, the release has poses of -inf, and some of 0 or NaN.

        Raises:
            FileError: The file is truncated or damaged.
        """
        return find_tracked(self.poses)

    @property
    def timestamps(self) -> NDArray[np.uint64]:
        """The time stamps of color and depth, uint64 (N, 2), microseconds.

        They are often 0, and sometimes not in order.

        Raises:
            FileError: The file is truncated or damaged.
        """
        return np.array(self._whole_heads()["timestamps"], np.uint64)

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes of the file.

        Raises:
            FileError: They cannot be read, or the file has become shorter.
        """
        pieces = []
        end = offset + size_bytes
        while offset < end:
            piece = self._read_piece(offset, end - offset)
            if not piece:
                raise FileError(self.path, "has become shorter while it was read")
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def _read_piece(self, offset: int, size_bytes: int) -> bytes:
        """Read bytes, or fewer; none at the end of the file."""
        try:
            # Forked processes and threads share the position of a file, which `pread` does not use.
            # Windows lacks it, and does not fork.
            if hasattr(os, "pread"):
                return os.pread(self._file.fileno(), size_bytes, offset)
            self._file.seek(offset)
            return self._file.read(size_bytes)
        except (OSError, ValueError) as error:
            # ValueError: the stream is closed.
            raise FileError(self.path, f"cannot be read: {error}") from error

    def _iter_heads(self) -> Iterator[tuple[int, bytes]]:
        """Yield the offset and the head of each frame, and skip its images.

        Raises:
            FileError: The file is truncated, or a size is damaged.
        """
        offset = self._header.size_bytes
        for number in range(len(self)):
            end = offset + _FRAME_HEAD.itemsize
            image_bytes = (0, 0)
            if end <= self.size_bytes:
                head = self.read_at(offset, _FRAME_HEAD.itemsize)
                image_bytes = _IMAGE_SIZES.unpack(head)
                end += sum(image_bytes)
            if end > self.size_bytes or max(image_bytes) > MAX_IMAGE_BYTES:
                raise FileError(
                    self.path,
                    f"is truncated or damaged within frame {number:,} of {len(self):,}, "
                    f"which begins at byte {offset:,}: the file has {self.size_bytes:,} bytes",
                )
            yield offset, head
            offset = end

    @cached_property
    def _index(self) -> _Index:
        offsets = []
        heads = []
        fault = None
        try:
            for offset, head in self._iter_heads():
                offsets.append(offset)
                heads.append(head)
        except FileError as error:
            fault = error
        return _Index(offsets, np.frombuffer(b"".join(heads), _FRAME_HEAD), fault)

    def _whole_heads(self) -> NDArray[Any]:
        """Return the heads of all frames.

        Raises:
            FileError: Some frames cannot be read.
        """
        if self._index.fault is not None:
            raise self._index.fault
        return self._index.heads

    def _make_frame(self, number: int, offset: int, head: Any) -> Frame:  # noqa: ANN401 - a structured scalar
        return Frame(
            number=number,
            pose=np.array(head["pose"], np.float32),
            color_timestamp=int(head["timestamps"][0]),
            depth_timestamp=int(head["timestamps"][1]),
            offset=offset,
            color_bytes=int(head["color_bytes"]),
            depth_bytes=int(head["depth_bytes"]),
            _stream=self,
        )


def find_tracked(poses: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Find the poses that are usable, bool (N,); see `SensorStream.is_tracked`.

    Args:
        poses: (N, 4, 4).
    """
    is_finite = np.isfinite(poses).all(axis=(1, 2))
    has_last_row = (poses[:, 3] == (0, 0, 0, 1)).all(axis=1)
    # float64, so that even the product of the greatest numbers of float32 is finite. Some values
    # of NaN cannot be converted without a warning.
    rotations = np.zeros((len(poses), 3, 3))
    rotations[is_finite] = poses[is_finite, :3, :3]
    deviations = np.abs(rotations @ rotations.transpose(0, 2, 1) - np.eye(3))
    is_orthonormal = deviations.max(axis=(1, 2), initial=0) < _ROTATION_TOLERANCE
    # The determinant of a reflection is negative.
    is_rotation = is_orthonormal & (np.linalg.det(rotations) > 0)
    return np.asarray(is_finite & has_last_row & is_rotation)


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
    with SensorStream(path) as stream:
        end = 0
        for frame in stream:
            frame.check()
            frame_bytes = _FRAME_HEAD.itemsize + frame.color_bytes + frame.depth_bytes
            advance(frame_bytes)
            end = frame.offset + frame_bytes
        _check_end(stream, end)


def _check_end(stream: SensorStream, end: int) -> None:
    """Check that only inertial records follow the frames, and that they are complete."""
    rest_bytes = stream.size_bytes - end
    if rest_bytes == 0:
        return
    record_count = int.from_bytes(stream.read_at(end, min(rest_bytes, 8)), "little")
    expected_bytes = 8 + record_count * _INERTIAL_BYTES
    if rest_bytes != expected_bytes:
        problem = f"{rest_bytes:,} bytes follow the frames, expected {expected_bytes:,}"
        raise FileError(stream.path, f"is truncated, or damaged at its end: {problem}")
