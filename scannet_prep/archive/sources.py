"""The bytes of an archive: a file, or an address."""

from __future__ import annotations

import os
import sys
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from scannet_prep.base.files import open_file
from scannet_prep.errors import ArchiveError

if TYPE_CHECKING:
    from scannet_prep.remote.archive import RemoteArchive

SUFFIX = ".tar.zst"


ByteSource: TypeAlias = "FileSource | RemoteArchive"
"""The bytes of an archive, any range of which can be read: picklable, safe under fork, in threads.
"""


def open_source(place: str | Path) -> ByteSource:
    """Open the bytes of an archive.

    Args:
        place: A path, or an address such as `https://HOST/NAME.tar.zst`.

    Raises:
        MissingFileError: The file does not exist.
        FileError: It is not a regular file, or cannot be opened.
        TransferError: The server or the store does not send it.
    """
    if isinstance(place, str) and "://" in place:
        # Imported here: training from a local file does not need requests.
        from scannet_prep.remote.archive import RemoteArchive

        return RemoteArchive(place)
    return FileSource(Path(place).expanduser())


class FileSource:
    """An archive on a disk, which is opened for each read: processes and threads share nothing.

    Args:
        path: The archive.

    Attributes:
        name: The path.
        size_bytes: The size of the file.

    Raises:
        MissingFileError: The file does not exist.
        FileError: It is not a regular file, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        with open_file(path, sys.maxsize) as file:
            self._version = _find_version(file)
        self.size_bytes, _ = self._version

    def read(self, offset: int, size: int, /) -> bytes:
        """Read a range; the result is shorter only if the file ends within the range.

        Raises:
            FileError: It cannot be read.
            ArchiveError: It was replaced or changed since it was opened.
        """
        with open_file(self._path, sys.maxsize) as file:
            if _find_version(file) != self._version:
                problem = "was replaced or changed since it was opened"
                raise ArchiveError(self.name, problem, "open it again")
            file.seek(offset)
            return file.read(size)


def _find_version(file: FileIO) -> tuple[int, int]:
    """Find the size of a file and the time of its last change."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns
