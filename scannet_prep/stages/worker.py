"""What a worker process runs: tasks from a pipe, until that ends. `pool` starts it."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


class Ready:
    """What a worker sends first."""


@dataclass(frozen=True, slots=True)
class Raised:
    """What a worker sends where the function has raised."""

    error: Exception


def work(descriptor: int) -> None:
    """Do tasks until the pipe ends; it does so too when the main process is killed.

    Args:
        descriptor: Of this worker's end of the pipe. First come the function and its context, then tasks.
    """
    pipe = Connection(descriptor)
    keep_freed_memory()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        function, context = pipe.recv()
        pipe.send(Ready())
        while True:
            task = pipe.recv()
            try:
                result = function(task, context)
            except Exception as error:  # noqa: BLE001 - handed to the main process, which raises it
                result = Raised(error)
            pipe.send(result)


def keep_freed_memory() -> None:
    """Reuse memory for the next task instead of giving it back to the system, which would have to clear it each time.

    For arrays of some megabytes, that takes longer than to compute them. Only glibc needs to be told.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
