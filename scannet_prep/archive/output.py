"""Where an archive is written: a file that gets its name when it is whole, or a pipe."""

from __future__ import annotations

import errno
import os
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from scannet_prep.errors import OutputError
from scannet_prep.files import Buffer, make_directory, output_error, owner_token

_FLUSH_BYTES = 64 << 20


class Output(Protocol):
    """Takes the bytes of an archive in order."""

    def write(self, data: Buffer, /) -> None:
        """Write all of the data.

        Raises:
            OutputError: It cannot be written.
        """


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
        self._flusher = ThreadPoolExecutor(1, "flush")
        self._flushing: Future[None] | None = None
        # `remove_stale_temporaries` knows names of this form.
        self._partial_path = path.with_name(f".{path.name}.{owner_token()}.{secrets.token_hex(4)}.tmp")
        try:
            self._descriptor = os.open(self._partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise output_error(path, error) from error

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
            raise output_error(self.path, error) from error

    def flush(self) -> None:
        """Bring everything to the disk, so that even a power failure leaves a whole file or none.

        Raises:
            OutputError: The disk does not take it.
        """
        try:
            self._finish_flushing()
            os.fsync(self._descriptor)
        except OSError as error:
            raise output_error(self.path, error) from error

    def commit(self, path: Path) -> None:
        """Give the file its name.

        Raises:
            OutputError: It cannot be renamed.
        """
        try:
            os.close(self._descriptor)
            self._descriptor = -1
            self._partial_path.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            except OSError as error:
                if error.errno not in {errno.EINVAL, errno.EROFS, errno.ENOTSUP}:  # some network file systems
                    raise
            finally:
                os.close(folder)
        except OSError as error:
            raise output_error(path, error) from error

    def discard(self) -> None:
        """Remove what was written; nothing happens after `commit`."""
        self._flusher.shutdown()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._partial_path.unlink(missing_ok=True)

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
            raise output_error(Path(self._name), error) from error


def _write_fully(descriptor: int, data: Buffer) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
