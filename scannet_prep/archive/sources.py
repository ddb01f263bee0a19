"""The bytes of an archive: a file, or an address."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from scannet_prep.base.files import open_file
from scannet_prep.errors import ArchiveError

SUFFIX = ".tar.zst"


class ByteSource(Protocol):
    """Reads any range of an archive. Picklable, and safe under fork and in threads.

    Attributes:
        name: The path or the address, for messages.
        size_bytes: The size of the archive.
    """

    name: str
    size_bytes: int

    def read(self, offset: int, size: int, /) -> bytes:
        """Read a range; the result is shorter only if the archive ends within the range."""

    def close(self) -> None:
        """Close files and connections; reading opens them again."""


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
    """An archive on a disk.

    It is read with `pread` only, so that processes and threads share no position. A forked process
    reads from the file that its parent opened. An unpickled copy opens the file again on its first
    read.

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
        # Size and time of the last change; None before the file was opened.
        self._identity: tuple[int, int] | None = None
        self._opened: _Descriptor | None = self._open()

    def read(self, offset: int, size: int, /) -> bytes:
        """Read a range; the result is shorter only if the file ends within the range.

        Raises:
            ArchiveError: It cannot be read, or was replaced before this process opened it.
        """
        opened = self._opened
        if opened is None:
            opened = self._opened = self._open()
        try:
            return os.pread(opened.number, size, offset)
        except OSError as error:
            problem = f"cannot be read at byte {offset:,}: {error.strerror or error}"
            raise ArchiveError(self.name, problem) from error

    def close(self) -> None:
        """Close the file when no thread reads it; reading opens it again."""
        self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open file, which belongs to this process."""
        return self.__dict__ | {"_opened": None}

    def _open(self) -> _Descriptor:
        if not hasattr(os, "pread"):  # Windows
            problem = "archives are read on Linux and macOS only"
            raise ArchiveError(self.name, problem, "use WSL, or a processed folder")
        with open_file(Path(self.name), sys.maxsize) as file:
            status = os.fstat(file.fileno())
            opened = _Descriptor(file.fileno())
        identity = (status.st_size, status.st_mtime_ns)
        if self._identity not in (None, identity):
            problem = "was replaced or changed since it was opened"
            raise ArchiveError(self.name, problem, "open it again")
        self._identity = identity
        self.size_bytes = status.st_size
        return opened


class _Descriptor:
    """A copy of an open file, which is closed when its last user is done.

    Args:
        number: The descriptor to copy.
    """

    def __init__(self, number: int) -> None:
        self.number = os.dup(number)

    # The function is bound here, because the module may be gone when the program ends.
    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        _close(self.number)
