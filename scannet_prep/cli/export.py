"""Write what other programs read: OctFormer, Pointcept, Mask3D and others.

Takes processed scenes, from a folder or an archive.

Running a command again exports only scenes that are missing or have been
processed again. All scenes of an export have the same format and options, and
were processed with the same options. The file export.json records the options,
and scannet-prep verify reads it.

examples:
  scannet-prep export --format octformer --label-set scannet200 -o scannet200.npz
  scannet-prep export --format pointcept -o Pointcept/data/scannet
  scannet-prep export --format mmdet3d --for oneformer3d -o oneformer3d
  scannet-prep export --format votenet -o scannet_train_detection_data
  scannet-prep export --format scanrefer --points all -o scannet_data
  scannet-prep export --format benchmark-gt --splits val
  scannet-prep export --format ply --color label --scenes scene0011_00
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scannet_prep.base.text import count_of, format_bytes, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, summarize_run
from scannet_prep.cli.outcome import Outcome
from scannet_prep.export import FORMATS, Setting

if TYPE_CHECKING:
    from scannet_prep.stages.export import ExportPlan


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command, and the list of the formats."""
    formats = [f"  {name:<14}{summary}" for name, (_, _, summary) in FORMATS.items()]
    parser.description = "\n".join([f"{parser.description}\n\nformats:", *formats])
    parser.add_argument(
        "place",
        type=shared.place_argument,
        nargs="?",
        default=Path("data/processed"),
        metavar="PLACE",
        help="processed folder, or the path or address of an archive (default: data/processed)",
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
    options = parser.add_argument_group("what to make")
    shared.add_label_set_argument(
        options, "label set, if the format has only one (default: that of PLACE)"
    )
    frame = options.add_mutually_exclusive_group()
    frame.add_argument(
        "--aligned",
        action="store_true",
        default=None,
        help="points in the axis-aligned frame (default: the frame that the program uses)",
    )
    frame.add_argument(
        "--unaligned",
        action="store_false",
        dest="aligned",
        default=None,
        help="points in the frame of the scan",
    )
    options.add_argument(
        "--for",
        "--color",
        dest="variant",
        default="",
        metavar="VARIANT",
        help="dialect of mmdet3d (oneformer3d), "
        "or colours of a ply (rgb, label, instance, segment)",
    )
    options.add_argument(
        "--test-segments",
        type=shared.path_argument,
        metavar="DIR",
        help="segments of test scenes from elsewhere, in place of computed ones",
    )
    options.add_argument(
        "--points",
        type=_points_argument,
        metavar="N|all",
        help="draw N points of each scene that has more, for votenet and scanrefer "
        "(default: 50000); all: keep every vertex",
    )
    options.add_argument(
        "--seed",
        type=shared.whole_number,
        metavar="N",
        help="seed of the points that are drawn (default: 0)",
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


def _points_argument(text: str) -> int | Literal["all"]:
    """Parse a number of points, or `all`."""
    return "all" if text == "all" else shared.positive_number(text)


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.export.format import ExportOptions
    from scannet_prep.release.label_sets import parse_label_set
    from scannet_prep.stages import export

    place = arguments.place
    out_dir = arguments.output or Path("data/export") / arguments.format
    if arguments.dask is not None:
        # Relative paths would be wrong on workers, which have another current folder.
        place = place.absolute() if isinstance(place, Path) else place
        out_dir = out_dir.absolute()
    label_set = parse_label_set(arguments.label_set) if arguments.label_set else None
    plan = export.plan(
        place,
        out_dir,
        arguments.format,
        ExportOptions(
            label_set=label_set,
            is_aligned=arguments.aligned,
            variant=arguments.variant,
            test_segments=arguments.test_segments,
            points=arguments.points,
            seed=arguments.seed,
        ),
        selection=shared.selection_from(arguments),
        is_forced=arguments.force,
    )
    if arguments.dry_run:
        planned = {
            "dry_run": True,
            "out_dir": plan.out_dir,
            "settings": plan.format.settings,
            "scenes": plan.scene_ids,
        }
        return Outcome(planned, [_describe_start(plan), "dry run: nothing was done"])
    console.say(_describe_start(plan))
    with shared.executor_from(arguments) as executor:
        report = export.run(
            plan, jobs=shared.jobs_from(arguments), progress=console, executor=executor
        )
    size = f"{count_of(report.files, 'file')}, {format_bytes(report.size_bytes)}"
    lines = summarize_run(report, size, console.seconds)
    return Outcome(report, lines, report.failures, {"seconds": console.seconds})


def _describe_start(plan: ExportPlan) -> str:
    """Describe what is exported, what is left out, and what is missing, one line each."""
    settings = plan.format.settings
    # Empty if the files do not depend on a label set: they hold the labels of both, or raw ids.
    label_set = settings["label_set"] or "both label sets"
    parts = [plan.format.name, count_of(len(plan.scene_ids), "scene"), str(label_set)]
    if plan.format.uses_frame:
        parts.append("axis-aligned" if settings["aligned"] else "frame of the scan")
    if plan.format.draws_points:
        parts.append(_describe_points(settings["points"], settings["seed"]))
    lines = [f"export: {plan.place.name} -> {plan.out_dir}: {', '.join(parts)}"]
    for split, reason in plan.left_out.items():
        lines.append(f"left out: {split} ({reason})")
    if plan.place.failures:
        scenes = _list_scenes(sorted(plan.place.failures))
        lines.append(f"warning: not there, because they failed in processing: {scenes}")
    if plan.without_groups:
        scenes = _list_scenes(plan.without_groups)
        lines.append(
            "warning: no instances and no ScanNet ids, because processing found no aggregation: "
            f"{scenes}"
        )
    return "\n".join(lines)


def _describe_points(points: Setting, seed: Setting) -> str:
    """Describe how many points of a scene are exported."""
    if points == "all":
        return "all points"
    return f"up to {points:,} points, drawn with seed {seed}"


def _list_scenes(scene_ids: Sequence[str]) -> str:
    """Count scenes and name the first ones: `5 scenes (a, b, c and 2 more)`."""
    return f"{count_of(len(scene_ids), 'scene')} ({list_some(scene_ids)})"
