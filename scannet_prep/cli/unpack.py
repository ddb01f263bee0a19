"""Unpack an archive, or some of its scenes.

Every file is checked against its SHA-256 before it gets its final name. Existing files with the
same content are kept. From a truncated or damaged archive, all intact scenes are unpacked, and
the others are listed.

examples:
  scannet-prep unpack data/scannet.tar.zst
  scannet-prep unpack data/scannet-*.tar.zst -o /fast/scannet  # all shards
  scannet-prep unpack https://host/scannet.tar.zst --scenes @wanted.txt -o part
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.arguments import add_trust_arguments, certificates_from
from scannet_prep.cli.console import Console, describe_list
from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.archive.byte_source import Place
    from scannet_prep.stages.unpack import UnpackReport


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "archives",
        type=shared.place_argument,
        nargs="+",
        metavar="ARCHIVE",
        help="path or address of an archive, or several (shards); - for standard input",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=shared.path_argument,
        metavar="DIR",
        help="folder for the files (default: data/processed or data/ScanNet, "
        "depending on the archive)",
    )
    shared.add_selection_arguments(parser)
    shared.add_jobs_argument(parser.add_argument_group("how to run"), "threads")
    add_trust_arguments(parser.add_argument_group("server, for addresses"))


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.archive.byte_source import PipeSource
    from scannet_prep.stages import unpack

    archives: list[Place] = arguments.archives
    if archives == [Path("-")]:
        if sys.stdin is None or sys.stdin.isatty():
            hint = "name a file, or put a pipe before it: cat FILE | scannet-prep unpack -"
            problem = "- reads an archive from a pipe, but standard input is a terminal"
            raise UsageError(problem, hint)
        archives = [PipeSource(sys.stdin.fileno())]
    report = unpack.run(
        archives,
        arguments.output,
        selection=shared.selection_from(arguments),
        certificates=certificates_from(arguments, console),
        jobs=shared.jobs_from(arguments),
        progress=console,
    )
    _warn(report, console)
    scenes = f"{count_of(len(report.scenes), 'scene')} there, {len(report.failures):,} failed"
    files = ", ".join(f"{count:,} {outcome}" for outcome, count in report.files.items())
    text = f"{report.out_dir}: {scenes}; files: {files}; in {format_duration(console.seconds)}"
    if report.failures:
        failed_list = quote(f"@{report.out_dir}/failed.txt")
        text += f"\nto try the failed ones again, add --scenes {failed_list} to the same command"
    status = 3 if report.failures or report.damages else 0
    return console.result(text, report, status, seconds=console.seconds)


def _warn(report: UnpackReport, console: Console) -> None:
    """Print warnings, damage, and the scenes that failed."""
    for warning in report.warnings:
        console.warn(f"warning: {warning}")
    for damage in report.damages:
        console.warn(f"damaged: {damage}")
    if report.failures:
        messages = [failure.message for failure in report.failures]
        # The list begins with a blank line, which is for a report between other paragraphs.
        lines = describe_list("failed", messages, has_all=console.is_verbose)
        console.warn("\n".join(lines).lstrip(), report.failures[0].hint)
