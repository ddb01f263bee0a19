"""Sensor streams and zip files, small enough to check by hand."""

import io
import struct
import zipfile
import zlib

WIDTH = 8
HEIGHT = 6
DEPTH = zlib.compress(bytes(range(WIDTH * HEIGHT)) * 2)
# The frame header of a JPEG image: its size, and no components.
FRAME_HEADER = struct.pack(">2sHBHHB", b"\xff\xc0", 8, 8, HEIGHT, WIDTH, 0)
# Start, a comment, the frame header, the start of a scan, its data (with an escaped 0xFF and a
# restart marker), end.
JPEG = b"\xff\xd8\xff\xfe\x00\x05abc" + FRAME_HEADER
JPEG += b"\xff\xda\x00\x03\x01da\xff\x00ta\xff\xd0!\xff\xd9"


def make_stream(
    frames=3,
    imu_frames=0,
    *,
    color=JPEG,
    depth=DEPTH,
    compressions=(2, 1),
):
    """Make a sensor stream of equal frames, with `imu_frames` empty inertial records."""
    head = struct.pack("<IQ9s", 4, 9, b"StructSen") + bytes(256)
    head += struct.pack("<2i4IfQ", *compressions, WIDTH, HEIGHT, WIDTH, HEIGHT, 1e3, frames)
    frame = bytes(64) + struct.pack("<4Q", 1, 2, len(color), len(depth)) + color + depth
    return head + frame * frames + struct.pack("<Q", imu_frames) + bytes(128 * imu_frames)


def make_zip(compression=zipfile.ZIP_DEFLATED):
    """Make a zip file of two members, of 2,560 and 6 bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("label-filt/0.png", bytes(range(256)) * 10)
        archive.writestr("label-filt/1.png", b"second")
    return file.getvalue()
