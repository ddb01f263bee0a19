"""Where an archive's bytes come from: a file, read by `pread` only, so that processes and threads share no position."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from scannet_prep.errors import ArchiveError, MissingFileError, UsageError
from scannet_prep.remote.address import is_url


class ByteSource(Protocol):
    """Gives any range of an archive's bytes. Picklable, and safe under fork and in threads."""

    @property
    def name(self) -> str:
        """Path or URL, for messages."""

    @property
    def size_bytes(self) -> int:
        """Size of the whole."""

    def read(self, offset: int, size: int, /) -> bytes:
        """Read so many bytes at an offset; fewer only where the file ends.

        Raises:
            ArchiveError: It cannot be read, or is no longer the file that was opened.
            TransferError: It is on a web server, which does not give it.
        """

    def close(self) -> None:
        """Give back what is held open; reading opens it again."""


def open_source(place: str | Path | ByteSource, *, certificates: bool | Path = True) -> ByteSource:
    """Make an object that reads the bytes of an archive.

    Args:
        place: A path, an address (`https://` or `http://`), or such an object already.
        certificates: Of an address, whom to trust, as `RangeSource` takes it.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: It is no file, cannot be looked at, or the server gives no ranges of it.
        UsageError: It is no address.
        TransferError: It is on a web server, which does not give it.
    """
    if is_url(place):
        from scannet_prep.remote.ranges import RangeSource  # requests is not for those who train from a file

        return RangeSource(str(place), certificates=certificates)
    return FileSource(Path(place)) if isinstance(place, str | Path) else place


def open_sources(places: Sequence[str | Path | ByteSource], *, certificates: bool | Path = True) -> list[ByteSource]:
    """Make objects that read the bytes of several archives.

    Args:
        places: As `open_source` takes them.
        certificates: Likewise.

    Raises:
        UsageError: The same archive is named twice, or it is no address.
        MissingFileError: There is no such file.
        ArchiveError: It is no file, cannot be looked at, or the server gives no ranges of it.
        TransferError: It is on a web server, which does not give it.
    """
    keys = [Path(place) if isinstance(place, str | Path) and not is_url(place) else place for place in places]
    if any(key in keys[:number] for number, key in enumerate(keys)):
        raise UsageError("the same archive is named twice", "name each once")
    return [open_source(place, certificates=certificates) for place in places]


class FileSource:
    """An archive on a disk.

    The file is opened when it is first read, in each process for itself. One that replaced it since is refused: what
    the index says does not hold for it.

    Args:
        path: The file.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: It is no file, or cannot be looked at.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._open()

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    @property
    def size_bytes(self) -> int:
        """Size of the file when it was opened."""
        return self._identity[0] if self._identity else 0

    def read(self, offset: int, size: int, /) -> bytes:
        """Read so many bytes at an offset; fewer only where the file ends.

        Raises:
            ArchiveError: It cannot be read, or is no longer the file that was opened.
        """
        file = self.__dict__.get("_file") or self._open()
        try:
            data = os.pread(file.descriptor, size, offset)
            if len(data) < size:  # at the end, or more than one call gives
                pieces = [data]
                while pieces[-1] and sum(map(len, pieces)) < size:
                    done = sum(map(len, pieces))
                    pieces.append(os.pread(file.descriptor, size - done, offset + done))
                data = b"".join(pieces)
        except OSError as error:
            raise self._unreadable(offset, error) from error
        return data

    def read_into(self, offset: int, target: memoryview, /) -> int:
        """Read into memory that is there already; gives how many bytes, fewer only where the file ends.

        Raises:
            ArchiveError: It cannot be read, or is no longer the file that was opened.
        """
        file = self.__dict__.get("_file") or self._open()
        done = 0
        try:
            while done < len(target) and (count := os.preadv(file.descriptor, [target[done:]], offset + done)):
                done += count
        except OSError as error:
            raise self._unreadable(offset, error) from error
        return done

    def close(self) -> None:
        """Close the file, when all threads that are reading have done so; reading opens it again."""
        self.__dict__.pop("_file", None)

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process."""
        return {"path": self._path, "identity": self._identity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open lazily."""
        self._path, self._identity = state["path"], state["identity"]

    def _open(self) -> _OpenFile:
        # Without a lock, which a fork may copy while it is held. Of two threads that open at once, one keeps its own.
        file: _OpenFile = self.__dict__.setdefault("_file", _OpenFile(self._open_file()))
        return file

    def _unreadable(self, offset: int, error: OSError) -> ArchiveError:
        return ArchiveError(self._path, f"cannot be read at byte {offset:,}: {error.strerror or error}")

    def _open_file(self) -> int:
        try:
            # Not blocking: a pipe is to be refused, not waited for.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise MissingFileError(
                self._path, "no such archive", "name an archive (.tar.zst) that scannet-prep pack made"
            ) from None
        except OSError as error:
            raise ArchiveError(self._path, f"cannot be read: {error.strerror or error}") from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            what = "is a folder" if stat.S_ISDIR(status.st_mode) else "is no file that can be read at any place"
            raise ArchiveError(self._path, f"{what}, expected an archive (.tar.zst)")
        identity = status.st_size, status.st_mtime_ns
        if self._identity is None:
            self._identity = identity
        if identity != self._identity:
            os.close(descriptor)
            raise ArchiveError(self._path, "was replaced or changed since it was opened", "open it again")
        return descriptor


class _OpenFile:
    """A descriptor, closed when nobody holds it any more: never while a thread reads, when its number may be reused."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)
