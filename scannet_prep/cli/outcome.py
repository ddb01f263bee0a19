"""The outcome of a command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scannet_prep.base.findings import Finding


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command, for people, for programs, and as an exit status.

    Attributes:
        report: For programs: a dataclass or a mapping, which `--json` prints.
        lines: For people, on standard output.
        findings: For people: what failed, on standard error. Errors among them make the exit
            status 3. Programs find them in the report.
        status: The exit status, if it is not that of the findings.
    """

    report: object
    lines: Iterable[str] = ()
    findings: Sequence[Finding] = ()
    status: int | None = None
