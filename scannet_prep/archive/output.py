"""Where an archive is written: a file that gets its name when it is whole, or a pipe."""

from __future__ import annotations

import errno
import os
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from scannet_prep.errors import DiskFullError, OutputError
from scannet_prep.files import SPACE_ERRNOS, Buffer, make_directory, output_error, owner_token

_FLUSH_BYTES = 64 << 20
_THEN = "then run the same command again"  # from the beginning


class Output(Protocol):
    """Takes the bytes of an archive in order."""

    def write(self, data: Buffer, /) -> None:
        """Write all of the data.

        Raises:
            OutputError: It cannot be written.
        """


def resolve_output(path: Path) -> Path:
    """Follow a link to the file that is going to be replaced, so that the link stays and an archive elsewhere grows.

    Raises:
        OutputError: A folder, a device or a pipe has the name; a file would take its place.
    """
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    if path.is_dir():
        raise OutputError(f"{path}: is a folder", f"name a file in it: -o {path / 'scannet.tar.zst'}")
    if path.exists() and not path.is_file():
        raise OutputError(
            f"{path}: is a device or a pipe, and a file would take its place", f"scannet-prep pack - > {path}"
        )
    return path


class FileOutput:
    """A file under a temporary name.

    Args:
        path: The name that it is to get; `commit` may give it another one in the same folder.

    Attributes:
        path: As given.

    Raises:
        OutputError: The folder cannot be written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        make_directory(path.parent)
        self._unflushed_bytes = 0
        self._is_committed = False
        self._flusher = ThreadPoolExecutor(1, "flush")
        self._flushing: Future[None] | None = None
        # `remove_stale_temporaries` knows names of this form.
        self._partial_path = path.with_name(f".{path.name}.{owner_token()}.{secrets.token_hex(4)}.tmp")
        try:
            self._descriptor = os.open(self._partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise output_error(path, error, _THEN) from error

    def write(self, data: Buffer, /) -> None:
        """Write all of the data, and let the disk begin with it, so that little is left to wait for at the end.

        Raises:
            OutputError: It cannot be written.
        """
        try:
            _write_fully(self._descriptor, data)
            self._unflushed_bytes += len(data)
            is_flushing = self._flushing is not None and not self._flushing.done()
            if self._unflushed_bytes >= _FLUSH_BYTES and not is_flushing:
                self._finish_flushing()
                self._unflushed_bytes = 0
                self._flushing = self._flusher.submit(os.fsync, self._descriptor)
        except OSError as error:
            raise output_error(self.path, error, _THEN) from error

    def close(self) -> None:
        """Bring everything to the disk, so that even a power failure leaves a whole file or none; no more data comes.

        Raises:
            OutputError: The disk does not take it.
        """
        try:
            self._finish_flushing()
            os.fsync(self._descriptor)
            self._close_descriptor()
        except OSError as error:
            raise output_error(self.path, error, _THEN) from error

    def commit(self, path: Path) -> None:
        """Give the file its name, when it has been closed.

        Raises:
            OutputError: It cannot be renamed.
        """
        try:
            self._partial_path.replace(path)
            self._is_committed = True
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            except OSError as error:
                if error.errno not in {errno.EINVAL, errno.EROFS, errno.ENOTSUP}:  # some network file systems
                    raise
            finally:
                os.close(folder)
        except OSError as error:
            raise output_error(path, error, _THEN) from error

    def discard(self) -> None:
        """Remove what was written; nothing happens after `commit`."""
        self._close_descriptor()
        if not self._is_committed:
            self._partial_path.unlink(missing_ok=True)

    def _close_descriptor(self) -> None:
        self._flusher.shutdown()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _finish_flushing(self) -> None:
        """Wait for the flush that was begun. It may have failed, and the system tells that once."""
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.result()


class PipeOutput:
    """A pipe, or whatever else cannot go back.

    Args:
        descriptor: Number of the open file.
        name: Its name, for messages.
    """

    def __init__(self, descriptor: int, name: str = "standard output") -> None:
        self._descriptor = descriptor
        self._name = name

    def write(self, data: Buffer, /) -> None:
        """Write all of the data.

        Raises:
            OutputError: Nobody reads it any more, or it cannot be written.
        """
        try:
            _write_fully(self._descriptor, data)
        except BrokenPipeError:
            raise OutputError(f"{self._name}: whoever read it has ended", "look at what it says") from None
        except OSError as error:
            hint = "free some space where it goes, then run the same command again"
            kind = DiskFullError if error.errno in SPACE_ERRNOS else OutputError
            raise kind(
                f"{self._name}: cannot be written: {error.strerror or error}", hint if kind is DiskFullError else ""
            ) from error


def _write_fully(descriptor: int, data: Buffer) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
