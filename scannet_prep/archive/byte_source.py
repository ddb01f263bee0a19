"""Byte sources for archives: file, server, bucket and pipe."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from scannet_prep.archive.shards import SUFFIX
from scannet_prep.base.files import describe_kind
from scannet_prep.errors import ArchiveError, MissingFileError

_BUCKETS = ("s3://", "gs://", "az://")
_SERVERS = ("https://", "http://")
_HINT_NAME_ARCHIVE = (
    "name an archive that scannet-prep pack made: a path, or https://, s3://, gs:// or az://"
)


class ByteSource(Protocol):
    """Reads any range of an archive. Picklable, and safe under fork and in threads.

    Attributes:
        name: Path or URL, for messages.
        size_bytes: Size of the whole archive.
    """

    name: str
    size_bytes: int

    def read(self, offset: int, size: int, /) -> bytes:
        """Read a range; the result is shorter only if the archive ends within the range.

        Raises:
            ArchiveError, TransferError: The range cannot be read.
        """

    def close(self) -> None:
        """Close files and connections; reading opens them again."""


Place: TypeAlias = str | Path | ByteSource
"""A path, an address (`https://`, `http://`, `s3://`, `gs://`, `az://`), or a `ByteSource`."""


def open_bytes(place: Place, *, certificates: bool | Path = True) -> ByteSource:
    """Open the bytes of an archive.

    Args:
        place: The archive. A `ByteSource` is returned unchanged.
        certificates: Certificate authorities to trust for servers; see `RangeSource`.

    Raises:
        MissingFileError: The file does not exist.
        ArchiveError: It is not a regular file, or it cannot be opened.
        UsageError: The address is of a kind that is not supported.
        TransferError: The server or the bucket does not send it.
    """
    if isinstance(place, str) and place.lower().startswith(_BUCKETS):
        from scannet_prep.remote.bucket import BucketSource

        return BucketSource(place, certificates=certificates)
    if isinstance(place, str) and place.lower().startswith(_SERVERS):
        # Imported here: training from a local file does not need requests.
        from scannet_prep.remote.ranges import RangeSource

        return RangeSource(place, certificates=certificates)
    if isinstance(place, str | Path):
        return FileSource(Path(place).expanduser())
    return place


class FileSource:
    """An archive on a disk.

    It is read with `pread` only, so that processes and threads share no position. A forked process
    reads from the file that its parent opened. An unpickled copy opens the file again on its first
    read. If the file was replaced meanwhile, that is an error, because the index describes the
    earlier file.

    Args:
        path: The archive.

    Raises:
        MissingFileError: The file does not exist.
        ArchiveError: It is not a regular file, or it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.size_bytes = 0  # set by `_open`
        self._open()

    def read(self, offset: int, size: int, /) -> bytes:
        """Read a range; the result is shorter only if the file ends within the range."""
        # An unpickled copy has no `_file` (see `__getstate__`), and neither has a closed source.
        file = self.__dict__.get("_file") or self._open()
        try:
            return os.pread(file.descriptor, size, offset)
        except OSError as error:
            problem = f"cannot be read at byte {offset:,}: {error.strerror or error}"
            raise ArchiveError(self.name, problem) from error

    def close(self) -> None:
        """Close the file as soon as no thread reads it; reading opens it again."""
        self.__dict__.pop("_file", None)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open file, which belongs to this process."""
        return {key: value for key, value in self.__dict__.items() if key != "_file"}

    def _open(self) -> _OpenFile:
        """Open the file in this process.

        Raises:
            MissingFileError, ArchiveError: It cannot be opened, or is not the file that was opened
                first.
        """
        file = _OpenFile(_open_for_reading(self.name))
        status = os.fstat(file.descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = describe_kind(status.st_mode)
            problem = f"is {kind}, expected an archive ({SUFFIX})"
            raise ArchiveError(self.name, problem, _HINT_NAME_ARCHIVE)

        self.size_bytes = status.st_size
        identity = (status.st_size, status.st_mtime_ns)
        first_identity = self.__dict__.setdefault("_identity", identity)
        if identity != first_identity:
            problem = "was replaced or changed since it was opened"
            raise ArchiveError(self.name, problem, "open it again")
        # No lock, because a fork could copy a locked one. If two threads open at once, both use
        # the file that was stored first.
        stored: _OpenFile = self.__dict__.setdefault("_file", file)
        return stored


def _open_for_reading(name: str) -> int:
    """Open a file, and return its descriptor."""
    if not hasattr(os, "pread"):  # Windows
        problem = "archives are read on Linux and macOS only"
        raise ArchiveError(name, problem, "use WSL, or a processed folder")
    try:
        # O_NONBLOCK: a named pipe, which the caller refuses, does not wait for its writer.
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        error_type = MissingFileError if isinstance(error, FileNotFoundError) else ArchiveError
        problem = f"cannot be read: {error.strerror or error}"
        raise error_type(name, problem, _HINT_NAME_ARCHIVE) from None


class _OpenFile:
    """An open descriptor, closed with its last reference.

    A thread that reads holds a reference, so that the descriptor is not closed, and its number not
    reused, during the read.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class PipeSource:
    """An archive that is read from a pipe, once and in order.

    Its size is unknown, so `size_bytes` is 0.

    Args:
        descriptor: The open file descriptor of the pipe; the caller closes it.
    """

    name = "standard input"
    size_bytes = 0

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, _offset: int, size: int, /) -> bytes:
        """Read at most `size` of the next bytes; none at the end of the pipe."""
        try:
            return os.read(self._descriptor, size)
        except OSError as error:
            raise ArchiveError(self.name, f"cannot be read: {error.strerror or error}") from error

    def close(self) -> None:
        """Do nothing: the descriptor belongs to the caller."""
