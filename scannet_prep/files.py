"""Files as this package reads and writes them: whole, or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import deflate

from scannet_prep.errors import DiskFullError, FileError, LockedError, MissingFileError, OutputError, ScanNetPrepError
from scannet_prep.typed_json import Count, Crc32

Buffer: TypeAlias = bytes | bytearray | memoryview

LOCK_NAME = ".scannet-prep.lock"
SPACE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
_MAX_BYTES = 1 << 32
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)
_BLOCK_BYTES = 1 << 22
_TEMPORARY_SUFFIX = ".tmp"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells one version of a file from another, cheaply.

    Attributes:
        size_bytes: Length of the file.
        crc32: CRC-32 of its bytes (the polynomial of zip and gzip), eight hexadecimal digits.
    """

    size_bytes: Count
    crc32: Crc32

    @classmethod
    def from_bytes(cls, *chunks: Buffer) -> Fingerprint:
        """Compute the fingerprint of a file's whole content, given in one or several pieces."""
        return cls._from_chunks(chunks)

    @classmethod
    def from_file(cls, path: Path) -> Fingerprint:
        """Compute the fingerprint of a file of any size.

        Raises:
            FileError: It is not there, or cannot be read.
        """
        with open_file(path, 1 << 60) as file:
            return cls._from_chunks(iter(lambda: file.read(_BLOCK_BYTES), b""))

    @classmethod
    def _from_chunks(cls, chunks: Iterable[Buffer]) -> Fingerprint:
        size_bytes, crc32 = 0, 0
        for chunk in chunks:
            size_bytes, crc32 = size_bytes + len(chunk), deflate.crc32(chunk, crc32)
        return cls(size_bytes, f"{crc32:08x}")


def is_hidden_or_temporary(name: str) -> bool:
    """Whether a file or folder does not belong to the release.

    macOS leaves `._*` beside each file it copies; the official download script leaves `tmp*` where it was interrupted.
    """
    return name.startswith((".", "tmp"))


@contextmanager
def open_file(path: Path, max_bytes: int = _MAX_BYTES) -> Iterator[FileIO]:
    """Open a regular file for reading. A FIFO or a device is refused, and never waited for.

    Args:
        path: The file.
        max_bytes: Largest size that such a file may have.

    Raises:
        MissingFileError: There is no such file.
        FileError: It is not a regular file, too large, or cannot be read; with the operating system's reason.
    """
    if "\0" in str(path):  # in a name that was read from a file
        raise FileError(path, "has a NUL in its name")
    try:
        with FileIO(path, opener=lambda name, flags: os.open(name, flags | _NO_WAITING)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FileError(path, f"is {describe_kind(status.st_mode)}, expected a file")
            if status.st_size > max_bytes:
                raise FileError(path, f"has {status.st_size:,} bytes, expected at most {max_bytes:,}")
            yield file
    except ScanNetPrepError:
        raise
    except IsADirectoryError:
        raise FileError(path, "is a folder, expected a file") from None
    except FileNotFoundError:
        problem = "is a link that leads nowhere" if path.is_symlink() else "no such file"
        raise MissingFileError(path, problem) from None
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from error


def describe_kind(mode: int) -> str:
    """Say what `st_mode` makes of a file that is not a regular one, for example `a folder`."""
    kinds = {stat.S_IFREG: "a file", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def read_file(path: Path, max_bytes: int = _MAX_BYTES) -> bytes:
    """Read a whole regular file; arguments and errors are those of `open_file`."""
    with open_file(path, max_bytes) as file:
        return file.read()


def write_atomically(path: Path, chunks: Iterable[Buffer], *, is_durable: bool = False) -> None:
    """Write a file under a temporary name in the same folder, then give it its final name.

    A reader sees the old file or the new one, whole; after a kill, a temporary file may stay behind, which
    `remove_temporaries` removes. Permissions are those that the umask leaves of 0666.

    Args:
        path: Final name. An existing file is replaced.
        chunks: The content, in order.
        is_durable: Flush to the disk before renaming, so that even a power failure leaves no empty file.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full. Nothing stands under the final name that was
            not there before.
        FileError: A folder or a device has that name, such as `/dev/null`.
    """
    put_in_place(write_temporary(path, chunks, is_durable=is_durable), path)


def write_temporary(path: Path, chunks: Iterable[Buffer], *, is_durable: bool = False) -> Path:
    """Do the first half of `write_atomically`, and give the temporary name."""
    _check_can_be_file(path)
    temporary_path = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{_TEMPORARY_SUFFIX}")
    try:
        with temporary_path.open("xb") as file:
            file.writelines(chunks)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException as error:
        with suppress(OSError):
            temporary_path.unlink()
        if isinstance(error, OSError) and not isinstance(error, ScanNetPrepError):
            raise output_error(path, error) from error
        raise
    return temporary_path


def put_in_place(temporary_path: Path, path: Path) -> None:
    """Do the second half of `write_atomically`: give a file its final name."""
    try:
        temporary_path.replace(path)
    except OSError as error:
        temporary_path.unlink(missing_ok=True)
        raise output_error(path, error) from error


def _check_can_be_file(path: Path) -> None:
    """Refuse folders, and what the whole machine uses: who may would replace it by a file."""
    with suppress(OSError):
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode) and not path.is_symlink():
            raise FileError(path, "is a folder, so that no file can be written there", "remove or rename it")
        is_device = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
        if is_device or (path.is_symlink() and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))):  # as /dev/stdout is
            raise FileError(path, "is a device or a pipe, so that no file can be written there", "name a file")


def remove_temporaries(*directories: Path, names: str = ".+") -> None:
    """Remove what killed runs left of `write_atomically`; for the run that holds the folder's lock.

    Where others write without it, `names` is a pattern of the files that are the run's own.
    """
    temporary = re.compile(rf"\.(?:{names})\.\d+-[0-9a-f]{{8}}{re.escape(_TEMPORARY_SUFFIX)}")
    for path in chain.from_iterable(directory.glob(f".*{_TEMPORARY_SUFFIX}") for directory in directories):
        if temporary.fullmatch(path.name):
            with suppress(OSError):  # they are in nobody's way, for example on a read-only file system
                path.unlink()


def output_error(path: Path, error: OSError) -> OutputError:
    """Say why a file cannot be written, and what to do about it."""
    hint = ""
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        hint = "name a folder that you may write to: -o DIR"
    elif error.errno in SPACE_ERRNOS:
        hint = (
            "free some space, then run the same command again: it continues; or name a folder on another disk: -o DIR"
        )
    kind = DiskFullError if error.errno in SPACE_ERRNOS else OutputError
    return kind(f"{path}: cannot be written: {error.strerror or error}", hint)


def check_is_folder(path: Path) -> None:
    """Check that a path is a folder, or can become one.

    Raises:
        OutputError: Something else is in the way.
    """
    existing = next((item for item in (path, *path.parents) if item.exists()), None)
    if existing is not None and not existing.is_dir():
        raise OutputError(f"{existing}: is not a folder", "name another output folder: -o DIR")


def write_if_changed(path: Path, data: bytes, *, is_durable: bool = False) -> None:
    """Do what `write_atomically` does, unless the file has that content already.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full.
    """
    if not has_content(path, data):
        write_atomically(path, [data], is_durable=is_durable)


def has_content(path: Path, data: Buffer) -> bool:
    """Whether a file is there, and has that content."""
    try:
        return read_file(path, len(data)) == data
    except FileError:
        return False  # not there, larger, or not readable: to write it tells


def remove_file(path: Path) -> None:
    """Remove a file, if it is there: on a read-only file system, even the attempt to remove nothing is an error.

    Raises:
        OutputError: It cannot be removed.
    """
    if path.exists():
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise output_error(path, error) from error


def make_directory(path: Path) -> None:
    """Create a folder and its parents, unless it exists.

    Raises:
        OutputError: It cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file of that name is in the way" if isinstance(error, FileExistsError) else error.strerror
        raise OutputError(
            f"{path}: cannot create this folder: {reason}", "name another output folder: -o DIR"
        ) from error


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Let only one run at a time write into a folder.

    The lock is a file that says who holds it; it ends with the process, however that ends. A folder that cannot be
    written to, and file systems without locks, have none.

    Args:
        folder: Where the run writes; it exists.

    Raises:
        LockedError: Another run holds the lock; the message names its machine, process and start.
        OutputError: This is Windows, where folders are only read.
    """
    try:
        import fcntl
    except ImportError:
        problem = f"{folder}: can be written to on Linux and macOS only"
        raise OutputError(problem, "on Windows, run this in WSL; processed folders are read without it") from None

    path = folder / LOCK_NAME
    with ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), path.stat()):
                raise BlockingIOError  # noqa: TRY301 - its last holder has removed it, and another run has its own
        except (BlockingIOError, FileNotFoundError):
            holder = ""
            with suppress(OSError):  # it may end at this moment
                holder = path.read_text(encoding="utf-8", errors="replace").strip()[:200]
            problem = f"{folder}: {holder or 'another run'} is working in this folder"
            raise LockedError(
                problem, "wait until that run has ended, or end it; then run the same command again"
            ) from None
        except OSError:
            pass  # a read-only folder: nothing will be written; or a file system without locks
        else:
            started = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
            stack.callback(_remove_lock, path)
            with suppress(OSError):  # the disk may be full, and nothing to be written
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}, started {started}\n".encode())
        yield


def _remove_lock(path: Path) -> None:
    with suppress(OSError):  # whatever happened to the folder, the run tells, if it matters
        path.unlink()
