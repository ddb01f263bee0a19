"""Lock of an output folder, so that only one run at a time writes into it.

    .scannet-prep.lock    exists while a run holds it

The operating system releases the lock when the process ends, even if it is killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from scannet_prep.errors import OutputError

RUN_LOCK_NAME = ".scannet-prep.lock"
_HINT_WINDOWS = "run this in WSL; processed folders can be read without it"
_HINT_LOCKED = "wait until that run has ended, or end it; then run the same command again"


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Let only one run at a time write into a folder.

    Folders that cannot be written to, and folders on file systems without locks, are not locked.

    Args:
        folder: The folder into which the run writes; it exists.

    Raises:
        OutputError: Another run holds the lock.
        OutputError: This is Windows, where folders are only read.
    """
    try:
        import fcntl
    except ImportError:
        problem = f"{folder}: can be written to on Linux and macOS only"
        raise OutputError(problem, _HINT_WINDOWS) from None
    path = folder / RUN_LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError:  # if something is to be written, that error names the reason
        yield
        return
    with FileIO(descriptor) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed this file, and another run may have made a new one.
            is_taken = not os.path.samestat(os.fstat(file.fileno()), path.stat())
        except OSError as error:  # otherwise, a file system without locks
            is_taken = isinstance(error, (BlockingIOError, FileNotFoundError))
        if is_taken:
            raise OutputError(f"{folder}: another run is working in this folder", _HINT_LOCKED)
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()
