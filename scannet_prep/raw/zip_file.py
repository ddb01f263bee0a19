"""Read the zip files of the release, and check that every member is complete."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from scannet_prep.base.files import open_file
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError

# No file of the release is larger.
_MAX_FILE_BYTES = 1 << 40
_PIECE_BYTES = 1 << 20
# Largest member that is read as a whole. A raw image of 1296 x 968 has 2.5 MB.
_MAX_MEMBER_BYTES = 1 << 26
# Size of the end records with the longest comment.
_MAX_TAIL_BYTES = (1 << 16) + 200
# RuntimeError is raised for encrypted members. It includes NotImplementedError, which is raised for
# members that zipfile cannot read.
_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file.

    Raises:
        FileError: It cannot be read, its directory is damaged, or it has no members.
    """
    with open_file(path, _MAX_FILE_BYTES) as raw_file:
        file = io.BufferedReader(raw_file, _PIECE_BYTES)
        try:
            archive = zipfile.ZipFile(file)
        except _ERRORS as error:
            raise FileError(path, f"is not a zip file, or is truncated: {error}") from None
        # zipfile may list too few members, without an error, if a length in the directory is
        # damaged.
        count = len(archive.infolist())
        expected_count = _read_member_count(file)
        if count != expected_count or not count:
            raise FileError(
                path,
                f"its directory is damaged: it lists {count:,} files, "
                f"expected {expected_count:,}, and at least one",
            )
        yield archive


def read_member(archive: zipfile.ZipFile, path: Path, name: str) -> bytes:
    """Read a member of a zip file, which is compared with its CRC-32.

    Args:
        archive: The zip file.
        path: Its path, for messages.
        name: The name of the member.

    Raises:
        FileError: There is no such member, or more than one, or it is damaged.
    """
    # Programs differ in which one they take if there are two.
    count = archive.namelist().count(name)
    if count != 1:
        raise FileError(path, f"has {count or 'no'} {name!r}, expected one")
    member = archive.getinfo(name)
    if member.file_size > _MAX_MEMBER_BYTES:
        raise FileError(
            path,
            f"{name!r} in it is damaged: it has {member.file_size:,} bytes, "
            f"expected at most {_MAX_MEMBER_BYTES:,}",
        )
    try:
        return archive.read(member)
    except _ERRORS as error:
        raise FileError(path, f"{name!r} in it is damaged: {error}") from None


def check_zip(path: Path, progress: Progress) -> None:
    """Decompress every member of a zip file, and compare it with its CRC-32.

    Args:
        path: The file.
        progress: Its `advance` is called with the number of stored bytes that were checked.

    Raises:
        FileError: The directory at the end, or a member, is damaged; or there are no members.
    """
    with open_zip(path) as archive:
        for member in archive.infolist():
            try:
                # At its end, zipfile compares the CRC-32.
                with archive.open(member) as file:
                    while file.read(_PIECE_BYTES):
                        pass
            except _ERRORS as error:
                problem = f"{member.filename!r:.80} in it is damaged: {error}"
                raise FileError(path, problem) from None
            progress.advance(member.compress_size)


def _read_member_count(file: BinaryIO) -> int:
    """Read the number of members from the end record of a zip file."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - _MAX_TAIL_BYTES))
    tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    # The record has the number at byte 10.
    (count,) = struct.unpack_from("<H", tail, end + 10)
    # A number that does not fit is replaced by 65,535. A record of zip64 before the end record then
    # has it at byte 32.
    large_end = tail.rfind(b"PK\x06\x06", 0, end)
    if count == 0xFFFF and large_end >= 0:
        (count,) = struct.unpack_from("<Q", tail, large_end + 32)
    return int(count)
