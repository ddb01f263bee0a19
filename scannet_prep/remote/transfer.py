"""Receives one file of the release into a partial file, resumption included.

What has arrived of a file so far is in hidden files beside the final one:

    .<final name>.part          the bytes
    .<final name>.part.version  the ETag or Last-Modified that they came with; without it, they cannot be resumed

One run at a time works in a folder, so that nobody else writes into them.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from scannet_prep.errors import FileError
from scannet_prep.files import make_directory, read_file
from scannet_prep.remote.client import Client
from scannet_prep.remote.trouble import FEW_TRIES, AttemptError
from scannet_prep.space import find_free_bytes, format_bytes

_PIECE_BYTES = 1 << 20


class Partial:
    """The bytes of one file that have arrived so far; the folder and the file are made when the first ones come.

    What goes wrong with the disk is the operating system's OSError.

    Attributes:
        path: Where they are.
        size_bytes: How many there are.
        received_bytes: How many of them have come since it was made.
        validator: What they came with; empty where they cannot be resumed.
    """

    def __init__(self, target: Path) -> None:
        self.path = partial_path(target)
        self.size_bytes = self.received_bytes = 0
        self.validator = ""
        self._target = target
        self._version_path = self.path.with_name(f"{self.path.name}.version")
        self._file: FileIO | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Find what earlier requests have left, and leave what comes to later ones, unless it cannot be resumed."""
        self.size_bytes, self.validator = 0, ""
        with suppress(FileError, OSError):
            validator, status = read_file(self._version_path, 1000).decode("latin-1"), self.path.lstat()
            if validator and stat.S_ISREG(status.st_mode):  # a link leads elsewhere, a pipe never ends
                self.size_bytes, self.validator = status.st_size, validator
        try:
            yield
        finally:
            if self._file:
                self._file.close()
            if not (self.size_bytes and self.validator):
                for path in (self._version_path, self.path):
                    with suppress(OSError):
                        path.unlink()

    def receive(self, client: Client, url: str, max_bytes: int) -> None:
        """Make one request for what is missing of the file, and append what it gives: then, the file is complete.

        Raises:
            AttemptError: It is not complete, or has more than `max_bytes`.
            OSError: It cannot be written.
        """
        there_bytes, headers = self.size_bytes, {}
        if there_bytes:
            headers = {"Range": f"bytes={there_bytes}-", "If-Range": self.validator}
        with client.open(url, headers) as answer:
            pieces, expected_bytes = answer.read_pieces(), answer.size_bytes
            etag, date = (answer.headers.get(name, "") for name in ("ETag", "Last-Modified"))
            # Servers that ignore `If-Range` send the rest of any version. They have to repeat an ETag (RFC 9110,
            # 15.3.7), but not a date.
            is_same = self.validator == (etag if self.validator.startswith('"') else date or self.validator)
            is_rest = answer.span is not None and answer.span[0] == there_bytes > 0
            is_whole = answer.status == 416 and 0 < there_bytes == expected_bytes  # it was whole already
            if answer.status == 200:
                # A first request, or the server ignores ranges, or has another version.
                pieces = _refuse_pages(pieces)  # looked at before all that has arrived is given up for it
                self._begin(etag if etag.startswith('"') else date)  # `If-Range` needs a strong ETag
            elif not (is_whole or (is_rest and is_same)):
                self.drop()
                problem = f"asked to go on from byte {there_bytes:,}, the server sent another part, or version"
                raise AttemptError(problem)
            self._file = self.path.open("ab", buffering=0)
            self._check_size(expected_bytes or 0, max_bytes)
            for piece in () if is_whole else pieces:
                self._check_size(self.size_bytes + len(piece), max_bytes)
                rest = memoryview(piece)
                while rest:
                    written = self._file.write(rest)
                    self.size_bytes, self.received_bytes = self.size_bytes + written, self.received_bytes + written
                    rest = rest[written:]
        if expected_bytes is not None and self.size_bytes != expected_bytes:
            problem = f"broken off after {self.size_bytes:,} of {expected_bytes:,} bytes"
            if self.size_bytes > expected_bytes:
                self.drop()
            raise AttemptError(problem)

    def _begin(self, validator: str) -> None:
        """Drop the bytes that are there, for others that come with this validator."""
        make_directory(self.path.parent)
        self.path.unlink(missing_ok=True)  # first: the old bytes must never stand beside the new validator
        self._version_path.unlink(missing_ok=True)
        self._version_path.write_bytes(validator.encode("latin-1", "replace"))
        self.size_bytes, self.validator = 0, validator

    def _check_size(self, size_bytes: int, max_bytes: int) -> None:
        """Check that a file of so many bytes can be of its kind, and that the disk holds it."""
        if size_bytes > max_bytes:
            self.drop()
            what = f"has {format_bytes(size_bytes)} or more, but no file of this kind has more than"
            raise AttemptError(f"{what} {format_bytes(max_bytes)}", tries=FEW_TRIES, is_answer=True)
        if size_bytes <= self.size_bytes + _PIECE_BYTES:
            return
        free_bytes = find_free_bytes(self.path.parent)
        if free_bytes and size_bytes - self.size_bytes > free_bytes:  # on a full disk, writing ends the run
            problem = f"has {format_bytes(size_bytes)}, but only {format_bytes(free_bytes)} is free on the disk"
            raise AttemptError(problem, "free some space, or choose a folder on another disk", tries=1)

    def drop(self) -> None:
        """Drop all bytes: they are not those of the file."""
        self.size_bytes, self.validator = 0, ""

    def publish(self) -> None:
        """Give the file its final name."""
        if self._file:
            os.fsync(self._file.fileno())
        self._version_path.unlink(missing_ok=True)  # first, so that a kill leaves no version without its file
        self.path.replace(self._target)
        aria2_path(self._target).unlink(missing_ok=True)  # of the file that stood here before


def aria2_path(target: Path) -> Path:
    """What aria2 keeps beside a file as long as it is unfinished."""
    return target.with_name(f"{target.name}.aria2")


def partial_path(target: Path) -> Path:
    """Where the bytes of a file are until it is whole."""
    return target.with_name(f".{target.name}.part")


def ask_for_end(client: Client, url: str, size_bytes: int) -> None:
    """Ask for the last byte of a file that was served before: this costs nothing, and is like fetching it.

    `HEAD` would not do: there are servers that fail with it alone, and others that fail with all but it.
    An AttemptError says that the server does not give it, or has something else there.
    """
    with client.open(url, {"Range": f"bytes={size_bytes - 1}-"}) as answer:
        pieces = answer.read_pieces()
        if answer.status == 200:  # ranges are ignored: what comes is left
            pieces = _refuse_pages(pieces)
        if answer.status == 416 or answer.size_bytes not in (None, size_bytes) or not next(pieces, b""):
            raise AttemptError("nothing, or something else, in place of what was served before")


def _refuse_pages(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Give the same pieces, unless they are a page: no file of the release begins with `<`, nor is one empty."""
    first = next(pieces, b"")
    if not first or first.lstrip().startswith(b"<"):
        raise AttemptError(
            f"{'a web page' if first else 'nothing'} in place of the file",
            "a web page for every file may be the login page of your network: open the address in a browser",
            tries=FEW_TRIES,
            is_answer=True,
        )
    return itertools.chain([first], pieces)
