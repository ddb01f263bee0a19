"""Looks at the folder that is unpacked into: what is there, what is in the way, and how much room there is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from scannet_prep.archive.index import OWN_PREFIX, GroupEntry, MemberEntry
from scannet_prep.archive.pending import check_no_folder
from scannet_prep.archive.safety import check_parents
from scannet_prep.archive.source import ByteSource, FileSource
from scannet_prep.errors import ArchiveError, OutputError
from scannet_prep.files import check_is_folder

RESERVE_BYTES = 200_000_000
RESERVE_INODES = 100


def check_targets(out_dir: Path, entries: Iterable[GroupEntry], sources: Sequence[ByteSource]) -> None:
    """Check that what is in the folder lets the files be written.

    Raises:
        ArchiveError: A file of one archive is the folder of a file of another.
        OutputError: Something is in the way, a name is too long, or an archive would overwrite itself.
    """
    names: dict[str, MemberEntry] = {}
    for entry in entries:
        for member in entry.members:
            if member.name.startswith(OWN_PREFIX):
                continue
            names.setdefault(member.name, member)
    _check_joined_names(set(names), sources[0].name)
    _check_lengths(out_dir, names)
    if not out_dir.exists():
        return
    own = {Path(source.name).resolve() for source in sources if isinstance(source, FileSource)}
    parents: dict[Path, None] = {}
    for name in names:
        path = out_dir / name
        check_no_folder(path)
        parents[path.parent] = None
        if path.name in {item.name for item in own} and path.resolve() in own:
            raise OutputError(f"{path}: is the archive itself, and would be overwritten", "choose another -o")
    for parent in parents:
        check_is_folder(parent)


def _check_joined_names(names: set[str], archive_name: str) -> None:
    try:
        check_parents(names)
    except ValueError as error:
        raise ArchiveError(archive_name, f"cannot be unpacked: {error}") from None


def _check_lengths(out_dir: Path, names: dict[str, MemberEntry]) -> None:
    folder = out_dir
    while not folder.exists():
        folder = folder.parent
    longest = os.pathconf(folder, "PC_NAME_MAX")
    for name in names:
        for part in name.split("/") if len(name) * 4 > longest else ():
            if len(part.encode()) > longest:
                raise OutputError(
                    f"{out_dir}: names there have at most {longest} bytes, {part[:40]!r}... has {len(part.encode())}",
                    "choose a folder on another file system with -o",
                )


def find_missing_files(out_dir: Path, entry: GroupEntry) -> list[MemberEntry]:
    """The files of a group that are not there in the right size."""
    found = []
    for member in entry.members:
        if member.name.startswith(OWN_PREFIX):
            continue
        try:
            is_there = os.stat(os.path.join(out_dir, member.name)).st_size == member.size_bytes  # noqa: PTH116, PTH118 - fast
        except OSError:
            is_there = False
        if not is_there:
            found.append(member)
    return found


def find_free_inodes(folder: Path) -> int | None:
    """How many more files the disk can hold that a folder is on, or will be on; None where that is unlimited."""
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    return status.f_favail if status.f_files else None
