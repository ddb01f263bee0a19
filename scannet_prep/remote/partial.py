"""Partial downloads on disk: hidden files beside the final one, each owned by one process at a time.

A partial file carries everything in its name, so that renaming it, which is atomic on every file system, claims the
bytes together with what is known of them:

    .<final name>.part.<owner>.<validator>

`owner` is the process that writes it, or `free`; `validator` is the ETag or Last-Modified that the bytes came with
(URL-safe base64), or `-`. File locks would be simpler, but do not hold on Lustre and on many NFS mounts.

Whether a process on another machine lives cannot be told from here; its file is taken over once nothing has touched it
for ten minutes. So whoever owns one touches it while waiting (`keep`), and looks, before each change, whether its name
still stands for the file at hand. Bytes that are taken over so go into a new file: the old owner may have been asleep,
and what it still writes must reach nothing that anybody uses.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from scannet_prep.errors import DiskFullError, OutputError
from scannet_prep.files import is_owner_alive, output_error, owner_token, remove_stale_temporaries, write_atomically

# A process on another machine cannot be asked whether it lives; its file is taken over when it has not grown for this
# long. Clocks of machines that share a disk agree better than that.
_ABANDONED_AFTER_S = 600.0
_NO_VALIDATOR = "-"
_FREE = "free"
_MAX_VALIDATOR_LENGTH = 80
_OPEN_ATTEMPTS = 5
_BLOCK_BYTES = 1 << 20


class PartialLostError(Exception):
    """Another process has taken the partial file over, so that it is not this one's to write to any more."""


class Partial:
    """The bytes of one file that have arrived so far. Made by `claim`.

    Args:
        target: The final name.
        path: The partial file; this process owns it.
    """

    def __init__(self, target: Path, path: Path) -> None:
        self._target = target
        self._path = path
        self._lock = threading.Lock()  # `keep` is called by another thread than everything else
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
        found = _find(target)
        if any(_is_busy(path, prefix) for path in found):
            return None
        for path in sorted(found, key=_count_usable_bytes, reverse=True):
            own_path = target.with_name(f"{prefix}{owner}.{path.name.rpartition('.')[2]}")
            try:
                # Nobody else may write into it any more; and this process may not, where it is another user's.
                needs_copy = _is_alive(path, prefix) is None or not _is_writable(path)
                with suppress(PermissionError):
                    os.utime(path)  # before it has its new name: to other machines, an old file looks abandoned
                path.rename(own_path)
            except FileNotFoundError:
                return None  # another process was faster
            except OSError as error:
                raise output_error(target, error) from error
            if needs_copy:
                _renew(own_path)
            _remove_others(found, path)
            return cls(target, own_path)
        partial = cls(target, target.with_name(f"{prefix}{owner}.{_NO_VALIDATOR}"))
        # Two processes may have come this far at the same moment: both give way, and come back at different times.
        if any(_is_busy(path, prefix) for path in _find(target) if path != partial._path):
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
        try:
            return "" if encoded == _NO_VALIDATOR else base64.urlsafe_b64decode(encoded).decode("latin-1")
        except ValueError:  # no name that this program gives
            return ""

    @property
    def _encoded_validator(self) -> str:
        return self._path.name.rpartition(".")[2]

    def keep(self) -> None:
        """Show other machines that the owner lives, also while nothing comes; safe to call from another thread."""
        with self._lock, suppress(OSError):
            if self._descriptor >= 0:
                os.utime(self._descriptor)

    def check_room(self, size_bytes: int) -> None:
        """Check that the disk holds the whole file, once its size is known.

        Raises:
            DiskFullError: It does not; the message has the amount that is missing.
        """
        status = os.fstatvfs(self._descriptor)
        free_bytes = status.f_bavail * status.f_frsize
        lacking_bytes = size_bytes - self.size_bytes - free_bytes
        if lacking_bytes > 0:
            raise DiskFullError(
                f"{self._target}: has {size_bytes:,} bytes, {lacking_bytes:,} more than the disk has room for",
                "free some space, then run the same command again: it goes on where it stopped",
            )

    def append(self, data: bytes) -> None:
        """Add bytes at the end.

        Raises:
            PartialLostError: Another process has taken it over; nothing is written.
            OutputError: The disk is full.
        """
        self._check_is_own()
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
            PartialLostError: Another process has taken it over; nothing is changed.
            OutputError: The folder cannot be written to.
        """
        encoded = base64.urlsafe_b64encode(validator.encode("latin-1", "replace")).decode()
        if not validator or len(encoded) > _MAX_VALIDATOR_LENGTH:
            encoded = _NO_VALIDATOR
        renamed = self._path.with_name(f"{self._path.name.rpartition('.')[0]}.{encoded}")
        self._check_is_own()
        if self.size_bytes == 0 and renamed == self._path:
            return
        try:
            os.ftruncate(self._descriptor, 0)
            self._path.rename(renamed)
        except FileNotFoundError:  # in this very moment
            raise PartialLostError from None
        except OSError as error:
            raise output_error(self._target, error) from error
        self._path, self.size_bytes = renamed, 0

    def publish(self) -> None:
        """Give the file its final name.

        Raises:
            PartialLostError: Another process has taken it over; nothing is changed.
            OutputError: The folder cannot be written to.
        """
        try:
            os.fsync(self._descriptor)
            self._check_is_own()
            self._path.replace(self._target)
        except FileNotFoundError:  # in this very moment
            raise PartialLostError from None
        except OSError as error:
            raise output_error(self._target, error) from error
        self._close_descriptor()

    def discard(self) -> None:
        """Remove the bytes."""
        self.size_bytes = 0
        self.close()

    def close(self) -> None:
        """Leave the bytes, if there are any, to whoever claims them next."""
        if self._descriptor < 0:
            return
        self._close_descriptor()
        with suppress(FileNotFoundError):
            if self.size_bytes:
                self._path.rename(self._target.with_name(f"{_prefix(self._target)}{_FREE}.{self._encoded_validator}"))
            else:
                self._path.unlink()

    def _check_is_own(self) -> None:
        try:
            is_own = os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            is_own = False
        except OSError as error:
            raise output_error(self._target, error) from error
        if not is_own:
            raise PartialLostError

    def _close_descriptor(self) -> None:
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1


def count_partial_bytes(directory: Path) -> dict[str, int]:
    """How much of each file of a folder has arrived so far, by final name; whoever owns it."""
    found: dict[str, int] = {}
    for path in directory.glob(".*.part.*"):
        with suppress(FileNotFoundError):
            name = path.name[1:].partition(".part.")[0]
            found[name] = max(found.get(name, 0), path.stat().st_size)
    return found


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


def _find(target: Path) -> list[Path]:
    return sorted(target.parent.glob(f"{_escape(_prefix(target))}*"))


def _is_alive(path: Path, prefix: str) -> bool | None:
    """Whether the owner of a partial file runs; None where that cannot be told from here."""
    owner = path.name.removeprefix(prefix).rpartition(".")[0]
    return False if owner == _FREE else is_owner_alive(owner)


def _is_busy(path: Path, prefix: str) -> bool:
    is_alive = _is_alive(path, prefix)
    if is_alive is not None:
        return is_alive
    try:
        return time.time() - path.stat().st_mtime < _ABANDONED_AFTER_S
    except FileNotFoundError:
        return False


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _count_usable_bytes(path: Path) -> int:
    """How much of a partial file can be kept: nothing where no validator tells which version it belongs to."""
    try:
        return 0 if path.name.endswith(f".{_NO_VALIDATOR}") else path.stat().st_size
    except FileNotFoundError:
        return 0


def _remove_others(found: list[Path], kept: Path) -> None:
    """Remove further partial files of the same file, which two processes may leave that began at the same moment."""
    for path in found:
        if path != kept:
            path.unlink(missing_ok=True)


def _renew(path: Path) -> None:
    """Put a copy in the place of a file, so that whoever has it open does not write into what is used from now on."""
    remove_stale_temporaries(path.parent)
    try:
        with path.open("rb") as file:
            write_atomically(path, iter(lambda: file.read(_BLOCK_BYTES), b""))
    except OutputError:
        raise
    except OSError as error:
        raise output_error(path, error) from error
