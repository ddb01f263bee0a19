"""Reads an archive from a pipe: group after group, each byte once, in bounded memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import deflate
import zstandard

from scannet_prep.archive.frames import (
    CHECKSUM_BYTES,
    MAX_FRAME_BYTES,
    check_frame_size,
    decompress_start,
    iter_decompressed,
    parse_block_header,
    read_content_size,
    stored_frame_bytes,
)
from scannet_prep.archive.group_start import START_BYTES
from scannet_prep.archive.tar import BLOCK_BYTES, begins_group
from scannet_prep.errors import ArchiveError

_HEADER_BYTES = 18  # the longest header of a frame
_SMALL_BYTES = 1 << 25  # what is held at most of one group, so that several can be worked on
_LOOK_BYTES = 1 << 18  # stored bytes that hold the first START_BYTES of content for certain
_SKIPPABLE_MAGIC = (0x184D2A5E).to_bytes(4, "little")
_FRAME_MAGIC = (0xFD2FB528).to_bytes(4, "little")
_READ_BYTES = 1 << 20
_SLACK_BYTES = 1 << 16


class PipeReader:
    """The bytes of a pipe, in order.

    Args:
        descriptor: Number of the open file.
        name: Its name, for messages.

    Attributes:
        name: As given.
        offset: How many bytes have been taken.
    """

    def __init__(self, descriptor: int, name: str = "standard input") -> None:
        self.name = name
        self.offset = 0
        self._descriptor = descriptor
        self._data = b""
        self._start = 0
        self._has_ended = False

    def peek(self, size: int) -> bytes:
        """The next bytes, without taking them; fewer where the pipe ends.

        Raises:
            ArchiveError: It cannot be read.
        """
        while len(self._data) - self._start < size and not self._has_ended:
            try:
                more = os.read(self._descriptor, _READ_BYTES)
            except OSError as error:
                problem = f"cannot be read at byte {self.offset:,}: {error.strerror or error}"
                raise ArchiveError(self.name, problem) from error
            self._has_ended = not more
            self._data = self._data[self._start :] + more
            self._start = 0
        return self._data[self._start : self._start + size]

    def take(self, size: int) -> bytes:
        """The next bytes.

        Raises:
            EOFError: The pipe ends before.
            ArchiveError: It cannot be read.
        """
        data = self.peek(size)
        self._start += len(data)
        self.offset += len(data)
        if len(data) < size:
            raise EOFError(f"ends at byte {self.offset:,}, in the middle of a frame")
        return data

    def drain(self) -> int:
        """Take all that is left, so that whoever writes can end in peace.

        Returns:
            How much it was.
        """
        count = 0
        while size := len(self.peek(_READ_BYTES)):
            self.take(size)
            count += size
        return count

    def find_frame(self) -> None:
        """Go to the next place that looks like the beginning of a frame, or to the end."""
        self.take(min(1, len(self.peek(1))))
        while data := self.peek(_READ_BYTES):
            position = data.find(_FRAME_MAGIC)
            if position < 0:
                self.take(max(len(data) - len(_FRAME_MAGIC) + 1, 1))
                continue
            self.take(position)
            try:
                read_content_size(self.peek(_HEADER_BYTES))
            except ValueError:
                self.take(1)  # the four bytes stand there by chance
            else:
                return

    def is_at_table(self) -> bool:
        """Whether the seek table, or another skippable frame, comes next."""
        return self.peek(len(_SKIPPABLE_MAGIC)) == _SKIPPABLE_MAGIC


class StreamGroup:
    """A group of an archive that comes through a pipe.

    Args:
        pipe: At its beginning.

    Attributes:
        offset: First byte in the archive.
        size_bytes: Size of the tar bytes, of the frames so far.
        stored_bytes: Size in the archive, so far.
        stored_crc32: CRC-32 of these bytes.
        start: The beginning of the content, at most 64 KiB, not yet checked; empty where it cannot be read.
        is_damaged: Whether it is known to be; then the sizes that it states are not believed.

    Raises:
        ValueError: No frame of this program is there.
        EOFError: The pipe ends before the frame does.
    """

    def __init__(self, pipe: PipeReader) -> None:
        self.offset = pipe.offset
        self.stored_bytes = self.stored_crc32 = 0
        self._pipe = pipe
        self._digest = hashlib.sha256()
        self._frame = _StreamFrame(pipe)
        self.start = self._frame.start
        self.size_bytes = self._frame.size_bytes
        self._small: bytes | None = None
        self.is_damaged = False
        if self.size_bytes <= _SMALL_BYTES and self.size_bytes % BLOCK_BYTES == 0:
            self._small = b"".join(self._take_frame())

    @property
    def held_bytes(self) -> int:
        """Bytes that it holds: of a group of one frame all, and it may be worked on while the pipe is read on."""
        return len(self._small or b"")

    @property
    def is_held(self) -> bool:
        """Whether it needs the pipe no more."""
        return self._small is not None

    @property
    def sha256(self) -> str:
        """Of the tar bytes, when all have been taken."""
        return self._digest.hexdigest()

    def iter_content(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> Iterator[bytes]:
        """The tar bytes, once. When the last piece has been taken, the checksums of all frames have been compared.

        Args:
            max_frame_bytes: How much a frame may hold.

        Raises:
            ValueError: It is damaged.
            EOFError: The pipe ends before.
        """
        if self._small is not None:
            stored, self._small = self._small, b""
            yield from self._digested(iter_decompressed(stored, self.size_bytes))
            return
        self.is_damaged = True  # until all of it has been taken
        check_frame_size(self._frame.size_bytes, max_frame_bytes)
        yield from self._digested(iter_decompressed(_Chunks(self._take_frame()), self._frame.size_bytes))
        while self.size_bytes % BLOCK_BYTES:
            if self._pipe.is_at_table():
                raise ValueError("the seek table comes in the middle of it")
            self._frame = _StreamFrame(self._pipe)
            self.size_bytes += self._frame.size_bytes
            check_frame_size(self._frame.size_bytes, max_frame_bytes)
            yield from self._digested(iter_decompressed(_Chunks(self._take_frame()), self._frame.size_bytes))
        self.is_damaged = False

    def finish(self) -> None:
        """Take what is left of it from the pipe.

        The sizes in a damaged group may be wrong: what follows it is known by the header that it begins with.

        Raises:
            ValueError: What follows is no frame.
            EOFError: The pipe ends.
        """
        for _ in self._frame.chunks:
            pass
        while not self._pipe.is_at_table() and (self.is_damaged or self.size_bytes % BLOCK_BYTES):
            frame = _StreamFrame(self._pipe)
            if frame.begins_group:
                return
            self.size_bytes += frame.size_bytes
            for _ in frame.chunks:
                pass

    def _take_frame(self) -> Iterator[bytes]:
        for chunk in self._frame.chunks:
            self.stored_crc32 = deflate.crc32(chunk, self.stored_crc32)
            self.stored_bytes += len(chunk)
            yield chunk

    def _digested(self, content: Iterator[bytes]) -> Iterator[bytes]:
        for piece in content:
            self._digest.update(piece)
            yield piece


def find_group(pipe: PipeReader) -> None:
    """Go to the next place where a group begins, to the table, or to the end: after bytes that are no frame.

    Raises:
        ArchiveError: The pipe cannot be read.
    """
    while pipe.peek(1):
        pipe.find_frame()
        try:
            while not pipe.is_at_table() and not (frame := _StreamFrame(pipe)).begins_group:
                for _ in frame.chunks:
                    pass
        except (ValueError, EOFError) as error:
            if isinstance(error, ArchiveError):
                raise
            continue
        return


class _StreamFrame:
    """A frame that comes through a pipe.

    Attributes:
        size_bytes: Size of its content.
        start: The beginning of the content; empty where it cannot be read.
        chunks: Takes its bytes from the pipe, once.
    """

    def __init__(self, pipe: PipeReader) -> None:
        self._pipe = pipe
        look = pipe.peek(_LOOK_BYTES)
        if len(look) < _HEADER_BYTES and _FRAME_MAGIC.startswith(look[:4]):
            raise EOFError(f"ends at byte {pipe.offset + len(look):,}, in the middle of a frame")
        self.size_bytes = read_content_size(look[:_HEADER_BYTES])
        self._header_bytes = zstandard.frame_header_size(look[:_HEADER_BYTES])
        self.chunks = self._iter_stored()
        try:
            self.start = decompress_start(look, START_BYTES)
        except ValueError:
            self.start = b""

    @property
    def begins_group(self) -> bool:
        """Whether it is the first of a group."""
        return begins_group(self.start, self.size_bytes)

    def _iter_stored(self) -> Iterator[bytes]:
        left = stored_frame_bytes(self.size_bytes) + _SLACK_BYTES
        yield self._pipe.take(self._header_bytes)
        is_last = False
        while not is_last:
            head = self._pipe.take(3)
            is_last, size = parse_block_header(head)
            left -= 3 + size
            if left < 0:
                raise ValueError("a frame goes on and on")
            yield head + self._pipe.take(size)
        yield self._pipe.take(CHECKSUM_BYTES)


class _Chunks:
    """Lets a decompressor read what comes in chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def read(self, size: int = -1, /) -> bytes:
        """Give what is there."""
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        count = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:count], self._rest[count:]
        return bytes(data)
