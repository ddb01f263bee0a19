"""Where an archive's bytes come from: a file, an address on the web, or a pipe."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from scannet_prep.errors import ArchiveError, MissingFileError, UsageError

_OTHER_ADDRESS = re.compile(r"([A-Za-z][\w+.-]{1,10})://.+", re.ASCII | re.DOTALL)
_PIECE_BYTES = 1 << 20
_MAX_WALK_BYTES = 1 << 23


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


def is_url(place: object) -> bool:
    """Whether it is an address on the web; a `Path` is none, also where it looks like one."""
    return isinstance(place, str) and place.lower().startswith(("https://", "http://"))


def open_source(place: str | Path | ByteSource, *, certificates: bool | Path = True) -> ByteSource:
    """Make an object that reads the bytes of an archive.

    Args:
        place: A path, an address (`https://` or `http://`), or such an object already.
        certificates: Of an address, whom to trust, as `RangeSource` takes it.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: It is not a file, cannot be looked at, or the server gives no ranges of it.
        UsageError: It is not an address that this program reads.
        TransferError: It is on a web server, which does not give it.
    """
    if is_url(place):
        from scannet_prep.remote.ranges import RangeSource  # requests is not for those who train from a file

        return RangeSource(str(place), certificates=certificates)
    if not isinstance(place, str | Path):
        return place
    match = _OTHER_ADDRESS.fullmatch(str(place))
    if match is not None and not Path(place).exists():
        hint = "name a file, or an https:// address"
        if match[1].lower() == "s3":
            hint = (
                f"copy it first (aws s3 cp {place} .), or use a signed https:// address of it "
                f"(aws s3 presign {place}); those are read range by range"
            )
        raise UsageError(f"{place}: addresses of the kind {match[1]}:// are not read", hint)
    return FileSource(Path(place).expanduser())


def open_sources(places: Sequence[str | Path | ByteSource], *, certificates: bool | Path = True) -> list[ByteSource]:
    """Make objects that read the bytes of several archives.

    Args:
        places: As `open_source` takes them.
        certificates: Likewise.

    Raises:
        UsageError: The same archive is named twice, or it is not an address that this program reads.
        MissingFileError: There is no such file.
        ArchiveError: It is not a file, cannot be looked at, or the server gives no ranges of it.
        TransferError: It is on a web server, which does not give it.
    """
    keys = [Path(place) if isinstance(place, str | Path) and not is_url(place) else place for place in places]
    if any(key in keys[:number] for number, key in enumerate(keys)):
        raise UsageError("the same archive is named twice", "name each once")
    return [open_source(place, certificates=certificates) for place in places]


class FileSource:
    """An archive on a disk, read by `pread` only, so that processes and threads share no position.

    The file is opened when it is first read, in each process for itself. One that replaced it since is refused: what
    the index says does not hold for it.

    Args:
        path: The file.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: It is not a file, or cannot be looked at.
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
            data = b""
            while len(data) < size and (piece := os.pread(file.descriptor, size - len(data), offset + len(data))):
                data += piece  # most often all of it
        except OSError as error:
            raise ArchiveError(self._path, f"cannot be read at byte {offset:,}: {error.strerror or error}") from error
        return data

    def close(self) -> None:
        """Close the file, when all threads that are reading have done so; reading opens it again."""
        self.__dict__.pop("_file", None)

    def __getstate__(self) -> dict[str, Any]:
        """Without the open file, which belongs to this process; it is opened again where it is read."""
        return {"_path": self._path, "_identity": self._identity}

    def _open(self) -> _OpenFile:
        try:
            # Not blocking: a pipe is to be refused, not waited for.
            file = _OpenFile(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except FileNotFoundError:
            raise MissingFileError(
                self._path, "no such archive", "name an archive (.tar.zst) that scannet-prep pack made"
            ) from None
        except OSError as error:
            raise ArchiveError(self._path, f"cannot be read: {error.strerror or error}") from error
        status = os.fstat(file.descriptor)
        if not stat.S_ISREG(status.st_mode):
            what = "is a folder" if stat.S_ISDIR(status.st_mode) else "is a pipe or a device"
            raise ArchiveError(self._path, f"{what}, expected an archive (.tar.zst)")
        identity = status.st_size, status.st_mtime_ns
        self._identity = self._identity or identity
        if identity != self._identity:
            raise ArchiveError(self._path, "was replaced or changed since it was opened", "open it again")
        # Without a lock, which a fork may copy while it is held. Of two threads that open at once, one keeps its own.
        kept: _OpenFile = self.__dict__.setdefault("_file", file)
        return kept


class _OpenFile:
    """A descriptor, closed when nobody holds it any more: never while a thread reads, when its number may be reused."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class PipeSource:
    """An archive that comes through a pipe, from its beginning to its end.

    Args:
        descriptor: Number of the open file.
        name: Its name, for messages.
    """

    size_bytes = 0  # nobody knows

    def __init__(self, descriptor: int, name: str = "standard input") -> None:
        self._descriptor = descriptor
        self.name = name

    def read(self, _offset: int, size: int, /) -> bytes:
        """Read the next bytes, at most so many; none where the pipe ends.

        Raises:
            ArchiveError: It cannot be read.
        """
        try:
            return os.read(self._descriptor, size)
        except OSError as error:
            raise ArchiveError(self.name, f"cannot be read: {error.strerror or error}") from error

    def close(self) -> None:
        """Nothing to do: it belongs to somebody else."""


class Stream:
    """The bytes of a source in order, with a look ahead.

    Args:
        source: Where they come from.
        offset: Where to begin.

    Attributes:
        offset: Where the next byte lies.
    """

    def __init__(self, source: ByteSource, offset: int = 0) -> None:
        self._source = source
        self._buffer = bytearray()
        self._piece_bytes = _PIECE_BYTES if isinstance(source, PipeSource | FileSource) else _MAX_WALK_BYTES
        self.offset = offset

    def peek(self, start: int, size: int) -> bytes:
        """Look at bytes that have not been taken, without taking them; fewer are given only where the source ends."""
        self._fill(start + size)
        return bytes(self._buffer[start : start + size])

    def take(self, size: int) -> bytes:
        """Take the next bytes; fewer only where the source ends."""
        self._fill(size)
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        self.offset += len(taken)
        return taken

    def skip_rest(self) -> int:
        """Read to the end; gives how many bytes were left."""
        count = 0
        while piece := self.take(_PIECE_BYTES):
            count += len(piece)
        return count

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            position = self.offset + len(self._buffer)
            piece = self._source.read(position, max(self._piece_bytes, size - len(self._buffer)))
            if not piece:
                break
            self._buffer += piece
