"""Check the machine, the folders, the server and the GPUs.

Shows what a bug report should contain: versions; the cores, memory and open
files that may be used; file systems, their locks and free space; proxies; the
server; the scenes of PLACE; GPUs. A check that does not answer within 7 s is a
problem, and the other checks still run. verify checks the scenes themselves.

Each line is ok, a note (worth knowing), or a problem (it will cause failures)
with what to do about it. The exit status is 0, or 3 if there are problems. A
server that cannot be reached is a note, because only downloads need it.

--ddp compares all ranks of a job, and times an all-reduce; run it under
torchrun on all machines of the job. Rank 0 prints what was found, or after 60 s
how many ranks have arrived; the others print only problems. Ranks with other
scenes or versions are named.

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
from pathlib import Path

from scannet_prep.base.text import count_of, format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome

_DEFAULT_PLACE = "data/processed"


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
    parser.add_argument(
        "--ddp",
        action="store_true",
        help="under torchrun: compare all ranks, and check that they can communicate",
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.doctor import check_machine, check_ranks

    place = str(arguments.place or "")
    if arguments.ddp:
        checks = check_ranks(place or _DEFAULT_PLACE)
    else:
        if not place and Path(_DEFAULT_PLACE).exists():
            place = _DEFAULT_PLACE
        checks = check_machine(place, os.environ, shared.find_base_url())

    problems = [check for check in checks if check.is_error]
    report = {"checks": checks}
    if arguments.ddp and not problems and os.environ["RANK"] != "0":
        # The lines of all ranks are the same.
        return Outcome(report)
    lines = []
    for check in checks:
        lines.append(f"{check.severity}: {check.subject}: {check.message}")
        if check.hint:
            lines.append(f"  to do: {check.hint}")
    count = count_of(len(problems), "problem")
    lines.append(f"{count}, in {format_duration(console.seconds)}")
    # A quiet command shows no lines.
    findings = problems if console.is_quiet else []
    return Outcome(report, lines, findings, status=3 if problems else 0)
