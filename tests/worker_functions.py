"""Functions that workers call in tests. A worker imports them by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from scannet_prep.errors import FileError, OutputError

ERRORS = {
    "bad file": FileError("a.ply", "has 5 vertices, expected 6"),
    "no memory": MemoryError(),
    "cannot write": OutputError("cannot write"),
}


class Work(NamedTuple):
    """A task, whose name says what it does."""

    scene_id: str

    @property
    def source(self):
        return f"folder of {self.scene_id}"


def act(task, context):
    """Do what the name of a task says; if the context is a folder, leave a file with the pid."""
    if isinstance(context, Path):
        (context / f"{os.getpid()}").touch()
    name = task.scene_id
    if name.startswith("kill"):
        # As the out-of-memory killer does. The attempts are counted in a file.
        with (context / name).open("a") as file:
            file.write("x")
        if name != "kill once" or (context / name).stat().st_size == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    if name == "bug":
        return 1 // 0
    if name == "exit":
        sys.exit(5)
    if name in ERRORS:
        raise ERRORS[name]
    time.sleep({"nap": 0.2, "sleep": 60}.get(name, 0))
    return name


class DiesWhileStarting:
    """A context that kills the first `count` workers that receive it."""

    def __init__(self, folder, count):
        self.folder = folder
        self.count = count

    def __setstate__(self, state):
        self.__dict__.update(state)
        dead_workers = list(self.folder.iterdir())
        if len(dead_workers) < self.count:
            (self.folder / f"{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
