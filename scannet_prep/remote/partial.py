"""What has arrived of a file so far, in hidden files beside the final one.

    .<final name>.part          the bytes
    .<final name>.part.version  the ETag or Last-Modified that they came with; without it, they cannot be resumed

One run at a time works in a folder, so that nobody else writes into them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from scannet_prep.files import make_directory, output_error

_SUFFIX = ".part"
_VERSION_SUFFIX = ".part.version"


class Partial:
    """The bytes of one file that have arrived so far. Opens them, or begins anew.

    Args:
        target: The final name.

    Raises:
        OutputError: The folder cannot be written to.
    """

    def __init__(self, target: Path) -> None:
        self.path = partial_path(target)
        self._target = target
        self._version_path = target.with_name(f".{target.name}{_VERSION_SUFFIX}")
        make_directory(target.parent)
        try:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise output_error(self.path, error) from error
        self.size_bytes = os.fstat(self._descriptor).st_size
        self.validator = ""
        with suppress(OSError):
            self.validator = self._version_path.read_bytes()[:1000].decode("latin-1")

    def free_bytes(self) -> int:
        """Free space on its disk."""
        status = os.fstatvfs(self._descriptor)
        return status.f_bavail * status.f_frsize

    def append(self, data: bytes) -> None:
        """Add bytes at the end.

        Raises:
            OutputError: The disk is full.
        """
        rest = memoryview(data)
        try:
            while rest:
                written = os.write(self._descriptor, rest)
                self.size_bytes += written
                rest = rest[written:]
        except OSError as error:
            raise output_error(self._target, error) from error

    def restart(self, validator: str = "") -> None:
        """Drop all bytes; those to come have the given validator.

        Raises:
            OutputError: The folder cannot be written to.
        """
        try:
            if self.size_bytes:
                os.ftruncate(self._descriptor, 0)  # first: the old bytes must never stand beside the new validator
            self.size_bytes = 0
            if validator != self.validator:
                self._version_path.write_bytes(validator.encode("latin-1", "replace"))
        except OSError as error:
            raise output_error(self._target, error) from error
        self.validator = validator

    def publish(self) -> None:
        """Give the file its final name.

        Raises:
            OutputError: The folder cannot be written to.
        """
        try:
            os.fsync(self._descriptor)
            self.path.replace(self._target)
            self._version_path.unlink(missing_ok=True)
        except OSError as error:
            raise output_error(self._target, error) from error

    def close(self) -> None:
        """Leave the bytes to the next run; where there are none, or they cannot be resumed, remove them."""
        os.close(self._descriptor)
        if not (self.size_bytes and self.validator):
            with suppress(OSError):
                self._version_path.unlink(missing_ok=True)
                if self.path.stat().st_size == self.size_bytes:  # after `publish`, it is not there
                    self.path.unlink()


def partial_path(target: Path) -> Path:
    """Where the bytes of a file are until it is whole."""
    return target.with_name(f".{target.name}{_SUFFIX}")
