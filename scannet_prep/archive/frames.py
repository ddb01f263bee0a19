"""Zstandard frames: made, and read within bounds, in threads; and the seek table, by which other programs find them.

Formats: https://github.com/facebook/zstd/blob/dev/doc/zstd_compression_format.md and
https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
import zstandard

from scannet_prep.archive.layout import FREE_BYTES, MAX_CONTENT_BYTES
from scannet_prep.archive.source import ByteSource, Stream
from scannet_prep.errors import ContentError
from scannet_prep.files import Buffer
from scannet_prep.foreign import ZSTD_SKIPPABLE_MAGIC

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_LEVEL = 22
MAX_HEADER_BYTES = 18

_MAX_HELD_BYTES = 160 << 20
_MAX_WINDOW_BYTES = 1 << 27  # what `zstd -d` and `tar --zstd` accept without further options
# A frame may hold so many times its own size and 1 MiB more, so that a small file cannot ask for much memory. Scenes
# compress to a fifth at most; what compresses better than this limit is stored.
_MAX_RATIO = 100
_MAX_FRAMES = 1 << 17
_MAX_BLOCK_BYTES = 1 << 17
_RAW, _RLE, _RESERVED = 0, 1, 3
_CHECKSUM_BYTES = 4
_DESCRIPTOR_BYTE, _CHECKSUM_FLAG = 4, 0b0000_0100
_FASTEST_LEVEL = -(1 << 17)
_SEEKABLE_MAGIC = b"\xb1\xea\x92\x8f"
_HAS_CHECKSUMS = 0b1000_0000
_TABLE_HEADER = struct.Struct("<4sI")
_TABLE_ROW = struct.Struct("<II4s")
_TABLE_FOOTER = struct.Struct("<IB4s")


class TruncatedError(ContentError):
    """The archive ends in the middle of something."""


class FrameRow(NamedTuple):
    """What the seek table says of one frame.

    Attributes:
        stored_bytes: Its size in the file.
        size_bytes: Size of its content.
        checksum: Its last four bytes: the low 32 bits of the content's XXH64, little-endian.
    """

    stored_bytes: int
    size_bytes: int
    checksum: bytes

    @classmethod
    def of(cls, frame: Buffer) -> FrameRow:
        """What it is to say of a frame; a `ContentError` where that is not one of this program."""
        return cls(len(frame), read_size(frame[:MAX_HEADER_BYTES]), bytes(frame[-_CHECKSUM_BYTES:]))


def compress(content: Buffer, level: int) -> bytes:
    """Make one frame, always the same for the same content, level (1..22; 0 stores) and version of zstd."""
    compressor = zstandard.ZstdCompressor(level=level or _FASTEST_LEVEL, write_checksum=True, write_content_size=True)
    frame = compressor.compress(content)
    if level and len(content) <= _max_content_bytes(len(frame)):
        return frame
    # Wrap into uncompressed blocks, which zstd offers no level for: content size in 4 bytes, a window of 128 KiB.
    view = memoryview(content)
    pieces: list[Buffer] = [struct.pack("<4sBBI", zstandard.FRAME_HEADER, 0b1000_0100, 7 << 3, len(view))]
    for start in range(0, max(len(view), 1), _MAX_BLOCK_BYTES):
        block = view[start : start + _MAX_BLOCK_BYTES]
        is_last = start + _MAX_BLOCK_BYTES >= len(view)
        pieces += [(len(block) << 3 | _RAW << 1 | is_last).to_bytes(3, "little"), block]
    return b"".join([*pieces, frame[-_CHECKSUM_BYTES:]])


def _max_content_bytes(stored_bytes: int) -> int:
    return min(MAX_CONTENT_BYTES, FREE_BYTES + _MAX_RATIO * stored_bytes)


def read_size(start: Buffer) -> int:
    """How much a frame of this program holds, by `MAX_HEADER_BYTES` of it; a `ContentError` where it is not one."""
    try:
        parameters = zstandard.get_frame_parameters(start)
    except zstandard.ZstdError as error:
        raise ContentError(f"no frame begins here: {_reason(error)}") from None
    if parameters.content_size in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
        raise ContentError("a frame does not say how much it holds")
    # A frame that says its content is its window needs no more than the content.
    if parameters.dict_id or parameters.window_size > max(_MAX_WINDOW_BYTES, parameters.content_size):
        raise ContentError("a frame needs a dictionary, or too large a window")
    if parameters.content_size > MAX_CONTENT_BYTES:
        raise ContentError(f"a frame is said to hold {parameters.content_size:,} bytes, at most {MAX_CONTENT_BYTES:,}")
    return int(parameters.content_size)


def decompress(frame: Buffer, size_bytes: int) -> tuple[memoryview, bool]:
    """Decompress a frame whose content is said to have a size, whether its checksum holds or not.

    Returns:
        The content, in memory that is writable and nobody else's; and whether the checksum of the frame holds. If not,
        only another digest can tell whether the content is right.

    Raises:
        ContentError: It cannot be decompressed, or would hold more than a frame of its size may.
    """
    found = read_size(frame[:MAX_HEADER_BYTES])
    if found != size_bytes:
        raise ContentError(f"a frame holds {found:,} bytes, expected {size_bytes:,}")
    limit = _max_content_bytes(len(frame))
    if size_bytes > limit:  # before memory is taken
        raise ContentError(f"a frame of {len(frame):,} bytes is said to hold {size_bytes:,}, at most {limit:,}")
    try:
        return _decompress(frame, size_bytes), bool(frame[_DESCRIPTOR_BYTE] & _CHECKSUM_FLAG)
    except ContentError:
        bare = bytearray(frame[:-_CHECKSUM_BYTES])
        bare[_DESCRIPTOR_BYTE] &= ~_CHECKSUM_FLAG
        return _decompress(bare, size_bytes), False


def _decompress(frame: Buffer, size_bytes: int) -> memoryview:
    content = np.empty(size_bytes, np.uint8).data  # unlike a bytearray, not cleared first
    try:
        with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(frame) as reader:
            count = reader.readinto(content) if size_bytes else 0
            is_more = bool(reader.read(1))  # with the last byte, the checksum is compared
    except zstandard.ZstdError as error:
        raise ContentError(f"a frame cannot be decompressed: {_reason(error)}") from None
    if count != size_bytes or is_more:
        raise ContentError(f"a frame does not hold the {size_bytes:,} bytes that it names")
    return content


def decompress_start(frame: Buffer, size_bytes: int) -> bytes:
    """Decompress so much of a frame of any program, which proves nothing yet; empty where that is impossible."""
    try:
        with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
            frame, read_across_frames=True
        ) as reader:
            return bytes(reader.read(size_bytes))
    except zstandard.ZstdError:
        return b""


def _reason(error: zstandard.ZstdError) -> str:
    return str(error).removeprefix("zstd decompress error: ").removeprefix("error determining content size: ")


def read_frame(stream: Stream) -> bytes:
    """Take the next frame off a stream, by the headers of its blocks.

    Raises:
        ContentError: No frame of this program begins here, or a block is damaged.
        TruncatedError: The stream ends first.
    """
    header = stream.peek(0, MAX_HEADER_BYTES)
    if len(header) < MAX_HEADER_BYTES and zstandard.FRAME_HEADER.startswith(header[:4]):
        raise TruncatedError("the archive ends in the header of a frame")
    limit = FREE_BYTES + read_size(header) * 257 // 256
    position, is_last = zstandard.frame_header_size(header), False
    while not is_last and len(head := stream.peek(position, 3)) == 3:
        number = int.from_bytes(head, "little")
        is_last, kind, block_bytes = bool(number & 1), number >> 1 & 3, number >> 3
        if kind == _RESERVED or block_bytes > _MAX_BLOCK_BYTES or position > limit:
            raise ContentError("a frame has a damaged block")
        position += 3 + (1 if kind == _RLE else block_bytes)
    frame = stream.take(position + _CHECKSUM_BYTES)
    if not is_last or len(frame) < position + _CHECKSUM_BYTES:
        raise TruncatedError("the archive ends in the middle of a frame")
    return frame


def encode_seek_table(rows: Sequence[FrameRow]) -> bytes:
    """Encode the seek table, with everything around it."""
    body = b"".join(_TABLE_ROW.pack(*row) for row in rows)
    footer = _TABLE_FOOTER.pack(len(rows), _HAS_CHECKSUMS, _SEEKABLE_MAGIC)
    return _TABLE_HEADER.pack(ZSTD_SKIPPABLE_MAGIC, len(body) + len(footer)) + body + footer


def read_seek_table(source: ByteSource) -> list[FrameRow]:
    """Read the seek table from the end of a file, and check that its frames and itself make up the file.

    Raises:
        ContentError: The file does not end in a table, or it is damaged.
        ArchiveError: The file cannot be read.
    """
    file_bytes = source.size_bytes
    footer = source.read(max(0, file_bytes - _TABLE_FOOTER.size), _TABLE_FOOTER.size)
    if footer[4:] != _TABLE_FOOTER.pack(0, _HAS_CHECKSUMS, _SEEKABLE_MAGIC)[4:]:
        raise ContentError("the file does not end in a seek table: it is truncated, or something follows its end")
    count = int.from_bytes(footer[:4], "little")
    size_bytes = _TABLE_HEADER.size + count * _TABLE_ROW.size + _TABLE_FOOTER.size
    if size_bytes > file_bytes or count > _MAX_FRAMES:
        raise ContentError(f"the seek table is said to name {count:,} frames, more than the file can hold")
    data = source.read(file_bytes - size_bytes, size_bytes).ljust(size_bytes, b"\0")
    rows = list(map(FrameRow._make, _TABLE_ROW.iter_unpack(data[_TABLE_HEADER.size : -_TABLE_FOOTER.size])))
    total_bytes = sum(row.stored_bytes for row in rows) + size_bytes
    if encode_seek_table(rows) != data or total_bytes != file_bytes:
        raise ContentError(
            f"the seek table is damaged, or that of a file of {total_bytes:,} and not {file_bytes:,} bytes"
        )
    return rows


def map_in_threads(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    jobs: int,
    weigh: Callable[[Item], int],
    on_error: Callable[[], object] = lambda: None,
) -> Generator[Result]:
    """Call a function for each item, in several threads; yields the results in order. What it raises ends everything.

    Args:
        function: What to call.
        items: Taken one by one, when there is room.
        jobs: How many threads.
        weigh: How many bytes an item takes in memory. At most 160 MiB are under way; a larger item has all to itself.
        on_error: Called before threads are waited for, where that is not the end: what they wait for has to end.
    """
    executor = ThreadPoolExecutor(jobs, "archive")
    pending: deque[tuple[Future[Result], int]] = deque()
    held_bytes = 0
    try:
        for item in items:
            size_bytes = weigh(item)
            while pending and (len(pending) > 2 * jobs or held_bytes + size_bytes > _MAX_HELD_BYTES):
                future, freed_bytes = pending.popleft()
                held_bytes -= freed_bytes
                yield future.result()
            pending.append((executor.submit(function, item), size_bytes))
            held_bytes += size_bytes
            del item  # it may hold the bytes of a frame
        while pending:
            yield pending.popleft()[0].result()
    except BaseException:
        on_error()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
