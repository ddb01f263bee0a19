"""Reading and writing files: whole, or not at all.

    chunks --write_temporary--> .NAME.PID-RANDOM.tmp --put_in_place--> NAME

A reader sees the old file or the new one. After a kill, a temporary file may remain, which the next
run removes (`remove_temporaries`). While a run writes into a folder, it holds its lock: the file
`RUN_LOCK_NAME`, which the operating system unlocks when the process ends, even if it is killed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TypeAlias

import deflate

from scannet_prep.base.json import Count, Crc32
from scannet_prep.base.text import format_bytes
from scannet_prep.errors import (
    DiskFullError,
    FileError,
    MissingFileError,
    OutputError,
    ScanNetPrepError,
)

Buffer: TypeAlias = bytes | bytearray | memoryview

# Errors of the disk, after which a run should stop: it is full, over its quota, read-only, or
# cannot hold a file of this size.
_SPACE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
_HINT_SPACE = "free some space or choose another disk, then run the same command again"
# Space that stays free for other programs and for small files of our own, such as manifests.
RESERVE_BYTES = 200_000_000
# Larger than any file that is read as a whole.
_MAX_BYTES = 1 << 32
# Opening a FIFO would wait for a writer. Windows has neither FIFOs nor this flag.
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)
_HINT_TEXT = "save it as plain text in UTF-8; if it is not yours, get it again"
_LINE_END = re.compile(r"\r(\r?\n)?")
_COMMENT = re.compile(r"^ *#.*", re.MULTILINE)
_TEMPORARY_SUFFIX = ".tmp"
RUN_LOCK_NAME = ".scannet-prep.lock"
_HINT_WINDOWS = "run this in WSL; processed folders can be read without it"
_HINT_LOCKED = "wait until that run has ended, or end it; then run the same command again"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Size and checksum of a file, which distinguish one version of it from another.

    Attributes:
        size_bytes: Length of the file.
        crc32: CRC-32 of its bytes (the polynomial of zip and gzip), eight hexadecimal digits.
    """

    size_bytes: Count
    crc32: Crc32

    def __str__(self) -> str:
        """Return both as text, for messages."""
        return f"{self.size_bytes:,} bytes, CRC-32 {self.crc32}"

    @classmethod
    def from_bytes(cls, *chunks: Buffer) -> Fingerprint:
        """Compute the fingerprint of the whole content of a file, in one or several pieces."""
        size_bytes = 0
        crc32 = 0
        for chunk in chunks:
            size_bytes += len(chunk)
            crc32 = deflate.crc32(chunk, crc32)
        return cls(size_bytes, f"{crc32:08x}")

    @classmethod
    def from_file(cls, path: Path) -> Fingerprint:
        """Compute the fingerprint of a file.

        Raises:
            FileError: The file does not exist, or cannot be read.
        """
        return cls.from_bytes(read_file(path))


@contextmanager
def open_file(path: Path, max_bytes: int = sys.maxsize) -> Iterator[FileIO]:
    """Open a regular file for reading; FIFOs and devices are refused without waiting for them.

    Args:
        path: The file.
        max_bytes: Largest size that the file may have; any size by default.

    Raises:
        MissingFileError: There is no such file.
        FileError: It is not a regular file, is too large, or cannot be read. The message contains
            the reason that the operating system gives.
    """
    if "\0" in str(path):
        # A name that was read from a file may contain a NUL. Python would raise a ValueError.
        raise FileError(path, "has a NUL in its name")
    try:
        with FileIO(path, opener=lambda name, flags: os.open(name, flags | _NO_WAITING)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FileError(path, "is a named pipe or a device, expected a file")
            if status.st_size > max_bytes:
                raise FileError(
                    path, f"has {status.st_size:,} bytes, expected at most {max_bytes:,}"
                )
            # Errors of the caller while it reads are translated below, too.
            yield file
    except ScanNetPrepError:  # some of them are also an OSError
        raise
    except FileNotFoundError:
        problem = "is a link that leads nowhere" if path.is_symlink() else "no such file"
        raise MissingFileError(path, problem) from None
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from error


def read_file(path: Path, max_bytes: int = _MAX_BYTES) -> bytes:
    """Read a whole regular file; arguments and errors are those of `open_file`."""
    with open_file(path, max_bytes) as file:
        return file.read()


def read_text(path: Path, max_bytes: int = _MAX_BYTES) -> str:
    """Read a text file; arguments and errors are those of `open_file` and `decode_text`."""
    return decode_text(read_file(path, max_bytes), path)


def decode_text(data: bytes, path: Path) -> str:
    """Decode a text file that people or other programs wrote.

    A byte order mark is dropped. Comments become empty lines; they are lines that begin with `#`,
    perhaps after blanks. Every end of a line becomes one LF, also CR CR LF, which occurs in files
    that were converted to the line ends of Windows twice. Line numbers stay the same.

    Args:
        data: The content of the file.
        path: The file, for messages.

    Raises:
        FileError: It is not text, or is in an encoding other than UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}"
        raise FileError(path, problem, _HINT_TEXT) from None
    text = _LINE_END.sub("\n", text)
    # Most files have no comments, and the search takes long: it stops at every line.
    return _COMMENT.sub("", text) if "#" in text else text


def write_atomically(path: Path, chunks: Iterable[Buffer]) -> None:
    """Write a file under a temporary name in the same folder, then give it its final name.

    The folder is made if it does not exist. The permissions are 0666 without the bits of the umask.

    Args:
        path: Final name. An existing file is replaced.
        chunks: The content, in order.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full. The final name is
            unchanged.
        FileError: Something other than a file, such as `/dev/null`, has the final name.
    """
    put_in_place(write_temporary(path, chunks), path)


def write_temporary(path: Path, chunks: Iterable[Buffer]) -> Path:
    """Do the first half of `write_atomically`: write the file under its temporary name.

    Returns:
        The temporary name, for `put_in_place`.
    """
    make_directory(path.parent)
    with writing(path):
        # If root runs this, renaming would replace a device, for the whole machine.
        if path.exists() and not path.is_file():
            raise FileError(path, "is not a regular file, so no file can be written there")
        unique = f"{os.getpid()}-{os.urandom(4).hex()}"
        temporary_path = path.with_name(f".{path.name}.{unique}{_TEMPORARY_SUFFIX}")
        try:
            with temporary_path.open("xb") as file:
                file.writelines(chunks)
        except BaseException:
            with suppress(OSError):
                temporary_path.unlink()
            raise
    return temporary_path


def put_in_place(temporary_path: Path, path: Path) -> None:
    """Do the second half of `write_atomically`: give a file its final name."""
    with writing(path):
        temporary_path.replace(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Translate errors of the operating system while a file or folder is written.

    Raises:
        OutputError: It cannot be written; the message names it, and has the reason that the
            operating system gives. If the disk is full, it is a DiskFullError.
    """
    try:
        yield
    except ScanNetPrepError:  # some of them are also an OSError
        raise
    except OSError as error:
        message = f"{path}: cannot be written: {error.strerror or error}"
        if error.errno in _SPACE_ERRNOS:
            raise DiskFullError(message, _HINT_SPACE) from error
        raise OutputError(message) from error


def remove_temporaries(*directories: Path, names: str = ".+") -> None:
    """Remove the temporary files that killed runs have left.

    Call this only while the folder's lock is held. Files that cannot be removed, for example on a
    read-only file system, stay: they do no harm.

    Args:
        directories: The folders to look in.
        names: Regular expression for the final names. Needed in folders into which other programs
            write without a lock.
    """
    temporary = re.compile(rf"\.(?:{names})\.\d+-[0-9a-f]{{8}}{re.escape(_TEMPORARY_SUFFIX)}")
    for directory in directories:
        for path in directory.glob(f".*{_TEMPORARY_SUFFIX}"):
            if temporary.fullmatch(path.name):
                with suppress(OSError):
                    path.unlink()


def check_space(folder: Path, needed_bytes: int) -> None:
    """Check that a disk has space for the files to be written, and for the reserve.

    A file system that does not report its free space passes.

    Args:
        folder: A folder on the disk; need not exist yet.
        needed_bytes: Bytes to be written; with 0, the check always passes.

    Raises:
        DiskFullError: There is not enough space.
    """
    # There is always one: the last parent is the root, or the current folder.
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    usage = shutil.disk_usage(existing)
    if needed_bytes and usage.total and usage.free < needed_bytes + RESERVE_BYTES:
        raise DiskFullError(
            f"{folder}: needs {format_bytes(needed_bytes)} and a reserve of "
            f"{format_bytes(RESERVE_BYTES)}; {format_bytes(usage.free)} is free",
            _HINT_SPACE,
        )


def write_if_changed(path: Path, data: Buffer) -> None:
    """Write a file as `write_atomically` does, unless it has this content already.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full.
    """
    # A longer file is not read. If a file cannot be read, the attempt to write it shows the reason.
    with suppress(FileError):
        if path.exists() and read_file(path, max_bytes=len(data)) == data:
            return
    write_atomically(path, [data])


def have_sizes(folder: Path, sizes: Mapping[str, int]) -> bool:
    """Whether a folder has all files of these names, with these sizes in bytes."""
    try:
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def make_directory(path: Path) -> None:
    """Create a folder and its parents, unless it exists.

    Raises:
        OutputError: It cannot be created.
    """
    with writing(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            problem = "is a file, or a link that leads nowhere, expected a folder"
            raise OutputError(f"{path}: {problem}") from None


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Let only one run at a time write into a folder.

    Folders that cannot be written to, and folders on file systems without locks, are not locked.

    Args:
        folder: The folder into which the run writes; it exists.

    Raises:
        OutputError: Another run holds the lock.
        OutputError: This is Windows, where folders are only read.
    """
    try:
        import fcntl
    except ImportError:
        problem = f"{folder}: can be written to on Linux and macOS only"
        raise OutputError(problem, _HINT_WINDOWS) from None
    path = folder / RUN_LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError:  # if something is to be written, that error names the reason
        yield
        return
    with FileIO(descriptor) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed this file, and another run may have made a new one.
            is_taken = not os.path.samestat(os.fstat(file.fileno()), path.stat())
        except OSError as error:  # otherwise, a file system without locks
            is_taken = isinstance(error, (BlockingIOError, FileNotFoundError))
        if is_taken:
            raise OutputError(f"{folder}: another run is working in this folder", _HINT_LOCKED)
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()
