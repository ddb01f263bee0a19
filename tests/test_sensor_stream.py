"""Frames of sensor streams are read exactly, at random, and up to the first fault."""

from __future__ import annotations

import os
import pickle
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
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

from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.frames import SensorCamera, SensorStream
from scannet_prep.raw.sensor_stream import find_tracked

CONTENT = make_content(5, lost=(2,))
DATA = CONTENT.encode()
# Start, name and header.
HEAD_BYTES = 12 + 9 + 64 * 4 + 2 * 4 + 4 * 4 + 4 + 8


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "scene0000_00.sens"
    path.write_bytes(DATA)
    return path


def frame_offset(number: int) -> int:
    """Return the first byte of a frame."""
    with_frames_before = make_content(number).encode()
    # The number of inertial records follows the frames.
    return len(with_frames_before) - 8


def test_frames_read_at_random_equal_those_of_a_plain_reader(path: Path) -> None:
    expected = read_plainly(DATA)

    with SensorStream(path) as stream:
        for number in (4, 0, 2, 2, 1, 3):
            pose, jpeg, depth = expected[number]
            assert np.array_equal(stream[number].pose, pose)
            assert stream[number].jpeg == jpeg
            assert np.array_equal(stream[number].depth(), depth)


def test_iteration_yields_the_frames_in_order(path: Path) -> None:
    with SensorStream(path) as stream:
        frames = [(frame.number, frame.jpeg) for frame in stream]

    assert frames == list(enumerate(CONTENT.jpegs))


def test_poses_of_all_frames_are_an_array(path: Path) -> None:
    with SensorStream(path) as stream:
        assert stream.poses.dtype == np.float32
        assert np.array_equal(stream.poses, np.stack(CONTENT.poses))


def test_frame_with_infinite_pose_is_not_tracked(path: Path) -> None:
    with SensorStream(path) as stream:
        assert stream.is_tracked.tolist() == [True, True, False, True, True]


def test_time_stamps_are_those_of_color_and_depth(path: Path) -> None:
    with SensorStream(path) as stream:
        assert stream.timestamps[3].tolist() == [300, 307]
        assert stream[3].depth_timestamp == 307


def test_cameras_have_the_sizes_and_intrinsics_of_the_header(path: Path) -> None:
    with SensorStream(path) as stream:
        assert stream.color_camera.size == COLOR_SIZE
        assert stream.depth_camera.size == DEPTH_SIZE
        assert np.array_equal(stream.color_camera.intrinsic, CONTENT.color_intrinsic)
        assert np.array_equal(stream.depth_camera.intrinsic, CONTENT.depth_intrinsic)


@pytest.mark.parametrize("number", [5, -1])
def test_number_beyond_the_frames_raises_index_error(path: Path, number: int) -> None:
    with SensorStream(path) as stream, pytest.raises(IndexError, match="only 5 frames"):
        stream[number]


def test_opening_reads_no_image(path: Path, tmp_path: Path) -> None:
    """The images of this file are a hole of 5 GB, which could not be read in time."""
    count = 100
    image_bytes = 25 << 20
    sparse_path = tmp_path / "sparse"
    with sparse_path.open("wb") as file:
        file.write(DATA[: HEAD_BYTES - 8] + struct.pack("<Q", count))
        for number in range(count):
            file.write(make_pose(number).tobytes())
            file.write(struct.pack("<4Q", 0, 0, image_bytes, image_bytes))
            file.seek(2 * image_bytes, os.SEEK_CUR)
        file.truncate()

    with SensorStream(sparse_path) as stream:
        assert stream.readable_count == count
        assert np.array_equal(stream.poses[99], make_pose(99))


@pytest.mark.parametrize("shift", [500.0, 2000.0, 5000.0])
def test_depth_is_in_millimetres_for_any_depth_shift(path: Path, shift: float) -> None:
    path.write_bytes(make_content(2, depth_shift=shift).encode())

    with SensorStream(path) as stream:
        expected = np.rint(make_depth(1) * (1000 / shift))
        assert np.array_equal(stream[1].depth(), expected)


def test_depth_beyond_16_bits_of_millimetres_is_an_error(path: Path) -> None:
    content = make_content(1, depth_shift=100.0)
    content.depths[0][3, 4] = 6554
    path.write_bytes(content.encode())

    with SensorStream(path) as stream, pytest.raises(FileError, match=r"depth reaches 65\.5 m"):
        stream[0].depth()


def test_color_is_decoded_as_pillow_does(path: Path) -> None:
    content = make_content(2, is_decodable=True)
    path.write_bytes(content.encode())

    with SensorStream(path) as stream:
        (path.parent / "1.jpg").write_bytes(content.jpegs[1])
        with Image.open(path.parent / "1.jpg") as expected:
            assert np.array_equal(stream[1].color(), np.array(expected))


def test_damaged_color_image_is_named_with_frame_and_byte(path: Path) -> None:
    with (
        SensorStream(path) as stream,
        pytest.raises(FileError, match=f"frame 3 of 5 .* at byte {frame_offset(3):,}"),
    ):
        stream[3].color()


def test_color_image_of_another_format_is_damaged(path: Path) -> None:
    content = make_content(1)
    Image.new("RGB", COLOR_SIZE).save(path, "PNG")
    content.jpegs[0] = path.read_bytes()
    path.write_bytes(content.encode())

    with (
        SensorStream(path) as stream,
        pytest.raises(FileError, match=r"color is not a JPEG image \(it begins"),
    ):
        stream[0].color()


def test_color_image_of_another_size_is_damaged(path: Path) -> None:
    content = make_content(2)
    content.color_size = (64, 48)
    path.write_bytes(content.encode())

    with (
        SensorStream(path) as stream,
        pytest.raises(FileError, match=r"32 x 24 .*expected 64 x 48"),
    ):
        stream[0].checked_jpeg()


@pytest.fixture(scope="module")
def reused_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cut") / "cut.sens"


@given(st.integers(0, len(DATA) - 9))
def test_frames_before_a_truncation_can_be_read(reused_path: Path, size_bytes: int) -> None:
    path = reused_path
    path.write_bytes(DATA[:size_bytes])
    if size_bytes < HEAD_BYTES:
        with pytest.raises(FileError, match="truncated within its header"):
            SensorStream(path)
        return

    whole_count = sum(frame_offset(number + 1) <= size_bytes for number in range(5))
    with SensorStream(path) as stream:
        assert stream.readable_count == whole_count
        for number in range(whole_count):
            assert np.array_equal(stream[number].depth(), CONTENT.depths[number])


@pytest.fixture
def cut_path(path: Path) -> Path:
    """A stream that ends within frame 3."""
    path.write_bytes(DATA[: frame_offset(4) - 1])
    return path


def test_frame_after_the_fault_raises_error_with_number_and_byte(cut_path: Path) -> None:
    message = f"within frame 3 of 5, which begins at byte {frame_offset(3):,}"

    with SensorStream(cut_path) as stream, pytest.raises(FileError, match=message):
        stream[4]


def test_iteration_over_a_truncated_stream_ends_with_an_error(cut_path: Path) -> None:
    numbers = []

    def read_all() -> None:
        with SensorStream(cut_path) as stream:
            numbers.extend(frame.number for frame in stream)

    with pytest.raises(FileError, match="frame 3 of 5"):
        read_all()
    assert numbers == [0, 1, 2]


@pytest.mark.parametrize("name", ["poses", "is_tracked", "timestamps"])
def test_array_over_all_frames_of_a_truncated_stream_is_an_error(cut_path: Path, name: str) -> None:
    with SensorStream(cut_path) as stream, pytest.raises(FileError, match="frame 3 of 5"):
        getattr(stream, name)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"version": 3}, "is not a sensor stream of version 4: its version is 3"),
        ({"compressions": (0, 1)}, "color compression 0 and depth compression 1, expected 2"),
        ({"compressions": (2, 2)}, "color compression 2 and depth compression 2, expected 2"),
        ({"color_size": (0, 24)}, "color images of 0 x 24"),
        ({"depth_size": (1 << 31, 1 << 31)}, "depth images of 2,147,483,648 x"),
        ({"depth_shift": 0.0}, r"a depth shift of 0\.0, expected a positive number"),
        ({"depth_shift": float("nan")}, "a depth shift of nan"),
        ({"depth_shift": 1e30}, r"a depth shift of 1\.0+\d*e\+30, expected a positive number"),
    ],
)
def test_header_that_cannot_be_used_is_refused(path: Path, options: dict, problem: str) -> None:
    content = make_content(1)
    for name, value in options.items():
        setattr(content, name, value)
    path.write_bytes(content.encode())

    with pytest.raises(FileError, match=problem):
        SensorStream(path)


def test_number_of_frames_that_python_cannot_count_is_refused(path: Path) -> None:
    data = bytearray(DATA)
    struct.pack_into("<Q", data, HEAD_BYTES - 8, 1 << 63)
    path.write_bytes(data)

    with pytest.raises(FileError, match="damaged: 9,223,372,036,854,775,808 frames"):
        SensorStream(path)


def test_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.sens")

    with pytest.raises(FileError, match="is a named pipe"):
        SensorStream(tmp_path / "pipe.sens")


def test_missing_stream_raises_missing_file_error(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        SensorStream(tmp_path / "none.sens")


def test_stream_that_becomes_shorter_is_an_error(path: Path) -> None:
    with SensorStream(path) as stream:
        assert stream.readable_count == 5
        os.truncate(path, frame_offset(4) + 100)

        with pytest.raises(FileError, match="has become shorter"):
            _ = stream[4].jpeg


def test_closed_stream_raises_file_error(path: Path) -> None:
    stream = SensorStream(path)
    stream.close()

    with pytest.raises(FileError, match="cannot be read"):
        stream[0]


def test_threads_read_the_frames_that_they_ask_for(path: Path) -> None:
    """As processes that a fork has made, they share the position of the file."""
    numbers = [0, 4, 1, 3, 2] * 200

    with SensorStream(path) as stream, ThreadPoolExecutor(4) as executor:
        jpegs = list(executor.map(lambda number: stream[number].jpeg, numbers))

    assert jpegs == [CONTENT.jpegs[number] for number in numbers]


def test_errors_of_a_stream_survive_a_process_pool(cut_path: Path) -> None:
    with SensorStream(cut_path) as stream, pytest.raises(FileError) as caught:
        stream[4]

    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message


def with_entry(row: int, column: int, value: float) -> np.ndarray:
    """Return a pose in which one number is replaced."""
    pose = make_pose(1).copy()
    pose[row, column] = value
    return pose


@pytest.mark.parametrize(
    "pose",
    [
        LOST,
        np.zeros((4, 4), np.float32),
        np.full((4, 4), np.nan, np.float32),
        np.full((4, 4), 0x7F800001, np.uint32).view(np.float32),
        np.full((4, 4), 3e38, np.float32),
        with_entry(0, 3, np.nan),
        with_entry(3, 3, 2.0),
        with_entry(3, 0, 0.1),
        np.diag([2.0, 2.0, 2.0, 1.0]),
        np.diag([1.0, 1.0, -1.0, 1.0]),
    ],
    ids=[
        "-inf",
        "0",
        "nan",
        "signalling nan",
        "huge",
        "one nan",
        "w",
        "last row",
        "scaling",
        "reflection",
    ],
)
def test_pose_that_is_no_rigid_motion_is_not_tracked(pose: np.ndarray) -> None:
    assert find_tracked(pose[np.newaxis].astype(np.float32, copy=False)).tolist() == [False]


def test_pose_far_from_the_origin_is_tracked() -> None:
    assert find_tracked(with_entry(0, 3, -1e4)[np.newaxis]).tolist() == [True]


def test_resized_camera_keeps_the_middle_of_each_pixel() -> None:
    """A pixel at u in the old image covers (u + 0.5) * factor - 0.5 in the new one."""
    camera = SensorCamera(make_intrinsic(1170, 1160, 647.5, 483.5), np.eye(4), (1296, 968))
    point = np.array([0.3, -0.2, 1.5, 1])

    resized = camera.resized((320, 240))

    u, v, z, _ = camera.intrinsic @ point
    new_u, new_v, new_z, _ = resized.intrinsic @ point
    assert new_u / new_z == pytest.approx((u / z + 0.5) * 320 / 1296 - 0.5)
    assert new_v / new_z == pytest.approx((v / z + 0.5) * 240 / 968 - 0.5)
    assert resized.size == (320, 240)
