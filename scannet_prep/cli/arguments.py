"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from scannet_prep.errors import UsageError
from scannet_prep.release.files import BASE_URL
from scannet_prep.release.scenes import Split
from scannet_prep.remote.addresses import ADDRESS, hide_secrets

if TYPE_CHECKING:
    from scannet_prep.stages.selection import Selection

Container: TypeAlias = "argparse._ActionsContainer"  # noqa: SLF001 - a parser, or a group of it

_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Fits paragraphs into a narrow terminal. Those with indented lines stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = [
            paragraph if "\n  " in paragraph else textwrap.fill(paragraph, min(width, 80))
            for paragraph in text.split("\n\n")
        ]
        return super()._fill_text("\n\n".join(paragraphs), width, indent)


class CommandParser(argparse.ArgumentParser):
    """A parser that raises `UsageError` instead of ending the process.

    Args:
        text: The docstring of the command's module. The part before `examples:` is shown above the
            arguments, the rest below them.
        options: As for `argparse.ArgumentParser`.
    """

    def __init__(self, text: str | None, **options: Any) -> None:  # noqa: ANN401 - passed on
        description, title, examples = (text or "").partition("examples:\n")
        super().__init__(
            description=description,
            epilog=title + examples,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
            **options,
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401
        """Parse arguments. Those that a command does not know are an error of this command."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Report wrong usage."""
        raise UsageError(hide_secrets(message), f"{self.prog} --help")


def add_path_argument(
    parser: Container, *names: str, metavar: str, default: str, text: str
) -> None:
    """Add a path that may be left out.

    Args:
        parser: The parser, or a group of it.
        names: The name of an argument, or those of an option.
        metavar: Its name in the help. A `PLACE` may also be an address.
        default: The path if it is left out.
        text: The help text.
    """
    options: dict[str, Any] = {} if names[0].startswith("-") else {"nargs": "?"}
    parser.add_argument(
        *names,
        type=place_argument if metavar == "PLACE" else path_argument,
        metavar=metavar,
        default=Path(default),
        help=f"{text} (default: {default})",
        **options,
    )


def add_output_path(parser: Container, metavar: str, text: str, *, required: bool = False) -> None:
    """Add the path of what a command writes, which is None by default.

    Args:
        parser: The parser, or a group of it.
        metavar: Its name in the help.
        text: The help text.
        required: Whether it must be given.
    """
    parser.add_argument(
        "-o", "--output", type=path_argument, metavar=metavar, help=text, required=required
    )


def add_place_argument(parser: CommandParser) -> None:
    """Add the path or address that `verify` and `info` read."""
    parser.add_argument(
        "place",
        type=place_argument,
        metavar="PATH",
        help="folder with raw or processed scenes or frames, or the path or address of an archive",
    )


def add_output_arguments(parser: CommandParser) -> None:
    """Add the options of all commands: how much to print, and in which form."""
    group = parser.add_argument_group("output")
    group.add_argument("-v", "--verbose", action="store_true", help="print more detail")
    group.add_argument("-q", "--quiet", action="store_true", help="print problems only")
    group.add_argument(
        "--json", action="store_true", help="print exactly one JSON object on standard output"
    )
    group.add_argument("--no-progress", action="store_true", help="do not show progress")


def add_selection_arguments(parser: CommandParser) -> None:
    """Add the options that select scenes."""
    group = parser.add_argument_group("which scenes")
    group.add_argument(
        "--splits",
        nargs="+",
        action="extend",
        choices=[str(split) for split in Split],
        metavar="SPLIT",
        help="only these splits: train, val, test",
    )
    group.add_argument(
        "--scenes",
        nargs="+",
        action="extend",
        metavar="ID|@FILE",
        help="only these scenes; @FILE has one scene id per line",
    )
    group.add_argument("--limit", type=positive_number, metavar="N", help="at most N scenes")


def add_task_arguments(parser: Container) -> None:
    """Add the options that describe predictions, and the one that accepts their ids."""
    parser.add_argument(
        "--task",
        choices=("semantic", "instance"),
        default="semantic",
        help="kind of the predictions (default: semantic)",
    )
    add_label_set_argument(parser, "label set of the predictions (default: that of PLACE)")
    parser.add_argument(
        "--force",
        action="store_true",
        help="accept predicted ids that look wrong: the error becomes a warning",
    )


def add_label_set_argument(parser: Container, text: str) -> None:
    """Add the option `--label-set`, which is None by default.

    Args:
        parser: Parser of the command, or a group of its arguments.
        text: The help text.
    """
    parser.add_argument(
        "--label-set", type=str.lower, choices=("scannet20", "scannet200"), help=text
    )


def add_jobs_argument(parser: Container, workers: str = "worker processes") -> None:
    """Add the option `--jobs`, the number of worker processes or threads.

    Args:
        parser: The parser, or a group of it.
        workers: What `--jobs` counts, such as `threads`; for the help text.
    """
    parser.add_argument(
        "--jobs",
        type=positive_number,
        metavar="N",
        help=f"{workers} (default: one per core that affinity, container and Slurm grant)",
    )


def selection_from(arguments: argparse.Namespace) -> Selection:
    """Return the selection of scenes that the options describe.

    Args:
        arguments: The arguments of a command.

    Raises:
        UnknownSceneError: A word is not a scene id.
        MissingFileError: A list of scenes does not exist.
    """
    from scannet_prep.stages.selection import Selection, parse_scene_ids

    scene_ids = None
    if arguments.scenes:
        scene_ids = parse_scene_ids(arguments.scenes)
    splits = tuple(map(Split, arguments.splits or ()))
    return Selection(splits, scene_ids, arguments.limit)


def find_base_url() -> str:
    """Return the address of the server: that of a mirror in the environment, or ScanNet's."""
    return os.environ.get("SCANNET_PREP_BASE_URL") or BASE_URL


def jobs_from(arguments: argparse.Namespace) -> int:
    """Return the number of `--jobs`, by default the number of cores that this process may use."""
    from scannet_prep.base.machine import find_core_limits

    limits = find_core_limits(os.environ).values()
    jobs: int = arguments.jobs or max(1, min(limits))
    return jobs


def positive_number(text: str) -> int:
    """Parse a whole number that is at least 1.

    Raises:
        argparse.ArgumentTypeError: It is something else, or does not fit into 32 bits.
    """
    # Some digits that are not ASCII, such as a superscript two, are refused by int().
    is_number = text.isascii() and text.isdigit()
    if not is_number or not 1 <= int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def size_argument(text: str) -> tuple[int, int]:
    """Parse a size such as `1600x1200`.

    Raises:
        argparse.ArgumentTypeError: It is something else.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in pixels, such as 320x240")
    return int(match[1]), int(match[2])


def place_argument(text: str) -> str | Path:
    """Parse a path, with `~` for the home folder, or an address, which stays text."""
    return text if "://" in text else path_argument(text)


def server_argument(text: str) -> str:
    """Parse the address of a server; empty for none.

    Raises:
        argparse.ArgumentTypeError: It is something else.
    """
    if text and not ADDRESS.fullmatch(text):
        problem = f"{text!r} is not the address of a server, such as https://HOST/scannet/"
        raise argparse.ArgumentTypeError(problem)
    return text


def path_argument(text: str) -> Path:
    """Parse a path, with `~` for the home folder.

    Raises:
        argparse.ArgumentTypeError: It is an address, or empty, for example because a variable of
            the shell is not set.
    """
    if "://" in text or not text:
        kind = "an address" if text else "empty"
        raise argparse.ArgumentTypeError(f"{text!r} is {kind}, expected a path")
    return Path(os.path.expanduser(text))
