"""The table at the end of an archive, in zstd's official seekable format.

https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scannet_prep.archive.frames import MAX_CONTENT_BYTES, FrameSpan
from scannet_prep.files import Buffer

FOOTER_BYTES = 9
ENTRY_BYTES = 12

_SKIPPABLE_HEADER = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A5E
_FOOTER = struct.Struct("<IBI")
_SEEKABLE_MAGIC = 0x8F92EAB1
_HAS_CHECKSUMS = 0x80
_ENTRY = np.dtype([("stored", "<u4"), ("size", "<u4"), ("checksum", "<u4")])


class SeekTable:
    """Where each frame lies.

    Attributes:
        offsets: First byte of each frame in the file, int64 (n + 1,); the last is where the table begins.
        sizes: Size of each frame's content, int64 (n,).
        checksums: Low 32 bits of the XXH64 of each content, uint32 (n,).
    """

    __slots__ = ("checksums", "offsets", "sizes")

    def __init__(self, stored: NDArray[np.integer], sizes: NDArray[np.integer], checksums: NDArray[np.integer]) -> None:
        self.offsets: NDArray[np.int64] = np.concatenate(([0], np.cumsum(stored, dtype=np.int64)))
        self.sizes: NDArray[np.int64] = sizes.astype(np.int64)
        self.checksums: NDArray[np.uint32] = checksums.astype(np.uint32)

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.sizes)

    def span(self, number: int) -> FrameSpan:
        """Where a frame lies."""
        offset = int(self.offsets[number])
        return FrameSpan(offset, int(self.offsets[number + 1]) - offset, int(self.sizes[number]))

    def checksum(self, number: int) -> bytes:
        """The checksum of a frame's content, as it stands at its end."""
        return int(self.checksums[number]).to_bytes(4, "little")


def encode_seek_table(frames: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Encode the table.

    Args:
        frames: Of each frame the size in the file, the size of its content, and its checksum.
    """
    entries = np.array(
        [(stored, size, int.from_bytes(checksum, "little")) for stored, size, checksum in frames], _ENTRY
    )
    header = _SKIPPABLE_HEADER.pack(_SKIPPABLE_MAGIC, ENTRY_BYTES * len(entries) + FOOTER_BYTES)
    return header + entries.tobytes() + _FOOTER.pack(len(entries), _HAS_CHECKSUMS, _SEEKABLE_MAGIC)


def seek_table_bytes(frame_count: int) -> int:
    """Size of the table of so many frames."""
    return _SKIPPABLE_HEADER.size + ENTRY_BYTES * frame_count + FOOTER_BYTES


def parse_footer(footer: Buffer, file_bytes: int) -> int:
    """Read from the last 9 bytes of a file how many bytes the table has.

    Raises:
        ValueError: The file does not end in a table.
    """
    if len(footer) != FOOTER_BYTES:
        raise ValueError(f"the file has only {file_bytes} bytes")
    count, descriptor, magic = _FOOTER.unpack(footer)
    if magic != _SEEKABLE_MAGIC:
        raise ValueError("does not end in a seek table: it is truncated, or no archive of scannet-prep pack")
    if descriptor != _HAS_CHECKSUMS:
        raise ValueError(f"the seek table has the descriptor {descriptor:#04x}, expected {_HAS_CHECKSUMS:#04x}")
    size = seek_table_bytes(count)
    if size > file_bytes:
        raise ValueError(f"the seek table names {count:,} frames, more than the file can hold")
    return size


def parse_seek_table(data: Buffer, file_bytes: int) -> SeekTable:
    """Read the table, and check that its frames fill the file.

    Args:
        data: The table, all of its bytes.
        file_bytes: Size of the file that it ends.

    Raises:
        ValueError: It is damaged.
    """
    if parse_footer(data[-FOOTER_BYTES:], file_bytes) != len(data):
        raise ValueError("the seek table contradicts itself")
    magic, size = _SKIPPABLE_HEADER.unpack_from(data)
    if magic != _SKIPPABLE_MAGIC or size != len(data) - _SKIPPABLE_HEADER.size:
        raise ValueError("the seek table has a damaged beginning")
    entries = np.frombuffer(data, _ENTRY, offset=_SKIPPABLE_HEADER.size, count=(size - FOOTER_BYTES) // ENTRY_BYTES)
    table = SeekTable(entries["stored"], entries["size"], entries["checksum"])
    if int(table.offsets[-1]) + len(data) != file_bytes:
        raise ValueError(
            f"the seek table is for a file of {int(table.offsets[-1]) + len(data):,} bytes, this one has {file_bytes:,}"
        )
    if len(table) and int(table.sizes.max()) > MAX_CONTENT_BYTES:
        raise ValueError(f"the seek table names a frame of more than {MAX_CONTENT_BYTES:,} bytes")
    return table
