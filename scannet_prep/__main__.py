"""Entry point: `python -m scannet_prep` and the command `scannet-prep`.

Signals are the process's own, so they are dealt with here, before the rest is loaded: the first SIGINT, SIGTERM or
SIGHUP raises KeyboardInterrupt, and those that follow are ignored. Slurm sends SIGTERM some time before it kills, to
the process and to its group, and people press Ctrl-C twice: that must not disturb the cleaning up. While a module is
being loaded, the exception waits: numpy would make an ImportError of it, and importlib may print and forget it, as
Python does in finalizers. So it does for a while in the code of Python's locks, which would be left locked. Where it
was forgotten all the same, it is raised again.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

_HAS_TIMER = hasattr(signal, "setitimer")  # Windows has none: there, signals are left as Python has them
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM) if _HAS_TIMER else ()
_LOOK_AGAIN_S = 0.03
_MOST_LOOKS = 30  # at code that only waits for a lock
_LOCKING = ("/threading.py", "/futures/_base.py")
_is_interrupted = False
_looks = 0


def main() -> int:
    """Run the command line, and give the exit status."""
    status = 0
    try:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # which nohup and a shell's background jobs have set
                signal.signal(number, _interrupt)
        from scannet_prep.cli.main import main as run

        status = run()
        _ignore_signals()
    except KeyboardInterrupt:  # while the program was loaded, or at its very end
        _ignore_signals()
        if status != 130:  # else the command has said so
            from scannet_prep.cli.console import Console

            status = Console(is_json="--json" in sys.argv).interrupted()
    # Where the signal struck inside an `exec` (dataclasses use it), CPython remembers an unhandled interrupt and would
    # end the process by SIGINT instead of with our status; the next `exec` of a text makes it forget.
    exec("")  # noqa: S102 - of nothing
    return status


def _interrupt(signum: int, frame: FrameType | None) -> None:
    global _is_interrupted, _looks  # noqa: PLW0603 - as signals are, they are the process's
    if _is_interrupted and signum != signal.SIGALRM:
        return
    _is_interrupted = True
    signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN_S)
    _looks += 1
    if frame is not None and frame.f_code.co_filename.endswith(_LOCKING) and _looks < _MOST_LOOKS:
        return
    # Where an exception would end in a frame: Python complains of those of finalizers, and goes on.
    while frame and not (frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_code.co_name == "__del__"):
        frame = frame.f_back
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt | GeneratorExit):
        error = error.__context__  # generators end where an exception passes the loop over them
    if error is None and frame is None:  # else it is being cleaned up, a module is loaded, or an object is at its end
        raise KeyboardInterrupt


def _ignore_signals() -> None:
    """Let none disturb the end."""
    if _HAS_TIMER:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # Python complains of one just before the next line
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
