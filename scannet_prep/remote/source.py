"""The common base of remote files that are read range by range."""

from __future__ import annotations

from abc import ABC, abstractmethod

from scannet_prep.errors import ArchiveError


class RemoteSource(ABC):
    """A remote file of which any range can be read, always from the version that was opened.

    Attributes:
        name: The address of the file, without secrets.
        size_bytes: The size of the file.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # The first request needs a size above 0. Its answer sets the real one.
        self.size_bytes = 1
        # Size, ETag and date of the version that was opened.
        self._version: tuple[int, str, str] | None = None
        self._fetch(0, 1)

    def read(self, offset: int, size: int, /) -> bytes:
        """Read `size` bytes at an offset, or fewer if the file ends before.

        Raises:
            ArchiveError: The file has changed since it was opened.
            NotOnServerError: The file no longer exists.
            TransferError: The server refuses, or too many attempts in a row failed.
            ServerDownError: The server no longer answers.
        """
        end = min(offset + size, self.size_bytes)
        if offset >= end:
            return b""
        return self._fetch(offset, end)

    @abstractmethod
    def _fetch(self, start: int, end: int) -> bytes:
        """Request the bytes from `start` to before `end`, and record or check the version."""

    def _check_version(self, version: tuple[int, str, str]) -> None:
        """Record the first version (size, ETag, date), and compare later ones with it."""
        if self._version is None:
            self._version = version
            self.size_bytes = version[0]
        if version != self._version:
            raise ArchiveError(
                self.name, "was replaced or changed since it was opened", "open it again"
            )
