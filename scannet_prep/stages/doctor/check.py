"""What a check-up finds, and how checks that may hang are kept within a time limit.

A file system, a name server or a GPU driver that hangs blocks whoever asks it, for ever, and sometimes so that no
signal ends it. So what may hang is asked by processes of their own, all at the same time, which are left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from scannet_prep.backports import StrEnum
from scannet_prep.typed_json import parse_json

_LAST_LOOK_S = 0.3


class Severity(StrEnum):
    """What a finding means for the user."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """What one check has found.

    Attributes:
        topic: What was looked at, such as `cores`.
        severity: `ok`, `note` (worth knowing), or `problem` (it is going to hurt).
        message: What was found.
        hint: What to do about it; empty where nothing has to be done.
        values: The same for programs.
    """

    topic: str
    severity: Severity
    message: str
    hint: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def judge(topic: str, message: str, complaints: Sequence[tuple[Severity, str, str]], **values: object) -> Check:
    """Put together what was found and what is to be said against it: severity, text, and what to do.

    The severity is that of the worst complaint.
    """
    order = list(Severity)
    worst = max((severity for severity, _, _ in complaints), key=order.index, default=Severity.OK)
    text = "; ".join([message, *(text for _, text, _ in complaints if text)])
    return Check(topic, worst, text, "; ".join(hint for _, _, hint in complaints if hint), dict(values))


@dataclass(frozen=True, slots=True)
class Probe:
    """Checks that one process makes, one after the other.

    Attributes:
        name: As `probes.PROBES` has it.
        argument: What it looks at.
        topics: Of its checks, in order.
        limit_s: How long they may take together.
        hint: What to do where they take longer.
        severity: What it means that they take longer.
    """

    name: str
    argument: str
    topics: tuple[str, ...]
    limit_s: float
    hint: str
    severity: Severity = Severity.PROBLEM


def run_probes(probes: Sequence[Probe], environ: Mapping[str, str]) -> list[Check]:
    """Make all checks, each probe in a process of its own; a check that does not end in time is a problem itself."""
    started_s = time.monotonic()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for probe in probes:
            code = f"import sys; sys.path[:] = {sys.path!r}; from scannet_prep.stages.doctor.probes import main; main()"
            processes.append(
                subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [sys.executable, "-c", code, probe.name, probe.argument],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    env=dict(environ), start_new_session=True,
                )
            )  # fmt: skip
        found = [
            check
            for probe, process in zip(probes, processes, strict=True)
            for check in _collect(probe, process, started_s + probe.limit_s)
        ]
    finally:
        for process in processes:
            _abandon(process)
    return found


def _collect(probe: Probe, process: subprocess.Popen[bytes], deadline_s: float) -> list[Check]:
    limit_s = max(_LAST_LOOK_S, deadline_s - time.monotonic())
    try:
        output, is_late = process.communicate(timeout=limit_s)[0], False
    except subprocess.TimeoutExpired as expired:
        output, is_late = expired.output or b"", True
    found = [parse_json(line, Check) for line in output.split(b"\n")[:-1]]
    checks = [replace(check, topic=topic) for check, topic in zip(found, probe.topics, strict=False)]
    if len(checks) < len(probe.topics):
        topic = probe.topics[len(checks)]
        if is_late:
            checks.append(Check(topic, probe.severity, f"no answer within {probe.limit_s:.0f} s", probe.hint))
        else:
            message = f"the check ended early, with status {process.returncode}"
            checks.append(Check(topic, Severity.PROBLEM, message, probe.hint))
    return checks


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it has started; one that cannot be ended is left behind."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    try:
        process.wait(_LAST_LOOK_S)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # it is going to be; `Popen` would warn that it is still running
