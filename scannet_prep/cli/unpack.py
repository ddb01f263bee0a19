"""Write the files of an archive, or of some of its scenes.

Every file is checked by its SHA-256 before it gets its name. What is there already, and right, is kept. Of a truncated
or damaged archive, all whole scenes are unpacked, and the others are named.

examples:
  scannet-prep unpack data/scannet.tar.zst                     -> data/processed
  scannet-prep unpack data/scannet-*.tar.zst -o /fast/scannet  all shards
  scannet-prep unpack https://host/scannet.tar.zst --scenes @wanted.txt -o part
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from scannet_prep.base.errors import UsageError
from scannet_prep.base.units import format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.arguments import add_trust_arguments, certificates_from
from scannet_prep.cli.console import Console, describe_list, format_count

if TYPE_CHECKING:
    from scannet_prep.archive.source import Place


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    archives = "path or address of an archive, or several (shards); - for standard input"
    parser.add_argument(
        "archives", type=shared.place_argument, nargs="+", metavar="ARCHIVE", help=archives
    )
    target = (
        "where the files go (default: data/processed or data/ScanNet, by what is in the archive)"
    )
    parser.add_argument("-o", "--output", type=shared.path_argument, metavar="DIR", help=target)
    shared.add_selection_arguments(parser)
    shared.add_jobs_argument(parser.add_argument_group("how to run"), "threads")
    add_trust_arguments(parser.add_argument_group("server, for addresses"))


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.archive.source import PipeSource
    from scannet_prep.stages import unpack

    archives: list[Place] = arguments.archives
    if archives == [Path("-")]:
        if sys.stdin is None or sys.stdin.isatty():
            hint = "name a file, or put a pipe before it: cat FILE | scannet-prep unpack -"
            raise UsageError(
                "- reads an archive from a pipe, but standard input is a terminal", hint
            )
        archives = [PipeSource(sys.stdin.fileno())]
    report = unpack.run(
        archives,
        arguments.output,
        selection=shared.selection_from(arguments),
        certificates=certificates_from(arguments, console),
        jobs=shared.jobs_from(arguments),
        progress=console,
    )
    for text in (
        *(f"warning: {item}" for item in report.warnings),
        *(f"damaged: {item}" for item in report.damages),
    ):
        console.warn(text)
    if report.failures:
        failed = describe_list(
            "failed", [failure.message for failure in report.failures], has_all=console.is_verbose
        )
        console.warn("\n".join(failed).lstrip(), report.failures[0].hint)
    status = 3 if report.failures or report.damages else 0
    scenes = f"{format_count(len(report.scenes), 'scene')} there, {len(report.failures):,} failed"
    files = ", ".join(f"{count:,} {outcome}" for outcome, count in report.files.items())
    text = f"{report.out_dir}: {scenes}; files: {files}; in {format_duration(console.seconds)}"
    if report.failures:
        again = quote(f"@{report.out_dir}/failed.txt")
        text += f"\nto try the failed ones again, add --scenes {again} to the same command"
    return console.result(text, report, status, seconds=console.seconds)
