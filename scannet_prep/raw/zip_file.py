"""Read the zip files of the release, and check that every member is complete."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scannet_prep.base.files import open_file
from scannet_prep.errors import FileError

_PIECE_BYTES = 1 << 20
# Each entry of the directory begins with this.
_DIRECTORY_ENTRY = b"PK\x01\x02"
# RuntimeError is raised for encrypted members. It includes NotImplementedError, which is raised for
# members that zipfile cannot read.
_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file.

    Raises:
        FileError: It cannot be read, its directory is damaged, or it has no members.
    """
    with open_file(path) as raw_file:
        file = io.BufferedReader(raw_file, _PIECE_BYTES)
        try:
            archive = zipfile.ZipFile(file)
        except _ERRORS as error:
            raise FileError(path, f"is not a zip file, or is truncated: {error}") from None
        # zipfile may list too few members, without an error, if a length in the directory is
        # damaged.
        count = len(archive.infolist())
        file.seek(archive.start_dir)
        expected_count = file.read().count(_DIRECTORY_ENTRY)
        if count != expected_count or not count:
            raise FileError(
                path,
                f"its directory is damaged: it lists {count:,} files, "
                f"expected {max(expected_count, 1):,}",
            )
        yield archive


def read_member(
    archive: zipfile.ZipFile,
    path: Path,
    name: str,
) -> bytes:
    """Read a member of a zip file, which is compared with its CRC-32.

    Args:
        archive: The zip file.
        path: Its path, for messages.
        name: The name of the member.

    Raises:
        FileError: There is no such member, or it is damaged.
    """
    try:
        return archive.read(name)
    except KeyError:
        raise FileError(path, f"has no {name!r}") from None
    except _ERRORS as error:
        raise FileError(path, f"{name!r} in it is damaged: {error}") from None


def check_zip(path: Path) -> None:
    """Decompress every member of a zip file, and compare it with its CRC-32.

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
