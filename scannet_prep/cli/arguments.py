"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from scannet_prep.base.errors import UsageError
from scannet_prep.base.units import parse_duration, parse_size
from scannet_prep.cli.console import print_out
from scannet_prep.release.scene import Split

if TYPE_CHECKING:
    from scannet_prep.cli.console import Console
    from scannet_prep.stages.selection import Selection

Parsed = TypeVar("Parsed")
Container: TypeAlias = "argparse._ActionsContainer"  # noqa: SLF001 - a parser, or a group of it


class _Formatter(argparse.HelpFormatter):
    """Fills paragraphs. Indented lines are rows of tables, filled one by one, or commands."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002 - as in argparse
        paragraphs = []
        for paragraph in text.split("\n\n"):
            if "\n  " in paragraph:
                lines = paragraph.split("\n")
            else:
                lines = [" ".join(paragraph.split())]
            paragraphs.append("\n".join(self._fill_line(line, width) for line in lines))
        return "\n\n".join(paragraphs).strip()

    def _fill_line(self, line: str, width: int) -> str:
        if line.startswith(("  scannet-prep ", "  torchrun ")):
            return line  # commands stay whole, so that they can be copied
        indent = " " * 16 if line.startswith("  ") else ""
        return textwrap.fill(line, width, subsequent_indent=indent)

    def _format_usage(self, *arguments: Any) -> str:  # noqa: ANN401 - as in argparse
        """Indent further lines by four: after a long name of a command, there is little space."""
        return re.sub(r"\n +", "\n    ", super()._format_usage(*arguments))


class CommandParser(argparse.ArgumentParser):
    """A parser that raises `UsageError` instead of ending the process.

    Args:
        text: The docstring of the command's module. The part before `examples:` is shown above the
            arguments, the rest below them.
        options: As for `argparse.ArgumentParser`.
    """

    def __init__(self, text: str | None, **options: Any) -> None:  # noqa: ANN401 - passed on
        description, title, examples = (text or "").partition("examples:\n")
        options |= {"description": description, "epilog": title + examples}
        super().__init__(**options, formatter_class=_Formatter, allow_abbrev=False)

    def parse_known_args(
        self,
        args: Any = None,  # noqa: ANN401 - overloaded in argparse
        namespace: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Refuse unknown arguments here, where the command and its options are known."""
        words = sys.argv[1:] if args is None else list(args)
        try:
            parsed, unknown = super().parse_known_args(words, namespace)
        except UsageError:
            # A misspelled option may be the reason, such as --type for the required --types.
            unknown = self._find_unknown_options(words)
            if not unknown:
                raise
        if unknown:
            raise UsageError(
                f"unknown argument: {unknown[0]}",
                self._suggest(unknown[0], self._option_string_actions),
            ) from None
        return parsed, unknown

    def _find_unknown_options(self, words: Sequence[str]) -> list[str]:
        """List the words that look like long options of this command and are not."""
        if self._subparsers is not None:
            return []  # the words after a command are its own
        unknown = []
        for word in words:
            name = word.partition("=")[0]
            is_long_option = name.startswith("--") and name != "--"
            if is_long_option and name not in self._option_string_actions:
                unknown.append(name)
        return unknown

    def error(self, message: str) -> NoReturn:
        """Report wrong usage."""
        hint = f"{self.prog} --help"
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice is not None:
            hint = self._suggest(choice[1], re.findall(r"[\w-]+", choice[2]))
        raise UsageError(message, hint)

    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ANN401 - as in argparse
        """Print the help or the version; argparse would ignore a failure."""
        if file is sys.stdout:
            print_out(message.rstrip("\n"))
        else:
            super()._print_message(message, file)

    def _suggest(self, word: str, choices: Iterable[str]) -> str:
        """Make the hint for an unknown word: the choice that resembles it most, if any."""
        close = difflib.get_close_matches(word.partition("=")[0], choices, 1)
        if not close:
            return f"{self.prog} --help"
        return f"did you mean {close[0]}? All of them: {self.prog} --help"


def add_places_argument(parser: CommandParser) -> None:
    """Add the paths and addresses that `verify` and `info` read."""
    parser.add_argument(
        "places",
        type=place_argument,
        nargs="+",
        metavar="PATH",
        help="folder with raw or with processed scenes; or an archive, or all shards of one: "
        "paths or addresses",
    )


def add_output_arguments(parser: CommandParser) -> None:
    """Add what every command accepts: how much to print, and in which form."""
    group = parser.add_argument_group("output")
    group.add_argument("-v", "--verbose", action="store_true", help="print more")
    group.add_argument("-q", "--quiet", action="store_true", help="print problems only")
    group.add_argument(
        "--json", action="store_true", help="print exactly one JSON object on standard output"
    )
    group.add_argument("--no-progress", action="store_true", help="show no progress")


def add_selection_arguments(parser: CommandParser) -> None:
    """Add the choice of scenes."""
    group = parser.add_argument_group("which scenes")
    group.add_argument(
        "--splits",
        nargs="+",
        choices=[str(split) for split in Split],
        metavar="SPLIT",
        help="only these splits: train, val, test",
    )
    group.add_argument(
        "--scenes",
        nargs="+",
        metavar="ID|@FILE",
        help="only these scenes; @FILE has one scene id per line",
    )
    group.add_argument("--limit", type=positive_number, metavar="N", help="at most N scenes")


def add_dask_argument(parser: Container) -> None:
    """Add the choice of a dask cluster."""
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="scheduler of a dask cluster that does the work, such as tcp://node01:8786",
    )


def executor_from(arguments: argparse.Namespace) -> AbstractContextManager[Executor | None]:
    """Return the chosen dask cluster as an executor, or a context of None without one.

    Raises:
        UsageError: The cluster cannot be used, or a number of worker processes was given as well.
    """
    if arguments.dask is None:
        return nullcontext()
    if arguments.jobs is not None:
        raise UsageError(
            "--jobs and --dask contradict each other", "leave out --jobs: dask has its own workers"
        )
    from scannet_prep.stages.dask_engine import dask_executor

    return dask_executor(arguments.dask)


def add_jobs_argument(parser: Container, workers: str = "worker processes") -> None:
    """Add the number of worker processes or threads."""
    parser.add_argument(
        "--jobs",
        type=positive_number,
        metavar="N",
        help=f"{workers} (default: the processors that affinity, container and Slurm grant)",
    )


def selection_from(arguments: argparse.Namespace) -> Selection:
    """Return the choice of scenes.

    Raises:
        UnknownSceneError: A word is not a scene id.
        MissingFileError: A list of scenes does not exist.
    """
    from scannet_prep.stages.selection import Selection, parse_scene_ids

    return Selection(
        splits=tuple(Split.parse(name) for name in arguments.splits or ()),
        scene_ids=None if arguments.scenes is None else parse_scene_ids(arguments.scenes),
        limit=arguments.limit,
    )


def add_trust_arguments(parser: Container) -> None:
    """Add the choice of authorities."""
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument(
        "--ca-bundle",
        type=path_argument,
        metavar="PATH",
        help="file or folder of certificate authorities to trust "
        "(default: those of the package certifi)",
    )
    trust.add_argument(
        "--insecure",
        action="store_true",
        help="accept any certificate, so that anybody can pose as the server",
    )


def certificates_from(arguments: argparse.Namespace, console: Console) -> bool | Path:
    """Return the authorities to trust.

    Returns:
        A file or folder; True for the usual ones; False to accept any certificate. For False,
        this prints one warning, instead of the one that urllib3 prints at every request.
    """
    if not arguments.insecure:
        return arguments.ca_bundle or True
    from urllib3.exceptions import InsecureRequestWarning

    console.warn(
        "warning: --insecure: certificates are not verified; anybody can pose as the server"
    )
    warnings.simplefilter("ignore", InsecureRequestWarning)
    return False


def jobs_from(arguments: argparse.Namespace) -> int:
    """Return the chosen number of worker processes, or the one that this machine grants."""
    import os

    from scannet_prep.stages.granted import find_granted_cores

    jobs: int = arguments.jobs or max(1, min(find_granted_cores(os.environ).values()))
    return jobs


def positive_number(text: str) -> int:
    """Parse a number of at least one.

    Raises:
        argparse.ArgumentTypeError: It is something else.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _argument_type(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """Make the type of an argument from a function that raises ValueError.

    argparse shows the message of an ArgumentTypeError only.
    """

    def parse_argument(text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


size_argument = _argument_type(parse_size)
duration_argument = _argument_type(parse_duration)


def place_argument(text: str) -> str | Path:
    """Parse a path, with `~` for the home folder, or an address, which stays text."""
    if "://" in text:
        return text
    return path_argument(text)


def file_argument(*endings: str) -> Callable[[str], Path]:
    """Make a function that parses the path of a file with one of these endings, such as `.csv`."""

    def parse(text: str) -> Path:
        if not text.endswith(endings):
            raise argparse.ArgumentTypeError(f"{text!r} does not end in {' or '.join(endings)}")
        return path_argument(text)

    return parse


def path_argument(text: str) -> Path:
    """Parse a path, with `~` for the home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~NAME of an unknown user
        raise argparse.ArgumentTypeError(f"{text!r}: there is no such home folder") from None
