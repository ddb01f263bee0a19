"""Zstandard frames, read with limits on memory, and the seek table that lists them.

Formats:
https://github.com/facebook/zstd/blob/dev/doc/zstd_compression_format.md
https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import zstandard

from scannet_prep.archive.byte_source import ByteSource
from scannet_prep.archive.layout import LIMIT_MARGIN_BYTES, MAX_CONTENT_BYTES, MAX_INDEX_BYTES
from scannet_prep.base.files import Buffer
from scannet_prep.errors import ContentError

# `zstd -d` and `tar --zstd` accept this window without further options.
_MAX_WINDOW_BYTES = 1 << 27
# The content of a frame is at most 1 MiB plus this many times its own size, so that a small file
# cannot request much memory. Scenes compress to a fifth at best; content that compresses better
# than this limit is stored.
_MAX_RATIO = 100
MAX_BLOCK_BYTES = 1 << 17
_RAW_BLOCK = 0
BLOCK_HEADER_BYTES = 3
CHECKSUM_BYTES = 4
# The position of the frame header descriptor, after the magic number, and its flag for a checksum.
_DESCRIPTOR_BYTE = 4
_CHECKSUM_FLAG = 0b0000_0100
_FASTEST_LEVEL = -(1 << 17)

_SKIPPABLE_MAGIC = b"\x5e\x2a\x4d\x18"
_SEEKABLE_MAGIC = b"\xb1\xea\x92\x8f"
_HAS_CHECKSUMS = 0b1000_0000
_TABLE_HEADER = struct.Struct("<4sI")
_TABLE_ROW = struct.Struct("<II4s")
_TABLE_FOOTER = struct.Struct("<IB4s")


def compress(content: Buffer, level: int) -> bytes:
    """Make a frame.

    Args:
        content: Its content.
        level: Compression level of zstd, 1..22; 0 stores.

    Returns:
        The frame, always the same for the same content, level and version of zstd.
    """
    # For level 0, zstd only computes the checksum, at its fastest level. Its own level 0 is another
    # name of its default level.
    compressor = zstandard.ZstdCompressor(
        level=level or _FASTEST_LEVEL, write_checksum=True, write_content_size=True
    )
    frame = compressor.compress(content)
    is_stored = level == 0 or len(content) > _max_content_bytes(frame)
    if not is_stored:
        return frame
    return _store(content, checksum=frame[-CHECKSUM_BYTES:])


def _store(content: Buffer, checksum: bytes) -> bytes:
    """Make a frame of uncompressed blocks, for which zstd offers no level."""
    view = memoryview(content)
    # Descriptor: content size in 4 bytes, with a checksum. Window: 128 KiB.
    descriptor = 0b1000_0100
    window = 7 << 3
    header = struct.pack("<4sBBI", zstandard.FRAME_HEADER, descriptor, window, len(view))
    pieces: list[Buffer] = [header]
    # Empty content takes one empty block.
    for start in range(0, max(len(view), 1), MAX_BLOCK_BYTES):
        block = view[start : start + MAX_BLOCK_BYTES]
        is_last = start + MAX_BLOCK_BYTES >= len(view)
        # From the lowest bit: last block (1 bit), type (2 bits), size (21 bits).
        block_header = len(block) << 3 | _RAW_BLOCK << 1 | is_last
        pieces.append(block_header.to_bytes(BLOCK_HEADER_BYTES, "little"))
        pieces.append(block)
    pieces.append(checksum)
    return b"".join(pieces)


def read_size(frame: Buffer) -> int:
    """Read the size of the content of a frame from its header.

    Raises:
        ContentError: It is not a frame that this program makes.
    """
    try:
        parameters = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise ContentError(f"no frame begins here: {error}") from None
    # If the size is not recorded, zstandard returns the largest 64-bit number.
    content_bytes = int(parameters.content_size)
    # A window as large as the content takes no more memory than the content itself.
    max_window_bytes = max(_MAX_WINDOW_BYTES, content_bytes)
    if parameters.dict_id or parameters.window_size > max_window_bytes:
        raise ContentError("a frame needs a dictionary, or too large a window")
    if content_bytes > MAX_CONTENT_BYTES:
        sizes = f"{content_bytes:,} bytes, expected at most {MAX_CONTENT_BYTES:,}"
        raise ContentError(f"a frame header declares {sizes}")
    return content_bytes


def decompress(frame: Buffer, size_bytes: int) -> tuple[memoryview, bool]:
    """Decompress a frame, even if its checksum is wrong.

    Args:
        frame: The frame.
        size_bytes: The expected size of its content.

    Returns:
        The content in new, writable memory; and whether the frame has a checksum that is right.
        Otherwise the caller has to check the content by another digest.

    Raises:
        ContentError: It cannot be decompressed, or its content would be larger than allowed.
    """
    # Check the size before memory is allocated.
    declared_bytes = read_size(frame)
    max_bytes = _max_content_bytes(frame)
    if declared_bytes != size_bytes or declared_bytes > max_bytes:
        expected = f"expected {size_bytes:,} (at most {max_bytes:,})"
        raise ContentError(f"a frame header declares {declared_bytes:,} bytes, {expected}")
    try:
        content = _decompress(frame, size_bytes)
    except ContentError:
        # Perhaps only the checksum is damaged: cut it off, and clear its flag in the header.
        bare = bytearray(frame[:-CHECKSUM_BYTES])
        bare[_DESCRIPTOR_BYTE] &= ~_CHECKSUM_FLAG
        return _decompress(bare, size_bytes), False
    has_checksum = bool(frame[_DESCRIPTOR_BYTE] & _CHECKSUM_FLAG)
    return content, has_checksum


def _decompress(frame: Buffer, size_bytes: int) -> memoryview:
    """Decompress a frame into new memory; a `ContentError` if it is damaged."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    try:
        # Unlike a bytearray, an empty array is not cleared first.
        content = np.empty(size_bytes, np.uint8).data
        # zstd gets the whole frame and the whole memory at once, so it needs no window of its own.
        # Frames with a larger window pass, too.
        with decompressor.stream_reader(frame) as reader:
            read_bytes = reader.readinto(content) if size_bytes else 0
            # Reading beyond the end also compares the checksum.
            has_more = bool(reader.read(1))
    except zstandard.ZstdError as error:
        raise ContentError(f"a frame cannot be decompressed: {error}") from None
    except MemoryError:
        raise ContentError("memory ran out") from None
    if read_bytes != size_bytes or has_more:
        raise ContentError(
            f"a frame does not hold the {size_bytes:,} bytes that its header declares"
        )
    return content


def decompress_start(frame: Buffer, size_bytes: int) -> bytes:
    """Decompress the beginning of any frame, unchecked; empty if it cannot be decompressed."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    with (
        suppress(zstandard.ZstdError),
        # The first frame may have no content: pzstd begins with a skippable one.
        decompressor.stream_reader(frame, read_across_frames=True) as reader,
    ):
        return bytes(reader.read(size_bytes))
    return b""


def seek_row(frame: Buffer) -> bytes:
    """Make the row of a frame in the seek table: stored size, size of the content, and checksum.

    The checksum is the last four bytes of the frame: the low 32 bits of the XXH64 of the content,
    little-endian.
    """
    return _TABLE_ROW.pack(len(frame), read_size(frame), bytes(frame[-CHECKSUM_BYTES:]))


def encode_seek_table(rows: Sequence[bytes]) -> bytes:
    """Encode the seek table: a skippable frame with the rows of all frames."""
    body = b"".join(rows)
    footer = _TABLE_FOOTER.pack(len(rows), _HAS_CHECKSUMS, _SEEKABLE_MAGIC)
    return _TABLE_HEADER.pack(_SKIPPABLE_MAGIC, len(body) + len(footer)) + body + footer


def seek_table_bytes(frame_count: int) -> int:
    """Return the size of the seek table of some frames."""
    return _TABLE_HEADER.size + frame_count * _TABLE_ROW.size + _TABLE_FOOTER.size


def is_seek_table(table: bytes, rows: Sequence[bytes | None]) -> bool:
    """Whether some bytes are the seek table of some frames.

    Args:
        table: The bytes.
        rows: The row of each frame; None for a frame that was not read, whose row is not checked.
    """
    expected = []
    for number, row in enumerate(rows):
        start = _TABLE_HEADER.size + number * _TABLE_ROW.size
        expected.append(row or table[start : start + _TABLE_ROW.size])
    return table == encode_seek_table(expected)


def find_index(source: ByteSource) -> tuple[int, int, int]:
    """Find the frame of the index by the end of the seek table. It is the last frame but one.

    Returns:
        The offset and the size of the frame, and the number of frames before it.

    Raises:
        ContentError: The file does not end in a seek table, or the table is damaged.
        ArchiveError: The file cannot be read.
    """
    # The end of the file: the rows of the index and of the end of the tar stream, and the footer.
    # A file that is too short for them is filled up with zeros, which are not a footer.
    tail_bytes = 2 * _TABLE_ROW.size + _TABLE_FOOTER.size
    tail = source.read(max(0, source.size_bytes - tail_bytes), tail_bytes)
    tail = tail.rjust(tail_bytes, b"\0")
    index_row, end_row = _TABLE_ROW.iter_unpack(tail[: -_TABLE_FOOTER.size])
    count, flags, magic = _TABLE_FOOTER.unpack(tail[-_TABLE_FOOTER.size :])
    has_footer = flags == _HAS_CHECKSUMS and magic == _SEEKABLE_MAGIC
    # At least the files that belong to no scene, the index, and the end of the tar stream.
    has_frames = count >= 3

    # The index lies before the end of the tar stream, which lies before the table.
    index_bytes = index_row[0]
    end_bytes = end_row[0]
    offset = source.size_bytes - seek_table_bytes(count) - end_bytes - index_bytes
    is_index_possible = offset >= 0 and index_bytes <= MAX_INDEX_BYTES
    if not (has_footer and has_frames and is_index_possible):
        raise ContentError(
            "the file does not end in a seek table: it is truncated, or something follows its end"
        )
    return offset, index_bytes, count - 2


def _max_content_bytes(frame: Buffer) -> int:
    """Return the maximum size of the content of a frame, by the size of the frame."""
    return LIMIT_MARGIN_BYTES + _MAX_RATIO * len(frame)
