"""The part of a file that has been received, which later requests and runs complete.

Until the file is complete, its bytes are kept in two hidden files beside the final name:

    .<final name>.part          the bytes received so far
    .<final name>.part.version  the ETag or Last-Modified they came with; without it, no resuming

Only one run works in a folder at a time, so nothing else writes to these files.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from scannet_prep.base.files import make_directory, read_file
from scannet_prep.base.text import format_bytes
from scannet_prep.errors import FileError
from scannet_prep.remote.http import BrokenConnectionError, HttpAnswer, HttpClient, RequestError

_MAX_VERSION_BYTES = 1000


class PartialFile:
    """The bytes of a file that have been received so far.

    Attributes:
        target: The final name of the file.
        path: The hidden file that holds the bytes.
        size_bytes: How many bytes it holds.
        received_bytes: How many bytes the last request has brought.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f".{target.name}.part")
        self.size_bytes = 0
        self.received_bytes = 0
        self._version = ""
        self._version_path = self.path.with_name(f"{self.path.name}.version")
        # FileError and OSError: there are no such files, or they cannot be read.
        with suppress(FileError, OSError):
            status = self.path.lstat()
            version = read_file(self._version_path, _MAX_VERSION_BYTES).decode("latin-1")
            # Not through a link, which leads elsewhere, and not from a pipe, which never ends. A
            # version may consist of zeros after a loss of power.
            if version and version.isprintable() and stat.S_ISREG(status.st_mode):
                self._version = version
                self.size_bytes = status.st_size

    def receive(self, client: HttpClient, url: str, max_bytes: int) -> None:
        """Request the missing bytes and append them. When this returns, the file is complete.

        Raises:
            RequestError: The file is still incomplete, or larger than `max_bytes`.
            OSError: It cannot be written, for example because the disk is full.
        """
        self.received_bytes = 0
        headers = {}
        if self._version:
            headers = {"Range": f"bytes={self.size_bytes}-", "If-Range": self._version}
        with client.open(url, headers) as answer:
            answer.check()
            self._prepare(answer)
            self._append(answer.pieces(), max_bytes)
        if answer.size_bytes not in (None, self.size_bytes):
            problem = f"broken off after {self.size_bytes:,} of {answer.size_bytes:,} bytes"
            raise BrokenConnectionError(problem)

    def drop(self) -> None:
        """Delete the bytes, which do not belong to the file."""
        self.size_bytes = 0
        self._version = ""
        # In this order, a kill in between cannot leave bytes beside the version of others.
        self.path.unlink(missing_ok=True)
        self._version_path.unlink(missing_ok=True)

    def publish(self) -> None:
        """Give the complete file its final name.

        Raises:
            OSError: Something else has this name.
        """
        # In this order, a kill in between cannot leave a version without its file.
        self._version_path.unlink(missing_ok=True)
        self.path.replace(self.target)

    def _prepare(self, answer: HttpAnswer) -> None:
        """Prepare for the body, which is the whole file or the rest of it."""
        if answer.start != 0:
            if not self._is_continued_by(answer):
                self.drop()
                problem = "the server sent another range or version than was requested"
                raise BrokenConnectionError(problem)
            return
        # Nothing was received before, the version has changed, or the server ignores ranges.
        make_directory(self.path.parent)
        self.drop()
        version = answer.headers.get("ETag", "")
        # `If-Range` accepts a strong ETag or a date, but not a weak ETag (W/"...").
        if not version.startswith('"'):
            version = answer.headers.get("Last-Modified", "")
        if version.isprintable():
            self._version = version
        self._version_path.write_bytes(self._version.encode("latin-1", "replace"))

    def _is_continued_by(self, answer: HttpAnswer) -> bool:
        """Whether an answer begins at the first missing byte and comes from the same version.

        The version is checked here because servers that ignore `If-Range` send the rest of any
        version. Those must repeat an ETag (RFC 9110, 15.3.7), but may leave out a date.
        """
        if not self._version or answer.start != self.size_bytes:
            return False
        if answer.start == answer.size_bytes:
            # Nothing follows: an earlier run received all bytes, but did not check them.
            return True
        if self._version.startswith('"'):
            return answer.headers.get("ETag", "") == self._version
        return answer.headers.get("Last-Modified", "") in ("", self._version)

    def _append(self, pieces: Iterator[bytes], max_bytes: int) -> None:
        """Append the body of an answer to the file, as it arrives."""
        with self.path.open("ab") as file:
            for piece in pieces:
                piece_bytes = len(piece)
                if self.size_bytes + piece_bytes > max_bytes:
                    self.drop()
                    raise RequestError(
                        f"has more bytes, expected at most {format_bytes(max_bytes)}"
                    )
                file.write(piece)
                # Otherwise, a kill loses what is in the buffer.
                file.flush()
                self.size_bytes += piece_bytes
                self.received_bytes += piece_bytes
