"""Where an archive's bytes come from: a file, an address, a pipe; and which files are shards of one set."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from scannet_prep.base.errors import ArchiveError, MissingFileError
from scannet_prep.base.files import describe_kind

SUFFIX = ".tar.zst"

# Several archives instead of one, for services with a largest size: `name-00000-of-00004.tar.zst`.
_SHARD_NAME = re.compile(rf"([^/]+)-(\d{{5}})-of-(\d{{5}}){re.escape(SUFFIX)}(?=\?|\Z)", re.ASCII)
_PIECE_BYTES = 1 << 22


class ByteSource(Protocol):
    """Gives any range of an archive's bytes. Picklable, and safe under fork and in threads.

    Attributes:
        name: Path or URL, for messages.
        size_bytes: Size of the whole.
    """

    name: str
    size_bytes: int

    def read(self, offset: int, size: int, /) -> bytes:
        """So many bytes at an offset, fewer only where the file ends; else an `ArchiveError` or `TransferError`."""

    def close(self) -> None:
        """Give back what is held open; reading opens it again."""


# A path, an address (`https://`, `http://`, `s3://`, `gs://` or `az://`), or an object that reads the bytes.
Place: TypeAlias = str | Path | ByteSource


def open_source(place: Place, *, certificates: bool | Path = True) -> ByteSource:
    """Make an object that reads the bytes of an archive; `certificates` are what `RangeSource` takes.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: It is not a file, or cannot be looked at.
        UsageError: It is not an address that this program reads.
        TransferError: It is on a web server or in a bucket, which does not give it.
    """
    if isinstance(place, str) and place.lower().startswith(("s3://", "gs://", "az://")):
        from scannet_prep.remote.bucket import BucketSource

        return BucketSource(place, certificates=certificates)
    if isinstance(place, str) and place.lower().startswith(("https://", "http://")):
        from scannet_prep.remote.ranges import (
            RangeSource,
        )  # requests is not for those who train from a file

        return RangeSource(place, certificates=certificates)
    if not isinstance(place, str | Path):
        return place
    return FileSource(Path(place).expanduser())


class FileSource:
    """An archive on a disk, read by `pread` only, so that processes and threads share no position.

    The file is opened when it is first read, in each process for itself. One that replaced it since is refused: what
    the index says does not hold for it.

    A file that is not there is a `MissingFileError`; what is not a file or cannot be looked at, an `ArchiveError`.
    """

    def __init__(self, path: Path) -> None:
        self.name, self.size_bytes = str(path), 0
        self._open()

    def read(self, offset: int, size: int, /) -> bytes:
        """Read so many bytes at an offset; fewer only where the file ends."""
        file = self.__dict__.get("_file") or self._open()
        try:
            return os.pread(file.descriptor, size, offset)
        except OSError as error:
            raise ArchiveError(
                self.name, f"cannot be read at byte {offset:,}: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Close the file, when all threads that are reading have done so; reading opens it again."""
        self.__dict__.pop("_file", None)

    def __getstate__(self) -> dict[str, Any]:
        """Without the open file, which belongs to this process; it is opened again where it is read."""
        return {key: value for key, value in self.__dict__.items() if key != "_file"}

    def _open(self) -> _OpenFile:
        if not hasattr(os, "pread"):  # Windows
            raise ArchiveError(
                self.name,
                "archives are read on Linux and macOS only",
                "use WSL, or a processed folder",
            )
        try:
            # Not blocking: a pipe is to be refused, not waited for.
            file = _OpenFile(os.open(self.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            kind = MissingFileError if isinstance(error, FileNotFoundError) else ArchiveError
            hint = "name an archive that scannet-prep pack made: a path, or https://, s3://, gs:// or az://"
            raise kind(self.name, f"cannot be read: {error.strerror or error}", hint) from None
        status = os.fstat(file.descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ArchiveError(
                self.name, f"is {describe_kind(status.st_mode)}, expected an archive ({SUFFIX})"
            )
        self.size_bytes, identity = status.st_size, (status.st_size, status.st_mtime_ns)
        if self.__dict__.setdefault("_identity", identity) != identity:
            raise ArchiveError(
                self.name, "was replaced or changed since it was opened", "open it again"
            )
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
    """An archive that comes through a pipe, by the number of the open file, from its beginning to its end."""

    name, size_bytes = "standard input", 0  # nobody knows

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, _offset: int, size: int, /) -> bytes:
        """Read the next bytes, at most so many; none where the pipe ends."""
        try:
            return os.read(self._descriptor, size)
        except OSError as error:
            raise ArchiveError(self.name, f"cannot be read: {error.strerror or error}") from error

    def close(self) -> None:
        """Nothing to do: it belongs to somebody else."""


class Stream:
    """The bytes of a source in order, with a look ahead; `offset` is where the next byte lies."""

    def __init__(self, source: ByteSource, offset: int = 0) -> None:
        self._source, self._buffer, self.offset = source, bytearray(), offset

    def peek(self, start: int, size: int) -> bytes:
        """Look at bytes that have not been taken, without taking them; fewer are given only where the source ends."""
        while (lacking := start + size - len(self._buffer)) > 0:
            piece = self._source.read(self.offset + len(self._buffer), max(_PIECE_BYTES, lacking))
            if not piece:
                break
            self._buffer += piece
        return bytes(self._buffer[start : start + size])

    def take(self, size: int) -> bytes:
        """Take the next bytes; fewer only where the source ends."""
        taken = self.peek(0, size)
        del self._buffer[: len(taken)]
        self.offset += len(taken)
        return taken


def shard_path(path: Path, number: int, count: int) -> Path:
    """Name of a shard of `name.tar.zst`."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}-{number:05d}-of-{count:05d}{SUFFIX}")


def find_shards(path: Path) -> tuple[Path, ...]:
    """All shards of `name.tar.zst` that lie in its folder, also those of several sets; sorted."""
    stem, items = path.name.removesuffix(SUFFIX), path.parent.glob(f"*{SUFFIX}")
    return tuple(
        sorted(
            item for item in items if (match := _SHARD_NAME.search(str(item))) and match[1] == stem
        )
    )


def find_missing_shards(names: Iterable[str | Path]) -> tuple[str, ...]:
    """Names of the shards that are needed to make whole sets of those that are there, without folders; sorted.

    A set may lie on several disks, or partly on the web: what belongs together is told by the last part of the names,
    which are paths, or addresses as messages show them.
    """
    there = {match.groups() for name in names if (match := _SHARD_NAME.search(str(name)))}
    sets = {(stem, count) for stem, _, count in there}
    wanted = {
        (stem, f"{number:05d}", count) for stem, count in sets for number in range(int(count))
    }
    return tuple(
        f"{stem}-{number}-of-{count}{SUFFIX}" for stem, number, count in sorted(wanted - there)
    )
