"""Check the machine, the folders, the server and the GPUs within ten seconds.

    threads      folder, scenes, server, GPU --> a finding each, or "no answer" after 7 s
    meanwhile    versions, cores, memory and other checks that cannot hang

One case takes longer: Python keeps its global lock while it loads the libraries of PyTorch, so a
slow or hanging file system that holds PyTorch stops all threads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scannet_prep.base.findings import Finding
from scannet_prep.doctor import ranks
from scannet_prep.doctor.probes import check_machine
from scannet_prep.doctor.threads import TIME_LIMIT_S, RunningCheck, has_hanging_check

__all__ = ["DoctorReport", "compare_ranks", "has_hanging_check", "run"]


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
    deadline_s = started_s + TIME_LIMIT_S
    arguments = {"folder": place, "scenes": place, "server": base_url, "GPU": ""}
    if "://" in place:
        del arguments["folder"]

    running = [RunningCheck(topic, argument) for topic, argument in arguments.items()]
    checks = check_machine(environ)
    checks += [check.wait(deadline_s) for check in running]
    return _make_report(checks, started_s)


def compare_ranks(place: str, environ: Mapping[str, str], *, timeout_s: float) -> DoctorReport:
    """Compare the ranks of a job. Must be called on all of them, under torchrun.

    A thread may still hang when this returns: end the process with `os._exit`.

    Args:
        place: Folder or archive of processed scenes.
        environ: The environment, as torchrun sets it.
        timeout_s: How long to wait for the ranks, and again for the all-reduce.

    Returns:
        On rank 0, all findings; on the others, only the reason why they cannot reach rank 0.

    Raises:
        UsageError: PyTorch is not installed, or this is not a rank of a job.
    """
    started_s = time.monotonic()
    return _make_report(ranks.compare(place, environ, timeout_s=timeout_s), started_s)


def _make_report(checks: Sequence[Finding], started_s: float) -> DoctorReport:
    """Make the report of a run that ends now."""
    return DoctorReport(tuple(checks), round(time.monotonic() - started_s, 3))
