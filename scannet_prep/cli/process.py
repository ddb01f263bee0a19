"""Make one .npz of each raw scene, with points, normals, colors, labels, instances and segments.

RAW has the layout of the release. A scene of your own lies in scans_test/NAME/NAME_vh_clean_2.ply
or, with segments and groups, in scans/NAME/.

A processed folder has one set of options. They are stored in its manifest, so a later command need
not repeat them, and a command with different options is refused. To change them, process the whole
folder again with --force.

Running a command again processes only what is missing: scenes that are intact and up to date are
kept. If raw files or the label map have changed, the scenes that depend on them are processed
again. A scene that fails does not stop the others. It is listed, and written to failed.txt.

examples:
  scannet-prep process --scannet200 --align-axis
  scannet-prep process /datasets/ScanNet -o /fast/scannet --jobs 16
  scannet-prep process --scenes @data/processed/failed.txt
  scannet-prep process --scannet200 --align-axis --compute-segments
  scannet-prep process --dry-run
  scannet-prep process --scannet200 --align-axis --faces --force
  scannet-prep process --dask tcp://node01:8786
"""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_bytes, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, summarize_run

if TYPE_CHECKING:
    from scannet_prep.stages.process import ProcessPlan, ProcessReport


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "raw",
        nargs="?",
        type=shared.path_argument,
        default=Path("data/ScanNet"),
        metavar="RAW",
        help="folder with scans/ and scans_test/, or with the scene folders "
        "(default: data/ScanNet)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=shared.path_argument,
        default=Path("data/processed"),
        metavar="DIR",
        help="folder for the processed scenes (default: data/processed)",
    )
    options = parser.add_argument_group("what to make (default: the options of the folder)")
    _add_switch(
        options, "--scannet200", "labels of ScanNet200 (default for a new folder: ScanNet20)"
    )
    _add_switch(
        options,
        "--align-axis",
        "points in the axis-aligned frame (default for a new folder: the frame of the scan)",
    )
    _add_switch(options, "--faces", "keep the triangles (default for a new folder: no)")
    options.add_argument(
        "--labels-from",
        choices=("aggregation", "ply"),
        help="source of the nyu40 ids: aggregation (default for a new folder), or ply for "
        "labels.ply",
    )
    _add_switch(
        options,
        "--compute-segments",
        "compute segments (superpoints) for scenes that have none in the release, such as test "
        "scenes; they are marked as computed",
    )
    strictness = parser.add_argument_group("what is an error").add_mutually_exclusive_group()
    strictness.add_argument(
        "--strict",
        action="store_true",
        help="warnings that may mean damage are errors, such as an unknown raw category",
    )
    strictness.add_argument(
        "--lenient",
        action="store_true",
        help="train and val scenes without alignment, groups or faces do not fail, but get a "
        "warning",
    )
    shared.add_selection_arguments(parser)
    run_options = parser.add_argument_group("how to run")
    shared.add_jobs_argument(run_options)
    shared.add_dask_argument(run_options)
    run_options.add_argument(
        "--force",
        action="store_true",
        help="process scenes again even if they are up to date; with different options, process "
        "the whole folder again",
    )
    run_options.add_argument(
        "--checksum",
        action="store_true",
        help="read all files again, even if their sizes and times have not changed",
    )
    run_options.add_argument(
        "--dry-run",
        action="store_true",
        help="show which scenes would be processed and why, and write nothing",
    )


def _add_switch(group: shared.Container, name: str, text: str) -> None:
    """Add an option of the folder that a command may set, unset or leave as it is."""
    group.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=text)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import process

    if arguments.dask is not None:
        # Relative paths would be wrong on workers, which have another current folder.
        arguments.raw = arguments.raw.absolute()
        arguments.output = arguments.output.absolute()
    plan = _plan(arguments)
    if arguments.dry_run:
        return _show_plan(plan, console)
    console.say(_describe_start(plan))
    with shared.executor_from(arguments) as executor:
        report = process.run(
            plan, jobs=shared.jobs_from(arguments), progress=console, executor=executor
        )
    _print_oddities(report, console)
    text = _describe_report(plan, report, console.seconds)
    status = 3 if report.failures else 0
    return console.result(
        text,
        report,
        status,
        options=plan.context.options,
        options_source=plan.options_source,
        seconds=console.seconds,
    )


def _plan(arguments: argparse.Namespace) -> ProcessPlan:
    """Plan the run."""
    from scannet_prep.stages import process

    # Options that the command leaves out are those of the folder.
    options = {}
    for name in ("scannet200", "align_axis", "faces", "labels_from", "compute_segments"):
        value = getattr(arguments, name)
        if value is not None:
            options[name] = value
    return process.plan(
        arguments.raw,
        arguments.output,
        options,
        selection=shared.selection_from(
            arguments,
        ),
        is_forced=arguments.force,
        is_strict=arguments.strict,
        is_lenient=arguments.lenient,
        compares_bytes=arguments.checksum,
    )


def _show_plan(plan: ProcessPlan, console: Console) -> int:
    """Show the result of a dry run."""
    value = {
        "dry_run": True,
        "raw_dir": plan.raw_dir,
        "out_dir": plan.out_dir,
        "options": plan.context.options,
        "options_source": plan.options_source,
        "scenes": {task.scene.scene_id: task.split for task in plan.tasks},
        "to_process": plan.to_process,
        "reasons": {str(reason): scene_ids for reason, scene_ids in plan.scenes_by_reason.items()},
        "failures": plan.failures,
    }
    status = 3 if plan.failures else 0
    return console.result(_describe_plan(plan), value, status)


def _describe_start(plan: ProcessPlan) -> str:
    """Describe options, folders and warnings, one line each."""
    options = plan.context.options
    frame = "axis-aligned" if options.align_axis else "frame of the scan"
    scenes = count_of(len(plan.tasks), "scene")
    lines = [
        f"process: {options.flags} (from {plan.options_source}): {options.label_set.name}, {frame}",
        f"{plan.raw_dir} -> {plan.out_dir}: {scenes}, label map: {plan.context.label_map.source}",
    ]
    return "\n".join([*lines, *plan.notes])


def _describe_plan(plan: ProcessPlan) -> str:
    """Describe the result of a dry run."""
    lines = [_describe_start(plan)]
    lines += [f"failed: {failure}\n  hint: {failure.hint}" for failure in plan.failures]
    scenes = count_of(len(plan.to_process), "scene")
    lines.append(f"dry run: {scenes} would be processed; nothing was written")
    for reason, scene_ids in plan.scenes_by_reason.items():
        lines.append(f"  {len(scene_ids):,}: {reason} ({list_some(scene_ids)})")
    return "\n".join(lines)


def _print_oddities(report: ProcessReport, console: Console) -> None:
    """Print warnings and failures; all scenes of a warning only if the console is verbose."""
    for summary in report.warnings:
        shown_count = len(summary.scenes) if console.is_verbose else 3
        scenes = list_some(summary.scenes, shown_count)
        console.say(f"warning: {summary.text} ({scenes})")
    for failure in report.failures:
        trace = f"\n{failure.trace}" if failure.trace else ""
        console.warn(f"failed: {failure}{trace}", failure.hint)


def _describe_report(plan: ProcessPlan, report: ProcessReport, seconds: float) -> str:
    """Describe the result of a run, and the next step."""
    from scannet_prep.processed.folder import FAILED_NAME

    size = f"{report.vertices:,} vertices, {format_bytes(report.size_bytes)}"
    lines = summarize_run(report, size, seconds)
    if report.raw_gone:
        scenes = f"{count_of(len(report.raw_gone), 'scene')} ({list_some(report.raw_gone)})"
        lines.append(f"kept, although their raw files are gone: {scenes}")
    if any(failure.error == "MissingFileError" for failure in report.failures):
        raw_dir = quote(str(plan.raw_dir))
        failed_list = quote(f"@{report.out_dir / FAILED_NAME}")
        lines.append(
            "to fetch what is missing: scannet-prep download --types seg "
            f"-o {raw_dir} --scenes {failed_list}"
        )
    # The next step is suggested only if nothing else needs attention.
    if plan.tasks and not (report.failures or report.unfinished or plan.notes):
        lines.append(f'in Python: ScanNet("{report.out_dir}", split="{plan.tasks[0].split}")')
    return "\n".join(lines)
