"""Score predictions as the benchmark does.

Prints the IoU of each class and three means for semantic predictions, and the
average precision for instances.

Semantic predictions are <scene>.txt (raw ids, one per line), <scene>.npy or
<scene>_pred.npy (train ids), or OctFormer's <scene>.eval.npz. Instances are
<scene>.txt (the benchmark's list of masks), or <scene>.npz (masks, labels,
scores). Without --label-set, scores are for the label set of PLACE.

Predicted ids that look wrong are an error: they are not classes of the label
set, or another label set or numbering agrees far better with the ground truth.

examples:
  scannet-prep evaluate predictions --gt data/processed
  scannet-prep evaluate predictions --label-set scannet20
  scannet-prep evaluate predictions -o scores.csv
  scannet-prep evaluate instances --task instance --gt data/scannet.tar.zst
  scannet-prep evaluate masks --task instance --class-agnostic
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome, format_table
from scannet_prep.release.scenes import Split

if TYPE_CHECKING:
    from scannet_prep.evaluation.scores import Numbers
    from scannet_prep.stages.evaluate import EvaluationReport


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    add_prediction_arguments(parser, "the ground truth")
    parser.add_argument(
        "--splits",
        nargs="+",
        action="extend",
        choices=("train", "val"),
        metavar="SPLIT",
        help="train or val (default: val); for test scenes, see scannet-prep submit",
    )
    parser.add_argument(
        "--allow-missing",
        action="store_true",
        help="skip scenes without a prediction (default: they are an error)",
    )
    parser.add_argument(
        "--class-agnostic",
        action="store_true",
        help="score masks alone (--task instance): every prediction counts, whatever its id, and "
        "all instances but walls and floors are of one class",
    )
    shared.add_output_path(
        parser, "FILE", "write the scores of each scene to a .csv file, the worst scene first"
    )


def add_prediction_arguments(parser: shared.CommandParser, role_of_scenes: str) -> None:
    """Add the arguments that `evaluate` and `submit` share.

    Args:
        parser: Parser of the command.
        role_of_scenes: The role of the processed scenes (`--gt`) in the command, such as `the
            ground truth`; for the help text.
    """
    parser.add_argument(
        "predictions",
        type=shared.path_argument,
        metavar="PRED",
        help="folder with one prediction per scene; docs/evaluation.md describes the formats",
    )
    shared.add_path_argument(
        parser,
        "--gt",
        metavar="PLACE",
        default="data/processed",
        text=f"{role_of_scenes}: a processed folder, or an archive of it",
    )
    shared.add_task_arguments(parser)


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.stages import evaluate

    report = evaluate.run(
        arguments.predictions,
        arguments.gt,
        task=arguments.task,
        label_set=arguments.label_set,
        splits=[Split(name) for name in dict.fromkeys(arguments.splits or ["val"])],
        allows_missing=arguments.allow_missing,
        scores_path=arguments.output,
        is_class_agnostic=arguments.class_agnostic,
        is_forced=arguments.force,
        progress=console,
    )
    splits = ", ".join(report.splits)
    skipped = {
        "skipped without a prediction": report.missing,
        f"skipped because they are not in the ground truth of {splits}": report.left_out,
    }
    for text, scene_ids in skipped.items():
        if scene_ids:
            scenes = count_of(len(scene_ids), "scene")
            console.warn(f"warning: {text}: {scenes} ({list_some(scene_ids)})")
    if report.warning:
        console.warn(f"warning: {report.warning}")
    return Outcome(report, _describe(report))


def _describe(report: EvaluationReport) -> Iterator[str]:
    """Yield the lines of the report."""
    scores = report.scores
    splits = ", ".join(report.splits)
    scenes = f"{report.scenes:,} of {report.official:,} scenes"
    yield f"{report.label_set}, {splits}: {scenes}, {report.task}"
    yield ", ".join(f"{key} {_format(value)}" for key, value in scores.totals.items())
    yield "\n" + _format_numbers("mean over", scores.means)

    shown = {name: row for name, row in scores.classes.items() if None not in row.values()}
    yield "\n" + _format_numbers("class", shown)
    yield f"classes without a score: {len(scores.classes) - len(shown):,}"


def _format_numbers(title: str, rows: Mapping[str, Numbers]) -> str:
    """Format a table of scores.

    Args:
        title: Heading of the first column, which has the names of the rows.
        rows: Numbers by row and column, with the same columns in each row.
    """
    keys = next(iter(rows.values()), {})
    header = [title, *(key.replace("_", " ") for key in keys)]
    return format_table(header, [[name, *map(_format, row.values())] for name, row in rows.items()])


def _format(value: float | None) -> str:
    """Format a number of things (int), or a score (float) with four digits; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
