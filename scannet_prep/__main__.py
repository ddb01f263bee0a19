"""Entry point: `python -m scannet_prep` and the command `scannet-prep`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from scannet_prep.cli import INTERRUPTED, SIGNALS


def main() -> int:
    """Run the command line. Before it is loaded and after it has ended, an interruption just ends the process."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background job
            signal.signal(number, _end)
    from scannet_prep.cli.main import main as run

    return run()


def _end(_signum: int, _frame: FrameType | None) -> None:
    if "--json" in sys.argv:
        os.write(1, b'{"exit_status": 130, "error": "Interrupted", "message": "interrupted", "hint": ""}\n')
    os.write(2, b"interrupted: run the same command again\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
