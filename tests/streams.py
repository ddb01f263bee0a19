"""Sensor streams of a few frames with known content."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

COLOR_SIZE = (32, 24)
DEPTH_SIZE = (16, 12)
LOST = np.full((4, 4), -np.inf, np.float32)


def make_intrinsic(fx, fy, cx, cy):
    matrix = np.eye(4, dtype=np.float32)
    matrix[:2, :3] = [[fx, 0, cx], [0, fy, cy]]
    return matrix


COLOR_INTRINSIC = make_intrinsic(30, 31, 15.5, 11.5)
DEPTH_INTRINSIC = make_intrinsic(15, 16, 7.5, 5.5)


def make_pose(number):
    """Make a rotation about z, and a shift."""
    angle = 0.1 * number
    pose = np.eye(4, dtype=np.float32)
    pose[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    pose[:3, 3] = (number, -0.5 * number, 1.25)
    return pose


def make_jpeg(number):
    """Make a JPEG image of noise."""
    width, height = COLOR_SIZE
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def make_depth(number):
    """Make a depth image of noise, with some 0."""
    rng = np.random.default_rng(1000 + number)
    shape = DEPTH_SIZE[::-1]
    return rng.integers(0, 3000, shape, np.uint16) * rng.integers(0, 3, shape, np.uint16)


def make_frames(count, lost=()):
    """Make pose, color image and depth image of each frame; those `lost` have poses of -inf."""
    return [
        (LOST if number in lost else make_pose(number), make_jpeg(number), make_depth(number))
        for number in range(count)
    ]


COLOR_CAMERA = (COLOR_SIZE, COLOR_INTRINSIC)
DEPTH_CAMERA = (DEPTH_SIZE, DEPTH_INTRINSIC)


def encode_stream(frames, depth_shift=1000.0, color=COLOR_CAMERA, depth=DEPTH_CAMERA):
    """Encode a stream without inertial records, of cameras of a size and intrinsics."""
    sizes = (*color[0], *depth[0])
    data = struct.pack("<IQ9s", 4, 9, b"StructSen")
    for _, intrinsic in (color, depth):
        data += intrinsic.tobytes() + np.eye(4, dtype=np.float32).tobytes()
    data += struct.pack("<2i4IfQ", 2, 1, *sizes, depth_shift, len(frames))
    for pose, jpeg, image in frames:
        compressed = zlib.compress(image.tobytes())
        head = struct.pack("<4Q", 0, 0, len(jpeg), len(compressed))
        data += pose.tobytes() + head
        data += jpeg + compressed
    return data + bytes(8)
