"""A large file far away, of which ranges are read."""

from __future__ import annotations

from abc import ABC, abstractmethod

from scannet_prep.base.errors import ArchiveError


class RemoteSource(ABC):
    """A file of which any range can be fetched, always of the version that was opened.

    Attributes:
        name: Its address, without what is secret in it.
        size_bytes: Its size.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.size_bytes = 1  # until the first answer tells
        self._version: tuple[int, str, str] | None = None  # size, ETag and date
        self._fetch(0, 1)

    def read(self, offset: int, size: int, /) -> bytes:
        """Read so many bytes at an offset; fewer only where the file ends.

        Raises:
            ArchiveError: It is no longer the file that was opened.
            NotOnServerError: The server has it no more.
            TransferError: The server refuses, or too many attempts in a row failed.
            ServerDownError: The server does not answer any more.
        """
        end = min(offset + size, self.size_bytes)
        return self._fetch(offset, end) if offset < end else b""

    @abstractmethod
    def _fetch(self, start: int, end: int) -> bytes:
        """Fetch a range."""

    def _check_version(self, found: tuple[int, str, str]) -> None:
        """Check that it is the file that was opened, or take note of it."""
        self._version = self._version or found
        self.size_bytes = self._version[0]
        if found != self._version:
            raise ArchiveError(
                self.name, "was replaced or changed since it was opened", "open it again"
            )
