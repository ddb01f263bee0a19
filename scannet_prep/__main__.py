"""Entry point: `python -m scannet_prep` and the command `scannet-prep`.

    first SIGINT, SIGTERM or SIGHUP --> KeyboardInterrupt in the main thread --> cleanup, one line, exit status 130
    another one, or 10 s later      --> one line, exit status 130 at once

The second way skips all cleanup. It loses nothing, because a kill at any moment loses nothing. It also ends a command
whose interrupt was lost: Python discards exceptions in finalizers, and an interrupt can leave a lock locked.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import sys
import time
from contextlib import suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLEANUP_S = 10.0
# `timeout` and Slurm send a signal to the process and again to its group. Within this time, it is the same signal.
_SAME_SIGNAL_S = 1.0
_interrupted_s: float | None = None


def main() -> int:
    """Run the command line and return the exit status. After an interrupt, exit without returning."""
    try:
        for number in _SIGNALS:
            # nohup ignores SIGHUP, and a shell ignores SIGINT for its background jobs.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
        from scannet_prep.cli.main import main as run

        status = run()
        _ignore_signals()
    except KeyboardInterrupt:
        # The interrupt came while the program was being loaded, or after the command had ended.
        _ignore_signals()
        from scannet_prep.cli.console import Console

        status = Console(is_json="--json" in sys.argv).interrupted()
    if status == 130:
        # An interrupt inside `exec`, which dataclasses use, would make Python end itself by SIGINT, without a status.
        with suppress(OSError, ValueError):  # a stream may be closed
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    return status


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt for the first signal, and exit at a later one."""
    global _interrupted_s  # noqa: PLW0603 - signals belong to the process
    now_s = time.monotonic()
    if _interrupted_s is None:
        _interrupted_s = now_s
        # Unlike threading.Thread, this needs no lock, which the interrupted code may hold.
        with suppress(RuntimeError):  # the process may not start another thread
            _thread.start_new_thread(_exit_after_cleanup, ())
        raise KeyboardInterrupt
    if now_s - _interrupted_s > _SAME_SIGNAL_S:
        _exit_at_once()


def _exit_after_cleanup() -> None:
    time.sleep(_CLEANUP_S)
    _exit_at_once()


def _exit_at_once() -> None:
    """Leave the line of the progress bar, print the line that an interrupted command ends with, and exit."""
    line = b"interrupted: run the same command again\n"
    with suppress(OSError):  # standard error may be closed
        _, can_write, _ = select.select([], [2], [], 0)
        if can_write:  # a full pipe would block
            os.write(2, b"\n" + line if os.isatty(2) else line)
    os._exit(130)


def _ignore_signals() -> None:
    """Ignore signals from now on: the command has ended."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
