"""Prepare ScanNet v2 for 3D semantic and instance segmentation on ScanNet20 and ScanNet200.

examples:
  scannet-prep demo
  scannet-prep download --types seg
  scannet-prep process --scannet200 --align-axis
  scannet-prep pack
  scannet-prep verify data/processed

help of a command: scannet-prep help COMMAND, or scannet-prep COMMAND --help

exit status:
  0    everything requested was done
  1    stopped by an error
  2    wrong usage, or terms not accepted
  3    finished, but some scenes or files failed; each is listed
  130  interrupted; run the same command again to continue
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from scannet_prep.base.findings import explain
from scannet_prep.base.version import VERSION
from scannet_prep.cli.arguments import CommandParser, add_output_arguments
from scannet_prep.cli.console import Console
from scannet_prep.cli.outcome import Outcome
from scannet_prep.errors import MissingFileError, OutputError, UsageError

_COMMANDS = (
    "download",
    "process",
    "pack",
    "unpack",
    "export",
    "frames",
    "verify",
    "info",
    "evaluate",
    "submit",
    "view",
    "doctor",
    "demo",
    "completion",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and turn its outcome into an exit status.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit status.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    _make_streams_writable()
    # Reports wrong arguments. It is replaced as soon as the arguments are known.
    console = Console(is_json="--json" in words)
    try:
        parser = make_parser()
        if not words:
            parser.print_help(sys.stderr)
            return 2
        arguments = parser.parse_args(words)
        arguments.words = words
        console = Console(
            command=arguments.command,
            is_json=arguments.json,
            is_quiet=arguments.quiet,
            is_verbose=arguments.verbose,
            has_progress=not (arguments.no_progress or arguments.quiet),
        )
        outcome: Outcome | int = arguments.run(arguments, console)
        status = outcome if isinstance(outcome, int) else console.show(outcome)
    except KeyboardInterrupt:
        return console.interrupted()
    except BrokenPipeError:
        # The program that reads the output has ended, for example `| head`.
        status = 1
    except Exception as error:
        if _has_interrupt(error):
            return console.interrupted()
        problem, hint, trace = explain(error)
        # Errors of this package name their file in the message, and have no `filename`.
        if isinstance(error, OSError) and error.filename:
            problem = f"{error.filename}: {problem}"
        status = console.fail(
            error=type(error).__name__,
            message=problem,
            hint=_find_container_hint(error) or hint,
            status=2 if isinstance(error, UsageError) else 1,
        )
        if trace:
            # A bug of this program: Python prints its traceback after the message and exits with 1.
            raise
    return status


def _find_container_hint(error: Exception) -> str:
    """Return the hint for a container without a volume, where all files seem to be missing."""
    # Set by the Dockerfile.
    volume = os.environ.get("SCANNET_PREP_VOLUME", "")
    if not volume or os.path.ismount(volume):
        return ""
    if not isinstance(error, MissingFileError | OutputError):
        return ""
    return f'this container has no folder at {volume}: docker run -v "$PWD/data:{volume}" ...'


def _has_interrupt(error: BaseException) -> bool:
    """Whether an error was raised while an interrupt was handled, for example by a lock."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__context__
    return False


def make_parser() -> CommandParser:
    """Make the parser of the whole program. The docstring of each command's module is its help."""
    parser = CommandParser(prog="scannet-prep", text=__doc__)
    parser.add_argument("--version", action="version", version=f"scannet-prep {VERSION}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    for name in _COMMANDS:
        module = import_module(f"scannet_prep.cli.{name}")
        text = module.__doc__ or ""
        # The first sentence, which begins in lower case in a list of commands.
        summary = text.partition(".\n")[0]
        summary = summary[:1].lower() + summary[1:]
        command: CommandParser = commands.add_parser(name, text=text, help=summary)
        module.add_arguments(command)
        add_output_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _make_streams_writable() -> None:
    """Make sure that messages can be written: streams may be closed, or lack letters of a path."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Stays open for the rest of the process.
            sink = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, sink)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
