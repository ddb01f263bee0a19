"""Arguments of commands that have to do with the classes of a benchmark, or with predictions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.cli.arguments import CommandParser, path_argument, place_argument

if TYPE_CHECKING:
    from scannet_prep.labels import LabelSet


def add_prediction_arguments(parser: CommandParser, place: str) -> None:
    """Add what a command about predictions looks at; `place` says what the processed scenes are for."""
    what = "folder with one prediction a scene; docs/evaluation.md shows all forms"
    parser.add_argument("predictions", type=path_argument, metavar="PRED", help=what)
    default = Path("data/processed")
    what = f"{place}: a processed folder, or an archive of it (default: {default})"
    parser.add_argument("--gt", type=place_argument, default=default, metavar="PLACE", help=what)
    tasks, label_sets = ("semantic", "instance"), ("scannet20", "scannet200")
    parser.add_argument("--task", choices=tasks, default=tasks[0], help=f"default: {tasks[0]}")
    parser.add_argument("--labels", choices=label_sets, default=label_sets[0], help=f"default: {label_sets[0]}")


def label_set_from(arguments: argparse.Namespace) -> LabelSet:
    """The label set that was chosen."""
    from scannet_prep.labels import SCANNET20, SCANNET200

    return SCANNET200 if arguments.labels == "scannet200" else SCANNET20
