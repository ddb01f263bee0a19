"""The part of a file that has been received, which later requests and runs complete.

Until the file is complete, its bytes are kept in two hidden files beside the final name:

    .<final name>.part          the bytes received so far
    .<final name>.part.version  the ETag or Last-Modified they came with; without it, no resuming

Only one run works in a folder at a time, so nothing else writes to these files.
"""

from __future__ import annotations

import itertools
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from scannet_prep.base.files import read_file, writing
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
        received_bytes: How many bytes were received since this object was created.
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
            # Not through a link, which leads elsewhere, and not from a pipe, which never ends.
            if version and stat.S_ISREG(status.st_mode):
                self._version = version
                self.size_bytes = status.st_size

    def receive(self, client: HttpClient, url: str, max_bytes: int) -> None:
        """Request the missing bytes and append them. When this returns, the file is complete.

        Raises:
            RequestError: The file is still incomplete, or larger than `max_bytes`.
            OutputError: It cannot be written, for example because the disk is full.
        """
        headers = {}
        if self.size_bytes > 0:
            headers = {"Range": f"bytes={self.size_bytes}-", "If-Range": self._version}
        try:
            with writing(self.target), client.open(url, headers) as answer:
                answer.check()
                self._append(self._start(answer), max_bytes)
            if answer.size_bytes not in (None, self.size_bytes):
                problem = f"broken off after {self.size_bytes:,} of {answer.size_bytes:,} bytes"
                raise BrokenConnectionError(problem)
        except RequestError:
            if not self._version:
                self.drop()
            raise

    def drop(self) -> None:
        """Delete the bytes, which do not belong to the file, or cannot be resumed."""
        self.size_bytes = 0
        self._version = ""
        # In this order, a kill in between cannot leave bytes beside the version of others.
        self.path.unlink(missing_ok=True)
        self._version_path.unlink(missing_ok=True)

    def publish(self) -> None:
        """Give the complete file its final name.

        Raises:
            OutputError: Something else has this name.
        """
        with writing(self.target):
            # In this order, a kill in between cannot leave a version without its file.
            self._version_path.unlink(missing_ok=True)
            self.path.replace(self.target)

    def _start(self, answer: HttpAnswer) -> Iterator[bytes]:
        """Return the pieces of the body to append: the whole file, or the rest of it."""
        if answer.start != 0 and not self._is_continued_by(answer):
            self.drop()
            problem = "the server sent another range or version than was requested"
            raise BrokenConnectionError(problem)
        pieces = answer.pieces()
        first = next(pieces)
        # Now it is no web page. It is the whole file if nothing was received before, the version
        # has changed, or the server ignores ranges.
        if answer.start == 0:
            self._start_over(answer)
        return itertools.chain([first], pieces)

    def _is_continued_by(self, answer: HttpAnswer) -> bool:
        """Whether an answer begins at the first missing byte and comes from the same version.

        The version is checked here because servers that ignore `If-Range` send the rest of any
        version. Those must repeat an ETag (RFC 9110, 15.3.7), but may leave out a date.
        """
        if answer.start != self.size_bytes:
            return False
        if self._version.startswith('"'):
            return answer.headers.get("ETag", "") == self._version
        return answer.headers.get("Last-Modified", "") in ("", self._version)

    def _start_over(self, answer: HttpAnswer) -> None:
        """Delete the bytes received so far, and record the new version."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.drop()
        version = answer.headers.get("ETag", "")
        # `If-Range` accepts a strong ETag or a date, but not a weak ETag (W/"...").
        if not version.startswith('"'):
            version = answer.headers.get("Last-Modified", "")
        if version.isprintable():
            self._version = version
        self._version_path.write_bytes(self._version.encode("latin-1", "replace"))

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
                self.size_bytes += piece_bytes
                self.received_bytes += piece_bytes
