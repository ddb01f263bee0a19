"""Open archives by their index, and read single files.

    open_archive(place) -- end of the file: seek table -> frame of the index -> Archive.index
    Archive.read_member(group, member) -- one range of the file: frame -> tar bytes -> file

An archive without an index, or with a damaged one, is read in order by `groups`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from scannet_prep.archive import frames, open_archive
from scannet_prep.archive.byte_source import ByteSource, Place
from scannet_prep.archive.layout import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    OWN_PREFIX,
    Index,
    StoredGroup,
    parse_index,
)
from scannet_prep.archive.shards import SUFFIX, check_held_once
from scannet_prep.archive.tar import BLOCK_BYTES, Member, read_members
from scannet_prep.base.file_kinds import describe_beginning
from scannet_prep.base.files import Buffer
from scannet_prep.errors import ArchiveError, ContentError, ForeignFileError

# Twice the largest block of zstd, so that at least one block is complete and can be decompressed.
START_BYTES = 1 << 18

HINT_DAMAGED = (
    "copy the archive again, or pack it again: scannet-prep pack --force; "
    "to recover everything that is intact: scannet-prep unpack"
)
# The path of the file is filled in for {}.
_HINTS_BY_KIND = {
    "empty": "copy it again, or pack it again: scannet-prep pack",
    "a web page": "open it in a browser: it may ask for a login; then fetch the archive again",
    "a zip file": "unzip {}",
    "a 7z file": "7z x {}",
    "a zstd file": "zstd -d {}",
    "a tar file": "tar -xf {}",
    "a gzip file": "tar -xf {}",
}


def open_archives(places: Sequence[Place], *, certificates: bool | Path = True) -> list[Archive]:
    """Open archives that are read together.

    Raises:
        UsageError: A scene is in two of them.
        ScanNetPrepError: See `open_archive`.
    """
    archives = [open_archive(place, certificates=certificates) for place in places]
    check_held_once(
        [(archive.name, [scene.scene_id for scene in archive.index.scenes]) for archive in archives]
    )
    return archives


class Archive:
    """An archive whose index has been read.

    Args:
        source: Its bytes.

    Attributes:
        source: As given.
        name: Path or address, for messages.
        index: Its index.
        index_row: The row of the index frame in the seek table.
        end: The byte after the index frame.

    Raises:
        ArchiveError: It is truncated, damaged at its end, or was written by another program.
        TransferError: The server does not send it.
    """

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.name = source.name
        try:
            offset, stored_bytes, frame_count = frames.find_index(source)
            frame = source.read(offset, stored_bytes)
            self.index = decode_index(frame, frame_count=frame_count, offset=offset)
            self.index_row = frames.seek_row(frame)
            self.end = offset + stored_bytes
        except ContentError as error:
            # If the file is of another kind, this raises an error that names the kind.
            check_beginning(source.read(0, START_BYTES), self.name)
            problem = f"is damaged or truncated: {error.message}"
            raise ArchiveError(self.name, problem, HINT_DAMAGED) from None

    def forget_scenes(self) -> None:
        """Remove the scenes from the index, to save memory. The caller has kept those it needs."""
        files_group = self.index.groups[0]
        self.index = replace(self.index, groups=(files_group,))

    def read_member(self, group: StoredGroup, member: Member) -> memoryview:
        """Read a file from one range of the archive, into new, writable memory.

        Raises:
            ArchiveError: Neither the checksum of the frame nor the SHA-256 of the file is right,
                or the archive cannot be read.
            TransferError: The server does not send it.
        """
        try:
            frame = read_stored(self.source, group)
            content, is_verified = frames.decompress(frame, group.size_bytes)
            data = member.of(content)
            if not is_verified:
                member.check(data)
        except ContentError as error:
            problem = f"{group.name}: is damaged: {error.message}"
            raise ArchiveError(self.name, problem, HINT_DAMAGED) from None
        return data


def decode_index(frame: Buffer, *, frame_count: int, offset: int) -> Index:
    """Decode the index from its frame.

    Args:
        frame: The frame.
        frame_count: Number of frames before it.
        offset: Its first byte in the archive.

    Raises:
        ContentError: It is damaged, or describes other frames.
    """
    size_bytes = frames.read_size(frame)
    if size_bytes > MAX_INDEX_BYTES:
        sizes = f"{size_bytes:,} bytes, expected at most {MAX_INDEX_BYTES:,}"
        raise ContentError(f"the frame header of the index declares {sizes}")
    content, is_verified = frames.decompress(frame, size_bytes)
    members = read_members(content)
    is_index = [member.name for member in members] == [INDEX_NAME]
    if not is_verified or not is_index:
        raise ContentError("the index is damaged: its checksum does not hold")
    index = parse_index(bytes(members[0].of(content)))
    if len(index.groups) != frame_count or index.end != offset:
        described = f"{len(index.groups):,} frames of {index.end:,} bytes"
        problem = f"the index lists {described}, the archive has {frame_count:,} of {offset:,}"
        raise ContentError(problem)
    return index


def read_stored(source: ByteSource, group: StoredGroup) -> bytes:
    """Read the frame of a group; a `ContentError` if the archive ends first."""
    frame = source.read(group.offset, group.stored_bytes)
    if len(frame) < group.stored_bytes:
        sizes = f"{len(frame):,} of its {group.stored_bytes:,} bytes"
        raise ContentError(f"the archive ends after {sizes}")
    return frame


def check_beginning(start: bytes, name: str) -> None:
    """Refuse a file that cannot be an archive of this program.

    Args:
        start: Its first `START_BYTES`, or all of it.
        name: Its path or address.

    Raises:
        ForeignFileError: It is of another kind, which the message names.
        ArchiveError: It is empty.
    """
    kind = describe_beginning(start)
    if kind == "a zstd file":
        # The header and the first bytes of the first file in the tar stream.
        content = frames.decompress_start(start, 8 * BLOCK_BYTES)
        # If nothing can be decompressed, the file may be a damaged archive of this program. Reading
        # it will show where the damage is.
        is_damaged = not content
        if is_damaged or _is_own_beginning(content):
            return
        if describe_beginning(content) == "a tar file":
            hint = f"tar --zstd -xf {quote(name)}"
            raise ForeignFileError(name, "is a .tar.zst of another program", hint)

    described_kind = kind or "a file of another kind"
    problem = f"is {described_kind}, not an archive of this program ({SUFFIX})"
    hint = "name an archive that scannet-prep pack made, or the folder of the scenes"
    if kind in _HINTS_BY_KIND:
        hint = _HINTS_BY_KIND[kind].format(quote(name))
    if kind == "empty":
        raise ArchiveError(name, problem, hint)
    raise ForeignFileError(name, problem, hint)


def _is_own_beginning(content: bytes) -> bool:
    """Whether tar bytes begin with the first file of an archive of this program, which is JSON."""
    has_own_name = content.startswith(OWN_PREFIX.encode())
    # If the name is damaged, the text after the header decides. A tar file that another program
    # made of a processed folder contains such a text too, but does not begin with it.
    has_own_text = content[BLOCK_BYTES:].startswith(b"{") and b"scannet-prep" in content
    return has_own_name or has_own_text
