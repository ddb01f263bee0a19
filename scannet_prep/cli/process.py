"""Make one .npz of each raw scene.

Each holds points, normals, colors, labels, instances, segments.

Whole scenes that are up to date are kept, so running it again does only what is missing. Scenes whose raw files or
options have changed are made again. One bad scene never stops the others: it is listed, and written to failed.txt.

With --shard, several machines share the work (docs/cluster.md); afterwards, the same command without it merges.

examples:
  scannet-prep process --scannet200 --align-axis
  scannet-prep process /datasets/ScanNet -o /fast/scannet --splits train val --jobs 16
  scannet-prep process --scannet200 --align-axis --scenes @data/processed/failed.txt
  scannet-prep process --align-axis --shard auto
  scannet-prep process --dry-run
"""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, describe_made, format_count
from scannet_prep.failures import list_some
from scannet_prep.space import format_bytes

if TYPE_CHECKING:
    from scannet_prep.stages.process import ProcessPlan, ProcessReport


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "raw", nargs="?", type=shared.path_argument, default=Path("data/ScanNet"), metavar="RAW",
        help="folder with scans/ and scans_test/, or with the scene folders (default: data/ScanNet)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=shared.path_argument, default=Path("data/processed"), metavar="DIR",
        help="folder for the processed scenes (default: data/processed)",
    )  # fmt: skip
    options = parser.add_argument_group("what to make")
    options.add_argument("--scannet200", action="store_true", help="labels of ScanNet200 (default: ScanNet20)")
    options.add_argument("--align-axis", action="store_true", help="points in the axis-aligned frame")
    options.add_argument("--faces", action="store_true", help="keep the triangles")
    options.add_argument(
        "--labels-from", choices=("aggregation", "ply"), default="aggregation",
        help="source of the nyu40 ids (default: aggregation; ply is labels.ply)",
    )  # fmt: skip
    options.add_argument("--strict", action="store_true", help="an unknown raw category and other doubts are errors")
    options.add_argument(
        "--lenient", action="store_true",
        help="a train or val scene without alignment, groups or faces is a warning, not an error",
    )  # fmt: skip
    shared.add_selection_arguments(parser)
    run_options = parser.add_argument_group("how to run")
    shared.add_jobs_argument(run_options)
    shared.add_shard_argument(run_options)
    run_options.add_argument("--force", action="store_true", help="make scenes again even if they are up to date")
    checksum = "read all files again, whatever their sizes and times are"
    run_options.add_argument("--checksum", action="store_true", help=checksum)
    run_options.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.processed.scene import ProcessOptions
    from scannet_prep.stages import process

    plan = process.plan(
        arguments.raw,
        arguments.output,
        ProcessOptions(arguments.scannet200, arguments.align_axis, arguments.faces, arguments.labels_from),
        selection=shared.selection_from(arguments),
        is_forced=arguments.force,
        is_strict=arguments.strict,
        is_lenient=arguments.lenient,
        compares_bytes=arguments.checksum,
        shard=shared.shard_from(arguments),
    )
    if arguments.dry_run:
        value = {"dry_run": True, "raw_dir": plan.raw_dir, "out_dir": plan.out_dir}
        value |= {"options": plan.context.options, "failures": plan.failures}
        value["scenes"] = {task.scene.scene_id: task.split for task in plan.tasks}
        return console.result(_describe_plan(plan), value, 3 if plan.failures else 0)
    console.say(_describe_start(plan))
    report = process.run(plan, jobs=shared.jobs_from(arguments), progress=console)
    _tell_oddities(report, console)
    more = {"options": plan.context.options, "shard": str(plan.share.shard) if plan.share else ""}
    text, status = _describe_report(plan, report, console.seconds), 3 if report.failures else 0
    return console.result(text, report, status, **more, seconds=console.seconds)


def _describe_start(plan: ProcessPlan) -> str:
    frame = "axis-aligned" if plan.context.options.align_axis else "frame of the scan"
    scenes = format_count(len(plan.tasks), "scene")
    what = f"{scenes}, {plan.context.options.label_set.name}, {frame}, label map: {plan.context.label_map.source}"
    what += shared.describe_share(plan.share)
    return "\n".join([f"process: {plan.raw_dir} -> {plan.out_dir}: {what}", *plan.notes])


def _describe_plan(plan: ProcessPlan) -> str:
    failed = [f"failed: {failure.message}\n  hint: {failure.hint}" for failure in plan.failures]
    there = sum(task.path.exists() for task in plan.tasks)
    note = f"dry run: nothing was done; {there:,} scenes are there already: those that are up to date would be kept"
    return "\n".join([_describe_start(plan), *failed, note])


def _tell_oddities(report: ProcessReport, console: Console) -> None:
    for summary in report.warnings:
        scenes = list_some(summary.scenes, len(summary.scenes) if console.is_verbose else 3)
        console.say(f"warning: {summary.text} ({scenes})")
    for failure in report.failures:
        trace = f"\n{failure.trace}" if failure.trace else ""
        console.warn(f"failed: {failure.scene_id}: {failure.message}{trace}", failure.hint)


def _describe_report(plan: ProcessPlan, report: ProcessReport, seconds: float) -> str:
    from scannet_prep.processed.folder import FAILED_NAME

    size = f"{report.vertices:,} vertices, {format_bytes(report.size_bytes)}"
    lines = describe_made(report, plan.share, size, seconds)
    if any(failure.error == "MissingFileError" for failure in report.failures):
        failed_path = report.out_dir / FAILED_NAME if plan.share is None else plan.share.path(f".{FAILED_NAME}")
        words = f"-o {quote(str(plan.raw_dir))} --scenes {quote(f'@{failed_path}')}"
        lines.append(f"to fetch what is missing: scannet-prep download --types seg {words}")
    if plan.tasks and not (report.failures or report.unfinished or plan.notes or plan.share):
        label_set = plan.context.options.label_set.name.upper()
        lines.append(f'in Python: ScanNet("{report.out_dir}", split="{plan.tasks[0].split}", labels={label_set})')
    return "\n".join(lines)
