"""Make one .npz of each raw scene, with points, normals, colors, labels, instances and segments.

RAW has the layout of the release. A scene of your own lies in scans_test/NAME/NAME_vh_clean_2.ply
or, with segments and groups, in scans/NAME/.

A processed folder has one set of options. They are stored in its manifest, so a later command need
not repeat them, and a command with different options is refused. To change them, process the whole
folder again with --force.

Running a command again makes only what is missing: a scene is kept if its file is the recorded one
and not older than its raw files. A scene that fails does not stop the others. It is listed, and
written to failed.txt.

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
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from scannet_prep.base.text import count_of, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, describe_tasks, summarize_run
from scannet_prep.cli.outcome import Outcome

if TYPE_CHECKING:
    from scannet_prep.stages.process import ProcessPlan, ProcessReport


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_path_argument(
        parser,
        "raw",
        metavar="RAW",
        default="data/ScanNet",
        text="folder with scans/ and scans_test/, or with the scene folders",
    )
    shared.add_path_argument(
        parser,
        "-o",
        "--output",
        metavar="DIR",
        default="data/processed",
        text="folder for the processed scenes",
    )
    options = parser.add_argument_group("what to make (default: the options of the folder)")
    switches = {
        "--scannet200": "labels of ScanNet200 (default for a new folder: ScanNet20)",
        "--align-axis": "points in the axis-aligned frame (default for a new folder: the frame of "
        "the scan)",
        "--faces": "keep the triangles (default for a new folder: no)",
        "--compute-segments": "compute segments (superpoints) for scenes that have none in the "
        "release, such as test scenes; they are marked as computed",
    }
    for name, text in switches.items():
        options.add_argument(
            name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
        )
    options.add_argument(
        "--labels-from",
        choices=("aggregation", "ply"),
        default=argparse.SUPPRESS,
        help="source of the nyu40 ids: aggregation (default for a new folder), or ply for "
        "labels.ply",
    )
    shared.add_selection_arguments(parser)
    run_options = parser.add_argument_group("how to run")
    shared.add_jobs_argument(run_options)
    shared.add_dask_argument(run_options)
    run_options.add_argument(
        "--force",
        action="store_true",
        help="make scenes again even if they are up to date; with different options, the whole "
        "folder",
    )
    run_options.add_argument(
        "--strict",
        action="store_true",
        help="doubts about labels are errors, such as an unknown raw category",
    )
    run_options.add_argument(
        "--dry-run",
        action="store_true",
        help="show which scenes would be made and why, and write nothing",
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.stages import process

    if arguments.dask is not None:
        # Relative paths would be wrong on workers, which have another current folder.
        arguments.raw = arguments.raw.absolute()
        arguments.output = arguments.output.absolute()
    # Options that the command leaves out are those of the folder.
    names = ("scannet200", "align_axis", "faces", "labels_from", "compute_segments")
    options = {name: value for name, value in vars(arguments).items() if name in names}
    plan = process.plan(
        arguments.raw,
        arguments.output,
        options,
        selection=shared.selection_from(arguments),
        is_forced=arguments.force,
        is_strict=arguments.strict,
    )
    console.say(_describe(plan))
    more: dict[str, Any] = {"options": plan.context.options}
    if arguments.dry_run:
        reasons, lines = describe_tasks(plan.tasks)
        facts = {"dry_run": True, "raw_dir": plan.raw_dir, "out_dir": plan.out_dir}
        more |= {"to_make": reasons, "kept": plan.kept, "failures": plan.failures}
        return Outcome(facts, lines, (*plan.notes, *plan.failures), more)
    with shared.executor_from(arguments) as executor:
        report = process.run(
            plan, jobs=shared.jobs_from(arguments), progress=console, executor=executor
        )
    return Outcome(report, _summarize(report, console), (*plan.notes, *report.failures), more)


def _describe(plan: ProcessPlan) -> str:
    """Describe folders and options."""
    options = plan.context.options
    scenes = count_of(len(plan.tasks) + len(plan.kept), "scene")
    return (
        f"process: {plan.raw_dir} -> {plan.out_dir}: {scenes}\n"
        f"{options.flags}: {options.label_set.name}, label map: {plan.context.label_map.source}"
    )


def _summarize(report: ProcessReport, console: Console) -> Iterator[str]:
    """Describe the result of a run."""
    for warning in report.warnings:
        shown = len(warning.scenes) if console.is_verbose else 3
        yield f"warning: {warning.text} ({list_some(warning.scenes, shown)})"
    yield from summarize_run(report, "", console.seconds)
    if report.raw_gone:
        yield f"kept, although their raw files are gone: {list_some(report.raw_gone)}"
    if report.unfinished:
        yield (
            f"not finished: {count_of(len(report.unfinished), 'scene')} of an interrupted run "
            f"({list_some(report.unfinished)}): run the command for these, too"
        )
