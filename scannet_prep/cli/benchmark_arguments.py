"""Arguments of commands that have to do with the classes of a benchmark, or with predictions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.base.errors import UsageError
from scannet_prep.cli.arguments import CommandParser, Container, path_argument, place_argument

if TYPE_CHECKING:
    from scannet_prep.release.label_sets import LabelSet


def add_prediction_arguments(parser: CommandParser, place: str) -> None:
    """Add the arguments that all commands about predictions take; `place` describes the processed scenes."""
    what = "folder with one prediction a scene; docs/evaluation.md shows all forms"
    parser.add_argument("predictions", type=path_argument, metavar="PRED", help=what)
    default = Path("data/processed")
    what = f"{place}: a processed folder, or an archive of it (default: {default})"
    parser.add_argument("--gt", type=place_argument, default=default, metavar="PLACE", help=what)
    tasks = ("semantic", "instance")
    parser.add_argument("--task", choices=tasks, default=tasks[0], help=f"default: {tasks[0]}")
    add_labels_argument(parser, "label set of the predictions (default: that of PLACE)")
    what = "take predicted ids as they are, even if they look like those of another label set or counted from 1"
    parser.add_argument("--force", action="store_true", help=what)


def add_labels_argument(parser: Container, text: str) -> None:
    """Add `--labels`, which has no default; `text` is its help."""
    parser.add_argument(
        "--labels", type=_label_set_argument, metavar="{scannet20,scannet200}", help=text
    )


def _label_set_argument(text: str) -> LabelSet:
    """Parse the name of a label set."""
    from scannet_prep.release.label_sets import parse_label_set

    try:
        return parse_label_set(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from None
