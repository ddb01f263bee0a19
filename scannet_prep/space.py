"""Room on a disk: what is free, what is needed, and the reserve that is left for everybody else."""

from __future__ import annotations

import os
from pathlib import Path

from scannet_prep.errors import DiskFullError

RESERVE_BYTES = 200_000_000
RESERVE_FILES = 100


def check_space(folder: Path, needed_bytes: int, needed_files: int = 1) -> None:
    """Check that a disk has room for what is going to be written, and for the reserve.

    File systems that do not tell how much is free, as some network ones and those of Windows, pass.

    Args:
        folder: A folder on that disk; need not exist yet.
        needed_bytes: Bytes that are going to be written.
        needed_files: Files that are going to be created; where there are none, everything passes.

    Raises:
        DiskFullError: There is not enough room.
    """
    if not needed_files or not hasattr(os, "statvfs"):
        return
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    status = os.statvfs(existing)
    free_bytes = status.f_bavail * status.f_frsize
    if status.f_blocks and free_bytes < needed_bytes + RESERVE_BYTES:
        raise DiskFullError(
            f"{folder}: needs {format_bytes(needed_bytes)} and a reserve of {format_bytes(RESERVE_BYTES)}; "
            f"{format_bytes(free_bytes)} is free",
            "free some space, or choose a folder on another disk",
        )


def format_bytes(count: int) -> str:
    """A size in decimal units, as disks are sold: `3.4 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"
