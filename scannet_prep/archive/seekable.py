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
from typing import IO, Any, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray

from scannet_prep.archive.sources import SUFFIX, ByteSource
from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.base.files import Buffer
from scannet_prep.errors import ArchiveError, ContentError

_BLOCK_BYTES = tarfile.BLOCKSIZE
END_OF_TAR = bytes(2 * _BLOCK_BYTES)
# `zstd -d` and `tar --zstd` accept this window without further options.
_MAX_WINDOW_BYTES = 1 << 27
# A piece of a frame this long has at most 256 MiB of content.
_PIECE_BYTES = 1 << 13
# zstd's own level 0 is another name of its default level.
_STORING_LEVEL = -(1 << 17)
MAX_FRAME_BYTES = 1 << 30

_TABLE_HEADER = struct.Struct("<4sI")
_TABLE_FOOTER = struct.Struct("<IB4s")
_SKIPPABLE_MAGIC = b"\x5e\x2a\x4d\x18"
_SEEKABLE_MAGIC = b"\xb1\xea\x92\x8f"
_HAS_CHECKSUMS = 0b1000_0000
_ROW_BYTES = 12
HINT_DAMAGED = (
    "copy the archive again, or pack it again; "
    "scannet-prep unpack - < ARCHIVE recovers what comes before the damage"
)

SeekRow: TypeAlias = tuple[int, int, int]
"""A frame in the seek table: its size, the size of its content, and the low half of the XXH64 of
its content, which is also the last four bytes of the frame."""


def encode_members(files: Mapping[str, Buffer]) -> bytes:
    """Encode files as tar bytes, with owner and time 0, so that equal files give equal bytes."""
    pieces: list[Buffer] = []
    for name, data in files.items():
        header = _encode_header(name, len(data))
        padding = bytes(-len(data) % _BLOCK_BYTES)
        pieces += [header, data, padding]
    return b"".join(pieces)


def iter_members(content: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Iterate over the files in tar bytes.

    Raises:
        ContentError: A file is not whole, or was not encoded by `encode_members`: for example, it
            is a link.
    """
    position = 0
    while position < len(content):
        start = position + _BLOCK_BYTES
        header = bytes(content[position:start])
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
            is_own = _encode_header(info.name, info.size) == header
        except (tarfile.HeaderError, ValueError):
            is_own = False
        if not is_own or start + info.size > len(content):
            raise ContentError("one of its tar headers is damaged, or not of a plain, whole file")
        yield info.name, content[start : start + info.size]
        position += member_bytes(info.size)


def member_bytes(size_bytes: int) -> int:
    """Return the size of a file of this size with its header and the zeros after it."""
    return _BLOCK_BYTES + size_bytes + -size_bytes % _BLOCK_BYTES


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


def make_decompressor() -> zstandard.ZstdDecompressor:
    """Make a decompressor, for one frame at a time."""
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)


def find_row(frame: bytes) -> SeekRow:
    """Find the row of a frame for the seek table."""
    return len(frame), zstandard.frame_content_size(frame), int.from_bytes(frame[-4:], "little")


class SeekableFrames:
    """The frames of an archive, any of which can be read. Picklable, safe under fork, in threads.

    Args:
        source: The archive.

    Attributes:
        name: Its path or address, for messages.

    Raises:
        ArchiveError: It is truncated, or something else.
        FileError, TransferError: It cannot be read.
    """

    def __init__(self, source: ByteSource) -> None:
        self.name = source.name
        self._source = source
        self._rows = read_seek_table(source)
        self._ends = np.cumsum(self._rows[:, 0], dtype=np.int64)

    def read(self, number: int) -> memoryview:
        """Read the content of a frame into new, writable memory, and verify its checksum.

        Raises:
            ContentError: It is damaged, is none of this archive, or has more than 1 GiB.
            FileError: The archive cannot be read, or was replaced since it was opened.
            TransferError: The server does not send it.
        """
        if number >= len(self._rows):
            raise ContentError("it has fewer frames than its index lists")
        row = tuple(self._rows[number].tolist())
        stored_bytes, size_bytes, _ = row
        frame = self._source.read(int(self._ends[number]) - stored_bytes, stored_bytes)
        try:
            has_checksum = zstandard.get_frame_parameters(frame).has_checksum
            # An intact frame with another row is that of a file that has replaced the archive.
            if find_row(frame) != row or not has_checksum or size_bytes > MAX_FRAME_BYTES:
                raise ContentError("its frame is not the one that the seek table lists")
            # Unlike a bytearray, an empty array is not cleared first.
            content = np.empty(size_bytes, np.uint8).data
            with make_decompressor().stream_reader(frame) as reader:
                read_bytes = reader.readinto(content)
                # Reading beyond the end verifies the checksum.
                reader.read(1)
        except zstandard.ZstdError as error:
            raise ContentError(f"its frame cannot be decompressed: {error}") from None
        if read_bytes < size_bytes:
            raise ContentError("its frame is not whole")
        return content


def encode_seek_table(rows: Sequence[SeekRow] | NDArray[Any]) -> bytes:
    """Encode the seek table of an archive with these frames."""
    body = np.array(rows, "<u4").tobytes()
    body += _TABLE_FOOTER.pack(len(rows), _HAS_CHECKSUMS, _SEEKABLE_MAGIC)
    return _TABLE_HEADER.pack(_SKIPPABLE_MAGIC, len(body)) + body


def read_seek_table(source: ByteSource) -> NDArray[np.uint32]:
    """Read the seek table at the end of an archive.

    Returns:
        uint32 (frames, 3), a `SeekRow` each.

    Raises:
        ArchiveError: The seek table is missing, or does not describe the archive.
        FileError, TransferError: The archive cannot be read.
    """
    end = source.size_bytes
    rows_end = end - _TABLE_FOOTER.size
    footer = source.read(max(0, rows_end), _TABLE_FOOTER.size)
    count = int.from_bytes(footer[:4], "little")
    start = rows_end - count * _ROW_BYTES - _TABLE_HEADER.size
    if start >= 0:
        table = source.read(start, end - start)
        rows = np.frombuffer(table, "<u4", 3 * count, _TABLE_HEADER.size).reshape(-1, 3)
        if encode_seek_table(rows) == table and rows[:, 0].sum(dtype=np.int64) == start:
            return rows
    kind = describe_beginning(source.read(0, BEGINNING_BYTES)) or "a file of another kind"
    problem = f"is {kind}, expected a whole {SUFFIX} archive, which ends with a seek table"
    raise ArchiveError(source.name, problem, HINT_DAMAGED)


class PipedFrames:
    """The frames of an archive that is read once and in order, as from a pipe.

    Args:
        file: The archive.
        name: Its name, for messages.

    Attributes:
        name: As given.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.name = name
        self._frames = enumerate(_iter_frames(file))

    def read(self, number: int) -> memoryview:
        """Read the content of a frame; those before it cannot be read any more.

        Raises:
            ContentError: It is damaged, or comes after damage, or the archive ends too early.
        """
        try:
            for position, content in self._frames:
                if position == number:
                    return memoryview(content)
        except zstandard.ZstdError as error:
            raise ContentError(f"its frame cannot be decompressed: {error}") from None
        raise ContentError("it comes after other damage")


def _iter_frames(file: IO[bytes]) -> Iterator[bytearray]:
    """Iterate over the contents of frames, whose checksums are verified."""
    data = b""
    while True:
        frame = make_decompressor().decompressobj()
        content = bytearray()
        while not frame.eof:
            data = data or file.read(_PIECE_BYTES)
            content += frame.decompress(data)
            if not data or len(content) > MAX_FRAME_BYTES:
                raise ContentError("the archive ends too early, or a frame is too large")
            data = frame.unused_data
        yield content
