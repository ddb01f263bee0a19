"""`scannet-prep demo`."""

from __future__ import annotations

import argparse
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
    from scannet_prep.stages.demo import DatasetView, DemoReport

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
    from scannet_prep.stages.download import FileOutcome

    counts = ", ".join(f"{count} {split}" for split, count in report.raw_counts.items())
    processed = report.processed
    size = f"{format_bytes(processed.size_bytes)} ({processed.size_bytes / processed.vertex_count:.1f} bytes a vertex)"
    made = f"{len(processed.made)} made, {len(processed.kept)} already there"
    kinds = report.downloaded.counts().values()
    fetched, there = (sum(kind[outcome] for kind in kinds) for outcome in (FileOutcome.FETCHED, FileOutcome.PRESENT))
    share = report.packed.size_bytes / report.packed.source_bytes
    packed = f"{report.packed.scenes} scenes, {format_bytes(report.packed.size_bytes)} ({share:.0%})"
    lines = [
        f"1. synthetic scenes in the format of the release: {counts}",
        f"   downloaded from a server on this machine, and checked: {fetched} files fetched, {there} already there",
        f"   {report.plan.raw_dir}",
        "",
        f"2. processed for ScanNet200, axis-aligned: {made}, {processed.vertex_count:,} vertices, {size}",
        f"   {report.plan.processed_dir}",
        *(f"   warning: {item.warning.text} ({', '.join(item.scene_ids)})" for item in processed.warnings),
        "",
        f"3. packed as one archive: {packed}",
        f"   {report.plan.archive_path}",
        "",
        "4. read as a dataset, from the folder and from the archive, with either label set",
        *(line for view in report.views for line in _describe_view(view)),
        *(f"   {key:<10} {text}" for key, text in report.views[0].arrays.items()),
        "",
        f"All of it took {format_duration(seconds)}. The same with the real data:",
        "   scannet-prep download --types seg",
        "   scannet-prep process --scannet200 --align-axis",
        "   scannet-prep pack",
        "   scannet-prep verify data/processed",
        "and in Python:",
        "   from scannet_prep import SCANNET200, ScanNet",
        '   dataset = ScanNet("data/processed", split="train", labels=SCANNET200)',
    ]
    return "\n".join(lines)


def _describe_view(view: DatasetView) -> list[str]:
    classes = f"{len(view.class_names)} classes occur ({', '.join(view.class_names[:6])}, ...)"
    return [f"   {view.code}", f"   {view.scene_count} scenes, {classes}, {view.labeled:.0%} labeled"]
