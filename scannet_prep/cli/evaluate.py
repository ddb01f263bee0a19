"""Score predictions as the benchmark does.

Of semantic predictions it gives the IoU of each class and three means, of instances average precision.

Semantic predictions: <scene>.txt (raw ids, one a line), <scene>.npy or <scene>_pred.npy (train ids), or OctFormer's
<scene>.eval.npz. Instances: <scene>.txt (the benchmark's list of masks), or <scene>.npz (masks, labels, scores). The
scores are of the label set of PLACE. Predicted ids that look wrong are an error: more than 1 % are none of the classes,
or another label set or numbering agrees better with the ground truth.

examples:
  scannet-prep evaluate predictions --gt data/processed
  scannet-prep evaluate predictions --labels scannet20
  scannet-prep evaluate predictions -o scores.csv --confusion confusion.svg
  scannet-prep evaluate instances --task instance --gt data/scannet.tar.zst
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from scannet_prep.base.errors import UsageError
from scannet_prep.base.failures import list_some
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.benchmark_arguments import add_prediction_arguments
from scannet_prep.cli.console import Console, describe_list, format_count, format_table
from scannet_prep.release.scene import Split

if TYPE_CHECKING:
    from scannet_prep.evaluation.scores import Numbers
    from scannet_prep.stages.evaluate import EvaluationReport


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    add_prediction_arguments(parser, "the ground truth")
    what = "train or val (default: val); predictions of test scenes go to the benchmark: scannet-prep submit"
    parser.add_argument(
        "--splits", nargs="+", choices=("train", "val"), default=["val"], metavar="SPLIT", help=what
    )
    what = "evaluate the scenes that have a prediction; without it, a missing one is an error"
    parser.add_argument("--allow-missing", action="store_true", help=what)
    what = "write the scores of each scene to a .csv file, the worst scene first"
    parser.add_argument(
        "-o", "--output", type=shared.file_argument(".csv"), metavar="FILE", help=what
    )
    what = "write the confusion matrix to a .csv file, or as a picture to an .svg file"
    parser.add_argument(
        "--confusion", type=shared.file_argument(".csv", ".svg"), metavar="FILE", help=what
    )


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.predictions.reader import find_predictions
    from scannet_prep.stages import evaluate

    if arguments.confusion and arguments.task == "instance":
        raise UsageError(
            "instances have no confusion matrix", "leave out --confusion, or pass --task semantic"
        )
    plan = find_predictions(
        arguments.predictions,
        arguments.gt,
        task=arguments.task,
        label_set=arguments.labels,
        splits=[Split.parse(name) for name in dict.fromkeys(arguments.splits)],
        hint=""
        if arguments.allow_missing
        else "make them, or add --allow-missing to evaluate the others only",
    )
    if plan.missing:
        missing = f"{format_count(len(plan.missing), 'scene')} ({list_some(plan.missing)})"
        console.warn(f"warning: not evaluated, because there is no prediction: {missing}")
    report = evaluate.run(
        plan,
        scores_path=arguments.output,
        confusion_path=arguments.confusion,
        is_forced=arguments.force,
        progress=console,
    )
    if report.warning:
        console.warn(f"warning: {report.warning}")
    noun, count = next(iter(report.scores.totals.items()))
    if not count:
        why = "without an aggregation, there are no instances and no ScanNet ids; instances need 100 vertices"
        console.warn(
            f"warning: nothing is scored: the ground truth has no {noun} of {report.label_set}", why
        )
    return console.result("\n".join(_describe(report, has_all=console.is_verbose)), report, 0)


def _describe(report: EvaluationReport, *, has_all: bool) -> Iterator[str]:
    scores = report.scores
    for split, counts in report.splits.items():
        yield f"{report.label_set}, {split}: {counts['scenes']:,} of {counts['official']:,} scenes, {report.task}"
    yield ", ".join(f"{_name(key)} {_format(value)}" for key, value in scores.totals.items())
    yield "\n" + _format_numbers("mean over", scores.means)
    main = next(iter(next(iter(scores.classes.values()))))
    shown = {name: row for name, row in scores.classes.items() if has_all or row[main] is not None}
    yield "\n" + _format_numbers("class", shown)
    if len(shown) < len(scores.classes):
        yield f"classes without a score: {len(scores.classes) - len(shown):,}; -v shows them"
    noun = "vertices" if report.task == "semantic" else "predictions"
    unknown = [f"{number}: {count:,} {noun}" for number, count in report.unknown_ids.items()]
    yield from describe_list("predicted ids that are none of the classes", unknown, has_all=has_all)
    yield from describe_list(
        "predictions of scenes that are not in the ground truth", report.left_out, has_all=has_all
    )
    if report.written:
        yield f"written: {', '.join(map(str, report.written))}"


def _format_numbers(title: str, rows: Mapping[str, Numbers]) -> str:
    names = list(next(iter(rows.values()), {}))
    cells = [[name, *(_format(row[key]) for key in names)] for name, row in rows.items()]
    return format_table(
        [title, *map(_name, names)], cells, right=frozenset(range(1, len(names) + 1))
    )


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _name(key: str) -> str:
    return key.replace("_", " ")
