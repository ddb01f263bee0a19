"""Look at the machine, the folders, the server and the GPUs.

Tells what a maintainer would ask first: versions, what is granted of processors, memory and files, file systems and
their locks, free space, proxies, the server, whether PLACE is whole, and GPUs. It takes less than 10 s even if a file
system, the server or a GPU driver hangs, and leaves nothing behind.

Each line is ok, note (worth knowing), or problem (it is going to hurt), with what to do about it. The exit status is 0,
or 3 if there are problems. A server that cannot be reached is a note: only download needs it.

With --ddp, under torchrun, on all machines of a job: whether all ranks are there, see the same scenes, plan the same
epoch with the same versions, and can add up a number together; else which rank is the reason, within a time limit.

examples:
  scannet-prep doctor
  scannet-prep doctor data/processed --json
  torchrun --nproc_per_node=4 -m scannet_prep doctor --ddp

environment: SCANNET_PREP_BASE_URL is the server's address; users and passwords in proxies never show
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from scannet_prep.base.units import format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, format_count

if TYPE_CHECKING:
    from scannet_prep.stages.doctor import DoctorReport
    from scannet_prep.stages.doctor.check import Check


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    what = (
        "folder of scenes, or an archive: path or address (default: data/processed, if it is there)"
    )
    parser.add_argument("place", nargs="?", type=shared.place_argument, metavar="PLACE", help=what)
    ranks = parser.add_argument_group("under torchrun")
    ranks.add_argument(
        "--ddp",
        action="store_true",
        help="compare all ranks, and try whether they can work together",
    )
    ranks.add_argument(
        "--timeout",
        type=shared.positive_number,
        default=60,
        metavar="S",
        help="seconds to wait (default: 60)",
    )


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command. Of several ranks, only the first speaks on standard output."""
    from scannet_prep.release.files import BASE_URL
    from scannet_prep.stages import doctor

    place, environ = str(arguments.place or ""), os.environ
    if not arguments.ddp:
        return _tell(
            doctor.run(place, environ, environ.get("SCANNET_PREP_BASE_URL") or BASE_URL), console
        )
    from scannet_prep.stages.doctor import ranks

    place = place or "data/processed"
    report = ranks.run(place, environ, timeout_s=arguments.timeout)
    status = _tell(report, console, is_first=environ["RANK"] == "0")
    os._exit(status)  # what hangs would keep the process; all that was said is out


def _tell(report: DoctorReport, console: Console, *, is_first: bool = True) -> int:
    status = 3 if report.problems else 0
    if report.problems and (console.is_quiet or not is_first):
        console.warn("\n".join(_describe(report.problems)))
    text = "\n".join([*_describe(report.checks), _count(report)])
    return console.result(text, report, status) if is_first else status


def _describe(checks: Iterable[Check]) -> Iterator[str]:
    for check in checks:
        yield f"{check.severity}: {check.topic}: {check.message}"
        if check.hint:
            yield f"  to do: {check.hint}"


def _count(report: DoctorReport) -> str:
    severities = [check.severity for check in report.checks]
    counts = ", ".join(format_count(severities.count(name), name) for name in ("problem", "note"))
    return f"{counts}, in {format_duration(report.seconds)}"
