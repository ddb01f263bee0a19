"""Unpack an archive, or some of its scenes.

The folder is new, or has scenes with the options and the label map of the
archive. Only files that are missing there, or differ, are written, so that an
interrupted run is continued by the same command. A damaged scene does not stop
the others. To unpack what is left of a truncated archive, read it from standard
input: scannet-prep unpack - < ARCHIVE

examples:
  scannet-prep unpack data/scannet.tar.zst
  scannet-prep unpack https://host/scannet.tar.zst --scenes @wanted.txt -o part
  ssh host "scannet-prep pack -" | scannet-prep unpack - -o data/processed
"""

from __future__ import annotations

import argparse
import os
import sys

from scannet_prep.base.text import count_of, format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome
from scannet_prep.errors import UsageError


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "archive",
        type=shared.place_argument,
        metavar="ARCHIVE",
        help="path or address of an archive; - for standard input",
    )
    shared.add_output_path(
        parser,
        "DIR",
        "folder for the files (default: data/processed, data/ScanNet or data/frames, "
        "depending on the archive)",
    )
    shared.add_selection_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.base.machine import keep_freed_memory
    from scannet_prep.stages import unpack

    place = arguments.archive
    if str(place) == "-":
        if sys.stdin is None or sys.stdin.isatty():
            problem = "- reads an archive from a pipe, but standard input is a terminal, or closed"
            raise UsageError(problem, "name a file, or put a pipe before the command")
        place = sys.stdin.buffer
        # Another program that has the same pipe may have switched waiting off.
        os.set_blocking(0, True)
    keep_freed_memory()
    report = unpack.run(
        place,
        arguments.output,
        selection=shared.selection_from(arguments),
        progress=console,
    )
    scenes = count_of(len(report.scenes), "scene")
    lines = [f"{report.out_dir}: {scenes}, in {format_duration(console.seconds)}"]
    return Outcome(report, lines, report.failures)
