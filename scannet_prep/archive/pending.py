"""A file that is being unpacked: it gets its name when everything about it has been checked."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import deflate

from scannet_prep.errors import OutputError
from scannet_prep.files import Buffer, make_directory, output_error, owner_token

_READ_BYTES = 1 << 20
_MAX_TRIES = 100


class FileOutcome(StrEnum):
    """What became of one file."""

    WRITTEN = "written"
    REPLACED = "replaced"
    KEPT = "kept"


class PendingFile:
    """A file under a temporary name, in the folder that it is for.

    Args:
        path: The name that it is to get.

    Attributes:
        path: As given.
        size_bytes: Bytes so far.
        crc32: CRC-32 of them.
        made_dirs: Folders that had to be made for it, the innermost first.

    Raises:
        OutputError: The folder cannot be made or written to, or a folder has the name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = self.crc32 = 0
        self.made_dirs: list[Path] = []
        check_no_folder(path)
        # The name is independent of the file's, which may be as long as names can be. `remove_stale_temporaries` knows
        # names of this form.
        self._temporary_path = path.with_name(f".unpack.{owner_token()}.{secrets.token_hex(4)}.tmp")
        self._descriptor = self._open()

    def write(self, data: Buffer) -> None:
        """Write more.

        Raises:
            OutputError: The disk is full, or does not take it.
        """
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise output_error(self.path, error) from error
        self.size_bytes += len(data)
        self.crc32 = deflate.crc32(data, self.crc32)

    def close(self) -> None:
        """No more data comes.

        Raises:
            OutputError: The disk does not take it after all.
        """
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if descriptor >= 0:
                os.close(descriptor)
        except OSError as error:
            raise output_error(self.path, error) from error

    def commit(self) -> FileOutcome:
        """Give the file its name, unless a file of the same content has it.

        Raises:
            OutputError: It cannot be renamed.
        """
        if has_content(self.path, self.size_bytes, self.crc32):
            self.discard()
            return FileOutcome.KEPT
        outcome = FileOutcome.REPLACED if os.path.lexists(self.path) else FileOutcome.WRITTEN
        try:
            self._temporary_path.replace(self.path)
        except OSError as error:
            raise output_error(self.path, error) from error
        return outcome

    def discard(self) -> None:
        """Remove what was written."""
        with suppress(OSError):
            self.close()
        with suppress(OSError):
            self._temporary_path.unlink(missing_ok=True)

    def _open(self) -> int:
        parent = self.path.parent
        for _ in range(_MAX_TRIES):
            missing = []
            while not parent.exists():
                missing.append(parent)
                parent = parent.parent
            parent = self.path.parent
            make_directory(parent)
            self.made_dirs = [*missing, *(item for item in self.made_dirs if item not in missing)]
            try:
                return os.open(self._temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue  # another thread made the folder and, as its own file was refused, removed it
            except OSError as error:
                raise output_error(self.path, error) from error
        raise OutputError(f"{parent}: something removes this folder again and again")


def check_no_folder(path: Path) -> None:
    """Check that no folder is where a file is to be.

    Raises:
        OutputError: One is.
    """
    if path.is_dir():
        raise OutputError(
            f"{path}: is a folder, and the archive has a file of that name", "choose another folder with -o"
        )


def has_content(path: Path, size_bytes: int, crc32: int) -> bool:
    """Whether a file is there and has that size and CRC-32."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False  # not there, or not readable: to write it tells
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes:
            return False
        found = 0
        while piece := os.read(descriptor, _READ_BYTES):
            found = deflate.crc32(piece, found)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return found == crc32
