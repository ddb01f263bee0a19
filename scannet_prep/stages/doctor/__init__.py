"""The stage `doctor`: what a maintainer would ask first, found out within ten seconds whatever hangs.

A file system, a name server or a GPU driver may hang, and then the process that asks it never goes on; sometimes no
signal ends it. So other processes ask, all at the same time, and those that do not answer are left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.stages.doctor.check import Check
from scannet_prep.stages.doctor.probes import ARGUMENT, check_machine
from scannet_prep.typed_json import parse_json

_LIMIT_S, _LAST_LOOK_S = 7.0, 0.2
_CODE = "import sys; sys.path[:] = {!r}; from scannet_prep.stages.doctor.probes import main; main()"
_STUCK = "the file system hangs, or is very slow; df hangs, too. Ask its administrator"
# What to do where a check does not end in time.
_HINTS = {
    "folder": _STUCK,
    "scenes": f"{_STUCK}; scannet-prep verify PLACE looks at every scene, however long it takes",
    "server": "only download needs it; look at proxy and firewall, or download on another machine",
    "GPU": "run nvidia-smi: if it hangs, too, the driver does; else PyTorch is on a file system that is slow or hangs",
}


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What was found.

    Attributes:
        checks: All findings, in a fixed order.
        seconds: How long it took.
    """

    checks: tuple[Check, ...]
    seconds: float

    @property
    def problems(self) -> list[Check]:
        """What is going to hurt."""
        return [check for check in self.checks if check.severity == "problem"]


def run(place: str, environ: Mapping[str, str], base_url: str) -> DoctorReport:
    """Look at everything that training and processing depend on. Nothing is left behind, and nothing raised.

    Args:
        place: A folder or an archive of scenes, or an address; empty for `data/processed`, if that is there.
        environ: The environment; the checks run in it.
        base_url: Of the server that `download` fetches from.
    """
    started_s, processes = time.monotonic(), dict[str, subprocess.Popen[bytes]]()
    arguments = {"folder": place, "scenes": place, "server": base_url, "GPU": ""}
    if "://" in place:
        del arguments["folder"]
    command = [sys.executable, "-c", _CODE.format(sys.path)]
    try:
        for topic, argument in arguments.items():
            processes[topic] = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*command, topic], env={**environ, ARGUMENT: argument}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        found = check_machine(environ)
        found += [_collect(topic, process, started_s + _LIMIT_S) for topic, process in processes.items()]
    finally:
        for process in processes.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            try:
                process.communicate(timeout=_LAST_LOOK_S)
            except subprocess.TimeoutExpired:  # it cannot be ended: it is left behind
                process.returncode = -signal.SIGKILL
    return DoctorReport(tuple(found), round(time.monotonic() - started_s, 3))


def _collect(topic: str, process: subprocess.Popen[bytes], deadline_s: float) -> Check:
    why = f"no answer within {_LIMIT_S:.0f} s"
    with suppress(subprocess.TimeoutExpired):
        if output := process.communicate(timeout=max(_LAST_LOOK_S, deadline_s - time.monotonic()))[0]:
            return parse_json(output, Check)
        why = f"the check ended early, with status {process.returncode}"
    is_bad = topic in ("folder", "scenes") or (topic == "GPU" and any(Path("/dev").glob("nvidia[0-9]*")))
    return Check(topic, why, "problem" if is_bad else "note", _HINTS[topic])
