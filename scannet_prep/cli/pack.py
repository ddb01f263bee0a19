"""Pack a folder of scenes into one archive.

The folder contains processed scenes or extracted frames, or is a raw tree. The
archive is a plain .tar.zst that any tar opens. Training reads it directly: a
scene, or an image of extracted frames, can be read alone, also over HTTP.

With the same version of zstandard, the same files give the same bytes. The
archive gets its name when it is complete; an existing one is replaced only with
--force.

examples:
  scannet-prep pack                           # data/processed
  scannet-prep pack data/ScanNet -o data/raw.tar.zst
  scannet-prep pack data/frames -o data/frames.tar.zst
  scannet-prep pack - | ssh host "cd /datasets && scannet-prep unpack -"
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scannet_prep.base.text import count_of, format_bytes, format_duration, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome
from scannet_prep.errors import UsageError

_PIPE = Path("-")


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_path_argument(
        parser,
        "source",
        metavar="SOURCE",
        default="data/processed",
        text="folder to pack; - is short for -o -",
    )
    shared.add_output_path(
        parser,
        "FILE",
        "the archive (default: data/scannet.tar.zst); - writes it to standard output",
    )
    parser.add_argument(
        "--level",
        type=int,
        choices=range(23),
        default=1,
        metavar="N",
        help="compression level of zstd, 1..22 (default: 1); 0 for hardly any compression: the "
        "archive is 11 %% larger, and scenes are read nearly twice as fast",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing archive")
    shared.add_jobs_argument(parser, "compressing threads")


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.base.machine import keep_freed_memory
    from scannet_prep.stages import pack

    source: Path = arguments.source
    target: Path = arguments.output or Path("data/scannet.tar.zst")
    if source == _PIPE:
        source = Path("data/processed")
        target = arguments.output or _PIPE
    is_pipe = target == _PIPE
    # Python sets `sys.__stdout__` to None if the shell has closed standard output (>&-).
    if is_pipe and (arguments.json or sys.__stdout__ is None or sys.stdout.isatty()):
        problem = "standard output is a terminal, closed, or taken by --json"
        raise UsageError(problem, "name a file with -o, or pipe the output into another command")
    if is_pipe:
        # The descriptor of standard output is 1. Another program that has the same pipe may have
        # switched waiting off.
        os.set_blocking(1, True)
    keep_freed_memory()
    report = pack.run(
        source,
        1 if is_pipe else target,
        level=arguments.level,
        is_forced=arguments.force,
        jobs=shared.jobs_from(arguments),
        progress=console,
    )
    if report.left_out:
        names = f"{len(report.left_out):,} ({list_some(report.left_out)})"
        console.say(f"left out, because they belong to no packed scene: {names}")
    sizes = f"{format_bytes(report.stored_bytes)} of {format_bytes(report.size_bytes)}"
    scenes = count_of(sum(report.splits.values()), "scene")
    lines = [f"{report.archive}: {scenes}, {sizes}, in {format_duration(console.seconds)}"]
    if is_pipe:
        console.say(lines.pop())
    return Outcome(report, lines, report.failures)
