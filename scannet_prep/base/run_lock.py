"""Lock of an output folder, so that only one run at a time writes into it.

    .scannet-prep.lock    names the process that holds it; removed when the run ends

The operating system releases the lock when the process ends, even if it is killed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from scannet_prep.errors import LockedError, OutputError

RUN_LOCK_NAME = ".scannet-prep.lock"


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Let only one run at a time write into a folder.

    Folders that cannot be written to, and folders on file systems without locks, are not locked.

    Args:
        folder: The folder into which the run writes; it exists.

    Raises:
        LockedError: Another run holds the lock; the message names its machine, process and start.
        OutputError: This is Windows, where folders are only read.
    """
    try:
        import fcntl
    except ImportError:
        raise OutputError(
            f"{folder}: can be written to on Linux and macOS only",
            "on Windows, run this in WSL; processed folders can be read without it",
        ) from None

    path = folder / RUN_LOCK_NAME
    # Callbacks run in reverse: the file is removed while the lock is still held.
    with ExitStack() as stack:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o666)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), path.stat()):
                # The last holder has removed this file, and another run has locked a new one.
                raise BlockingIOError  # noqa: TRY301
        except (BlockingIOError, FileNotFoundError):
            # FileNotFoundError: the last holder has removed the file since it was opened here.
            raise LockedError(
                f"{folder}: {_read_holder(path)} is working in this folder",
                "wait until that run has ended, or end it; then run the same command again",
            ) from None
        except OSError:
            # Either a read-only folder, into which nothing will be written, or a file system
            # without locks.
            pass
        else:
            stack.callback(_remove_lock, path)
            with suppress(OSError):  # on a full disk, the lock stays empty
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{_describe_this_run()}\n".encode())
        yield


def _describe_this_run() -> str:
    started = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"process {os.getpid()} on {socket.gethostname()}, started {started}"


def _read_holder(path: Path) -> str:
    """Read the description of the run that holds a lock."""
    holder = ""
    # The holder may end and remove the file at any moment.
    with suppress(OSError):
        holder = path.read_text(encoding="utf-8", errors="replace").strip()[:200]
    return holder or "another run"


def _remove_lock(path: Path) -> None:
    # If the folder is gone or cannot be written to, the run itself reports it.
    with suppress(OSError):
        path.unlink()
