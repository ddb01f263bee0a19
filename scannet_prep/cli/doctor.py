"""`scannet-prep doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, format_count, format_duration

if TYPE_CHECKING:
    from scannet_prep.stages.doctor.check import Check

SUMMARY = "look at the machine, the folders, the server and the GPUs"
DESCRIPTION = """\
Tells what a maintainer would ask first: versions, what is granted of processors, memory and files, file systems and
their locks, free space, proxies, the server, whether PLACE is whole, and GPUs. It takes less than 10 s whatever hangs,
and leaves nothing behind.

Each line is ok, note (worth knowing), or problem (it is going to hurt), with what to do about it. The exit status is 0,
or 3 if there are problems. A server that cannot be reached is a note: only download needs it.

With --ddp, under torchrun, on all machines of a job: whether all ranks are there, see the same scenes, plan the same
epoch with the same versions, and can add up a number together; else which rank is the reason, within a time limit.
"""
EPILOG = """\
environment: SCANNET_PREP_BASE_URL is the server's address; users and passwords in proxies never show

examples:
  scannet-prep doctor
  scannet-prep doctor data/processed --json
  torchrun --nproc_per_node=4 -m scannet_prep doctor --ddp data/processed
"""


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    what = "folder of scenes, or an archive: path or address (default: data/processed, if it is there)"
    parser.add_argument("place", nargs="?", type=shared.place_argument, default="", metavar="PLACE", help=what)
    parser.add_argument("--base-url", metavar="URL", help="a mirror (default: the ScanNet server)")
    ranks = parser.add_argument_group("under torchrun")
    ranks.add_argument("--ddp", action="store_true", help="compare all ranks, and try whether they can work together")
    ranks.add_argument(
        "--timeout", type=shared.positive_number, default=60, metavar="S", help="seconds to wait (default: 60)"
    )
    what = "budget of a batch, as in training (default: 600000)"
    ranks.add_argument("--max-points", type=shared.positive_number, default=600_000, metavar="N", help=what)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    if arguments.ddp:
        return _compare_ranks(arguments, console)
    from scannet_prep.release import BASE_URL
    from scannet_prep.stages import doctor

    base_url = arguments.base_url or os.environ.get("SCANNET_PREP_BASE_URL") or BASE_URL
    report = doctor.run(str(arguments.place), os.environ, base_url)
    lines = [*_describe(report.checks), _count(report.checks, report.seconds)]
    if console.is_quiet and report.problems:
        console.warn("\n".join(_describe(report.problems)))
    return console.result("\n".join(lines), report, 3 if report.problems else 0)


def _compare_ranks(arguments: argparse.Namespace, console: Console) -> int:
    """Only rank 0 speaks on standard output; the others tell their own problems."""
    from scannet_prep.stages.doctor import ranks

    def tell(report: ranks.RankReport) -> None:
        if report.rank == 0:
            lines = [*_describe(report.checks), _count(report.checks, report.seconds)]
            console.result("\n".join(lines), report, 3 if report.problems else 0)
        elif report.problems:
            console.warn("\n".join(_describe(report.problems)))

    place, options = str(arguments.place) or "data/processed", {"max_points": arguments.max_points}
    report = ranks.run(place, os.environ, tell, timeout_s=arguments.timeout, **options)
    status = 3 if report.problems else 0
    if report.hangs:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # what hangs would keep the process
    return status


def _describe(checks: Iterable[Check]) -> Iterator[str]:
    for check in checks:
        yield f"{check.severity}: {check.topic}: {check.message}"
        if check.hint:
            yield f"  to do: {check.hint}"


def _count(checks: Iterable[Check], seconds: float) -> str:
    severities = [str(check.severity) for check in checks]
    counts = ", ".join(format_count(severities.count(name), name) for name in ("problem", "note"))
    return f"{counts}, in {format_duration(seconds)}"
