"""The seek table: the skippable frame at the end by which other programs find any byte of the tar stream.

Format: https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from scannet_prep.errors import ContentError
from scannet_prep.files import Buffer

FOOTER_BYTES = 9
SKIPPABLE_MAGIC = b"\x5e\x2a\x4d\x18"

_SEEKABLE_MAGIC = b"\xb1\xea\x92\x8f"
_HAS_CHECKSUMS = 0b1000_0000
_HEADER = struct.Struct("<4sI")
_ROW = struct.Struct("<II4s")
_FOOTER = struct.Struct("<IB4s")


class FrameRow(NamedTuple):
    """What the table says of one frame.

    Attributes:
        stored_bytes: Its size in the file.
        size_bytes: Size of its content.
        checksum: The last four bytes of the frame.
    """

    stored_bytes: int
    size_bytes: int
    checksum: bytes


def encode_seek_table(rows: Sequence[FrameRow]) -> bytes:
    """Encode the table, with everything around it."""
    body = b"".join(_ROW.pack(*row) for row in rows)
    footer = _FOOTER.pack(len(rows), _HAS_CHECKSUMS, _SEEKABLE_MAGIC)
    return _HEADER.pack(SKIPPABLE_MAGIC, len(body) + FOOTER_BYTES) + body + footer


def table_bytes(frame_count: int) -> int:
    """Size of the table of so many frames."""
    return _HEADER.size + frame_count * _ROW.size + FOOTER_BYTES


def parse_footer(footer: Buffer, file_bytes: int) -> int:
    """Read from the last bytes of a file how many of them are the table.

    Raises:
        ContentError: The file does not end in a table, or in one that cannot be that of a file of this size.
    """
    if len(footer) < FOOTER_BYTES:
        raise ContentError("the file is too short for a seek table")
    count, descriptor, magic = _FOOTER.unpack(footer[-FOOTER_BYTES:])
    if magic != _SEEKABLE_MAGIC or descriptor != _HAS_CHECKSUMS:
        raise ContentError("the file does not end in a seek table: it is truncated, or something follows its end")
    size_bytes = table_bytes(count)
    if size_bytes > file_bytes:
        raise ContentError(f"the seek table is said to name {count:,} frames, more than the file can hold")
    return size_bytes


def parse_seek_table(data: Buffer, file_bytes: int) -> list[FrameRow]:
    """Read the table, and check that its frames and itself make up the file.

    Args:
        data: All of its bytes.
        file_bytes: Size of the file that it ends; 0 where nobody knows.

    Raises:
        ContentError: It is damaged.
    """
    if len(data) < _HEADER.size or parse_footer(data, len(data)) != len(data):
        raise ContentError("the seek table is damaged")
    if _HEADER.unpack_from(data) != (SKIPPABLE_MAGIC, len(data) - _HEADER.size):
        raise ContentError("the seek table has a damaged beginning")
    rows = list(map(FrameRow._make, _ROW.iter_unpack(data[_HEADER.size : -FOOTER_BYTES])))
    total_bytes = sum(row.stored_bytes for row in rows) + len(data)
    if file_bytes and total_bytes != file_bytes:
        raise ContentError(f"the seek table is that of a file of {total_bytes:,} bytes, this one has {file_bytes:,}")
    return rows
