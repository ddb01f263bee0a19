"""Run the command as on Windows: without the parts of the standard library that are POSIX only.

python tests/windows.py info data/processed
python tests/windows.py -c 'PROGRAM'
"""

import os
import runpy
import shutil
import signal
import sys
from multiprocessing import reduction

# These ask for POSIX functions on their own when they are first imported here.
import numpy as np  # noqa: F401

USAGE = shutil.disk_usage("/")
POSIX_MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
POSIX_FUNCTIONS = (
    "fork",
    "geteuid",
    "getuid",
    "killpg",
    "memfd_create",
    "mkfifo",
    "pread",
    "preadv",
    "pwrite",
    "register_at_fork",
    "sched_getaffinity",
    "statvfs",
    "sysconf",
    "O_CLOEXEC",
    "O_NOFOLLOW",
    "O_NONBLOCK",
)


def main():
    for name in POSIX_MODULES:
        sys.modules[name] = None  # type: ignore[assignment] - makes importing it fail
    for name in POSIX_FUNCTIONS:
        if hasattr(os, name):
            delattr(os, name)
    del signal.SIGHUP, reduction.DupFd
    shutil.disk_usage = lambda _path: USAGE  # it uses statvfs here

    if sys.argv[1] == "-c":
        exec(sys.argv[2], {"__name__": "__main__"})
    else:
        runpy.run_module("scannet_prep", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
