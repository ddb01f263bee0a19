"""Room on a disk: what is free, what is needed, and the reserve that is left for everybody else."""

from __future__ import annotations

import shutil
from pathlib import Path

from scannet_prep.errors import DiskFullError

RESERVE_BYTES = 200_000_000
RESERVE_FILES = 100


def check_space(folder: Path, needed_bytes: int, needed_files: int = 1) -> None:
    """Check that a disk has room for what is going to be written, and for the reserve.

    File systems that do not tell how much is free pass.

    Args:
        folder: A folder on that disk; need not exist yet.
        needed_bytes: Bytes that are going to be written.
        needed_files: Files that are going to be created; where there are none, everything passes.

    Raises:
        DiskFullError: There is not enough room.
    """
    if not needed_files:
        return
    free_bytes = find_free_bytes(next(item for item in (folder, *folder.parents) if item.exists()))
    if free_bytes is not None and free_bytes < needed_bytes + RESERVE_BYTES:
        raise DiskFullError(
            f"{folder}: needs {format_bytes(needed_bytes)} and a reserve of {format_bytes(RESERVE_BYTES)}; "
            f"{format_bytes(free_bytes)} is free",
            "free some space, or name a folder on another disk: -o DIR",
        )


def find_free_bytes(folder: Path) -> int | None:
    """What is free on the disk of a folder that exists; None where it does not tell, as some network ones."""
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else None


def format_bytes(count: int) -> str:
    """A size in decimal units, as disks are sold: `3.4 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"
