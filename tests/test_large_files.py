"""Checks that zip files and sensor streams are complete: every member, every frame."""

import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from large_files import DEPTH, FRAME_HEADER, JPEG, make_stream, make_zip

from scannet_prep.errors import FileError
from scannet_prep.raw.sensor_stream import check_sensor_stream
from scannet_prep.raw.zip_file import check_zip

# A stream without frames ends with the number of inertial records, of 8 bytes.
HEAD_BYTES = len(make_stream(0)) - 8
FRAME_BYTES = 96 + len(JPEG) + len(DEPTH)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("large") / "file"


def flip(data: bytes, index: int, bit: int = 0) -> bytes:
    """Return the same bytes with one bit inverted."""
    return data[:index] + bytes([data[index] ^ 1 << bit]) + data[index + 1 :]


@pytest.mark.parametrize("imu_frames", [0, 2])
def test_complete_streams_are_accepted(path: Path, imu_frames: int) -> None:
    path.write_bytes(make_stream(3, imu_frames))
    check_sensor_stream(path)


def test_stream_without_inertial_records_is_accepted(path: Path) -> None:
    path.write_bytes(make_stream()[:-8])
    check_sensor_stream(path)


def test_checked_bytes_of_a_stream_are_those_of_its_frames(path: Path) -> None:
    path.write_bytes(make_stream(3))
    sizes: list[int] = []

    check_sensor_stream(path, sizes.append)

    assert sizes == [FRAME_BYTES] * 3


def is_same_image(data: bytes) -> bool:
    """Whether compressed data decompresses to the depth image."""
    try:
        return zlib.decompress(data) == zlib.decompress(DEPTH)
    except zlib.error:
        return False


@pytest.mark.parametrize("frame", [0, 2])
def test_any_bit_flip_that_changes_a_depth_image_is_found(path: Path, frame: int) -> None:
    offset = HEAD_BYTES + frame * FRAME_BYTES + 96 + len(JPEG)
    data = make_stream()
    flips = [(byte, bit) for byte in range(len(DEPTH)) for bit in range(8)]
    harmful = [(byte, bit) for byte, bit in flips if not is_same_image(flip(DEPTH, byte, bit))]
    # A few bits pad the last byte.
    assert len(harmful) > 0.9 * len(flips)

    for byte, bit in harmful:
        path.write_bytes(flip(data, offset + byte, bit))
        with pytest.raises(FileError, match=f"frame {frame} of 3 is damaged: depth"):
            check_sensor_stream(path)


@given(st.integers(0, len(make_stream(3, 2)) - 1))
def test_any_truncation_of_a_stream_is_found(path: Path, size_bytes: int) -> None:
    data = make_stream(3, 2)
    path.write_bytes(data[:size_bytes])
    # Inertial records may be missing altogether.
    if size_bytes == HEAD_BYTES + 3 * FRAME_BYTES:
        check_sensor_stream(path)
        return

    with pytest.raises(FileError):
        check_sensor_stream(path)


@pytest.mark.parametrize("tail_bytes", [9, 200, 300, 500])
def test_stream_with_a_tail_of_zeros_is_damaged(path: Path, tail_bytes: int) -> None:
    """Some download programs leave an unfinished file like this."""
    zeros = bytes(tail_bytes + 256)
    path.write_bytes(make_stream(3, 2)[: -len(zeros)] + zeros)

    with pytest.raises(FileError):
        check_sensor_stream(path)


@pytest.mark.parametrize(
    ("color", "problem"),
    [
        (b"", "does not begin"),
        (JPEG[2:], "does not begin"),
        (JPEG[:-2], "ends within"),
        (JPEG[:-6] + bytes(6), "ends within"),
        (JPEG.replace(b"da\xff\x00", b"da\xff\x01"), "JPEG marker 0x01 in the wrong place"),
        (JPEG.replace(b"ta", b"\xff\xd8"), "JPEG marker 0xd8 in the wrong place"),
        (JPEG.replace(b"\x00\x05abc", b"\x05\x05abc"), "segment of a wrong length"),
        (JPEG.replace(FRAME_HEADER, b""), "without pixels"),
        (JPEG[:2] + FRAME_HEADER + JPEG[-2:], "without pixels"),
        (JPEG[:2] + JPEG[-2:], "without pixels"),
    ],
)
def test_damaged_color_image_is_named_by_its_frame(path: Path, color: bytes, problem: str) -> None:
    path.write_bytes(make_stream(color=color))

    with pytest.raises(FileError, match=f"frame 0 of 3 is damaged: color .*{problem}"):
        check_sensor_stream(path)


def test_padding_within_and_after_a_color_image_is_accepted(path: Path) -> None:
    path.write_bytes(make_stream(color=JPEG[:-2] + b"\xff\xff\xff\xd9\0\0"))
    check_sensor_stream(path)


@pytest.mark.parametrize(
    "depth",
    [zlib.compress(bytes(95)), zlib.compress(bytes(1 << 20)), DEPTH[:-4], b""],
    ids=["too small", "too large", "without its checksum", "empty"],
)
def test_depth_image_of_another_size_is_damaged(path: Path, depth: bytes) -> None:
    path.write_bytes(make_stream(depth=depth))

    with pytest.raises(
        FileError, match="frame 0 of 3 is damaged: depth does not decompress to 96 bytes"
    ):
        check_sensor_stream(path)


def test_damaged_image_size_does_not_fill_the_memory(path: Path) -> None:
    data = make_stream()
    huge_size = struct.pack("<Q", 1 << 62)
    path.write_bytes(data[: HEAD_BYTES + 80] + huge_size + data[HEAD_BYTES + 88 :])

    with pytest.raises(FileError, match="is truncated or damaged within frame 0 of 3"):
        check_sensor_stream(path)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "truncated within its header"),
        (b"<html>" + bytes(500), "is not a sensor stream of version 4"),
        (make_stream(0), "has no frames"),
        (make_stream(compressions=(1, 1)), r"color compression 1 .* expected 2 \(JPEG\)"),
        (make_stream()[:-8] + bytes(16), "16 bytes follow the frames, expected 8"),
    ],
)
def test_other_files_are_not_sensor_streams(path: Path, data: bytes, problem: str) -> None:
    path.write_bytes(data)

    with pytest.raises(FileError, match=problem):
        check_sensor_stream(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_complete_zip_file_is_accepted_member_by_member(path: Path, compression: int) -> None:
    path.write_bytes(make_zip(compression))
    sizes: list[int] = []

    check_zip(path, sizes.append)

    assert len(sizes) == 2


@given(st.integers(0, 2_559), st.integers(0, 7))
def test_any_flipped_bit_of_a_zip_member_is_found(path: Path, byte: int, bit: int) -> None:
    data = make_zip(zipfile.ZIP_STORED)
    offset = data.index(bytes(range(256)))
    path.write_bytes(flip(data, offset + byte, bit))

    with pytest.raises(FileError, match=r"'label-filt/0\.png' in it is damaged: Bad CRC-32"):
        check_zip(path)


def test_zip_file_with_any_flipped_bit_is_complete_or_damaged(path: Path) -> None:
    """An accepted file has the same members; any other one raises FileError."""
    data = make_zip()
    expected = {b"second", bytes(range(256)) * 10}

    for index in range(8 * len(data)):
        path.write_bytes(flip(data, index // 8, index % 8))
        try:
            check_zip(path)
        except FileError:
            continue
        with zipfile.ZipFile(path) as archive:
            assert {archive.read(member) for member in archive.infolist()} == expected, index


def test_zip_file_of_70_000_members_is_accepted(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("large", bytes(3 << 20))
        for number in range(70_000):
            archive.writestr(str(number), b"")

    check_zip(path)


def test_zip_file_without_members_is_damaged(path: Path) -> None:
    zipfile.ZipFile(path, "w").close()

    with pytest.raises(FileError, match="is a zip file without files"):
        check_zip(path)
