"""Sensor streams of a few frames with known content, and a plain reader of them."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLOR_SIZE = (32, 24)
DEPTH_SIZE = (16, 12)
LOST = np.full((4, 4), -np.inf, np.float32)


def make_pose(number: int) -> NDArray[np.float32]:
    """Make a rotation about z, and a shift."""
    angle = 0.1 * number
    pose = np.eye(4, dtype=np.float32)
    pose[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    pose[:3, 3] = (number, -0.5 * number, 1.25)
    return pose


def make_jpeg(number: int, size: tuple[int, int] = COLOR_SIZE) -> bytes:
    """Make a JPEG image of noise."""
    from PIL import Image

    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def make_bare_jpeg(number: int, size: tuple[int, int] = COLOR_SIZE) -> bytes:
    """Make the markers of a JPEG image with its size; no program can decode it."""
    frame_header = struct.pack(">2sHBHHB", b"\xff\xc0", 8, 8, size[1], size[0], 0)
    return b"\xff\xd8" + frame_header + b"\xff\xda\x00\x03\x01" + b"%d" % number + b"\xff\xd9"


def make_depth(number: int, size: tuple[int, int] = DEPTH_SIZE) -> NDArray[np.uint16]:
    """Make a depth image of noise, with some 0."""
    rng = np.random.default_rng(1000 + number)
    return (
        rng.integers(0, 6000, (size[1], size[0]), np.uint16)
        // 2
        * rng.integers(0, 3, (size[1], size[0]), np.uint16)
    )


@dataclass
class StreamContent:
    """The content of a stream."""

    poses: list[NDArray[np.float32]]
    jpegs: list[bytes]
    depths: list[NDArray[np.uint16]]
    color_size: tuple[int, int] = COLOR_SIZE
    depth_size: tuple[int, int] = DEPTH_SIZE
    depth_shift: float = 1000.0
    version: int = 4
    compressions: tuple[int, int] = (2, 1)
    color_intrinsic: NDArray[np.float32] = field(
        default_factory=lambda: make_intrinsic(30, 31, 15.5, 11.5)
    )
    depth_intrinsic: NDArray[np.float32] = field(
        default_factory=lambda: make_intrinsic(15, 16, 7.5, 5.5)
    )

    def encode(self) -> bytes:
        matrices = [self.color_intrinsic, np.eye(4), self.depth_intrinsic, np.eye(4)]
        parts = [struct.pack("<IQ9s", self.version, 9, b"StructSen")]
        parts += [np.asarray(matrix, "<f4").tobytes() for matrix in matrices]
        parts.append(
            struct.pack(
                "<2i4IfQ",
                *self.compressions,
                *self.color_size,
                *self.depth_size,
                self.depth_shift,
                len(self.poses),
            )
        )
        for number, pose in enumerate(self.poses):
            depth = zlib.compress(self.depths[number].astype("<u2").tobytes())
            jpeg = self.jpegs[number]
            parts += [
                pose.astype("<f4").tobytes(),
                struct.pack("<4Q", 100 * number, 100 * number + 7, len(jpeg), len(depth)),
                jpeg,
                depth,
            ]
        parts.append(struct.pack("<Q", 0))
        return b"".join(parts)


def make_intrinsic(fx: float, fy: float, cx: float, cy: float) -> NDArray[np.float32]:
    matrix = np.eye(4, dtype=np.float32)
    matrix[:2, :3] = [[fx, 0, cx], [0, fy, cy]]
    return matrix


def make_content(
    frame_count: int = 5, lost: tuple[int, ...] = (), *, is_decodable: bool = False, **options: Any
) -> StreamContent:
    """Make the content of a stream; the frames `lost` have poses of -inf."""
    encode = make_jpeg if is_decodable else make_bare_jpeg
    content = StreamContent([], [], [], **options)
    for number in range(frame_count):
        content.poses.append(LOST if number in lost else make_pose(number))
        content.jpegs.append(encode(number, content.color_size))
        content.depths.append(make_depth(number, content.depth_size))
    return content


def read_plainly(data: bytes) -> list[tuple[NDArray[np.float32], bytes, NDArray[np.uint16]]]:
    """Read all poses, JPEG images and depth images, as the official reader does."""
    file = io.BytesIO(data)

    def read(format_: str) -> Any:
        return struct.unpack(f"<{format_}", file.read(struct.calcsize(f"<{format_}")))

    read("I")
    read(f"{read('Q')[0]}s")
    read("64f")
    read("2i")
    _, _, width, height = read("4I")
    read("f")
    frames = []
    for _ in range(read("Q")[0]):
        pose = np.array(read("16f"), np.float32).reshape(4, 4)
        read("2Q")
        color_bytes, depth_bytes = read("2Q")
        jpeg = file.read(color_bytes)
        depth = np.frombuffer(zlib.decompress(file.read(depth_bytes)), "<u2")
        frames.append((pose, jpeg, depth.reshape(height, width)))
    return frames
