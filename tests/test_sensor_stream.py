"""Sensor streams: frames are read exactly and at random, and every fault is found and named."""

import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from large_files import DEPTH, FRAME_HEADER, JPEG, make_stream
from streams import (
    COLOR_SIZE,
    DEPTH_SIZE,
    LOST,
    make_content,
    make_depth,
    make_intrinsic,
    make_pose,
    read_plainly,
)

from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.frames import SensorCamera, SensorStream
from scannet_prep.raw.sensor_stream import check_sensor_stream, find_tracked

CONTENT = make_content(5, lost=(2,))
DATA = CONTENT.encode()
# Start, name and header.
HEAD_BYTES = 12 + 9 + 64 * 4 + 2 * 4 + 4 * 4 + 4 + 8
# Of the streams of `large_files`.
FRAME_BYTES = 96 + len(JPEG) + len(DEPTH)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "scene0000_00.sens"
    path.write_bytes(DATA)
    return path


@pytest.fixture(scope="module")
def reused_path(tmp_path_factory):
    return tmp_path_factory.mktemp("stream") / "file.sens"


def frame_offset(number):
    """Return the first byte of a frame; the number of inertial records follows the frames."""
    return len(make_content(number).encode()) - 8


def test_stream_is_read_at_random_in_order_and_by_threads_as_by_a_plain_reader(path):
    expected = read_plainly(DATA)

    with SensorStream(path) as stream:
        for number in (4, 0, 2, 2, 1, 3):
            pose, jpeg, depth = expected[number]
            assert np.array_equal(stream[number].pose, pose)
            assert stream[number].jpeg == jpeg
            assert np.array_equal(stream[number].depth(), depth)
            assert stream[number].timestamps == (100 * number, 100 * number + 7)
        assert [(frame.number, frame.jpeg) for frame in stream] == list(enumerate(CONTENT.jpegs))
        assert stream.poses.dtype == np.float32
        assert np.array_equal(stream.poses, np.stack(CONTENT.poses))
        assert stream.is_tracked.tolist() == [True, True, False, True, True]
        assert (stream.color_camera.size, stream.depth_camera.size) == (COLOR_SIZE, DEPTH_SIZE)
        assert np.array_equal(stream.color_camera.intrinsic, CONTENT.color_intrinsic)
        assert np.array_equal(stream.depth_camera.intrinsic, CONTENT.depth_intrinsic)
        for number in (5, -1):
            with pytest.raises(IndexError, match="only 5 frames"):
                stream[number]

        # As processes that a fork has made, threads share the position of the file.
        numbers = [0, 4, 1, 3, 2] * 200
        with ThreadPoolExecutor(4) as executor:
            jpegs = list(executor.map(lambda number: stream[number].jpeg, numbers))
        assert jpegs == [CONTENT.jpegs[number] for number in numbers]

    with pytest.raises(FileError, match="cannot be read"):
        stream[0].depth()


def test_opening_reads_no_image(tmp_path):
    """The images of this file are a hole of 5 GB, which could not be read in time."""
    count = 100
    image_bytes = 25 << 20
    with (tmp_path / "sparse").open("wb") as file:
        file.write(DATA[: HEAD_BYTES - 8] + struct.pack("<Q", count))
        for number in range(count):
            file.write(make_pose(number).tobytes())
            file.write(struct.pack("<4Q", 0, 0, image_bytes, image_bytes))
            file.seek(2 * image_bytes, os.SEEK_CUR)
        file.truncate()

    with SensorStream(tmp_path / "sparse") as stream:
        assert np.array_equal(stream.poses[99], make_pose(99))


def test_depth_is_in_millimetres_for_any_depth_shift_up_to_16_bits(path):
    for shift in (500.0, 2000.0, 5000.0):
        path.write_bytes(make_content(2, depth_shift=shift).encode())
        with SensorStream(path) as stream:
            assert np.array_equal(stream[1].depth(), np.rint(make_depth(1) * (1000 / shift)))

    content = make_content(1, depth_shift=100.0)
    content.depths[0][3, 4] = 6554
    path.write_bytes(content.encode())
    with SensorStream(path) as stream, pytest.raises(FileError, match=r"depth reaches 65\.5 m"):
        stream[0].depth()


def test_color_is_decoded_as_pillow_does_and_only_from_a_jpeg_image_of_the_right_size(path):
    image_module = pytest.importorskip("PIL.Image")
    content = make_content(2, is_decodable=True)
    path.write_bytes(content.encode())
    (path.parent / "1.jpg").write_bytes(content.jpegs[1])
    with (
        SensorStream(path) as stream,
        image_module.open(path.parent / "1.jpg") as expected,
    ):
        assert np.array_equal(stream[1].color(), np.array(expected))

    path.write_bytes(DATA)  # markers without an image
    message = f"frame 3 of 5 .* at byte {frame_offset(3):,}"
    with SensorStream(path) as stream, pytest.raises(FileError, match=message):
        stream[3].color()

    image_module.new("RGB", COLOR_SIZE).save(path, "PNG")
    content.jpegs[0] = path.read_bytes()
    content.color_size = (64, 48)
    path.write_bytes(content.encode())
    with SensorStream(path) as stream:
        with pytest.raises(FileError, match=r"color is not a JPEG image that can"):
            stream[0].color()
        with pytest.raises(FileError, match=r"32 x 24 .*expected 64 x 48"):
            stream[1].checked_jpeg()


@given(st.integers(0, len(DATA) - 9))
def test_truncated_stream_is_refused_with_the_frame_that_is_not_whole(reused_path, size_bytes):
    reused_path.write_bytes(DATA[:size_bytes])
    if size_bytes < HEAD_BYTES:
        with pytest.raises(FileError, match="truncated within its header"):
            SensorStream(reused_path)
        return

    whole_count = sum(frame_offset(number + 1) <= size_bytes for number in range(5))
    if whole_count == 5:
        with SensorStream(reused_path) as stream:
            assert np.array_equal(stream[4].depth(), CONTENT.depths[4])
        return
    offset = f"{frame_offset(whole_count):,}"
    message = f"within frame {whole_count} of 5, which begins at byte {offset}"
    with pytest.raises(FileError, match=message):
        SensorStream(reused_path)


def test_stream_that_becomes_shorter_is_an_error(path):
    with SensorStream(path) as stream:
        assert len(stream.poses) == 5
        os.truncate(path, frame_offset(4) + 100)
        with pytest.raises(FileError, match="has become shorter"):
            _ = stream[4].jpeg


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"version": 3}, "is not a sensor stream of version 4: its version is 3"),
        ({"compressions": (0, 1)}, "color compression 0 and depth compression 1, expected 2"),
        ({"compressions": (2, 2)}, "color compression 2 and depth compression 2, expected 2"),
        ({"color_size": (0, 24)}, r"color images of 0 x 24"),
        ({"depth_size": (1 << 31, 1 << 31)}, "depth images of 2,147,483,648 x"),
        ({"depth_shift": 0.0}, r"a depth shift of 0\.0, expected a positive number"),
        ({"depth_shift": float("nan")}, "a depth shift of nan"),
        ({"depth_shift": 1e30}, r"a depth shift of 1\.0+\d*e\+30, expected a positive number"),
        ({"poses": []}, "its header has 0 frames"),
    ],
)
def test_header_that_cannot_be_used_is_refused(path, options, problem):
    content = make_content(1)
    for name, value in options.items():
        setattr(content, name, value)
    path.write_bytes(content.encode())

    with pytest.raises(FileError, match=problem):
        SensorStream(path)


def test_header_with_a_matrix_that_is_not_finite_is_refused(path):
    for number in range(4):
        data = bytearray(DATA)
        struct.pack_into("<f", data, 21 + 64 * number, float("nan"))
        path.write_bytes(data)
        with pytest.raises(FileError, match="its header has a matrix that is not finite"):
            SensorStream(path)


def test_number_of_frames_that_python_cannot_count_is_refused(path):
    data = bytearray(DATA)
    struct.pack_into("<Q", data, HEAD_BYTES - 8, 1 << 63)
    path.write_bytes(data)
    with pytest.raises(FileError, match="9,223,372,036,854,775,808 frames"):
        SensorStream(path)


def test_missing_stream_and_fifo_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.sens")
    with pytest.raises(FileError, match="is a named pipe"):
        SensorStream(tmp_path / "pipe.sens")
    with pytest.raises(MissingFileError):
        SensorStream(tmp_path / "none.sens")


def test_complete_streams_are_accepted_frame_by_frame(path):
    padded = JPEG[:-2] + b"\xff\xff\xff\xd9\0\0"
    for data in (make_stream(3, 2), make_stream()[:-8], make_stream(color=padded)):
        path.write_bytes(data)
        check_sensor_stream(path, Progress())

    path.write_bytes(make_stream(3))
    sizes = []
    progress = Progress()
    progress.advance = sizes.append
    check_sensor_stream(path, progress)
    assert sizes == [FRAME_BYTES] * 3


@given(st.integers(0, len(make_stream(3, 2)) - 1))
def test_any_truncation_of_a_stream_is_found(reused_path, size_bytes):
    data = make_stream(3, 2)
    reused_path.write_bytes(data[:size_bytes])
    # Inertial records may be missing altogether.
    if size_bytes == HEAD_BYTES + 3 * FRAME_BYTES:
        check_sensor_stream(reused_path, Progress())
        return
    with pytest.raises(FileError):
        check_sensor_stream(reused_path, Progress())


@pytest.mark.parametrize("frame", [0, 2])
def test_any_bit_flip_that_changes_a_depth_image_is_found(reused_path, frame):
    offset = HEAD_BYTES + frame * FRAME_BYTES + 96 + len(JPEG)
    data = make_stream()
    harmful_count = 0
    for index in range(8 * len(DEPTH)):
        flipped = bytearray(data)
        flipped[offset + index // 8] ^= 1 << index % 8
        reused_path.write_bytes(flipped)
        try:
            image = zlib.decompress(flipped[offset : offset + len(DEPTH)])
            is_harmful = image != zlib.decompress(DEPTH)
        except zlib.error:
            is_harmful = True
        harmful_count += is_harmful
        # A few bits pad the last byte.
        if is_harmful:
            with pytest.raises(FileError, match=f"frame {frame} of 3 is damaged: depth"):
                check_sensor_stream(reused_path, Progress())
    assert harmful_count > 0.9 * 8 * len(DEPTH)


HUGE_IMAGE = make_stream()[: HEAD_BYTES + 80] + struct.pack("<Q", 1 << 62)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "truncated within its header"),
        (b"<html>" + bytes(500), "is not a sensor stream of version 4"),
        (make_stream()[:-8] + bytes(16), "16 bytes follow the frames, expected 8"),
        (HUGE_IMAGE + make_stream()[HEAD_BYTES + 88 :], "damaged within frame 0 of 3"),
        # Some download programs leave an unfinished file that ends with zeros.
        *(
            (make_stream(3, 2)[: -256 - size] + bytes(256 + size), "damaged")
            for size in (9, 200, 500)
        ),
        *(
            (make_stream(color=color), f"frame 0 of 3 is damaged: color .*{problem}")
            for color, problem in (
                (b"", "does not begin"),
                (JPEG[2:], "does not begin"),
                (JPEG[:-2], "ends within"),
                (JPEG[:-6] + bytes(6), "ends within"),
                (JPEG.replace(b"da\xff\x00", b"da\xff\x01"), "JPEG marker 0x01 in the wrong"),
                (JPEG.replace(b"ta", b"\xff\xd8"), "JPEG marker 0xd8 in the wrong place"),
                (JPEG.replace(b"\x00\x05abc", b"\x05\x05abc"), "segment of a wrong length"),
                (JPEG.replace(FRAME_HEADER, b""), "without pixels"),
                (JPEG[:2] + FRAME_HEADER + JPEG[-2:], "without pixels"),
                (JPEG[:2] + JPEG[-2:], "without pixels"),
                (JPEG.replace(FRAME_HEADER, FRAME_HEADER[:5] + bytes(5)), "has 0 x 0 pixels"),
            )
        ),
        *(
            (make_stream(depth=depth), "depth does not decompress to 96 bytes")
            for depth in (zlib.compress(bytes(95)), zlib.compress(bytes(1 << 20)), DEPTH[:-4], b"")
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else len(value),
)
def test_damaged_stream_is_refused_with_its_frame(path, data, problem):
    path.write_bytes(data)

    with pytest.raises(FileError, match=problem):
        check_sensor_stream(path, Progress())


def with_entry(row, column, value):
    """Return a pose in which one number is replaced."""
    pose = make_pose(1).copy()
    pose[row, column] = value
    return pose


def test_only_rigid_motions_are_tracked():
    no_motions = [
        LOST,
        np.zeros((4, 4)),
        np.full((4, 4), np.nan),
        np.full((4, 4), 0x7F800001, np.uint32).view(np.float32),  # a signalling NaN
        np.full((4, 4), 3e38),
        with_entry(0, 3, np.nan),
        with_entry(3, 3, 2.0),
        with_entry(3, 0, 0.1),
        np.diag([2.0, 2.0, 2.0, 1.0]),
        np.diag([1.0, 1.0, -1.0, 1.0]),
    ]
    for pose in no_motions:
        assert not find_tracked(pose[np.newaxis].astype(np.float32, copy=False)).any()
    assert find_tracked(with_entry(0, 3, -1e4)[np.newaxis]).all()


def test_resized_camera_keeps_the_middle_of_each_pixel():
    """A pixel at u in the old image covers (u + 0.5) * factor - 0.5 in the new one."""
    camera = SensorCamera(make_intrinsic(1170, 1160, 647.5, 483.5), np.eye(4), (1296, 968))
    point = np.array([0.3, -0.2, 1.5, 1])

    resized = camera.resized((320, 240))

    u, v, z, _ = camera.intrinsic @ point
    new_u, new_v, new_z, _ = resized.intrinsic @ point
    assert new_u / new_z == pytest.approx((u / z + 0.5) * 320 / 1296 - 0.5)
    assert new_v / new_z == pytest.approx((v / z + 0.5) * 240 / 968 - 0.5)
    assert resized.size == (320, 240)
