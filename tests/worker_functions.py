"""Functions that workers call in tests. A worker imports them by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from commands import run_main


def multiply(task: int, context: int | DiesWhileStarting) -> int:
    factor = context if isinstance(context, int) else context.count
    return task * factor


def measure_context(task: int, context: tuple[object, bytes]) -> int:
    _, data = context
    return len(data)


def kill_self_if_negative(task: int, context: Path) -> int:
    """Die as if killed by the kernel's out-of-memory killer, and count how often in a file."""
    if task < 0:
        with (context / f"{task}").open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def fail(task: int, context: str) -> int:
    raise ZeroDivisionError(f"{context} {task}")


def sleep_and_tell(task: float, context: Path) -> float:
    """Create a file named after the process id, then sleep for `task` seconds."""
    (context / f"{os.getpid()}").touch()
    time.sleep(task)
    return task


class DiesWhileStarting:
    """A context that kills the first `count` workers that receive it."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        dead_workers = list(self.folder.iterdir())
        if len(dead_workers) < self.count:
            (self.folder / f"{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def count_reads(*words: str) -> dict[str, int]:
    """Run a command in this process, and count how often it opens each file for reading.

    Scenes are made in this process, too. The hook cannot be removed, so call this in a process of
    its own.

    Returns:
        The counts by the name of the file.
    """
    counts: Counter[str] = Counter()

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event != "open":
            return
        path, mode, flags = arguments
        # `os.open` has no mode: it opens files for `FileIO`, which reports them, too.
        if mode is not None and isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY:
            name = Path(str(path)).name
            counts[name.removeprefix(".").removesuffix(".part")] += 1

    sys.addaudithook(note)
    outcome = run_main(*words)
    assert outcome.status == 0, outcome.stderr
    return dict(counts)


def update_environment(variables: dict[str, str], _worker: int) -> None:
    """Set variables of the environment in a worker of a loader, before it reads."""
    os.environ.update(variables)
