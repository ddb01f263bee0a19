"""Check the machine, the folders, the server and the GPUs within ten seconds.

    threads      folder, scenes, server, GPU --> a finding each, or "no answer" after 7 s
    meanwhile    versions, cores, memory and other checks that cannot hang

A file system, a name server or a GPU driver may hang. The thread that waits for it is left behind
and ends with the process.

One case takes longer: Python keeps its global lock while it loads the libraries of PyTorch, so a
slow or hanging file system that holds PyTorch stops all threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from shlex import quote

from scannet_prep.release.findings import Finding, Severity
from scannet_prep.stages.doctor.probes import (
    DEFAULT_PLACE,
    PROBES,
    Probe,
    check_machine,
    has_nvidia_device,
    make_check,
)

_TIME_LIMIT_S = 7.0
# A check that is ready is read even after the time limit.
_READING_S = 0.2
_THREAD_NAME = "scannet-prep doctor"
_HINT_FILE_SYSTEM = (
    "the file system hangs, or is very slow: df -h {place} hangs, too; ask its administrator"
)
# The hint for each topic whose check does not end in time.
_HINTS = {
    "folder": _HINT_FILE_SYSTEM,
    "scenes": (
        f"{_HINT_FILE_SYSTEM}; "
        "to check every scene, however long it takes: scannet-prep verify {place}"
    ),
    "server": (
        "only download needs it: check HTTPS_PROXY and the firewall, or download on another machine"
    ),
    "GPU": (
        "run nvidia-smi: if it hangs, too, the driver hangs; "
        "otherwise PyTorch is on a file system that is slow or hangs"
    ),
}


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The result of all checks.

    Attributes:
        checks: One finding for each topic, in a fixed order.
        seconds: The duration of the run, in seconds.
    """

    checks: tuple[Finding, ...]
    seconds: float

    @property
    def problems(self) -> list[Finding]:
        """The checks with a problem."""
        return [check for check in self.checks if check.severity == "problem"]


def run(place: str, environ: Mapping[str, str], base_url: str) -> DoctorReport:
    """Check what training and processing depend on. An exception becomes a finding.

    Args:
        place: A folder or an archive of scenes: path or address; empty for `data/processed`, if
            that exists.
        environ: The environment of this process.
        base_url: Address of the server that `download` fetches from.
    """
    started_s = time.monotonic()
    deadline_s = started_s + _TIME_LIMIT_S
    shown_place = quote(_public_name(place or DEFAULT_PLACE))
    arguments = {"folder": place, "scenes": place, "server": base_url, "GPU": ""}
    if "://" in place:
        del arguments["folder"]

    running = {}
    for topic, argument in arguments.items():
        running[topic] = _start(topic, PROBES[topic], argument)
    checks = check_machine(environ)
    for topic, results in running.items():
        checks.append(_wait(topic, results, deadline_s, shown_place))
    return DoctorReport(tuple(checks), round(time.monotonic() - started_s, 3))


def has_hanging_check() -> bool:
    """Whether a check is still running.

    It could keep the process from ending, because libraries wait for their own threads at exit.
    """
    return any(thread.name == _THREAD_NAME for thread in threading.enumerate())


def _public_name(place: str) -> str:
    """Return a path unchanged, and an address without user, password and query."""
    if "://" not in place:
        return place
    # Imported here: paths do not need requests.
    from scannet_prep.remote.addresses import public_url

    return public_url(place)


def _start(topic: str, probe: Probe[str], argument: str) -> SimpleQueue[Finding]:
    """Start a check in a thread, and return the queue that receives its result."""
    results = SimpleQueue[Finding]()

    def work() -> None:
        results.put(make_check(topic, probe, argument))

    threading.Thread(target=work, name=_THREAD_NAME, daemon=True).start()
    return results


def _wait(
    topic: str, results: SimpleQueue[Finding], deadline_s: float, shown_place: str
) -> Finding:
    """Return the result of a thread, or a finding that it did not answer in time."""
    try:
        return results.get(timeout=max(_READING_S, deadline_s - time.monotonic()))
    except Empty:
        severity: Severity = "problem"
        if topic == "server" or (topic == "GPU" and not has_nvidia_device()):
            severity = "note"
        return Finding(
            subject=topic,
            message=f"no answer within {_TIME_LIMIT_S:.0f} s",
            severity=severity,
            hint=_HINTS[topic].format(place=shown_place),
        )
