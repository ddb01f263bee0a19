"""A large file far away: its size, and its end, which is kept because all reading of an archive begins there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

TAIL_BYTES = 1 << 20  # holds the index of 1,613 scenes


class TailedSource(ABC):
    """A file of which any range can be fetched. Its end is fetched first, and kept until something else is read."""

    def __init__(self) -> None:
        self.size_bytes = 1  # until the first answer tells
        self._fetch(0, 1)
        self._tail_start = max(0, self.size_bytes - TAIL_BYTES)
        self._tail: bytes | None = self._fetch(self._tail_start, self.size_bytes)

    def read(self, offset: int, size: int, /) -> bytes:
        """Read so many bytes at an offset; fewer only where the file ends.

        Raises:
            ArchiveError: It is no longer the file that was opened.
            NotOnServerError: The server has it no more.
            TransferError: The server refuses, or too many attempts in a row failed.
            ServerDownError: The server does not answer any more.
        """
        end = min(offset + size, self.size_bytes)
        if offset >= end:
            return b""
        tail = self._tail
        if tail is not None and self._tail_start <= offset:
            return tail[offset - self._tail_start : end - self._tail_start]
        self._tail = None
        return self._fetch(offset, end)

    def __getstate__(self) -> dict[str, Any]:
        """Without the end, which comes again where it is read."""
        return self.__dict__ | {"_tail": None}

    @abstractmethod
    def _fetch(self, start: int, end: int) -> bytes:
        """Fetch a range; the first one tells `size_bytes`."""
