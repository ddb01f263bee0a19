"""Reads large pieces where many small ones are asked for in order: of a server, each would be a request."""

from __future__ import annotations

from scannet_prep.archive.frames import MAX_FRAME_BYTES, ReadAt
from scannet_prep.archive.source import ByteSource
from scannet_prep.remote.address import is_url

WINDOW_BYTES = MAX_FRAME_BYTES + (1 << 20)  # any frame fits


class ReadAhead:
    """Reads from a window that moves over a part of an archive. For one thread.

    Args:
        source: The archive.
        end: The byte after the part.
    """

    def __init__(self, source: ByteSource, end: int) -> None:
        self._source = source
        self._end = end
        self._start = 0
        self._data = b""

    def read(self, offset: int, size: int, /) -> bytes:
        """Read so many bytes at an offset; fewer only where the part ends.

        Raises:
            ArchiveError: It cannot be read.
            TransferError: The server does not give it.
        """
        size = max(0, min(size, self._end - offset))
        start = offset - self._start
        if not 0 <= start <= start + size <= len(self._data):
            self._data = b""  # two of them need not be held
            self._data = self._source.read(offset, min(max(size, WINDOW_BYTES), self._end - offset))
            self._start, start = offset, 0
        return self._data[start : start + size]


def choose_reader(source: ByteSource, end: int) -> ReadAt:
    """How to go over the headers of frames and blocks: ahead on the web, and of a file only what is needed."""
    return ReadAhead(source, end).read if is_url(source.name) else source.read
