"""Pack predictions of the test scenes for the benchmark's server.

Checks those of all 100 scenes, and writes the .zip that the server takes.

PRED holds what scannet-prep evaluate reads; arrays are converted to raw ids. Every scene must be there, and fit the
processed test scene. Of instances, those of wall and floor and those under 100 vertices are left out.

examples:
  scannet-prep submit predictions -o submission.zip --gt data/processed
  scannet-prep submit instances -o submission.zip --task instance --labels scannet200 --min-score 0.01
"""

from __future__ import annotations

import argparse

from scannet_prep.cli import arguments as shared
from scannet_prep.cli.benchmark_arguments import add_prediction_arguments, label_set_from
from scannet_prep.cli.console import Console, format_count
from scannet_prep.space import format_bytes


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    add_prediction_arguments(parser, "the processed test scenes, whose vertices are counted")
    zip_file = shared.file_argument(".zip")
    parser.add_argument("-o", "--output", type=zip_file, required=True, metavar="FILE", help="the .zip file to write")
    what = "leave out instances of a lower confidence: the server refuses what takes long to unpack (default: 0)"
    parser.add_argument("--min-score", type=float, default=0.0, metavar="X", help=what)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import submit

    label_set = label_set_from(arguments)
    plan = submit.plan(arguments.predictions, arguments.gt, task=arguments.task, label_set=label_set)
    report = submit.run(plan, arguments.output, min_score=arguments.min_score, progress=console)
    if report.unknown_ids:
        ids = ", ".join(map(str, list(report.unknown_ids)[:5]))
        console.warn(f"warning: ids that are none of the classes of {label_set.name}: {ids}")
    masks = f", {format_count(report.masks, 'mask')}" if arguments.task == "instance" else ""
    sizes = f"{format_bytes(report.size_bytes)}, {format_bytes(report.unpacked_bytes)} unpacked"
    text = f"{report.path}: {format_count(report.scenes, 'scene')}{masks}, {sizes}"
    if report.left_out:
        text += "\nleft out: " + ", ".join(f"{reason}: {count:,}" for reason, count in report.left_out.items())
    return console.result(text, report, 0)
