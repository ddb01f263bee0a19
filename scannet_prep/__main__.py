"""Entry point: `python -m scannet_prep` and the command `scannet-prep`.

    first SIGINT, SIGTERM or SIGHUP --> KeyboardInterrupt in the main thread --> cleanup --> exit
    another signal                  --> exit at once

Both ways print one line and exit with status 130. The second way skips all cleanup, which is safe
because a kill at any moment loses nothing. It also ends a command that the interrupt did not stop,
because an interrupt can leave a lock locked. A signal takes the second way at once during an
import, where modules in C may swallow the exception and crash later, and in a finalizer, where
Python discards it.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

# As in __init__.py: until `main` is called, an interrupt ends in a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if hasattr(signal, "SIGHUP"):  # not on Windows
    _SIGNALS.append(signal.SIGHUP)
_MESSAGE = b"interrupted: run the same command again\n"
_JSON = (
    b'{"exit_status": 130, "error": "Interrupted", '
    b'"message": "interrupted: run the same command again"}\n'
)
_is_interrupted = False


def main() -> int:
    """Run the command line and return the exit status.

    After an error or an interrupt, this function does not return: it ends the process.
    """
    try:
        for number in _SIGNALS:
            # nohup ignores SIGHUP, and a shell ignores SIGINT for its background jobs.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _interrupt)
        # Workers inherit it. For what NumPy computes here, starting threads takes longer than the
        # computation.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from scannet_prep.cli.main import main as run

        # After the command has ended, an interrupt would write a second result.
        status = run(before_result=_ignore_signals)
    except KeyboardInterrupt:
        _exit()
    if status == 1:
        # Python would wait for threads, such as one that tries a server again and again.
        os._exit(status)
    return status


def _interrupt(_signal: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt for the first signal; exit for a later one."""
    global _is_interrupted  # noqa: PLW0603 - a process has one signal handler
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            _exit()
        frame = frame.f_back
    if _is_interrupted:
        _exit()
    _is_interrupted = True
    # Python calls this for an exception that it discards.
    sys.unraisablehook = lambda _: _exit()
    raise KeyboardInterrupt


def _exit() -> NoReturn:
    """Print the last line of an interrupted command, and exit without any further cleanup.

    After an interrupt inside `exec`, which dataclasses use, Python would end with another status.
    """
    _ignore_signals()
    # The cursor may be on the line of a progress bar.
    outputs = {2: b"\n" + _MESSAGE if os.isatty(2) else _MESSAGE}
    if "--json" in sys.argv:
        outputs[1] = _JSON
    for stream, text in outputs.items():
        with suppress(OSError):  # it may be closed
            os.write(stream, text)
    os._exit(130)


def _ignore_signals() -> None:
    """Ignore signals from now on, because the command has ended."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
