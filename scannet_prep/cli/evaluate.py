"""Score predictions as the benchmark does.

Prints the IoU of each class and three means for semantic predictions, and the
average precision for instances.

Semantic predictions are <scene>.txt (raw ids, one per line), <scene>.npy or
<scene>_pred.npy (train ids), or OctFormer's <scene>.eval.npz. Instances are
<scene>.txt (the benchmark's list of masks), or <scene>.npz (masks, labels,
scores). Without --label-set, scores are for the label set of PLACE.

Predicted ids that look wrong are an error: they are not classes of the label set,
or another label set or numbering agrees far better with the ground truth.

examples:
  scannet-prep evaluate predictions --gt data/processed
  scannet-prep evaluate predictions --label-set scannet20
  scannet-prep evaluate predictions -o scores.csv --confusion confusion.csv
  scannet-prep evaluate instances --task instance --gt data/scannet.tar.zst
  scannet-prep evaluate masks --task instance --class-agnostic
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from scannet_prep.base.text import count_of, list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, describe_list, format_table
from scannet_prep.cli.outcome import Outcome
from scannet_prep.errors import UsageError
from scannet_prep.release.scene import Split

if TYPE_CHECKING:
    from scannet_prep.evaluation.scores import Numbers
    from scannet_prep.stages.evaluate import EvaluationReport


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    add_prediction_arguments(parser, "the ground truth")
    parser.add_argument(
        "--splits",
        nargs="+",
        choices=("train", "val"),
        default=["val"],
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
    parser.add_argument(
        "-o",
        "--output",
        type=shared.file_argument(".csv"),
        metavar="FILE",
        help="write the scores of each scene to a .csv file, the worst scene first",
    )
    parser.add_argument(
        "--confusion",
        type=shared.file_argument(".csv"),
        metavar="FILE",
        help="write the confusion matrix to a .csv file",
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
    shared.add_task_arguments(parser, "PLACE")
    parser.add_argument(
        "--force",
        action="store_true",
        help="accept predicted ids that look like those of another label set, or counted from 1",
    )


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.stages import evaluate

    if arguments.confusion and arguments.task == "instance":
        raise UsageError(
            "instances have no confusion matrix", "leave out --confusion, or pass --task semantic"
        )
    report = evaluate.run(
        arguments.predictions,
        arguments.gt,
        task=arguments.task,
        label_set=arguments.label_set,
        splits=[Split.parse(name) for name in dict.fromkeys(arguments.splits)],
        allows_missing=arguments.allow_missing,
        scores_path=arguments.output,
        confusion_path=arguments.confusion,
        is_class_agnostic=arguments.class_agnostic,
        is_forced=arguments.force,
        progress=console,
    )
    if report.missing:
        count = count_of(len(report.missing), "scene")
        names = list_some(report.missing)
        console.warn(f"warning: skipped without a prediction: {count} ({names})")
    if report.warning:
        console.warn(f"warning: {report.warning}")
    return Outcome(report, _describe(report, has_all=console.is_verbose))


def _describe(report: EvaluationReport, *, has_all: bool) -> Iterator[str]:
    """Yield the lines of the report.

    Args:
        report: The report.
        has_all: Whether to show long lists, and classes without a score, completely.
    """
    scores = report.scores
    for split, counts in report.splits.items():
        scenes = f"{counts['scenes']:,} of {counts['official']:,} scenes"
        yield f"{report.label_set}, {split}: {scenes}, {report.task}"
    yield ", ".join(f"{key} {_format(value)}" for key, value in scores.totals.items())
    yield "\n" + _format_numbers("mean over", scores.means)

    # Classes without a score have None in the first column.
    shown = {
        name: row
        for name, row in scores.classes.items()
        if has_all or next(iter(row.values())) is not None
    }
    yield "\n" + _format_numbers("class", shown)
    hidden_count = len(scores.classes) - len(shown)
    if hidden_count:
        yield f"classes without a score: {hidden_count:,}; -v shows them"

    yield from describe_list(
        "predictions of scenes that are not in the ground truth", report.left_out, has_all=has_all
    )


def _format_numbers(title: str, rows: Mapping[str, Numbers]) -> str:
    """Format a table of scores.

    Args:
        title: Heading of the first column, which has the names of the rows.
        rows: Numbers by row and column, with the same columns in each row.
    """
    header = [title]
    cells = []
    for name, row in rows.items():
        header = [title, *(key.replace("_", " ") for key in row)]
        cells.append([name, *map(_format, row.values())])
    return format_table(header, cells)


def _format(value: float | None) -> str:
    """Format a number of things (int), or a score (float) with four digits; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
