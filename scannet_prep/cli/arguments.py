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

from scannet_prep.cli.console import print_out
from scannet_prep.errors import UsageError
from scannet_prep.scene import Split
from scannet_prep.units import parse_duration, parse_size

if TYPE_CHECKING:
    from scannet_prep.cli.console import Console
    from scannet_prep.stages.selection import Selection

Parsed = TypeVar("Parsed")
Container: TypeAlias = "argparse._ActionsContainer"  # noqa: SLF001 - a parser, or a group of it


class _Formatter(argparse.HelpFormatter):
    """Fills paragraphs. Indented lines are rows of tables, filled one by one, and commands, which stay whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002 - as in argparse
        parts = [part.split("\n") if "\n  " in part else [" ".join(part.split())] for part in text.split("\n\n")]
        return "\n\n".join("\n".join(self._fill_line(line, width) for line in lines) for lines in parts).strip()

    def _fill_line(self, line: str, width: int) -> str:
        is_command = line.startswith(("  scannet-prep ", "  torchrun "))
        return line if is_command else textwrap.fill(line, width, subsequent_indent=" " * 16 * line.startswith("  "))

    def _format_usage(self, *arguments: Any) -> str:  # noqa: ANN401 - as in argparse
        """Begin every further line in the same place: behind a long name of a command, there is little room."""
        return re.sub(r"\n +", "\n    ", super()._format_usage(*arguments))


class CommandParser(argparse.ArgumentParser):
    """A parser that raises `UsageError` instead of ending the process.

    What a command does is said once, in the docstring of its module, up to the examples above the arguments.
    """

    def __init__(self, text: str | None, **options: Any) -> None:  # noqa: ANN401 - handed through
        description, title, examples = (text or "").partition("examples:\n")
        options |= {"description": description, "epilog": title + examples}
        super().__init__(**options, formatter_class=_Formatter, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 - overloaded in argparse
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
            problem = f"unknown argument: {unknown[0]}"
            raise UsageError(problem, self._did_you_mean(unknown[0], self._option_string_actions)) from None
        return parsed, unknown

    def _find_unknown_options(self, words: Sequence[str]) -> list[str]:
        """List the words that look like long options of this command and are not."""
        if self._subparsers is not None:
            return []  # the words after a command are its own
        names = [word.partition("=")[0] for word in words if word.startswith("--") and word != "--"]
        return [name for name in names if name not in self._option_string_actions]

    def error(self, message: str) -> NoReturn:
        """Report wrong usage."""
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        hint = self._did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2])) if choice else f"{self.prog} --help"
        raise UsageError(message, hint)

    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ANN401 - as in argparse
        """Print help, or the version; argparse would pass over a failure."""
        if file is sys.stdout:
            print_out(message.rstrip("\n"))
        else:
            super()._print_message(message, file)

    def _did_you_mean(self, word: str, choices: Iterable[str]) -> str:
        close = difflib.get_close_matches(word.partition("=")[0], choices, 1)
        return f"did you mean {close[0]}? All of them: {self.prog} --help" if close else f"{self.prog} --help"


def add_places_argument(parser: CommandParser) -> None:
    """Add what `verify` and `info` look at."""
    what = "folder with raw or with processed scenes; or an archive, or all shards of one: paths or addresses"
    parser.add_argument("places", type=place_argument, nargs="+", metavar="PATH", help=what)


def add_output_arguments(parser: CommandParser) -> None:
    """Add what every command understands: how much to say, and in which form."""
    group = parser.add_argument_group("output")
    group.add_argument("-v", "--verbose", action="store_true", help="say more")
    group.add_argument("-q", "--quiet", action="store_true", help="say only what went wrong")
    group.add_argument("--json", action="store_true", help="print exactly one JSON object on standard output")
    group.add_argument("--no-progress", action="store_true", help="show no progress")


def add_selection_arguments(parser: CommandParser) -> None:
    """Add the choice of scenes."""
    group = parser.add_argument_group("which scenes")
    splits, names = [str(split) for split in Split], "only these: train, val, test"
    group.add_argument("--splits", nargs="+", choices=splits, metavar="SPLIT", help=names)
    group.add_argument("--scenes", nargs="+", metavar="ID|@FILE", help="only these; @FILE has one scene id a line")
    group.add_argument("--limit", type=positive_number, metavar="N", help="at most N scenes")


def add_dask_argument(parser: Container) -> None:
    """Add the choice of a dask cluster."""
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="scheduler of a dask cluster that does the work instead, such as tcp://node01:8786",
    )


def executor_from(arguments: argparse.Namespace) -> AbstractContextManager[Executor | None]:
    """Return the dask cluster that was chosen, as an executor; None in it if there is none.

    Raises:
        UsageError: The cluster cannot be used, or a number of worker processes was given as well.
    """
    if arguments.dask is None:
        return nullcontext()
    if arguments.jobs is not None:
        raise UsageError("--jobs and --dask contradict each other", "leave out --jobs: dask has its own workers")
    from scannet_prep.stages.dask_engine import dask_executor

    return dask_executor(arguments.dask)


def add_jobs_argument(parser: Container, workers: str = "worker processes") -> None:
    """Add the number of worker processes or threads."""
    what = f"{workers} (default: the processors that affinity, container and Slurm grant)"
    parser.add_argument("--jobs", type=positive_number, metavar="N", help=what)


def selection_from(arguments: argparse.Namespace) -> Selection:
    """The choice of scenes that was made.

    Raises:
        UnknownSceneError: Something is not a scene id.
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
    authorities = "file or folder of certificate authorities to trust (default: those of the package certifi)"
    trust.add_argument("--ca-bundle", type=path_argument, metavar="PATH", help=authorities)
    trust.add_argument(
        "--insecure", action="store_true", help="accept any certificate, so that anybody can pose as the server"
    )


def certificates_from(arguments: argparse.Namespace, console: Console) -> bool | Path:
    """Return the authorities to trust: a file or folder, True for the usual ones, False for any certificate.

    False is warned about once, instead of by urllib3 at every request.
    """
    if not arguments.insecure:
        return arguments.ca_bundle or True
    from urllib3.exceptions import InsecureRequestWarning

    console.warn("warning: --insecure: certificates are not verified; anybody can pose as the server")
    warnings.simplefilter("ignore", InsecureRequestWarning)
    return False


def jobs_from(arguments: argparse.Namespace) -> int:
    """The number of worker processes that was chosen, or that this machine grants."""
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
    """Make the type of an argument of a function that raises ValueError: argparse would not show its message."""

    def parse_argument(text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


size_argument = _argument_type(parse_size)
duration_argument = _argument_type(parse_duration)


def place_argument(text: str) -> str | Path:
    """Parse a path, with `~` for the home folder, or an address, which stays a text."""
    return text if "://" in text else path_argument(text)


def file_argument(*endings: str) -> Callable[[str], Path]:
    """Make a function that parses the path of a file, whose name ends in one of these, such as `.csv`."""

    def parse(text: str) -> Path:
        if not text.endswith(endings):
            raise argparse.ArgumentTypeError(f"{text!r} does not end in {' or '.join(endings)}")
        return path_argument(text)

    return parse


def path_argument(text: str) -> Path:
    """Parse a path, with `~` for the home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~somebody whom this machine does not know
        raise argparse.ArgumentTypeError(f"{text!r}: there is no such home folder") from None
