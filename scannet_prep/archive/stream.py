"""Read an archive in order, frame by frame."""

from __future__ import annotations

import zstandard

from scannet_prep.archive.byte_source import ByteSource
from scannet_prep.archive.frames import (
    BLOCK_HEADER_BYTES,
    CHECKSUM_BYTES,
    MAX_BLOCK_BYTES,
    read_size,
)
from scannet_prep.archive.layout import max_frame_bytes
from scannet_prep.errors import ContentError

_READ_AHEAD_BYTES = 1 << 22
# The magic number, 4 bytes, and the frame header, at most 14.
_MAX_HEADER_BYTES = 18
_RLE_BLOCK = 1
_RESERVED_BLOCK = 3


class Stream:
    """Reads a source in order, and can look ahead.

    Args:
        source: The bytes.
        offset: The byte to begin with.

    Attributes:
        offset: The position of the next byte in the source.
    """

    def __init__(self, source: ByteSource, offset: int = 0) -> None:
        self.offset = offset
        self._source = source
        self._buffer = bytearray()

    def peek(self, start: int, size: int) -> bytes:
        """Return a range of the bytes ahead without moving.

        Args:
            start: First byte of the range, counted from `offset`.
            size: Its length; fewer bytes are returned only if the source ends.
        """
        # A pipe may return fewer bytes than requested, so read until they suffice.
        while len(self._buffer) < start + size:
            next_offset = self.offset + len(self._buffer)
            missing_bytes = start + size - len(self._buffer)
            piece = self._source.read(next_offset, max(_READ_AHEAD_BYTES, missing_bytes))
            if not piece:
                break
            self._buffer += piece
        return bytes(self._buffer[start : start + size])

    def take(self, size: int) -> bytes:
        """Return the next bytes and move past them; fewer only if the source ends."""
        taken = self.peek(0, size)
        del self._buffer[: len(taken)]
        self.offset += len(taken)
        return taken

    def take_frame(self) -> bytes:
        """Return the next frame and move past it. The headers of its blocks show where it ends.

        Raises:
            ContentError: No frame of this program begins here, a block is damaged, or the source
                ends within the frame.
        """
        header = self.peek(0, _MAX_HEADER_BYTES)
        max_bytes = max_frame_bytes(read_size(header))
        position = zstandard.frame_header_size(header)
        is_last = False
        while not is_last:
            block_header = self.peek(position, BLOCK_HEADER_BYTES)
            if len(block_header) < BLOCK_HEADER_BYTES:
                break
            # From the lowest bit: last block (1 bit), type (2 bits), size (21 bits).
            header_bits = int.from_bytes(block_header, "little")
            is_last = bool(header_bits & 1)
            block_type = header_bits >> 1 & 3
            block_bytes = header_bits >> 3
            is_possible = block_type != _RESERVED_BLOCK and block_bytes <= MAX_BLOCK_BYTES
            if not is_possible or position > max_bytes:
                raise ContentError("a frame has a damaged block")
            # A run-length block stores one byte, which is repeated to its size.
            stored_bytes = 1 if block_type == _RLE_BLOCK else block_bytes
            position += BLOCK_HEADER_BYTES + stored_bytes
        # All frames of this program end with a checksum.
        frame = self.take(position + CHECKSUM_BYTES)
        if not is_last or len(frame) < position + CHECKSUM_BYTES:
            raise ContentError("the archive ends in the middle of a frame")
        return frame
