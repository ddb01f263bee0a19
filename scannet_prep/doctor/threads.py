"""Checks that may hang: each runs in a thread, which is waited for until a deadline.

A file system, a name server or a GPU driver may hang. The thread that waits for it is left behind
and ends with the process.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue

from scannet_prep.base.findings import Finding, Severity
from scannet_prep.doctor.probes import PROBES, has_nvidia_device, make_check

TIME_LIMIT_S = 7.0
# A check that is ready is read even after the time limit.
_READING_S = 0.2
_THREAD_NAME = "scannet-prep doctor"
_HINT_FILE_SYSTEM = "the file system hangs, or is very slow: ask its administrator"
# The hint for each topic whose check does not end in time.
_HINTS = {
    "folder": _HINT_FILE_SYSTEM,
    "scenes": f"{_HINT_FILE_SYSTEM}; verify checks every scene, however long it takes",
    "server": (
        "only download needs it: check HTTPS_PROXY and the firewall, or download on another machine"
    ),
    "GPU": (
        "run nvidia-smi: if it hangs, too, the driver hangs; "
        "otherwise PyTorch is on a file system that is slow or hangs"
    ),
}


class RunningCheck:
    """One of the checks of `PROBES`, which runs in a thread from now on.

    Args:
        topic: The topic.
        argument: The argument of the check.
    """

    def __init__(self, topic: str, argument: str) -> None:
        self._topic = topic
        self._argument = argument
        self._results = SimpleQueue[Finding]()
        threading.Thread(target=self._work, name=_THREAD_NAME, daemon=True).start()

    def wait(self, deadline_s: float) -> Finding:
        """Return the result, or a finding that the check did not answer in time.

        Args:
            deadline_s: How long to wait, on the clock of `time.monotonic`.
        """
        try:
            return self._results.get(timeout=max(_READING_S, deadline_s - time.monotonic()))
        except Empty:
            severity: Severity = "problem"
            if self._topic == "server" or (self._topic == "GPU" and not has_nvidia_device()):
                severity = "note"
            return Finding(
                subject=self._topic,
                message=f"no answer within {TIME_LIMIT_S:.0f} s",
                severity=severity,
                hint=_HINTS[self._topic],
            )

    def _work(self) -> None:
        """Make the check, in the thread."""
        self._results.put(make_check(self._topic, PROBES[self._topic], self._argument))


def has_hanging_check() -> bool:
    """Whether a check is still running.

    It could keep the process from ending, because libraries wait for their own threads at exit.
    """
    return any(thread.name == _THREAD_NAME for thread in threading.enumerate())
