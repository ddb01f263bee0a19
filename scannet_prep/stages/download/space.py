"""Whether the disk holds what is left to download, before and while it comes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.remote.catalog import RemoteFile
from scannet_prep.remote.partial import count_partial_bytes

RESERVE_BYTES = 200_000_000
RESERVE_INODES = 100


@dataclass(frozen=True, slots=True)
class Room:
    """Room on a disk: what there is, or what is needed.

    Attributes:
        size_bytes: Bytes; None where the file system does not tell, as some network ones do not.
        files: How many more files; None where that is unlimited.
    """

    size_bytes: int | None
    files: int | None

    def find_lack(self, needed: Room) -> Room:
        """How much of what is needed is not there, with a reserve for everybody else; nothing where nothing is."""
        lacking_bytes = lacking_files = 0
        if needed.files and self.size_bytes is not None:
            lacking_bytes = max(0, (needed.size_bytes or 0) + RESERVE_BYTES - self.size_bytes)
        if needed.files and self.files is not None:
            lacking_files = max(0, needed.files + RESERVE_INODES - self.files)
        return Room(lacking_bytes, lacking_files)

    def __bool__(self) -> bool:
        """Whether it is anything at all."""
        return bool(self.size_bytes or self.files)


def find_free_room(folder: Path) -> Room:
    """What is free on the disk that a folder is on, or will be on."""
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    return Room(
        status.f_bavail * status.f_frsize if status.f_blocks else None, status.f_favail if status.f_files else None
    )


def estimate_bytes(files: Iterable[RemoteFile]) -> int:
    """What files typically have; kinds of unknown size count as nothing."""
    return sum(file.kind.typical_bytes or 0 for file in files)


def estimate_left(data_dir: Path, files: Iterable[RemoteFile]) -> Room:
    """What is needed for those of the files that are not there, less what has arrived of them."""
    missing = [file for file in files if not (data_dir / file.local_path).exists()]
    parents = {(data_dir / file.local_path).parent for file in missing}
    arrived = {parent: count_partial_bytes(parent) for parent in parents if parent.is_dir()}
    size_bytes = 0
    for file in missing:
        path = data_dir / file.local_path
        size_bytes += max(0, (file.kind.typical_bytes or 0) - arrived.get(path.parent, {}).get(path.name, 0))
    return Room(size_bytes, len(missing))


def describe_lack(lack: Room) -> str:
    """What is lacking, in words: `1,000 bytes`, `room for 3 files`, or both."""
    parts = [f"{lack.size_bytes:,} bytes"] if lack.size_bytes else []
    parts += [f"room for {lack.files:,} files"] if lack.files else []
    return " and ".join(parts)
