"""Checks what an index says about names and places, so that unpacking it can do no harm."""

from __future__ import annotations

from scannet_prep.archive.index import FORMAT_NAME, GroupEntry, Index, check_member_name, find_scene_id
from scannet_prep.archive.tar import header_bytes, padding_bytes


def check_layout(index: Index) -> None:
    """Check that every file stays in the folder, is there once, and lies where a tar stream would have it.

    Raises:
        ValueError: Something is not so; nothing of the archive is to be written then.
    """
    if not index.files.members or index.files.members[0].name != FORMAT_NAME:
        raise ValueError(f"the index does not begin with {FORMAT_NAME}")
    names: set[str] = set()
    for group in index.groups:
        _check_places(group)
        for number, member in enumerate(group.members):
            if number == 0 and not group.scene_id and member.name == FORMAT_NAME:
                continue
            check_name(member.name, group.scene_id)
            if member.name in names:
                raise ValueError(f"the name {member.name[:80]!r} is there twice")
            names.add(member.name)
    check_parents(names)


def check_name(name: str, scene_id: str) -> None:
    """Check that a name stays in the folder, and belongs to the group it is in.

    Args:
        name: Path of a file, with `/`.
        scene_id: The scene of the group; empty for the files that belong to none.

    Raises:
        ValueError: It does not.
    """
    check_member_name(name)
    owner = find_scene_id(name) or ""
    if owner != scene_id:
        raise ValueError(
            f"the name {name[:80]!r} belongs to {owner or 'no scene'}, but lies in the group of "
            f"{scene_id or 'the files that belong to none'}"
        )


def check_parents(names: set[str]) -> None:
    """Check that no file is the folder of another.

    Raises:
        ValueError: One is.
    """
    for name in names:
        position = name.find("/")
        while position >= 0:
            if name[:position] in names:
                raise ValueError(f"{name[:position][:80]!r} is a file, and the folder of another one")
            position = name.find("/", position + 1)


def _check_places(group: GroupEntry) -> None:
    position = 0
    for name, offset, size_bytes, _ in group.members:
        try:
            position += header_bytes(name, size_bytes)
        except UnicodeEncodeError:
            raise ValueError(f"the name {name[:80]!r} is no text") from None
        if offset != position:
            raise ValueError(f"{group.name}: {name[:80]!r} is said to lie at byte {offset:,}, expected {position:,}")
        position += size_bytes + padding_bytes(size_bytes)
    if position != group.size_bytes:
        raise ValueError(f"{group.name}: is said to have {group.size_bytes:,} bytes, its files have {position:,}")
