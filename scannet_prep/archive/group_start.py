"""Tells from the beginning of a group what it is, where no index says so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from scannet_prep.archive.index import FORMAT_NAME, INDEX_NAME, Head, find_scene_id, parse_head
from scannet_prep.archive.tar import BLOCK_BYTES, TarMember, TarParser

START_BYTES = 1 << 16  # enough for the longest header, and for the description of the format


class GroupKind(Enum):
    """What a group holds."""

    FILES = auto()
    SCENE = auto()
    INDEX = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class GroupStart:
    """What the beginning of a group says; not yet checked by anything.

    Attributes:
        kind: What it holds.
        scene_id: The scene.
        head: What holds for the whole archive; of the files that belong to no scene, which come first.
    """

    kind: GroupKind
    scene_id: str = ""
    head: Head | None = None


def read_group_start(start: bytes) -> GroupStart:
    """Read the beginning of a group.

    Args:
        start: The first `START_BYTES` of its tar bytes, or all of them.

    Raises:
        ValueError: It is not the beginning of a group.
    """
    if len(start) >= BLOCK_BYTES and not any(start[:BLOCK_BYTES]):
        return GroupStart(GroupKind.END)
    items = TarParser().feed(start)
    member = next(items, None)
    if not isinstance(member, TarMember):  # a header that goes on and on
        raise ValueError("it does not begin with a tar header")  # noqa: TRY004 - of bytes, not of a type
    if member.name == INDEX_NAME:
        return GroupStart(GroupKind.INDEX)
    if member.name == FORMAT_NAME:
        piece = next(items, None)
        data = bytes(piece) if isinstance(piece, memoryview) else b""
        if len(data) != member.size_bytes:
            raise ValueError(f"the description of the format has {member.size_bytes:,} bytes")
        return GroupStart(GroupKind.FILES, head=parse_head(data))
    scene_id = find_scene_id(member.name)
    if scene_id is None:
        raise ValueError(f"it begins with {member.name[:80]!r}, which belongs to no scene")
    return GroupStart(GroupKind.SCENE, scene_id)


def read_head(start: bytes) -> Head:
    """Read from the beginning of the first group what holds for the whole archive.

    Raises:
        ValueError: It is not the beginning of an archive.
    """
    head = read_group_start(start).head
    if head is None:
        raise ValueError("it does not begin with a description of the format")
    return head
