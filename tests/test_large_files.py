"""Zip files of the release: every member is checked."""

import struct
import zipfile

import pytest
from tiny import make_zip

from scannet_prep.errors import FileError
from scannet_prep.raw.zip_file import check_zip


def test_complete_zip_files_are_accepted_member_by_member(tmp_path):
    path = tmp_path / "file.zip"
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path.write_bytes(make_zip(compression))
        check_zip(path)

    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("large", bytes(3 << 20))
        for number in range(70_000):  # more than the end record can count
            archive.writestr(str(number), b"")
    check_zip(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_file_with_any_flipped_bit_is_complete_or_damaged(tmp_path, compression):
    """An accepted file has the same members; any other one raises FileError."""
    path = tmp_path / "file.zip"
    data = make_zip(compression)
    expected = {b"second", bytes(range(256)) * 10}
    content = data.index(bytes(range(256))) if compression == zipfile.ZIP_STORED else 0

    for index in range(8 * len(data)) if content == 0 else range(8 * content, 8 * len(data), 37):
        flipped = bytearray(data)
        flipped[index // 8] ^= 1 << index % 8
        path.write_bytes(flipped)
        try:
            check_zip(path)
        except FileError:
            continue
        with zipfile.ZipFile(path) as archive:
            assert {archive.read(member) for member in archive.infolist()} == expected, index


def test_directory_that_lists_too_few_members_is_refused(tmp_path):
    path = tmp_path / "file.zip"
    whole = make_zip(zipfile.ZIP_STORED)
    # The name of the first entry of the directory contains the second entry.
    entry = whole.index(b"PK\x01\x02")
    length = whole.rindex(b"PK\x01\x02") - entry - 46
    second_bytes = whole.index(b"PK\x05\x06") - whole.rindex(b"PK\x01\x02")
    swallowed = bytearray(whole)
    swallowed[entry + 28 : entry + 30] = struct.pack("<H", length + second_bytes)
    with zipfile.ZipFile(path, "w"):
        empty = path
    cases = [(empty.read_bytes(), "it lists 0 files"), (swallowed, "it lists 1 files, expected 2")]
    for data, problem in cases:
        path.write_bytes(data)
        with pytest.raises(FileError, match=problem):
            check_zip(path)
