"""The frames of an archive: tar bytes, compressed, and the seek table that lists them.

    tar bytes     header (512 bytes) | file | zeros up to a multiple of 512 | next header | ...
    frame         tar bytes, compressed; its header has their size, and it ends with their checksum
    seek table    sizes and checksum of each frame, in a skippable frame

Formats:
https://github.com/facebook/zstd/blob/dev/doc/zstd_compression_format.md
https://github.com/facebook/zstd/blob/dev/contrib/seekable_format/zstd_seekable_compression_format.md
"""

from __future__ import annotations

import os
import struct
import tarfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

import numpy as np
import zstandard
from numpy.typing import ArrayLike, NDArray

from scannet_prep.base.file_kinds import BEGINNING_BYTES, describe_beginning
from scannet_prep.base.files import open_file
from scannet_prep.errors import ArchiveError, ContentError, FileError, MissingFileError

if TYPE_CHECKING:
    from scannet_prep.remote.archive import RemoteArchive

SUFFIX = ".tar.zst"

BLOCK_BYTES = tarfile.BLOCKSIZE
END_OF_TAR = bytes(2 * BLOCK_BYTES)
MAX_FRAME_BYTES = 1 << 30
# A piece of a frame this long has at most 256 MiB of content.
_PIECE_BYTES = 1 << 13
# Holds the seek table of up to 5,460 frames.
_END_BYTES = 1 << 16

_TABLE_HEADER = struct.Struct("<4sI")
_TABLE_FOOTER = struct.Struct("<IB4s")
_SKIPPABLE_MAGIC = b"\x5e\x2a\x4d\x18"
_SEEKABLE_MAGIC = b"\xb1\xea\x92\x8f"
_HAS_CHECKSUMS = 0b1000_0000
_ROW_BYTES = 12
HINT_DAMAGED = (
    "copy the archive again, or pack it again; if it was replaced, open it again; scannet-prep "
    "unpack ARCHIVE recovers its intact scenes, and unpack - < ARCHIVE those of a truncated one"
)

SeekRow: TypeAlias = list[int]
"""A frame in the seek table: its size, the size of its content, and the low half of the XXH64 of
its content, which is also the last four bytes of the frame."""

ByteSource: TypeAlias = "FileSource | RemoteArchive"
"""The bytes of an archive, any range of which can be read: picklable, safe under fork, in threads.
"""


class FileSource:
    """An archive on a disk, which is opened for each read: processes and threads share nothing.

    Args:
        path: The archive.

    Attributes:
        name: The path.
        size_bytes: The size of the file.
        end: Its last 64 KiB, with the seek table of most archives.

    Raises:
        MissingFileError: The file does not exist.
        FileError: It is not a regular file, or cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)
        with open_file(Path(self.name)) as file:
            self.size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, self.size_bytes - _END_BYTES))
            self.end = file.read()

    def read(self, offset: int, size: int, /) -> bytes:
        """Read a range; the result is shorter only if the file ends within the range.

        Raises:
            MissingFileError: The file does not exist any more.
            FileError: It cannot be read.
        """
        try:
            with FileIO(self.name) as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            raise MissingFileError(self.name, "no such file") from None
        except OSError as error:
            raise FileError(self.name, f"cannot be read: {error.strerror}") from error


def open_source(place: str | Path) -> ByteSource:
    """Open the bytes of an archive.

    Args:
        place: A path, or an address such as `https://HOST/NAME.tar.zst`.

    Raises:
        MissingFileError: The file does not exist.
        FileError: It is not a regular file, or cannot be opened.
        TransferError: The server or the store does not send it.
    """
    if isinstance(place, str) and "://" in place:
        # Imported here: training from a local file does not need requests.
        from scannet_prep.remote.archive import RemoteArchive

        return RemoteArchive(place, _END_BYTES)
    return FileSource(place)


def iter_members(content: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Iterate over the files in tar bytes.

    Raises:
        ContentError: A file is not whole, or has a header that `encode_header` does not make: for
            example, it is a link.
    """
    position = 0
    while position < len(content):
        start = position + BLOCK_BYTES
        header = bytes(content[position:start])
        try:
            # Only name and size vary. The first folders of a long name are in a field of their own.
            folder, file = header[345:500].rstrip(b"\0"), header[:100].rstrip(b"\0")
            name = (folder + b"/" + file if folder else file).decode()
            size_bytes = int(header[124:135], 8)
            is_own = encode_header(name, size_bytes) == header
        except ValueError:
            is_own = False
        if not is_own or start + size_bytes > len(content):
            raise ContentError("one of its tar headers is damaged, or not of a plain, whole file")
        yield name, content[start : start + size_bytes]
        position = start + size_bytes + -size_bytes % BLOCK_BYTES


def encode_header(name: str, size_bytes: int) -> bytes:
    """Encode the tar header of a file, with owner and time 0: equal files have equal headers."""
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    return info.tobuf(tarfile.USTAR_FORMAT)


def find_row(frame: bytes) -> SeekRow:
    """Find the row of a frame for the seek table."""
    return [len(frame), zstandard.frame_content_size(frame), int.from_bytes(frame[-4:], "little")]


def encode_seek_table(rows: ArrayLike) -> bytes:
    """Encode the seek table of an archive with these frames, one row after the other."""
    body = np.array(rows, "<u4").tobytes()
    count = len(body) // _ROW_BYTES
    body += _TABLE_FOOTER.pack(count, _HAS_CHECKSUMS, _SEEKABLE_MAGIC)
    return _TABLE_HEADER.pack(_SKIPPABLE_MAGIC, len(body)) + body


class SeekableFrames:
    """The frames of an archive, any of which can be read. Picklable, safe under fork, in threads.

    Args:
        source: The archive.

    Attributes:
        name: Its path or address, for messages.
        count: Their number.

    Raises:
        ArchiveError: It is truncated, or something else.
        FileError, TransferError: It cannot be read.
    """

    def __init__(self, source: ByteSource) -> None:
        self.name = source.name
        self._source = source
        self._rows = read_seek_table(source)
        self.count = len(self._rows)
        self._ends = np.cumsum(self._rows[:, 0], dtype=np.int64)

    def read(self, number: int) -> memoryview:
        """Read the content of a frame, and verify its checksum.

        Raises:
            ContentError: It is damaged, belongs to another archive, or has more than 1 GiB.
            FileError: The archive cannot be read.
            TransferError: The server does not send it.
        """
        row = self._rows[number].tolist()
        frame = self._source.read(int(self._ends[number]) - row[0], row[0])
        try:
            # An intact frame with another row belongs to a file that has replaced the archive.
            if find_row(frame) != row or row[1] > MAX_FRAME_BYTES:
                raise ContentError("its frame is not the one that the seek table lists")
            content = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ContentError(f"its frame cannot be decompressed: {error}") from None
        return memoryview(content)


def read_seek_table(source: ByteSource) -> NDArray[np.uint32]:
    """Read the seek table at the end of an archive.

    Returns:
        uint32 (frames, 3), a `SeekRow` each.

    Raises:
        ArchiveError: The seek table is missing, or does not describe the archive.
        FileError, TransferError: The archive cannot be read.
    """
    end = source.size_bytes
    table = source.end
    count = int.from_bytes(table[-_TABLE_FOOTER.size :][:4], "little")
    start = end - _TABLE_HEADER.size - count * _ROW_BYTES - _TABLE_FOOTER.size
    if start >= 0 and table.endswith(_SEEKABLE_MAGIC):
        if end - start > len(table):
            table = source.read(start, end - start)
        table = table[start - end :]
        rows = np.frombuffer(table, "<u4", 3 * count, _TABLE_HEADER.size).reshape(-1, 3)
        if encode_seek_table(rows) == table and rows[:, 0].sum(dtype=np.int64) == start:
            return rows
    kind = describe_beginning(source.read(0, BEGINNING_BYTES)) or "a file of another kind"
    problem = f"is {kind}, expected a whole archive of scannet-prep pack, ending with a seek table"
    raise ArchiveError(source.name, problem, HINT_DAMAGED)


class PipedFrames:
    """The frames of an archive that is read once and in order, from a pipe.

    Args:
        file: The archive.

    Attributes:
        name: The name of a pipe, for messages.
        count: None, since their number is not known.
    """

    name = "standard input"
    count = None

    def __init__(self, file: IO[bytes]) -> None:
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
        data += file.read(_PIECE_BYTES - len(data))
        # The seek table has no checksum.
        has_frame = data[:4] not in (b"", _SKIPPABLE_MAGIC)
        if has_frame and not zstandard.get_frame_parameters(data).has_checksum:
            raise ContentError("its frame has no checksum")
        frame = zstandard.ZstdDecompressor().decompressobj()
        content = bytearray()
        while not frame.eof:
            data = data or file.read(_PIECE_BYTES)
            content += frame.decompress(data)
            if not data or len(content) > MAX_FRAME_BYTES:
                raise ContentError("the archive ends too early, or a frame is too large")
            data = frame.unused_data
        yield content
