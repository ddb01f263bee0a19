"""Compares what has come through a pipe with the index that comes after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scannet_prep.archive.index import GroupEntry, Head, Index, MemberEntry
from scannet_prep.archive.safety import check_layout
from scannet_prep.errors import ArchiveError

DISTRUST_HINT = "do not trust where it came from; make or fetch the archive again"


@dataclass(frozen=True, slots=True)
class PassedGroup:
    """A group that was unpacked, and what its index entry must say.

    Attributes:
        scene_id: The scene; empty for the files that belong to none.
        stored_bytes: Size in the archive.
        stored_crc32: CRC-32 of these bytes.
        size_bytes: Size of the tar bytes.
        sha256: Of the tar bytes, in hexadecimal.
        members: Its files.
        written: Names of the files that were not there before in this form.
    """

    scene_id: str
    stored_bytes: int
    stored_crc32: int
    size_bytes: int
    sha256: str
    members: tuple[MemberEntry, ...]
    written: tuple[str, ...]

    def has_content_of(self, entry: GroupEntry) -> bool:
        """Whether an index entry says the same of the content."""
        mine = self.scene_id, self.size_bytes, self.sha256, self.members
        return mine == (entry.scene_id, entry.size_bytes, entry.sha256, entry.members)

    def has_frames_of(self, entry: GroupEntry) -> bool:
        """Whether an index entry says the same of the bytes in the archive."""
        return (self.stored_bytes, self.stored_crc32) == (entry.stored_bytes, entry.stored_crc32)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found.

    Attributes:
        absent: Groups of the index that were not unpacked.
        contradicted: Groups that were unpacked, and that the index does not confirm.
        altered: Names of groups whose content is right, though their frames are not those that were written.
    """

    absent: tuple[GroupEntry, ...]
    contradicted: tuple[PassedGroup, ...]
    altered: tuple[str, ...]


def compare_groups(passed: Mapping[int, PassedGroup], index: Index, head: Head, name: str) -> Comparison:
    """Compare groups with the index.

    Args:
        passed: Groups that were unpacked, by their offset in the archive.
        index: The index.
        head: What stood first in the archive.
        name: Of the archive, for messages.

    Raises:
        ArchiveError: The index is not safe, or of another archive.
    """
    try:
        check_layout(index)
    except ValueError as error:
        raise ArchiveError(name, f"is not safe to unpack: {error}", DISTRUST_HINT) from None
    if index.head != head:
        problem = "contradicts itself: it begins with another description of the format than its index has"
        raise ArchiveError(name, problem, DISTRUST_HINT)
    entries = {entry.offset: entry for entry in index.groups}
    both = [(entries.get(offset), group) for offset, group in passed.items()]
    return Comparison(
        absent=tuple(entry for offset, entry in entries.items() if offset not in passed),
        contradicted=tuple(group for entry, group in both if entry is None or not group.has_content_of(entry)),
        altered=tuple(
            entry.name
            for entry, group in both
            if entry is not None and group.has_content_of(entry) and not group.has_frames_of(entry)
        ),
    )
