"""Tar bytes in zstd frames, and the seek table that lists the frames.

    tar bytes     header (512 bytes) | file | zeros up to a multiple of 512 | next header | ...
    frame         tar bytes, compressed; its header has their size, and it ends with their checksum
    seek table    sizes and checksum of each frame, in a skippable frame

Formats:
https://github.com/facebook/zstd/blob/dev/doc/zstd_compression_format.md
https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md
"""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import zstandard

from scannet_prep.archive.sources import ByteSource
from scannet_prep.base.files import Buffer
from scannet_prep.errors import ContentError

BLOCK_BYTES = tarfile.BLOCKSIZE
END_OF_TAR = bytes(2 * BLOCK_BYTES)
# `zstd -d` and `tar --zstd` accept this window without further options.
_MAX_WINDOW_BYTES = 1 << 27
# zstd's own level 0 is another name of its default level.
_STORING_LEVEL = -(1 << 17)
CHECKSUM_BYTES = 4

_TABLE_HEADER = struct.Struct("<4sI")
_TABLE_ROW = struct.Struct("<II4s")
_TABLE_FOOTER = struct.Struct("<IB4s")
SKIPPABLE_MAGIC = b"\x5e\x2a\x4d\x18"
_SEEKABLE_MAGIC = b"\xb1\xea\x92\x8f"
_HAS_CHECKSUMS = 0b1000_0000
MAX_FRAME_BYTES = 1 << 30
# The files of no scene, the index, and the end of the tar stream.
_MIN_FRAMES = 3


def encode_members(files: Mapping[str, Buffer]) -> bytes:
    """Encode files as tar bytes, with owner and time 0, so that equal files give equal bytes."""
    pieces: list[Buffer] = []
    for name, data in files.items():
        header = _encode_header(name, len(data))
        padding = bytes(-len(data) % BLOCK_BYTES)
        pieces += [header, data, padding]
    return b"".join(pieces)


def iter_members(content: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Iterate over the files in tar bytes.

    Raises:
        ContentError: A header is damaged, or was not made by `encode_members`.
    """
    position = 0
    while position < len(content):
        start = position + BLOCK_BYTES
        header = bytes(content[position:start])
        name, size_bytes = _parse_header(header)
        end = start + size_bytes
        if end > len(content):
            raise ContentError(f"{name!a} is not whole")
        yield name, content[start:end]
        position += member_bytes(size_bytes)


def _parse_header(header: bytes) -> tuple[str, int]:
    """Read name and size of a file from its header.

    Raises:
        ContentError: It is damaged, or was not made by `encode_members`: for example, it is the
            header of a link.
    """
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        # A header can have a negative size.
        has_size = info.size >= 0
        is_own = has_size and _encode_header(info.name, info.size) == header
    except (tarfile.HeaderError, ValueError) as error:
        raise ContentError(f"a tar header is damaged: {error}") from None
    if not is_own:
        raise ContentError(f"{info.name[:200]!a} is not a plain file as scannet-prep packs it")
    return info.name, info.size


def member_bytes(size_bytes: int) -> int:
    """Return the size of a file of this size with its header and the zeros after it."""
    return BLOCK_BYTES + size_bytes + -size_bytes % BLOCK_BYTES


def _encode_header(name: str, size_bytes: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    return info.tobuf(tarfile.USTAR_FORMAT)


def compress(content: Buffer, level: int) -> bytes:
    """Make a frame, always the same for the same content, level and version of zstd.

    Args:
        content: Its content.
        level: Compression level of zstd, 1..22; 0 for hardly any compression.
    """
    compressor = zstandard.ZstdCompressor(
        level=level or _STORING_LEVEL,
        write_checksum=True,
        write_content_size=True,
    )
    return compressor.compress(content)


class SeekRow(NamedTuple):
    """The row of a frame in the seek table.

    Attributes:
        stored_bytes: Size of the frame.
        size_bytes: Size of its content.
        checksum: The low half of the XXH64 of its content: the last four bytes of the frame.
    """

    stored_bytes: int
    size_bytes: int
    checksum: bytes

    @classmethod
    def from_frame(cls, frame: bytes) -> SeekRow:
        """Make the row of a frame."""
        size_bytes = zstandard.frame_content_size(frame)
        return cls(len(frame), size_bytes, frame[-CHECKSUM_BYTES:])


def decompress(frame: bytes) -> memoryview:
    """Decompress a frame into new, writable memory, and verify its checksum.

    Raises:
        ContentError: It is damaged, or has no checksum, or no size of at most 1 GiB.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    try:
        header = zstandard.get_frame_parameters(frame)
        # Before memory is allocated. An unknown size is a very large number.
        if not header.has_checksum or header.content_size > MAX_FRAME_BYTES:
            raise ContentError("a frame has no checksum, or no size")
        # Unlike a bytearray, an empty array is not cleared first.
        content = np.empty(header.content_size, np.uint8).data
        with decompressor.stream_reader(frame) as reader:
            read_bytes = reader.readinto(content) if content else 0
            # Reading beyond the end verifies the checksum.
            reader.read(1)
    except zstandard.ZstdError as error:
        raise ContentError(f"a frame cannot be decompressed: {error}") from None
    if read_bytes < len(content):
        raise ContentError("a frame is not whole")
    return content


def encode_seek_table(rows: Sequence[SeekRow]) -> bytes:
    """Encode the seek table of an archive with these frames."""
    body = b"".join(_TABLE_ROW.pack(*row) for row in rows)
    body += _TABLE_FOOTER.pack(len(rows), _HAS_CHECKSUMS, _SEEKABLE_MAGIC)
    header = _TABLE_HEADER.pack(SKIPPABLE_MAGIC, len(body))
    return header + body


def read_seek_table(source: ByteSource) -> list[SeekRow]:
    """Read the seek table at the end of an archive.

    Raises:
        ContentError: There is none, or it does not describe the archive.
    """
    end = source.size_bytes
    footer_start = max(0, end - _TABLE_FOOTER.size)
    footer = source.read(footer_start, _TABLE_FOOTER.size)
    count = int.from_bytes(footer[:4], "little")
    rows_start = footer_start - count * _TABLE_ROW.size
    start = rows_start - _TABLE_HEADER.size
    is_possible = start >= 0 and count >= _MIN_FRAMES
    if not is_possible or not footer.endswith(_SEEKABLE_MAGIC):
        raise ContentError("it does not end with a seek table")
    table = source.read(start, end - start)
    body = table[_TABLE_HEADER.size : -_TABLE_FOOTER.size]
    rows = []
    stored_bytes = 0
    for values in _TABLE_ROW.iter_unpack(body):
        row = SeekRow(*values)
        rows.append(row)
        stored_bytes += row.stored_bytes
    if encode_seek_table(rows) != table or stored_bytes != start:
        raise ContentError("its seek table does not describe it")
    return rows
