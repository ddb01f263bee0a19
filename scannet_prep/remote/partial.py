"""Partial downloads on disk: hidden files beside the final one, each owned by one process at a time.

A partial file carries everything in its name, so that renaming it, which is atomic on every file system, claims the
bytes together with what is known of them:

    .<final name>.part.<owner>.<validator>

`owner` is the process that writes it, or `free`; `validator` is the ETag or Last-Modified that the bytes came with
(URL-safe base64), or `-`. File locks would be simpler, but do not hold on Lustre and on many NFS mounts.
"""

from __future__ import annotations

import base64
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from scannet_prep.files import is_owner_alive, output_error, owner_token

# A process on another machine cannot be asked whether it lives; its file is taken over when it has not grown for this
# long. Clocks of machines that share a disk agree better than that.
_ABANDONED_AFTER_S = 600.0
_NO_VALIDATOR = "-"
_FREE = "free"
_MAX_VALIDATOR_LENGTH = 80
_OPEN_ATTEMPTS = 5


class Partial:
    """The bytes of one file that have arrived so far. Made by `claim`.

    Args:
        target: The final name.
        path: The partial file; this process owns it.
    """

    def __init__(self, target: Path, path: Path) -> None:
        self._target = target
        self._path = path
        self._descriptor = _open(path)
        self.size_bytes = os.fstat(self._descriptor).st_size

    @classmethod
    def claim(cls, target: Path) -> Self | None:
        """Take over what a process that has ended left of a file, or begin anew.

        Returns:
            The partial file; None where a living process is at it.

        Raises:
            OutputError: The folder cannot be written to.
        """
        prefix, owner = _prefix(target), owner_token()
        found = sorted(target.parent.glob(f"{_escape(prefix)}*"))
        if any(_is_busy(path, prefix) for path in found):
            return None
        for path in found:
            own_path = target.with_name(f"{prefix}{owner}.{path.name.rpartition('.')[2]}")
            try:
                path.rename(own_path)
            except FileNotFoundError:
                return None  # another process was faster
            return cls(target, own_path)
        partial = cls(target, target.with_name(f"{prefix}{owner}.{_NO_VALIDATOR}"))
        # Two processes may have come this far at the same moment: both give way, and come back at different times.
        rivals = [path for path in target.parent.glob(f"{_escape(prefix)}*") if path != partial._path]
        if any(_is_busy(path, prefix) for path in rivals):
            partial.discard()
            return None
        return partial

    @property
    def path(self) -> Path:
        """The partial file."""
        return self._path

    @property
    def validator(self) -> str:
        """The ETag or Last-Modified of the bytes; empty where they cannot be resumed."""
        encoded = self._encoded_validator
        return "" if encoded == _NO_VALIDATOR else base64.urlsafe_b64decode(encoded).decode("latin-1")

    @property
    def _encoded_validator(self) -> str:
        return self._path.name.rpartition(".")[2]

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

    def restart(self, validator: str) -> None:
        """Drop all bytes; those to come have the given validator.

        Raises:
            OutputError: The folder cannot be written to.
        """
        encoded = base64.urlsafe_b64encode(validator.encode("latin-1", "replace")).decode()
        if not validator or len(encoded) > _MAX_VALIDATOR_LENGTH:
            encoded = _NO_VALIDATOR
        renamed = self._path.with_name(f"{self._path.name.rpartition('.')[0]}.{encoded}")
        try:
            if self.size_bytes == 0 and renamed == self._path:
                return
            os.ftruncate(self._descriptor, 0)
            self._path.rename(renamed)
        except OSError as error:
            raise output_error(self._target, error) from error
        self._path, self.size_bytes = renamed, 0

    def publish(self) -> None:
        """Give the file its final name.

        Raises:
            OutputError: The folder cannot be written to.
        """
        try:
            os.fsync(self._descriptor)
            self._path.replace(self._target)
        except OSError as error:
            raise output_error(self._target, error) from error
        os.close(self._descriptor)
        self._descriptor = -1

    def discard(self) -> None:
        """Remove the bytes."""
        self.size_bytes = 0
        self.close()

    def close(self) -> None:
        """Leave the bytes, if there are any, to whoever claims them next."""
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        with suppress(FileNotFoundError):
            if self.size_bytes:
                self._path.rename(self._target.with_name(f"{_prefix(self._target)}{_FREE}.{self._encoded_validator}"))
            else:
                self._path.unlink()


def find_partials(directory: Path) -> list[Path]:
    """All partial files of a folder, whoever owns them."""
    return sorted(directory.glob(".*.part.*"))


def _open(path: Path) -> int:
    for attempt in range(_OPEN_ATTEMPTS):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:  # another process may just have removed the empty folder
            if not isinstance(error, FileNotFoundError) or attempt == _OPEN_ATTEMPTS - 1:
                raise output_error(path, error) from error
    raise AssertionError("unreachable")


def _prefix(target: Path) -> str:
    return f".{target.name}.part."


def _escape(prefix: str) -> str:
    return prefix.replace("[", "[[]")


def _is_busy(path: Path, prefix: str) -> bool:
    owner = path.name.removeprefix(prefix).rpartition(".")[0]
    if owner == _FREE:
        return False
    alive = is_owner_alive(owner)
    if alive is not None:
        return alive
    try:
        return time.time() - path.stat().st_mtime < _ABANDONED_AFTER_S
    except FileNotFoundError:
        return False
