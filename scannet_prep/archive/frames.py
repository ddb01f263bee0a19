"""Zstandard frames: made, checked, and found in a file without its table.

Every frame states the size of its content and ends in the low 32 bits of the content's XXH64. Format:
https://github.com/facebook/zstd/blob/dev/doc/zstd_compression_format.md
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import zstandard

from scannet_prep.files import Buffer

DEFAULT_LEVEL = 3
MAX_LEVEL = 22
MAX_WINDOW_BYTES = 1 << 27  # what `zstd -d` and `tar --zstd` accept without further options
MAX_CONTENT_BYTES = 1 << 30
MAX_FRAME_BYTES = 1 << 26  # what a frame of a group holds; a larger group has several
MIN_FRAME_BYTES = 4 + 2 + 3 + 4  # magic number, header, one empty block, checksum
CHECKSUM_BYTES = 4

_MAGIC = 0xFD2FB528
_thread = threading.local()
_MAX_HEADER_BYTES = 18
_DESCRIPTOR_BYTE, _CHECKSUM_FLAG = 4, 0b0000_0100
_MAX_BLOCK_BYTES = 1 << 17
_RAW, _RLE, _RESERVED = 0, 1, 3
_PIECE_BYTES = 1 << 10  # four bytes can stand for 128 KiB

_local = threading.local()  # a decompressor is not for several threads


class ReadAt(Protocol):
    """Reads so many bytes at an offset; fewer only at the end of the file."""

    def __call__(self, offset: int, size: int, /) -> bytes:
        """Read."""


class Readable(Protocol):
    """Gives up to so many bytes; none at its end."""

    def read(self, size: int = -1, /) -> bytes:
        """Read."""


@dataclass(frozen=True, slots=True)
class FrameSpan:
    """Where a frame lies, and how much it holds.

    Attributes:
        offset: First byte in the file.
        stored_bytes: Size in the file.
        size_bytes: Size of the content.
    """

    offset: int
    stored_bytes: int
    size_bytes: int

    @property
    def end(self) -> int:
        """The byte after the last."""
        return self.offset + self.stored_bytes


def compress_frame(content: Buffer, level: int) -> bytes:
    """Compress into one frame, with content size and checksum. The same bytes for the same content, level and zstd."""
    # One for each thread: they cannot be shared, and making one for each frame takes time.
    compressors: dict[int, zstandard.ZstdCompressor] = vars(_thread).setdefault("compressors", {})
    if level not in compressors:
        compressors[level] = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
    return compressors[level].compress(content)


def store_frame(content: bytes) -> bytes:
    """Wrap into one frame of uncompressed blocks.

    Such a frame has but one encoding, so that no bit of it can change unseen, whatever the version of zstd.
    """
    size = len(content)
    # Single segment, checksum; 8, 2 (less 256), or 4 bytes of size.
    if size < 256:
        header = struct.pack("<IBB", _MAGIC, 0b0010_0100, size)
    elif size < 256 + (1 << 16):
        header = struct.pack("<IBH", _MAGIC, 0b0110_0100, size - 256)
    else:
        header = struct.pack("<IBI", _MAGIC, 0b1010_0100, size)
    pieces = [header]
    view = memoryview(content)
    for start in range(0, max(size, 1), _MAX_BLOCK_BYTES):
        block = view[start : start + _MAX_BLOCK_BYTES]
        is_last = start + _MAX_BLOCK_BYTES >= size
        pieces += [(len(block) << 3 | _RAW << 1 | is_last).to_bytes(3, "little"), bytes(block)]
    return b"".join([*pieces, checksum_of(compress_frame(content, 1))])


def checksum_of(frame: Buffer) -> bytes:
    """The checksum at the end of a frame, 4 bytes, little-endian."""
    return bytes(frame[-CHECKSUM_BYTES:])


def stored_frame_bytes(size: int) -> int:
    """Size of `store_frame` for a content of `size` bytes."""
    header = 6 if size < 256 else 7 if size < 256 + (1 << 16) else 9
    return header + 3 * max(1, -(-size // _MAX_BLOCK_BYTES)) + size + CHECKSUM_BYTES


def decompress_frame(frame: Buffer, size_bytes: int) -> bytes:
    """Decompress a whole frame and check it.

    Args:
        frame: The frame, and nothing more.
        size_bytes: What its content is said to be; no more than that is ever allocated.

    Raises:
        ValueError: It is damaged, or not as this program writes frames.
    """
    content_bytes = read_content_size(frame)
    if content_bytes != size_bytes:
        raise ValueError(f"a frame holds {content_bytes:,} bytes, expected {size_bytes:,}")
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    try:
        content = decompressor.decompress(frame, max_output_size=size_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"a frame cannot be decompressed: {_reason(error)}") from None
    if len(content) != size_bytes:
        raise ValueError(f"a frame gave {len(content):,} bytes, expected {size_bytes:,}")
    return content


def decompress_start(stored: Buffer, size: int) -> bytes:
    """Decompress the beginning of a frame, which proves nothing yet: the checksum stands at its end.

    Args:
        stored: The frame, or enough of it: its header and first block.
        size: How much is wanted; less is given where the frame holds less.

    Raises:
        ValueError: It is damaged, or not as this program writes frames.
    """
    wanted = min(size, read_content_size(stored[:_MAX_HEADER_BYTES]))
    reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(stored)
    try:
        start = bytes(reader.read(wanted))
    except zstandard.ZstdError as error:
        raise ValueError(f"a frame cannot be decompressed: {_reason(error)}") from None
    if len(start) < wanted:
        raise ValueError(f"the beginning of a frame gave {len(start):,} bytes, expected {wanted:,}")
    return start


def iter_decompressed(stored: Readable | bytes, size_bytes: int, piece_bytes: int = 1 << 20) -> Iterator[bytes]:
    """Decompress a frame piece by piece, without ever holding all of it, and check it.

    Args:
        stored: The frame, or what gives its bytes, and nothing more. That these are all of them is for the caller to
            know, by the headers of its blocks.
        size_bytes: What its content is said to be.
        piece_bytes: Size of a piece.

    Raises:
        ValueError: It is damaged, or needs more memory than this program allows.
    """
    left = size_bytes
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(stored)  # type: ignore[arg-type]  # it only reads
        # After the last byte of the content, one more read takes and compares the checksum.
        while piece := reader.read(piece_bytes):
            left -= len(piece)
            if left < 0:
                raise ValueError(f"a frame gives more than the {size_bytes:,} bytes that it says")
            yield piece
    except zstandard.ZstdError as error:
        raise ValueError(f"a frame cannot be decompressed: {_reason(error)}") from None
    if left:
        raise ValueError(f"a frame gave {size_bytes - left:,} bytes, expected {size_bytes:,}")


def decompress_into(frame: memoryview, target: memoryview, *, is_proven: bool = False) -> None:
    """Decompress a whole frame into memory that is there already, and check it; nothing is copied on the way.

    Args:
        frame: The frame, and nothing more.
        target: Writable, of the size that the content is said to have.
        is_proven: The caller has checked all bytes of the frame by another checksum, so that zstd need not (a tenth of
            the time). The frame must be writable then; it is not the same afterwards.

    Raises:
        ValueError: It is damaged, or not as this program writes frames.
    """
    # The reader below would be content with a frame that ends early or with something after it.
    span = find_frame(lambda offset, size: bytes(frame[offset : offset + size]), 0)
    if span is None or span.end != len(frame):
        raise ValueError("a frame does not end where it should")
    if span.size_bytes != len(target):
        raise ValueError(f"a frame holds {span.size_bytes:,} bytes, expected {len(target):,}")
    decompressor: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    if is_proven:  # the header says that there is no checksum, and there is none
        frame[_DESCRIPTOR_BYTE] &= ~_CHECKSUM_FLAG
        frame = frame[:-CHECKSUM_BYTES]
    try:
        with decompressor.stream_reader(frame) as reader:
            size = reader.readinto(target)  # with room for all of the content, zstd writes to it directly
    except zstandard.ZstdError as error:
        raise ValueError(f"a frame cannot be decompressed: {_reason(error)}") from None
    if size != span.size_bytes:
        raise ValueError(f"a frame gave {size:,} bytes, expected {span.size_bytes:,}")


def read_content_size(start: Buffer) -> int:
    """Read from the first bytes of a frame (18 are enough) how much it holds.

    Raises:
        ValueError: It is no frame of this program.
    """
    try:
        parameters = zstandard.get_frame_parameters(start)
    except zstandard.ZstdError as error:
        raise ValueError(f"no frame begins here: {_reason(error)}") from None
    if parameters.content_size in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
        raise ValueError("a frame does not say how much it holds")
    if not parameters.has_checksum or parameters.dict_id:
        raise ValueError("a frame has no checksum, or needs a dictionary")
    # A frame that says its content is its window needs no more than the content.
    if parameters.window_size > max(MAX_WINDOW_BYTES, parameters.content_size):
        raise ValueError(f"a frame needs a window of {parameters.window_size:,} bytes, at most {MAX_WINDOW_BYTES:,}")
    check_frame_size(parameters.content_size, MAX_CONTENT_BYTES)
    return int(parameters.content_size)


def check_frame_size(size_bytes: int, max_bytes: int = MAX_FRAME_BYTES) -> None:
    """Check that a frame is not larger than this program makes them, before memory is taken for it.

    Raises:
        ValueError: It is.
    """
    if size_bytes > max_bytes:
        raise ValueError(f"a frame holds {size_bytes:,} bytes, at most {max_bytes:,} are allowed")


def find_frame(read_at: ReadAt, offset: int) -> FrameSpan | None:
    """Find the end of the frame that begins at an offset, by the headers of its blocks, without decompressing it.

    Returns:
        Where it lies; None where the file ends before the frame does.

    Raises:
        ValueError: No frame of this program begins there.
    """
    start = read_at(offset, _MAX_HEADER_BYTES)
    if len(start) < MIN_FRAME_BYTES:
        if not _begins_frame(start):
            raise ValueError("no frame begins here: wrong magic number")
        return None
    size_bytes = read_content_size(start)
    position = offset + zstandard.frame_header_size(start)
    is_last = False
    while not is_last:
        head = read_at(position, 3)
        if len(head) < 3:
            return None
        is_last, block_bytes = parse_block_header(head)
        position += 3 + block_bytes
    if len(read_at(position, CHECKSUM_BYTES)) < CHECKSUM_BYTES:
        return None
    return FrameSpan(offset, position + CHECKSUM_BYTES - offset, size_bytes)


def iter_beginning(read_at: ReadAt, offset: int, max_size_bytes: int) -> Iterator[bytes]:
    """Decompress a frame as far as the file has it; whole frames come whole, and checked.

    Args:
        read_at: Reads the file.
        offset: Where the frame begins.
        max_size_bytes: How much it may hold; what is held in memory is no more than that and a little.

    Raises:
        ValueError: No frame of this program begins there, it is damaged, or holds more.
    """
    start = read_at(offset, _MAX_HEADER_BYTES)
    if len(start) < MIN_FRAME_BYTES and _begins_frame(start):
        return
    size_bytes = read_content_size(start)
    check_frame_size(size_bytes, max_size_bytes)
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
    try:
        while not decompressor.eof and (stored := read_at(offset, _PIECE_BYTES)):
            offset += len(stored)
            content = decompressor.decompress(stored)
            size_bytes -= len(content)
            if size_bytes < 0:
                raise ValueError("a frame gives more than it says it holds")
            if content:
                yield content
    except zstandard.ZstdError as error:
        raise ValueError(f"a frame cannot be decompressed: {_reason(error)}") from None


def _begins_frame(start: bytes) -> bool:
    return struct.pack("<I", _MAGIC).startswith(start[:4])


def parse_block_header(head: bytes) -> tuple[bool, int]:
    """Read the three bytes before a block: whether it is the last of its frame, and its size in the file.

    Raises:
        ValueError: It is damaged.
    """
    number = int.from_bytes(head, "little")
    is_last, kind, block_bytes = bool(number & 1), number >> 1 & 3, number >> 3
    if kind == _RESERVED or block_bytes > _MAX_BLOCK_BYTES:
        raise ValueError("a frame has a damaged block")
    return is_last, 1 if kind == _RLE else block_bytes


def _reason(error: zstandard.ZstdError) -> str:
    return str(error).removeprefix("error determining content size from frame header").strip() or "it is damaged"
