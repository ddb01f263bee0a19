"""Zstandard frames: made, and read within bounds, in threads; and the seek table, by which other programs find them.

Formats: https://github.com/facebook/zstd/blob/dev/doc/zstd_compression_format.md and
https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import zstandard

from scannet_prep.archive.layout import FREE_BYTES, MAX_CONTENT_BYTES, MAX_INDEX_BYTES
from scannet_prep.archive.source import ByteSource, Stream
from scannet_prep.base.errors import ContentError
from scannet_prep.base.files import Buffer

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_HEADER_BYTES = 18
_MAX_HELD_BYTES = 160 << 20
_LAST_TASKS_S = 10.0  # how long threads may go on with what they are at when the caller stops early
_MAX_WINDOW_BYTES = 1 << 27  # what `zstd -d` and `tar --zstd` accept without further options
# A frame may hold so many times its own size and 1 MiB more, so that a small file cannot ask for much memory. Scenes
# compress to a fifth at most; what compresses better than this limit is stored.
_MAX_RATIO = 100
_MAX_BLOCK_BYTES = 1 << 17
_RAW, _RLE, _RESERVED = 0, 1, 3
_CHECKSUM_BYTES = 4
_DESCRIPTOR_BYTE, _CHECKSUM_FLAG = 4, 0b0000_0100
_FASTEST_LEVEL = -(1 << 17)
_SKIPPABLE_MAGIC, _SEEKABLE_MAGIC = b"\x5e\x2a\x4d\x18", b"\xb1\xea\x92\x8f"
_HAS_CHECKSUMS = 0b1000_0000
_TABLE_HEADER = struct.Struct("<4sI")
_TABLE_ROW = struct.Struct("<II4s")
_TABLE_FOOTER = struct.Struct("<IB4s")


def compress(content: Buffer, level: int) -> bytes:
    """Make one frame, always the same for the same content, level (1..22; 0 stores) and version of zstd."""
    compressor = zstandard.ZstdCompressor(
        level=level or _FASTEST_LEVEL, write_checksum=True, write_content_size=True
    )
    frame = compressor.compress(content)
    if level and len(content) <= FREE_BYTES + _MAX_RATIO * len(frame):
        return frame
    # Wrap into uncompressed blocks, which zstd offers no level for: content size in 4 bytes, a window of 128 KiB.
    view = memoryview(content)
    pieces: list[Buffer] = [
        struct.pack("<4sBBI", zstandard.FRAME_HEADER, 0b1000_0100, 7 << 3, len(view))
    ]
    for start in range(0, max(len(view), 1), _MAX_BLOCK_BYTES):
        block = view[start : start + _MAX_BLOCK_BYTES]
        is_last = start + _MAX_BLOCK_BYTES >= len(view)
        pieces += [(len(block) << 3 | _RAW << 1 | is_last).to_bytes(3, "little"), block]
    return b"".join([*pieces, frame[-_CHECKSUM_BYTES:]])


def read_size(frame: Buffer) -> int:
    """How much a frame of this program holds, by its header; a `ContentError` where it is not one."""
    try:
        parameters = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise ContentError(f"no frame begins here: {error}") from None
    # A frame that says its content is its window needs no more than the content.
    if parameters.dict_id or parameters.window_size > max(
        _MAX_WINDOW_BYTES, parameters.content_size
    ):
        raise ContentError("a frame needs a dictionary, or too large a window")
    if (
        parameters.content_size > MAX_CONTENT_BYTES
    ):  # the largest of all numbers where it does not say
        raise ContentError(
            f"a frame is said to hold {parameters.content_size:,} bytes, at most {MAX_CONTENT_BYTES:,}"
        )
    return int(parameters.content_size)


def decompress(frame: Buffer, size_bytes: int) -> tuple[memoryview, bool]:
    """Decompress a frame whose content is said to have a size, whether its checksum holds or not.

    Returns:
        The content, in memory that is writable and nobody else's; and whether the checksum of the frame holds. If not,
        only another digest can tell whether the content is right.

    Raises:
        ContentError: It cannot be decompressed, or would hold more than a frame of its size may.
    """
    found, limit = read_size(frame), FREE_BYTES + _MAX_RATIO * len(frame)
    if found != size_bytes or found > limit:  # before memory is taken
        raise ContentError(
            f"a frame is said to hold {found:,} bytes, expected {size_bytes:,} and at most {limit:,}"
        )
    try:
        return _decompress(frame, size_bytes), bool(frame[_DESCRIPTOR_BYTE] & _CHECKSUM_FLAG)
    except ContentError:
        bare = bytearray(frame[:-_CHECKSUM_BYTES])
        bare[_DESCRIPTOR_BYTE] &= ~_CHECKSUM_FLAG
        return _decompress(bare, size_bytes), False


def _decompress(frame: Buffer, size_bytes: int) -> memoryview:
    try:
        content = np.empty(size_bytes, np.uint8).data  # unlike a bytearray, not cleared first
        with zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
            frame
        ) as reader:
            count = reader.readinto(content) if size_bytes else 0
            is_more = bool(reader.read(1))  # with the last byte, the checksum is compared
    except zstandard.ZstdError as error:
        raise ContentError(f"a frame cannot be decompressed: {error}") from None
    except MemoryError:
        raise ContentError("memory ran out") from None
    if count != size_bytes or is_more:
        raise ContentError(f"a frame does not hold the {size_bytes:,} bytes that it names")
    return content


def decompress_start(frame: Buffer, size_bytes: int) -> bytes:
    """Decompress so much of a frame of any program, which proves nothing yet; empty where that is impossible."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    with (
        suppress(zstandard.ZstdError),
        decompressor.stream_reader(frame, read_across_frames=True) as reader,
    ):
        return bytes(reader.read(size_bytes))
    return b""


def read_frame(stream: Stream) -> bytes:
    """Take the next frame off a stream, by the headers of its blocks.

    Raises:
        ContentError: No frame of this program begins here, a block is damaged, or the stream ends first.
    """
    header = stream.peek(0, _MAX_HEADER_BYTES)
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
        raise ContentError("the archive ends in the middle of a frame")
    return frame


def seek_row(frame: Buffer) -> bytes:
    """What the seek table says of a frame: its size in the file, that of its content, and its checksum.

    The checksum is its last four bytes, the low 32 bits of the content's XXH64, little-endian. Of a frame that is not
    one of this program, a `ContentError` is raised.
    """
    return _TABLE_ROW.pack(len(frame), read_size(frame), bytes(frame[-_CHECKSUM_BYTES:]))


def encode_seek_table(rows: Sequence[bytes]) -> bytes:
    """Encode the seek table from its rows, with everything around it."""
    body = b"".join(rows)
    footer = _TABLE_FOOTER.pack(len(rows), _HAS_CHECKSUMS, _SEEKABLE_MAGIC)
    return _TABLE_HEADER.pack(_SKIPPABLE_MAGIC, len(body) + len(footer)) + body + footer


def has_seek_table(stream: Stream, rows: Sequence[bytes | None]) -> bool:
    """Whether the seek table with these rows comes next; where one is None, whatever is there is right."""
    found = stream.take(len(encode_seek_table([bytes(_TABLE_ROW.size)] * len(rows))))
    there = [
        found[start : start + _TABLE_ROW.size]
        for start in range(_TABLE_HEADER.size, len(found), _TABLE_ROW.size)
    ]
    return found == encode_seek_table(
        [row or other for row, other in zip(rows, there, strict=False)]
    )


def find_index(source: ByteSource) -> tuple[int, int, int]:
    """Find the last frame but one of a file, by the last rows of the seek table; of the others, nothing is looked at.

    Returns:
        Where it begins, its size in the file, and how many frames lie before it.

    Raises:
        ContentError: The file does not end in a seek table, or it is damaged.
        ArchiveError: The file cannot be read.
    """
    tail_bytes = 2 * _TABLE_ROW.size + _TABLE_FOOTER.size
    tail = source.read(max(0, source.size_bytes - tail_bytes), tail_bytes).rjust(tail_bytes, b"\0")
    (stored_bytes, *_), (end_bytes, *_) = _TABLE_ROW.iter_unpack(tail[: -_TABLE_FOOTER.size])
    count, *mark = _TABLE_FOOTER.unpack(tail[-_TABLE_FOOTER.size :])
    table_bytes = _TABLE_HEADER.size + count * _TABLE_ROW.size + _TABLE_FOOTER.size
    offset = source.size_bytes - table_bytes - end_bytes - stored_bytes
    if (
        mark != [_HAS_CHECKSUMS, _SEEKABLE_MAGIC]
        or count < 3
        or offset < 0
        or stored_bytes > MAX_INDEX_BYTES
    ):
        raise ContentError(
            "the file does not end in a seek table: it is truncated, or something follows its end"
        )
    return offset, stored_bytes, count - 2


def map_in_threads(
    function: Callable[[Item], Result],
    items: Iterable[tuple[int, Item]],
    *,
    jobs: int,
    on_error: Callable[[], object] = lambda: None,
) -> Generator[Result]:
    """Call a function for each item, in several threads; yields the results in order. What it raises ends everything.

    Not by a `ThreadPoolExecutor`: an interrupt in the main thread can leave a lock of a future locked, and Python waits
    for its threads for ever. Here the main thread holds no lock, and waits for no thread for long.

    Args:
        function: What to call.
        items: How many bytes each takes in memory, and the item; taken one by one, when there is room. At most 160 MiB
            are under way; a larger item has all to itself.
        jobs: How many threads.
        on_error: Called before threads are waited for, where that is not the end: what they wait for has to end.
    """
    tasks, pending = SimpleQueue[Any](), deque[tuple[int, SimpleQueue[Any]]]()
    threads, is_over = list[threading.Thread](), threading.Event()

    def take() -> Result:
        result, error = pending.popleft()[1].get()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    try:
        while len(threads) < jobs:
            thread = threading.Thread(target=_work, args=(function, tasks, is_over), daemon=True)
            thread.start()
            threads.append(thread)  # now that it can be waited for
        for size_bytes, item in items:
            while pending and (
                len(pending) > 2 * jobs
                or size_bytes + sum(held for held, _ in pending) > _MAX_HELD_BYTES
            ):
                yield take()
            pending.append((size_bytes, SimpleQueue()))
            tasks.put((item, pending[-1][1]))
            del item
        while pending:
            yield take()
    except BaseException:
        on_error()
        raise
    finally:
        is_over.set()
        for _ in range(jobs):
            tasks.put(None)
        end = time.monotonic() + _LAST_TASKS_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


def _work(
    function: Callable[[Item], object], tasks: SimpleQueue[Any], is_over: threading.Event
) -> None:
    """Do tasks in a thread, each an item and the queue for its result or error; None is the end."""
    while (task := tasks.get()) is not None and not is_over.is_set():
        item, answer = task
        try:
            answer.put((function(item), None))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            answer.put((None, error))
        del task, item, answer  # they may hold the bytes of a frame
