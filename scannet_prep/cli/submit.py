"""Pack predictions of the test scenes for the benchmark's server.

Checks the predictions of all 100 scenes, and writes them into a .zip file that
the server accepts.

PRED contains files like those for scannet-prep evaluate. Predictions in .npy
and .npz files are converted to the raw ids that the server expects. Every test
scene needs a prediction that fits its processed scene. Instances of wall,
floor and no class (other), and those under 100 vertices (small), are left out.

For the data-efficient benchmark, PRED contains four folders with such files,
one for each training configuration, and so does the .zip file.

Nothing is written if the predicted ids look wrong: they are not classes of the
label set, instances are walls or floors, fewer vertices are wall than unlabeled
or floor than chair, or the ids are those of another label set.

examples:
  scannet-prep submit predictions -o submission.zip --gt data/processed
  scannet-prep submit instances -o submission.zip --task instance
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, format_bytes
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome
from scannet_prep.cli.evaluate import add_prediction_arguments

if TYPE_CHECKING:
    from scannet_prep.stages.submit import SubmissionReport


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    add_prediction_arguments(parser, "the processed test scenes, for their numbers of vertices")
    shared.add_output_path(parser, "FILE", "the .zip file to write", required=True)
    parser.add_argument(
        "--min-score",
        type=float,
        metavar="X",
        help="omit instances below this confidence; with too many masks, the file takes long to "
        "unpack, and the server rejects it (default: keep all)",
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.stages import submit

    report = submit.run(
        arguments.predictions,
        arguments.gt,
        arguments.output,
        task=arguments.task,
        label_set=arguments.label_set,
        min_score=arguments.min_score,
        is_forced=arguments.force,
        progress=console,
    )
    if report.warning:
        console.warn(f"warning: {report.warning}")
    return Outcome(report, _describe(report))


def _describe(report: SubmissionReport) -> Iterator[str]:
    """Yield the lines of the report."""
    scenes = count_of(report.scenes, "scene")
    if report.folders:
        scenes += f" in each of {', '.join(report.folders)}"
    yield f"{report.label_set}, test: {scenes}, {report.task}"
    masks = f"{count_of(report.masks, 'mask')}, " if report.masks else ""
    unpacked = format_bytes(report.unpacked_bytes)
    yield f"{report.path}: {masks}{format_bytes(report.size_bytes)}, {unpacked} unpacked"
    if report.left_out:
        yield f"left out: {', '.join(f'{key} {count:,}' for key, count in report.left_out.items())}"
