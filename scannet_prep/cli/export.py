"""Write what other programs read: OctFormer, Pointcept, Mask3D and others.

Takes processed scenes, from a folder or an archive.

Running a command again exports only scenes that are missing or have been
processed again. All scenes of an export have the same format and options, and
were processed with the same options; the file export.json records them.

examples:
  scannet-prep export --format octformer --label-set scannet200 -o scannet200.npz
  scannet-prep export --format pointcept -o Pointcept/data/scannet
  scannet-prep export --format oneformer3d -o oneformer3d
  scannet-prep export --format votenet -o scannet_train_detection_data
  scannet-prep export --format scanrefer --points all -o scannet_data
  scannet-prep export --format benchmark-gt --splits val
  scannet-prep export --format ply --scenes scene0011_00
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_bytes, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, describe_tasks, summarize_run
from scannet_prep.cli.outcome import Outcome
from scannet_prep.export import FORMATS

if TYPE_CHECKING:
    from scannet_prep.stages.export import ExportPlan

_SETTINGS = ("label_set", "is_aligned", "points")


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command, and the list of the formats."""
    formats = [f"  {name:<14}{summary}" for name, (_, summary) in FORMATS.items()]
    parser.description = "\n".join([f"{parser.description}\n\nformats:", *formats])
    shared.add_path_argument(
        parser,
        "place",
        metavar="PLACE",
        default="data/processed",
        text="processed folder, or the path or address of an archive",
    )
    parser.add_argument(
        "--format",
        required=True,
        choices=tuple(FORMATS),
        metavar="FORMAT",
        help="one of the formats above",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=shared.path_argument,
        metavar="DIR",
        help="folder for the export (default: data/export/FORMAT)",
    )
    options = parser.add_argument_group(
        "what to make (default: what the program uses, with the label set of PLACE)",
        argument_default=argparse.SUPPRESS,
    )
    shared.add_label_set_argument(options, "label set, if the format has only one")
    frame = options.add_mutually_exclusive_group()
    frame.add_argument(
        "--aligned",
        action="store_true",
        dest="is_aligned",
        default=argparse.SUPPRESS,
        help="points in the axis-aligned frame",
    )
    frame.add_argument(
        "--unaligned",
        action="store_false",
        dest="is_aligned",
        default=argparse.SUPPRESS,
        help="points in the frame of the scan",
    )
    options.add_argument(
        "--points",
        type=_points_argument,
        metavar="N|all",
        help="draw N points of each scene that has more, for votenet and scanrefer "
        "(default: 50000); all: keep every vertex",
    )
    shared.add_selection_arguments(parser)
    run_options = parser.add_argument_group("how to run")
    shared.add_jobs_argument(run_options)
    shared.add_dask_argument(run_options)
    run_options.add_argument(
        "--force", action="store_true", help="make scenes again even if they are up to date"
    )
    run_options.add_argument(
        "--dry-run", action="store_true", help="show what would be exported, and write nothing"
    )


def _points_argument(text: str) -> int | None:
    """Parse a number of points, or `all`."""
    return None if text == "all" else shared.positive_number(text)


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.release.label_sets import parse_label_set
    from scannet_prep.stages import export

    place = arguments.place
    out_dir = arguments.output or Path("data/export") / arguments.format
    if arguments.dask is not None:
        # Relative paths would be wrong on workers, which have another current folder.
        place = place.absolute() if isinstance(place, Path) else place
        out_dir = out_dir.absolute()
    settings = {name: value for name, value in vars(arguments).items() if name in _SETTINGS}
    if "label_set" in settings:
        settings["label_set"] = parse_label_set(arguments.label_set)
    plan = export.plan(
        place,
        out_dir,
        arguments.format,
        settings,
        selection=shared.selection_from(arguments),
        is_forced=arguments.force,
    )
    console.say(_describe(plan))
    more = {"settings": plan.settings, "left_out": plan.left_out}
    if arguments.dry_run:
        reasons, lines = describe_tasks(plan.tasks)
        facts = {"dry_run": True, "out_dir": out_dir, "to_make": reasons, "kept": plan.kept}
        return Outcome(facts, lines, more=more)
    with shared.executor_from(arguments) as executor:
        report = export.run(
            plan, jobs=shared.jobs_from(arguments), progress=console, executor=executor
        )
    size = f"{count_of(report.files, 'file')}, {format_bytes(report.size_bytes)}"
    lines = summarize_run(report, size, console.seconds)
    return Outcome(report, lines, report.failures, more)


def _describe(plan: ExportPlan) -> str:
    """Describe what is exported, what is left out, and what is missing, one line each."""
    place = plan.context.place
    scenes = count_of(len(plan.tasks) + len(plan.kept), "scene")
    settings = [f"{name.replace('_', ' ')}: {value}" for name, value in plan.settings.items()]
    lines = [f"export: {place.name} -> {plan.context.out_dir}: {scenes}", ", ".join(settings)]
    if plan.left_out:
        lines.append(f"left out: {plan.left_out}")
    if place.failures:
        lines.append(
            f"warning: missing, because they failed in processing: {list_some([*place.failures])}"
        )
    return "\n".join(lines)
