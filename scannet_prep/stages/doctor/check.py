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
from dataclasses import dataclass, field
from typing import Any

from scannet_prep.backports import StrEnum
from scannet_prep.typed_json import parse_json

_LAST_LOOK_S = 0.3


class Severity(StrEnum):
    """What a finding means for the user."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(slots=True)
class Check:
    """What one check has found.

    Attributes:
        topic: What was looked at, such as `cores`.
        message: What was found.
        values: The same for programs.
        severity: `ok`, `note` (worth knowing), or `problem` (it is going to hurt).
        hint: What to do about it; empty where nothing has to be done.
    """

    topic: str
    message: str
    values: dict[str, Any] = field(default_factory=dict)
    severity: Severity = Severity.OK
    hint: str = ""

    def note(self, text: str, hint: str) -> Check:
        """Add something that is worth knowing, and what to do about it."""
        if self.severity is Severity.OK:
            self.severity = Severity.NOTE
        self.message = "; ".join(filter(None, (self.message, text)))
        self.hint = "; ".join(filter(None, (self.hint, hint)))
        return self

    def problem(self, text: str, hint: str) -> Check:
        """Add something that is going to hurt, and what to do about it."""
        self.severity = Severity.PROBLEM
        return self.note(text, hint)


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
    """Make all checks, each probe in a process of its own; a check that does not end in time is a finding itself."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from scannet_prep.stages.doctor.probes import main; main()"
    started_s, processes = time.monotonic(), list[subprocess.Popen[bytes]]()
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    options |= {"env": dict(environ), "start_new_session": True}
    try:
        for probe in probes:
            command = [sys.executable, "-c", code, probe.name, probe.argument]
            processes.append(subprocess.Popen(command, **options))  # noqa: S603 - our own interpreter and module
        pairs = zip(probes, processes, strict=True)
        return [check for probe, process in pairs for check in _collect(probe, process, started_s)]
    finally:
        for process in processes:
            _abandon(process)


def _collect(probe: Probe, process: subprocess.Popen[bytes], started_s: float) -> list[Check]:
    why = f"no answer within {probe.limit_s:.0f} s"
    try:
        left_s = started_s + probe.limit_s - time.monotonic()
        output = process.communicate(timeout=max(_LAST_LOOK_S, left_s))[0]
        why = f"the check ended early, with status {process.returncode}"
    except subprocess.TimeoutExpired as expired:
        output = expired.output or b""
    checks = [parse_json(line, Check) for line in output.split(b"\n")[:-1]]
    if len(checks) < len(probe.topics):
        checks.append(Check("", why, {}, probe.severity, probe.hint))
    for check, topic in zip(checks, probe.topics, strict=False):
        check.topic = topic
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
