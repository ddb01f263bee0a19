"""Run a command, and record what it used: `launcher.py FILE COMMAND ...`.

This is a process of its own because it is small: on Linux, the peak memory of a new process begins
with that of the process that starts it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Run the command, and write the fields of `run.Run`, without the output, as JSON."""
    path, *command = sys.argv[1:]
    start_s = time.perf_counter()
    status = subprocess.call(command)
    wall_s = time.perf_counter() - start_s
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = {
        "status": status,
        "wall_s": wall_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        # In KiB; macOS counts bytes.
        "peak_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }
    Path(path).write_text(json.dumps(report), encoding="ascii")


if __name__ == "__main__":
    main()
