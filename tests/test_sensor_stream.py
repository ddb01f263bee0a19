"""Sensor streams: frames are read exactly and at random, and every fault is found and named."""

import io
import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tiny import (
    COLOR_INTRINSIC,
    COLOR_SIZE,
    DEPTH,
    DEPTH_INTRINSIC,
    DEPTH_SIZE,
    FRAME_HEADER,
    JPEG,
    LOST,
    encode_stream,
    make_frames,
    make_pose,
    make_stream,
)

from scannet_prep.base.images import encode_png
from scannet_prep.errors import FileError
from scannet_prep.frames import SensorStream
from scannet_prep.raw.sensor_stream import check_sensor_stream, find_tracked

FRAMES = make_frames(5, lost=(2,))
DATA = encode_stream(FRAMES)
# Where the header has its values, and ends.
MATRICES, COMPRESSIONS, SIZES, SHIFT, COUNT, HEAD_BYTES = 21, 277, 285, 301, 305, 313


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("stream") / "scene0000_00.sens"


def open_stream(path, data):
    path.write_bytes(data)
    return SensorStream(path)


def check(path, data):
    path.write_bytes(data)
    check_sensor_stream(path)


def patched(offset, layout, *values, data=DATA):
    data = bytearray(data)
    struct.pack_into(layout, data, offset, *values)
    return data


def frame_offset(number):
    """Return the first byte of a frame; the number of inertial records follows the frames."""
    return len(encode_stream(FRAMES[:number])) - 8


def test_stream_is_read_at_random_in_order_and_by_threads(path):
    poses, jpegs, depths = zip(*FRAMES, strict=True)

    with open_stream(path, DATA) as stream:
        for number in (4, 0, 2, -3, 1, 3):
            frame = stream[number]
            assert frame.number == number % 5
            assert frame.jpeg == jpegs[number]
            assert np.array_equal(frame.pose, poses[number])
            assert np.array_equal(frame.depth(), depths[number])
        assert [frame.number for frame in stream] == [*range(5)]
        assert stream.poses.dtype == np.float32
        assert np.array_equal(stream.poses, poses)
        assert stream.is_tracked.tolist() == [True, True, False, True, True]
        assert stream.color_camera.size == COLOR_SIZE
        assert stream.depth_camera.size == DEPTH_SIZE
        assert np.array_equal(stream.color_camera.intrinsic, COLOR_INTRINSIC)
        assert np.array_equal(stream.depth_camera.intrinsic, DEPTH_INTRINSIC)
        with pytest.raises(IndexError):
            stream[5]

        # As processes that a fork has made, threads share the position of the file.
        numbers = [0, 4, 1, 3, 2] * 1_000
        with ThreadPoolExecutor(4) as executor:
            read = executor.map(lambda number: stream[number].jpeg, numbers)
        assert [*read] == [jpegs[number] for number in numbers]

        os.truncate(path, frame_offset(4) + 100)
        with pytest.raises(FileError, match=r"is truncated: .* are missing"):
            _ = stream[4].jpeg
    with pytest.raises(FileError, match="cannot be read"):
        stream[0].depth()


def test_opening_reads_no_image(path):
    def count_read_bytes():
        return int(Path("/proc/self/io").read_text().split()[1])

    path.write_bytes(encode_stream([(LOST, bytes(1 << 22), np.zeros(1))] * 3))
    before = count_read_bytes()
    with SensorStream(path) as stream:
        assert len(stream) == 3
    assert count_read_bytes() - before < 1 << 20


def test_depth_is_in_millimetres_for_any_depth_shift_up_to_16_bits(path):
    stored = FRAMES[1][2].astype(float)
    for shift in (500.0, 5000.0):
        with open_stream(path, patched(SHIFT, "<f", shift)) as stream:
            assert np.array_equal(stream[1].depth(), np.rint(stored * (1000 / shift)))
    far = encode_stream([(LOST, JPEG, np.full(DEPTH_SIZE[::-1], 6554, np.uint16))], 100.0)
    with open_stream(path, far) as stream, pytest.raises(FileError, match=r"depth reaches 65\.5 m"):
        stream[0].depth()


def test_color_is_decoded_as_pillow_does_and_only_from_a_jpeg_image_of_the_right_size(path):
    (pose, _, depth), whole = FRAMES[:2]
    with Image.open(io.BytesIO(whole[1])) as image:
        expected = np.array(image)
    data = encode_stream([(pose, JPEG, depth), whole, (pose, encode_png(expected), depth)])

    with open_stream(path, data) as stream:
        assert np.array_equal(stream[1].color(), expected)
        for number in (0, 2):
            message = f"frame {number} of 3 .* is not a JPEG image that[^<]* at byte "
            with pytest.raises(FileError, match=f"{message}{stream[number].offset:,}"):
                stream[number].color()
        assert stream[0].offset == 313
    with (
        open_stream(path, patched(SIZES, "<I", 64, data=data)) as stream,
        pytest.raises(FileError, match=r"32 x 24 .*expected 64 x 24"),
    ):
        stream[1].checked_jpeg()


@given(st.integers(0, len(DATA) + 255))
def test_truncated_stream_is_refused_with_the_frame_that_is_not_whole(path, size_bytes):
    path.write_bytes((DATA[:-8] + struct.pack("<Q", 2) + bytes(256))[:size_bytes])
    whole_count = sum(frame_offset(number + 1) <= size_bytes for number in range(5))
    message = "truncated, or damaged at its end"
    if size_bytes < HEAD_BYTES:
        message = r"is truncated: .* are missing"
    elif whole_count < 5:
        offset = frame_offset(whole_count)
        message = f"within frame {whole_count} of 5, which begins at byte {offset:,}"
    # Inertial records may be missing altogether.
    if size_bytes == frame_offset(5):
        check_sensor_stream(path)
    else:
        with pytest.raises(FileError, match=message):
            check_sensor_stream(path)


def test_complete_streams_are_accepted(path):
    padded = JPEG[:-2] + b"\xff\xff\xff\xd9\0\0"
    for data in (make_stream(3, 2), make_stream(0), make_stream()[:-8], make_stream(color=padded)):
        check(path, data)


NAN = float("nan")
COLORS = [
    (JPEG[2:], "does not begin"),
    (JPEG[:-2], "ends within"),
    (JPEG.replace(b"da\xff\x00", b"da\xff\x01"), "JPEG marker 0x01 in the wrong"),
    (JPEG.replace(b"ta", b"\xff\xd8"), "JPEG marker 0xd8 in the wrong place"),
    (JPEG.replace(b"\x00\x05abc", b"\x05\x05abc"), "segment of a wrong length"),
    (JPEG.replace(b"\x00\x05abc", b"\x00\x01abc"), "segment of a wrong length"),
    (JPEG.replace(FRAME_HEADER, b""), "has 0 x 0 pixels, expected 8 x 6"),
    (JPEG[:2] + FRAME_HEADER + JPEG[-2:], "without pixels"),
    (JPEG.replace(b"\x06", b"\x07"), "has 8 x 7 pixels"),
]
DEPTHS = [zlib.compress(bytes(95)), zlib.compress(bytes(1 << 20)), DEPTH[:-4], b""]
REFUSALS = [
    (b"<html>" + bytes(500), "is not a sensor stream of version 4"),
    *((patched(MATRICES + 64 * n, "<f", NAN), "a matrix that is not finite") for n in range(4)),
    (patched(MATRICES + 128, "<f", 0), "a focal length of the depth camera that is not positive"),
    (patched(COMPRESSIONS, "<i", 0), "color compression 0 and depth compression 1, expected 2"),
    (patched(COMPRESSIONS + 4, "<i", 2), "color compression 2 and depth compression 2, exp"),
    (patched(SIZES, "<I", 0), "color images of 0 x 24"),
    (patched(SIZES + 8, "<2I", 1 << 31, 1 << 31), "depth images of 2,147,483,648 x"),
    (patched(SHIFT, "<f", 0), r"a depth shift of 0\.0, expected a positive number"),
    (patched(SHIFT, "<f", NAN), "a depth shift of nan"),
    # Python cannot count so many.
    (patched(COUNT, "<Q", 1 << 63), "within frame 5 of 9223372036854775808"),
    (patched(4, "<Q", (1 << 64) - 1), "cannot be read"),
    (patched(HEAD_BYTES + 80, "<Q", 1 << 62), "damaged within frame 0 of 5"),
    (make_stream()[:-8] + bytes(16), "16 bytes follow the frames, expected 8"),
    # Some download programs leave an unfinished file that ends with zeros.
    *((make_stream(3, 2)[: -256 - n] + bytes(256 + n), "damaged") for n in (9, 200, 500)),
    *((make_stream(color=data), f"frame 0 of 3 is damaged: color .*{x}") for data, x in COLORS),
    *((make_stream(depth=data), "depth does not decompress to 96 bytes") for data in DEPTHS),
]


@pytest.mark.parametrize(("data", "problem"), REFUSALS, ids=lambda value: str(value)[:40])
def test_damaged_stream_is_refused_with_its_frame(path, data, problem):
    with pytest.raises(FileError, match=problem):
        check(path, data)


def test_only_rigid_motions_are_tracked():
    poses = np.stack([make_pose(1)] * 11)
    poses[0, 0, 3] = -1e4
    poses[1, 0, 3] = np.nan
    poses[2, 3, 3] = 2
    poses[3, 3, 0] = 0.1
    poses[4] = LOST
    poses[5] = 0
    poses[6].view(np.uint32)[:] = 0x7F800001  # a signalling NaN
    poses[7] = 3e38
    poses[8] = np.diag([1, 1, 1.02, 1])
    poses[9] = np.diag([1, 1, -1, 1])
    poses[10, 0, 0] += 1e-3
    assert np.flatnonzero(find_tracked(poses)).tolist() == [0, 10]
