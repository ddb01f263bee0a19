"""The stage `doctor`: answers to the first questions of a maintainer, within ten seconds.

    threads:    folder, scenes, server --> a check each, or no answer in time
    a process:  PyTorch and the GPUs   --> a check, or no answer in time
    meanwhile:  versions, cores, memory and other checks that cannot hang

A file system or a name server may hang: a thread that waits for it is left behind and ends with the process. PyTorch
holds Python's lock while it asks the GPU driver, which would stop the whole process, so it has one of its own.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from shlex import quote

from scannet_prep.base.typed_json import make_decoder, parse_json
from scannet_prep.stages.doctor.check import Check, Severity
from scannet_prep.stages.doctor.probes import DEFAULT_PLACE, PROBES, check_machine, make_check

_CHECK = make_decoder(Check)
_LIMIT_S = 7.0
# A check that is ready is read even after the time limit.
_READING_S = 0.2
_GPU_PROGRAM = (
    "import sys; sys.path[:] = {!r}; from scannet_prep.stages.doctor.probes import main; main()"
)
_STUCK = "the file system hangs, or is very slow: df -h {place} hangs, too; ask its administrator"
# What to do if a check does not end in time.
_HINTS = {
    "folder": _STUCK,
    "scenes": f"{_STUCK}; to check every scene, however long it takes: scannet-prep verify {{place}}",
    "server": "only download needs it: check HTTPS_PROXY and the firewall, or download on another machine",
    "GPU": "run nvidia-smi: if it hangs, too, the driver does; else PyTorch is on a file system that is slow or hangs",
}


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The result of all checks.

    Attributes:
        checks: All findings, in a fixed order.
        seconds: The duration of the run.
    """

    checks: tuple[Check, ...]
    seconds: float

    @property
    def problems(self) -> list[Check]:
        """The checks with a problem."""
        return [check for check in self.checks if check.severity == "problem"]


def run(place: str, environ: Mapping[str, str], base_url: str) -> DoctorReport:
    """Check everything that training and processing depend on. Whatever a check raises is a finding.

    Args:
        place: A folder or an archive of scenes, or an address; empty for `data/processed`, if that exists.
        environ: The environment of this process.
        base_url: Address of the server that `download` fetches from.
    """
    started_s = time.monotonic()
    deadline_s = started_s + _LIMIT_S
    shown_place = quote(_public_name(place or DEFAULT_PLACE))
    arguments = {"folder": place, "scenes": place, "server": base_url}
    if "://" in place:
        del arguments["folder"]

    gpu_program = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-c", _GPU_PROGRAM.format(sys.path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        running = {
            topic: _start(topic, PROBES[topic], argument) for topic, argument in arguments.items()
        }
        checks = check_machine(environ)
        for topic, results in running.items():
            checks.append(_wait_for_thread(topic, results, deadline_s, shown_place))
        checks.append(_wait_for_gpu_program(gpu_program, deadline_s))
    finally:
        gpu_program.kill()
        # A process that cannot be ended is left behind.
        with suppress(subprocess.TimeoutExpired):
            gpu_program.communicate(timeout=_READING_S)
    return DoctorReport(tuple(checks), round(time.monotonic() - started_s, 3))


def _public_name(place: str) -> str:
    """Return a path as it is, and an address without what may be secret in it."""
    if "://" not in place:
        return place
    # Imported here: paths do not need requests.
    from scannet_prep.remote.addresses import public_url

    return public_url(place)


def _start(topic: str, probe: Callable[[Check, str], None], argument: str) -> SimpleQueue[Check]:
    """Start a check in a thread. Its result goes into the queue that is returned."""
    results = SimpleQueue[Check]()

    def work() -> None:
        results.put(make_check(topic, probe, argument))

    threading.Thread(target=work, daemon=True).start()
    return results


def _wait_for_thread(
    topic: str, results: SimpleQueue[Check], deadline_s: float, shown_place: str
) -> Check:
    """Return the result of a thread. If there is none in time, that is the finding."""
    try:
        return results.get(timeout=max(_READING_S, deadline_s - time.monotonic()))
    except Empty:
        severity: Severity = "note" if topic == "server" else "problem"
        hint = _HINTS[topic].format(place=shown_place)
        return Check(topic, f"no answer within {_LIMIT_S:.0f} s", severity, hint)


def _wait_for_gpu_program(process: subprocess.Popen[bytes], deadline_s: float) -> Check:
    """Return the result of the process that asks PyTorch. If there is none in time, that is the finding."""
    try:
        output, _ = process.communicate(timeout=max(_READING_S, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        problem = f"no answer within {_LIMIT_S:.0f} s"
    else:
        if output:
            return parse_json(output, _CHECK)
        problem = f"the check ended early, with status {process.returncode}"
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    return Check("GPU", problem, "problem" if has_gpu else "note", _HINTS["GPU"])
