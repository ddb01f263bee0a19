"""Arguments of commands about label sets and predictions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.cli.arguments import CommandParser, Container, path_argument, place_argument
from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.release.label_sets import LabelSet


_DEFAULT_PLACE = Path("data/processed")


def add_prediction_arguments(parser: CommandParser, role_of_scenes: str) -> None:
    """Add the arguments of all commands about predictions.

    Args:
        parser: Parser of the command.
        role_of_scenes: The role of the processed scenes (`--gt`) in the command, such as `the
            ground truth`; for the help text.
    """
    parser.add_argument(
        "predictions",
        type=path_argument,
        metavar="PRED",
        help="folder with one prediction per scene; docs/evaluation.md describes the formats",
    )
    parser.add_argument(
        "--gt",
        type=place_argument,
        default=_DEFAULT_PLACE,
        metavar="PLACE",
        help=f"{role_of_scenes}: a processed folder, or an archive of it "
        f"(default: {_DEFAULT_PLACE})",
    )
    parser.add_argument(
        "--task",
        choices=("semantic", "instance"),
        default="semantic",
        help="kind of the predictions (default: semantic)",
    )
    add_labels_argument(parser, "label set of the predictions (default: that of PLACE)")
    parser.add_argument(
        "--force",
        action="store_true",
        help="accept predicted ids that look like those of another label set, or counted from 1",
    )


def add_labels_argument(parser: Container, text: str) -> None:
    """Add the argument `--labels`, which is None by default.

    Args:
        parser: Parser of the command, or a group of its arguments.
        text: The help text.
    """
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
