"""Opens an archive and reads what is asked for, each scene by one range of the file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import deflate

from scannet_prep.archive.frames import MAX_FRAME_BYTES, FrameSpan, checksum_of, decompress_frame, stored_frame_bytes
from scannet_prep.archive.index import INDEX_NAME, GroupEntry, Index, MemberEntry, parse_index
from scannet_prep.archive.seek_table import FOOTER_BYTES, SeekTable, parse_footer, parse_seek_table
from scannet_prep.archive.source import ByteSource, open_source
from scannet_prep.archive.tar import TarMember, encode_header, parse_header
from scannet_prep.errors import ArchiveError

_TAIL_BYTES = 1 << 16
_TAIL_FRAMES = 2  # the index, and the end of the tar stream
_HINT = "scannet-prep verify says what is whole, scannet-prep unpack --salvage gets it out"


class Archive:
    """An open archive.

    Picklable, and safe under fork and in threads.

    Args:
        source: Where the bytes come from.

    Attributes:
        index: What is in it.
        table: Where each frame lies.

    Raises:
        ArchiveError: It is truncated, damaged at its end, or was written by something else.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        try:
            self.table = self._read_table()
            self.index = self._read_index()
            self._check_spans()
        except ValueError as error:
            if isinstance(error, ArchiveError):
                raise
            raise self._error(str(error)) from None

    @property
    def name(self) -> str:
        """Path or URL."""
        return self._source.name

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._source.size_bytes

    @property
    def source(self) -> ByteSource:
        """Where the bytes come from."""
        return self._source

    def close(self) -> None:
        """Close the file; reading opens it again."""
        self._source.close()

    def __enter__(self) -> Self:
        """Use it in a `with` statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def spans(self, group: GroupEntry) -> list[FrameSpan]:
        """Where the frames of a group lie."""
        return [self.table.span(group.first_frame + number) for number in range(group.frame_count)]

    def read_stored(self, span: FrameSpan) -> bytes:
        """Read a frame as it lies in the file.

        Raises:
            ArchiveError: The file ends before it does.
        """
        stored = self._source.read(span.offset, span.stored_bytes)
        if len(stored) != span.stored_bytes:
            raise self._error(f"ends in the middle of a frame: at byte {span.offset + len(stored):,}")
        return stored

    def iter_content(self, group: GroupEntry) -> Iterator[bytes]:
        """Read the tar bytes of a group, a frame at a time, and check them.

        When the last piece has been taken, everything has been checked that the archive says about the group: checksums
        of frames and file, size and sha256.

        Raises:
            ArchiveError: The group is damaged.
        """
        crc32, digest, size = 0, hashlib.sha256(), 0
        for number, span in enumerate(self.spans(group), start=group.first_frame):
            stored = self.read_stored(span)
            crc32 = deflate.crc32(stored, crc32)
            content = self._decompress(group, stored, span)
            if checksum_of(stored) != self.table.checksum(number):
                raise self._error(f"{group.name}: the seek table has another checksum than the frame")
            digest.update(content)
            size += len(content)
            is_last = number == group.first_frame + group.frame_count - 1
            if is_last and (crc32, digest.hexdigest(), size) != (group.stored_crc32, group.sha256, group.size_bytes):
                raise self._error(f"{group.name}: is damaged: its bytes are not those that the index names")
            yield content

    def read_member(self, group: GroupEntry, member: MemberEntry) -> memoryview:
        """Read one file of a group, checked by the checksums of its frames, its header and its CRC-32.

        Of a group of several frames, only those are read that hold the file.

        Raises:
            ArchiveError: The group is damaged.
        """
        header = encode_header(member.name, member.size_bytes)
        start, end = member.offset, member.offset + member.size_bytes
        pieces, first, position = list[bytes](), 0, 0
        for span in self.spans(group):
            if position < end and position + span.size_bytes > start - len(header):
                first = first if pieces else position
                pieces.append(self._decompress(group, self.read_stored(span), span))
            position += span.size_bytes
        content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        start, end = start - first, end - first
        data = memoryview(content)[start:end]
        if content[start - len(header) : start] != header or len(data) != member.size_bytes:
            raise self._error(f"{group.name}: {member.name} does not lie where the index says")
        if deflate.crc32(data) != member.crc32:
            raise self._error(f"{group.name}: {member.name} has not the CRC-32 that the index names")
        return data

    def _decompress(self, group: GroupEntry, stored: bytes, span: FrameSpan) -> bytes:
        try:
            return decompress_frame(stored, span.size_bytes)
        except ValueError as error:
            raise self._error(f"{group.name}: is damaged: {error}") from None

    def _read_table(self) -> SeekTable:
        size = self._source.size_bytes
        start = max(0, size - _TAIL_BYTES)
        tail = self._source.read(start, size - start)
        table_bytes = parse_footer(tail[-FOOTER_BYTES:], size)
        if table_bytes > len(tail):
            tail = self._source.read(size - table_bytes, table_bytes)
        return parse_seek_table(tail[-table_bytes:], size)

    def _read_index(self) -> Index:
        number = len(self.table) - _TAIL_FRAMES
        if number < 0:
            raise ValueError("has no index")
        return read_index(self._source, self.table.span(number))

    def _check_spans(self) -> None:
        """Check that index and table agree about every group."""
        count = len(self.table) - _TAIL_FRAMES
        last = self.index.groups[-1]
        if last.first_frame + last.frame_count != count:
            raise ValueError(
                f"the index names {last.first_frame + last.frame_count:,} frames, the seek table {count:,}"
            )
        if count and int(self.table.sizes[:count].max()) > MAX_FRAME_BYTES:
            raise ValueError(f"the seek table names a frame of more than {MAX_FRAME_BYTES:,} bytes")
        offsets, sizes = self.table.offsets.tolist(), [0, *self.table.sizes.cumsum().tolist()]
        for group in self.index.groups:
            first, end = group.first_frame, group.first_frame + group.frame_count
            found = offsets[first], offsets[end] - offsets[first], sizes[end] - sizes[first]
            if found != (group.offset, group.stored_bytes, group.size_bytes):
                raise ValueError(f"index and seek table disagree about {group.name}")

    def _error(self, problem: str) -> ArchiveError:
        return ArchiveError(self._source.name, problem, _HINT)


@dataclass(frozen=True, slots=True)
class ArchivedGroup:
    """A group, and the archive that it is in: what is unpacked, or taken over into another archive as it is.

    Attributes:
        archive: The archive.
        entry: What its index says of the group.
    """

    archive: Archive
    entry: GroupEntry

    @property
    def scene_id(self) -> str:
        """The scene; empty for the files that belong to none."""
        return self.entry.scene_id

    @property
    def size_bytes(self) -> int:
        """Size of its tar bytes."""
        return self.entry.size_bytes


def open_archive(place: str | Path | ByteSource) -> Archive:
    """Open an archive.

    Args:
        place: Its path, its address (`https://` or `http://`), or an object that reads its bytes, such as
            `scannet_prep.remote.ranges.RangeSource` with options.

    Raises:
        MissingFileError: There is no such file.
        ArchiveError: It is truncated, damaged at its end, or was written by something else.
        UsageError: It is no address.
        TransferError: It is on a web server, which does not give it.
    """
    return Archive(open_source(place))


def read_index(source: ByteSource, span: FrameSpan) -> Index:
    """Read the index from its frame.

    Raises:
        ValueError: It is damaged, or there is none.
    """
    if span.stored_bytes != stored_frame_bytes(span.size_bytes):
        # Such a frame is never compressed, so that a small file cannot hold an index that fills the memory.
        raise ValueError("the frame of the index has another size than its content asks for")
    return parse_index(take_index(decompress_frame(source.read(span.offset, span.stored_bytes), span.size_bytes)))


def take_index(content: bytes) -> bytes:
    """Take the text of the index out of the content of its frame.

    Raises:
        ValueError: It is not the frame of an index.
    """
    size = len(content)
    member: TarMember | None = parse_header(content[:512]) if size >= 512 else None
    if member is None or member.name != INDEX_NAME or 512 + member.size_bytes > size or size % 512:
        raise ValueError("the frame of the index holds something else")
    return content[512 : 512 + member.size_bytes]
