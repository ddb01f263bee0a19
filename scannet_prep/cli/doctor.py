"""Check the machine, the folders, the server and the GPUs.

Shows what a bug report should contain: versions; the processors, memory and
open files that may be used; file systems, their locks and free space; proxies;
the server; whether PLACE is complete; GPUs. It takes less than 10 s, even if
the server, a GPU driver or the file system of PLACE hangs. Only loading PyTorch
from a slow file system can take longer. It leaves no files behind.

Each line is ok, a note (worth knowing), or a problem (it will cause failures)
with what to do about it. The exit status is 0, or 3 if there are problems. A
server that cannot be reached is a note, because only download needs it.

--ddp compares all ranks of a job; run it under torchrun on all machines of the
job. It checks that all ranks start, find the same scenes, plan the same epoch
with the same versions, and complete an all-reduce. After --timeout, it names
the ranks that have not done so.

examples:
  scannet-prep doctor
  scannet-prep doctor data/processed --json
  torchrun --nproc_per_node=4 -m scannet_prep doctor --ddp

environment: SCANNET_PREP_BASE_URL is the address of the server. Users and
passwords of proxies are never shown.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn

from scannet_prep.base.text import count_of, format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console
from scannet_prep.cli.outcome import Outcome

if TYPE_CHECKING:
    from scannet_prep.base.findings import Finding
    from scannet_prep.stages.doctor import DoctorReport


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "place",
        nargs="?",
        type=shared.place_argument,
        metavar="PLACE",
        help="folder of scenes, or an archive: path or address "
        "(default: data/processed, if it exists)",
    )
    ranks = parser.add_argument_group("under torchrun")
    ranks.add_argument(
        "--ddp",
        action="store_true",
        help="compare all ranks, and check that they can communicate",
    )
    ranks.add_argument(
        "--timeout",
        type=shared.positive_number,
        default=60,
        metavar="S",
        help="seconds to wait for all ranks, and again for the all-reduce (default: 60)",
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.release.files import BASE_URL
    from scannet_prep.stages import doctor

    if arguments.ddp:
        _compare_ranks(arguments, console)
    base_url = os.environ.get("SCANNET_PREP_BASE_URL") or BASE_URL
    # An empty place stands for data/processed, if it exists.
    report = doctor.run(str(arguments.place or ""), os.environ, base_url)
    outcome = _make_outcome(report, console)
    if doctor.has_hanging_check():
        # The check would keep the process from ending.
        os._exit(console.show(outcome))
    return outcome


def _compare_ranks(arguments: argparse.Namespace, console: Console) -> NoReturn:
    """Compare all ranks of a job; only rank 0 prints on standard output."""
    from scannet_prep.doctor.ranks import read_torchrun_job
    from scannet_prep.stages import doctor

    place = str(arguments.place or "data/processed")
    report = doctor.compare_ranks(place, os.environ, timeout_s=arguments.timeout)
    is_first = read_torchrun_job(os.environ).rank == 0
    outcome = _make_outcome(report, console, is_first=is_first)
    status = console.show(outcome) if is_first else outcome.status
    # A thread that hangs would keep the process from ending.
    os._exit(status or 0)


def _make_outcome(report: DoctorReport, console: Console, *, is_first: bool = True) -> Outcome:
    """Make the outcome of a report. Problems are shown even if standard output is not."""
    if report.problems and (console.is_quiet or not is_first):
        console.warn("\n".join(_describe(report.problems)))
    lines = [*_describe(report.checks), _count(report)]
    return Outcome(report, lines, status=3 if report.problems else 0)


def _describe(checks: Iterable[Finding]) -> Iterator[str]:
    """Describe checks, with a line for each and one for its hint."""
    for check in checks:
        yield f"{check.severity}: {check.subject}: {check.message}"
        if check.hint:
            yield f"  to do: {check.hint}"


def _count(report: DoctorReport) -> str:
    """Count the problems and notes: `1 problem, no notes, in 2 s`."""
    severities = [check.severity for check in report.checks]
    problems = count_of(severities.count("problem"), "problem")
    notes = count_of(severities.count("note"), "note")
    return f"{problems}, {notes}, in {format_duration(report.seconds)}"
