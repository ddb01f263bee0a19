"""Checks one group of an archive: its frames, its tar headers, and what the index says about both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import deflate

from scannet_prep.archive.frames import (
    CHECKSUM_BYTES,
    FrameSpan,
    ReadAt,
    check_frame_size,
    checksum_of,
    decompress_frame,
    find_frame,
)
from scannet_prep.archive.index import (
    FORMAT_NAME,
    GroupEntry,
    Head,
    MemberEntry,
    check_member_name,
    encode_head,
    find_scene_id,
)
from scannet_prep.archive.layout import Layout, Place
from scannet_prep.archive.read_ahead import WINDOW_BYTES, ReadAhead, choose_reader
from scannet_prep.archive.source import ByteSource
from scannet_prep.archive.tar import TarMember, TarParser, header_bytes, padding_bytes
from scannet_prep.archive.walk import find_first_name
from scannet_prep.errors import ArchiveError
from scannet_prep.files import Buffer

_MAX_FIRST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """A frame as it lies in the file.

    Attributes:
        stored_bytes: Its size.
        size_bytes: What it says that it holds.
        checksum: What it ends in.
    """

    stored_bytes: int
    size_bytes: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """What the check of one group found.

    Attributes:
        place: The group.
        scene_id: Its scene, from the index or else from the names in it; empty for the files that belong to none, and
            where nothing tells.
        problem: What is wrong; empty if nothing is.
        frames: Its frames; empty if something is wrong.
        members: Its files, as the tar headers tell; empty if something is wrong, and where only the structure was
            looked at.
        size_bytes: Size of its tar bytes.
    """

    place: Place
    scene_id: str
    problem: str = ""
    frames: tuple[FoundFrame, ...] = ()
    members: tuple[MemberEntry, ...] = ()
    size_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem


def check_group(
    source: ByteSource, place: Place, head: Head | None, *, is_quick: bool, advance: Callable[[int], None]
) -> GroupCheck:
    """Check one group.

    Of what the index says, everything is compared: number and size of the frames, CRC-32 of their bytes, size and
    sha256 of the tar bytes, names, places, sizes and CRC-32 of the files. Without an index, the checksums of the frames
    and the form of the tar stream have to do.

    Args:
        source: The archive.
        place: The group.
        head: What the index says about the whole archive; None where there is no index.
        is_quick: Only look at the headers of frames and blocks, and at the first tar header.
        advance: Told of bytes that have been read.
    """
    entry = place.entry
    scene_id = "" if entry is None else entry.scene_id
    try:
        check = _check_structure(source, place) if is_quick else _check_content(source, place, head, advance)
    except ArchiveError as error:
        problem = error.problem
    except ValueError as error:
        problem = str(error)
    except MemoryError:
        problem = "memory ran out"
    else:
        return check
    return GroupCheck(place, scene_id or _find_scene_id(source, place), problem)


def check_gaps(source: ByteSource, layout: Layout) -> list[GroupCheck]:
    """Describe the damaged groups that are left as gaps where there is no index."""
    places = [(Place(gap.offset, gap.end, 1), gap.problem) for gap in layout.gaps if gap.problem]
    return [GroupCheck(place, _find_scene_id(source, place), problem) for place, problem in places]


def read_found_member(source: ByteSource, check: GroupCheck, member: MemberEntry) -> bytes:
    """Read a file of a group that was found to be whole.

    Raises:
        ArchiveError: The archive cannot be read any more.
    """
    pieces, offset, position = [], check.place.offset, 0
    for frame in check.frames:
        start, end = member.offset - position, member.offset + member.size_bytes - position
        if start < frame.size_bytes and end > 0:
            content = decompress_frame(source.read(offset, frame.stored_bytes), frame.size_bytes)
            pieces.append(content[max(0, start) : end])
        offset += frame.stored_bytes
        position += frame.size_bytes
    return b"".join(pieces)


def _check_structure(source: ByteSource, place: Place) -> GroupCheck:
    read_at = choose_reader(source, place.end)
    frames = [
        FoundFrame(span.stored_bytes, span.size_bytes, read_at(span.end - CHECKSUM_BYTES, CHECKSUM_BYTES))
        for span in _iter_frames(read_at, place)
    ]
    size_bytes = sum(frame.size_bytes for frame in frames)
    name = find_first_name(read_at, place.offset)
    if name is None:
        raise ValueError("holds no file")
    entry = place.entry
    if entry is not None:
        _compare("frames", len(frames), entry.frame_count)
        _compare("bytes", size_bytes, entry.size_bytes)
        if entry.members and name != entry.members[0].name:
            raise ValueError(f"begins with {name[:80]!r}, but the index says {entry.members[0].name[:80]!r}")
    scene_id = _scene_of(name) if entry is None else entry.scene_id
    return GroupCheck(place, scene_id, frames=tuple(frames), size_bytes=size_bytes)


def _check_content(source: ByteSource, place: Place, head: Head | None, advance: Callable[[int], None]) -> GroupCheck:
    entry, frames, content, crc32 = place.entry, list[FoundFrame](), _TarContent(), 0
    window = ReadAhead(source, place.end)
    for span in _iter_frames(window.read, place):
        stored = window.read(span.offset, span.stored_bytes)
        crc32 = deflate.crc32(stored, crc32)
        content.add(decompress_frame(stored, span.size_bytes))
        frames.append(FoundFrame(span.stored_bytes, span.size_bytes, checksum_of(stored)))
        advance(span.stored_bytes)
    members = content.finish()
    if entry is not None:
        _compare("frames", len(frames), entry.frame_count)
        _compare("bytes", content.size_bytes, entry.size_bytes)
        if content.sha256 != entry.sha256:
            raise ValueError("the sha256 of its tar bytes is not that of the index")
        if crc32 != entry.stored_crc32:
            raise ValueError("the CRC-32 of its frames is not that of the index, though its files are whole")
        _compare_members(members, entry)
    if place.offset == 0:
        _check_first(members, content.first, head)
    scene_id = _check_names(members, place)
    return GroupCheck(place, scene_id, "", tuple(frames), members, content.size_bytes)


def _iter_frames(read_at: ReadAt, place: Place) -> Iterator[FrameSpan]:
    """Go from frame to frame; where the group ends, one must end too."""
    offset = place.offset
    while offset < place.end:
        span = find_frame(read_at, offset)
        if span is None or span.end > place.end:
            raise ValueError("a frame runs beyond the end of the group")
        check_frame_size(span.size_bytes)
        if span.stored_bytes > WINDOW_BYTES:
            raise ValueError(f"a frame has {span.stored_bytes:,} bytes, more than its content can need")
        yield span
        offset = span.end


class _TarContent:
    """Takes the tar bytes of a group and tells what files are in them."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.first = b""  # what is in the first file, if that is short
        self._parser = TarParser()
        self._digest = hashlib.sha256()
        self._members: list[MemberEntry] = []
        self._member: TarMember | None = None
        self._end = self._start = self._crc32 = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def add(self, content: Buffer) -> None:
        self._digest.update(content)
        self.size_bytes += len(content)
        for item in self._parser.feed(content):
            if isinstance(item, TarMember):
                self._member, self._crc32 = item, 0
                self._start = self._end + header_bytes(item.name, item.size_bytes)
                self._end = self._start + item.size_bytes + padding_bytes(item.size_bytes)
            elif item is not None:
                self._crc32 = deflate.crc32(item, self._crc32)
                if not self._members and len(self.first) < _MAX_FIRST_BYTES:
                    self.first += item[:_MAX_FIRST_BYTES]
            elif self._member is not None:
                member = self._member
                self._members.append(MemberEntry(member.name, self._start, member.size_bytes, self._crc32))

    def finish(self) -> tuple[MemberEntry, ...]:
        if not self._parser.is_at_boundary or self._end != self.size_bytes:
            raise ValueError("the tar stream of the group does not end where its frames do")
        if not self._members:
            raise ValueError("holds no file")
        return tuple(self._members)


def _compare(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"has {found:,} {what}, but the index says {expected:,}")


def _compare_members(members: tuple[MemberEntry, ...], entry: GroupEntry) -> None:
    """Compare what the tar headers say with the index; the sha256 having been right, it is the index that is wrong."""
    _compare("files", len(members), len(entry.members))
    for found, expected in zip(members, entry.members, strict=True):
        if found != expected:
            raise ValueError(f"the tar stream has {_describe(found)}, but the index says {_describe(expected)}")


def _describe(member: MemberEntry) -> str:
    return f"{member.name[:80]!r} at {member.offset:,}, {member.size_bytes:,} bytes with CRC-32 {member.crc32:08x}"


def _check_first(members: tuple[MemberEntry, ...], first: bytes, head: Head | None) -> None:
    if members[0].name != FORMAT_NAME:
        raise ValueError(f"the archive begins with {members[0].name[:80]!r}, expected {FORMAT_NAME}")
    if head is not None and first != encode_head(head):
        raise ValueError(f"{FORMAT_NAME} is not what the index says about the archive")


def _check_names(members: tuple[MemberEntry, ...], place: Place) -> str:
    """Check that all files are of the group's scene, and stay in the folder that they are unpacked to."""
    plain = [member.name for member in members[1 if place.offset == 0 else 0 :]]
    for name in plain:
        check_member_name(name)
    found = {_scene_of(name) for name in plain}
    if place.entry is not None:
        expected = place.entry.scene_id
    elif place.offset == 0:
        expected = ""
    else:
        expected = min(found)
    if found - {expected}:
        raise ValueError(f"holds files of {min(found - {expected}) or 'no scene'}")
    return expected


def _scene_of(name: str) -> str:
    return find_scene_id(name) or ""


def _find_scene_id(source: ByteSource, place: Place) -> str:
    """Tell from the first name which scene a damaged group is, if its beginning can still be read."""
    try:
        return _scene_of(find_first_name(source.read, place.offset) or "")
    except ValueError:
        return ""
