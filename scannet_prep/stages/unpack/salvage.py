"""Finds what is whole in an archive whose index is damaged or missing."""

from __future__ import annotations

from dataclasses import dataclass

from scannet_prep.archive.frames import decompress_start
from scannet_prep.archive.group_start import START_BYTES, GroupKind, read_group_start
from scannet_prep.archive.index import Head
from scannet_prep.archive.read_ahead import choose_reader
from scannet_prep.archive.source import ByteSource
from scannet_prep.archive.walk import FoundGroup, Gap, walk_groups

_LOOK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class FoundTask:
    """One group of an archive whose index is lost.

    Attributes:
        source: The archive that it is in.
        group: Where its frames lie.
        scene_id: The scene; empty for the files that belong to none.
    """

    source: ByteSource
    group: FoundGroup
    scene_id: str

    @property
    def size_bytes(self) -> int:
        """Size of the tar bytes."""
        return self.group.size_bytes


@dataclass(frozen=True, slots=True)
class LostArchive:
    """What there is of an archive whose index is lost.

    Attributes:
        source: The archive.
        head: What holds for all of it; None where that is lost too.
        tasks: Its groups, which may be damaged inside.
        gaps: What is no group.
    """

    source: ByteSource
    head: Head | None
    tasks: tuple[FoundTask, ...]
    gaps: tuple[Gap, ...]


def walk_archive(source: ByteSource) -> LostArchive:
    """Find all groups of scenes and files.

    Raises:
        ArchiveError: It cannot be read.
        TransferError: The server does not give it.
    """
    head = None
    tasks: list[FoundTask] = []
    gaps: list[Gap] = []
    seen: set[str] = set()
    read_at = choose_reader(source, source.size_bytes)
    for group in walk_groups(read_at, source.size_bytes):
        if isinstance(group, Gap):
            gaps.append(group)
            continue
        try:
            stored = read_at(group.offset, min(group.spans[0].stored_bytes, _LOOK_BYTES))
            start = read_group_start(decompress_start(stored, START_BYTES))
            if start.kind is GroupKind.SCENE and start.scene_id in seen:
                raise ValueError(f"{start.scene_id} comes a second time")  # noqa: TRY301 - as all the others
        except ValueError as error:
            gaps.append(Gap(group.offset, group.end, str(error)))
            continue
        if start.kind in (GroupKind.SCENE, GroupKind.FILES):
            head = head or start.head
            seen.add(start.scene_id)
            tasks.append(FoundTask(source, group, start.scene_id))
    return LostArchive(source, head, tuple(tasks), tuple(gaps))
