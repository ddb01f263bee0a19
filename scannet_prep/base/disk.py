"""Free space on a disk, and the reserve that is left for others."""

from __future__ import annotations

import shutil
from pathlib import Path

from scannet_prep.base.text import format_bytes
from scannet_prep.errors import DiskFullError

# Space that stays free for other programs and for small files of our own, such as manifests.
RESERVE_BYTES = 200_000_000
# Number of files that a disk must have room for; only `doctor` checks it.
RESERVE_FILES = 100


def check_space(folder: Path, needed_bytes: int, needed_files: int = 1) -> None:
    """Check that a disk has space for the files to be written, and for the reserve.

    A file system that does not report its free space passes.

    Args:
        folder: A folder on the disk; need not exist yet.
        needed_bytes: Bytes to be written.
        needed_files: Number of files to be created; nothing is checked if it is 0.

    Raises:
        DiskFullError: There is not enough space.
    """
    if not needed_files:
        return
    # There is always one: the last parent is the root, or the current folder.
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_bytes = find_free_bytes(existing)
    if free_bytes is not None and free_bytes < needed_bytes + RESERVE_BYTES:
        raise DiskFullError(
            f"{folder}: needs {format_bytes(needed_bytes)} and a reserve of "
            f"{format_bytes(RESERVE_BYTES)}; {format_bytes(free_bytes)} is free",
            "free some space, or name a folder on another disk: -o DIR",
        )


def find_free_bytes(folder: Path) -> int | None:
    """Find the free space on the disk of an existing folder.

    Returns:
        Bytes; None if the file system does not report it, as some network file systems do not.
    """
    usage = shutil.disk_usage(folder)
    if not usage.total:
        return None
    return usage.free
