"""Entry point: `python -m scannet_prep` and the command `scannet-prep`.

    first SIGINT, SIGTERM or SIGHUP --> KeyboardInterrupt in the main thread --> cleanup --> exit
    another signal, or 10 s later   --> exit at once

Both ways print one line and exit with status 130. The second way skips all cleanup, which is safe
because a kill at any moment loses nothing. It also ends a command that the interrupt did not stop:
Python discards exceptions in finalizers, and an interrupt can leave a lock locked. A signal during
an import takes the second way at once: modules in C may swallow the exception, and crash later.
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

_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if hasattr(signal, "SIGHUP"):  # not on Windows
    _SIGNALS.append(signal.SIGHUP)
_CLEANUP_S = 10.0
# `timeout` and Slurm send a signal to the process, and again to its group. A second signal within
# this time counts as the same one.
_SAME_SIGNAL_S = 1.0
# Time of the first signal, on the monotonic clock; None before it.
_interrupted_s: float | None = None


def main() -> int:
    """Run the command line and return the exit status.

    After an interrupt, this function does not return: it ends the process.
    """
    try:
        for number in _SIGNALS:
            # nohup ignores SIGHUP, and a shell ignores SIGINT for its background jobs.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
        # Also of workers. Starting more threads takes longer than NumPy computes with them here.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from scannet_prep.cli.main import main as run

        # An interrupt of a command that has ended would write a second result.
        status = run(before_result=_ignore_signals)
    except KeyboardInterrupt:
        # The command handles interrupts itself. This one came before it started.
        _ignore_signals()
        from scannet_prep.cli.console import Console

        status = Console(is_json="--json" in sys.argv).interrupted()
    if status == 130:  # of an interrupt, here or in the command
        with suppress(OSError, ValueError):  # a stream may be closed
            sys.stdout.flush()
            sys.stderr.flush()
        # Do not return here. If the interrupt came inside `exec`, which dataclasses use, Python
        # would then kill itself by SIGINT instead of exiting with this status.
        os._exit(status)
    return status


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt for the first signal; exit for a later one."""
    global _interrupted_s  # noqa: PLW0603 - a process has one signal handler
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _exit_at_once()
        frame = frame.f_back
    now_s = time.monotonic()
    if _interrupted_s is None:
        _interrupted_s = now_s
        # threading.Thread would need a lock, which the interrupted code may hold.
        with suppress(RuntimeError):  # no more threads can be started
            _thread.start_new_thread(_exit_after_cleanup, ())
        raise KeyboardInterrupt
    if now_s - _interrupted_s > _SAME_SIGNAL_S:
        _exit_at_once()


def _exit_after_cleanup() -> None:
    """Give the cleanup some time, then end the process unless it has ended."""
    time.sleep(_CLEANUP_S)
    _exit_at_once()


def _exit_at_once() -> None:
    """Print the last line of an interrupted command, and exit without any cleanup."""
    message = b"interrupted: run the same command again\n"
    outputs = {2: message}
    if "--json" in sys.argv:
        outputs[1] = b'{"exit_status": 130, "error": "Interrupted"}\n'
    with suppress(OSError):  # a stream may be closed
        if os.isatty(2):
            outputs[2] = b"\n" + message  # the cursor may be on the line of a progress bar
        for stream, text in outputs.items():
            _, can_write, _ = select.select([], [stream], [], 0)
            if can_write:  # writing to a full pipe would block
                os.write(stream, text)
    os._exit(130)


def _ignore_signals() -> None:
    """Ignore signals from now on, because the command has ended."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
