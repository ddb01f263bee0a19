"""`scannet-prep demo`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.cli.arguments import (
    CommandParser,
    Commands,
    add_jobs_argument,
    add_output_arguments,
    jobs_from,
    path_argument,
)
from scannet_prep.cli.console import Console, format_duration
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.demo import DemoReport

_DESCRIPTION = """\
Makes small synthetic scenes in the format of the release (nothing in them is from ScanNet), downloads them from a
server on this machine, processes them, packs them, and reads them as a dataset. Needs no network and no account.
"""
_EPILOG = """\
examples:
  scannet-prep demo
  scannet-prep demo /tmp/demo
"""


def add_command(commands: Commands) -> None:
    """Add the command to the program."""
    parser: CommandParser = commands.add_parser(
        "demo", help="synthetic scenes through every stage", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument(
        "directory", nargs="?", type=path_argument, default=Path("data/demo"), metavar="DIR",
        help="where to put them (default: data/demo)",
    )  # fmt: skip
    add_jobs_argument(parser)
    add_output_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import demo

    started_s = time.monotonic()
    report = demo.run(demo.plan(arguments.directory), jobs=jobs_from(arguments), progress=console.progress())
    seconds = time.monotonic() - started_s
    value = {"command": "demo", **report.to_json(), "seconds": round(seconds, 3)}
    return console.result(_describe(report, seconds), value, 0)


def _describe(report: DemoReport, seconds: float) -> str:
    from scannet_prep.release import TERMS_URL

    counts = ", ".join(f"{count} {split}" for split, count in report.raw_counts.items())
    processed, packed = report.processed, report.packed
    made = f"{len(processed.made)} made, {len(processed.kept)} already there"
    size = f"{format_bytes(processed.size_bytes)} ({processed.size_bytes / processed.vertex_count:.1f} bytes a vertex)"
    lines = [
        f"1. synthetic scenes in the format of the release: {counts}",
        "   downloaded from a server on this machine, and checked",
        f"   {report.plan.raw_dir}",
        "",
        f"2. processed for ScanNet200, axis-aligned: {made}, {processed.vertex_count:,} vertices, {size}",
        f"   {report.plan.processed_dir}",
        *(f"   warning: {item.warning.text} ({', '.join(item.scene_ids)})" for item in processed.warnings),
        "",
        f"3. packed as one archive: {packed.scene_count} scenes, {format_bytes(packed.size_bytes)}",
        f"   {report.plan.archive_path}",
        "",
        "4. read as a dataset, from the folder and from the archive, with either label set",
        *(
            f"   {view.code}\n   {view.scenes} scenes, {view.labeled:.0%} labeled, {len(view.classes)} classes occur "
            f"({', '.join(view.classes[:6])}, ...)"
            for view in report.views
        ),
        *(f"   {key:<10} {text}" for key, text in report.views[0].arrays.items()),
        "",
        f"All of it took {format_duration(seconds)}. The same with the real data, once you have signed its terms",
        f"({TERMS_URL}):",
        *(f"   {line}" for line in _activation()),
        "   scannet-prep download --types seg --accept-terms",
        "   scannet-prep process --scannet200 --align-axis",
        "   scannet-prep pack",
        "and in Python:",
        "   from scannet_prep import SCANNET200, ScanNet",
        '   dataset = ScanNet("data/processed", split="train", labels=SCANNET200)',
    ]
    return "\n".join(lines)


def _activation() -> list[str]:
    """What to type first, where the shell does not find this installation's commands."""
    found, is_environment = shutil.which("scannet-prep"), sys.prefix != sys.base_prefix
    if not is_environment or (found and Path(found).parent == Path(sys.executable).parent):
        return []
    return [f"source {shlex.quote(str(Path(sys.prefix, 'bin/activate')))}"]
