"""Prepare ScanNet v2 for 3D semantic and instance segmentation on ScanNet20 and ScanNet200.

examples:
  scannet-prep demo
  scannet-prep download --types seg
  scannet-prep process --scannet200 --align-axis
  scannet-prep pack
  scannet-prep verify data/processed
  scannet-prep report data/processed -o report.html

exit status:
  0    all that was asked for is done
  1    stopped by an error
  2    wrong usage, or terms not accepted
  3    finished, but scenes or files failed; each is listed
  130  interrupted; run the same command again to go on
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from scannet_prep.cli.arguments import CommandParser, add_output_arguments
from scannet_prep.cli.console import Console
from scannet_prep.errors import MissingFileError, OutputError, UsageError
from scannet_prep.failures import explain
from scannet_prep.version import VERSION

_COMMANDS = (
    "download", "process", "pack", "unpack", "export", "verify", "info", "report", "evaluate", "submit", "view",
    "doctor", "demo",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and turn its outcome into an exit status.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit status.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _mend_streams()
    console = Console(is_json="--json" in words)
    try:
        parser = make_parser()
        if not words:
            parser.print_help(sys.stderr)
            return 2
        arguments = parser.parse_args(words)
        arguments.words = words
        has_progress = not (arguments.no_progress or arguments.quiet)
        console = Console(arguments.command, arguments.json, arguments.quiet, arguments.verbose, has_progress)
        status: int = arguments.run(arguments, console)
    except KeyboardInterrupt:
        return console.interrupted()
    except BrokenPipeError:
        status = 1  # the program reading the pipe has seen enough, for example `| head`
    except Exception as error:
        if _has_interrupt(error):
            return console.interrupted()
        problem, hint, trace = explain(error)
        if isinstance(error, OSError) and error.filename:
            problem = f"{error.filename}: {problem}"
        volume = os.environ.get("SCANNET_PREP_VOLUME", "")  # which the Dockerfile sets
        if isinstance(error, MissingFileError | OutputError) and volume and not os.path.ismount(volume):
            hint = f'this container has no folder at {volume}: docker run -v "$PWD/data:{volume}" ...'
        status = console.fail(type(error).__name__, problem, hint, 2 if isinstance(error, UsageError) else 1)
        if trace:
            raise
    return status


def _has_interrupt(error: BaseException) -> bool:
    """Whether an error was raised while an interrupt was being handled, for example by one of Python's locks."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__context__
    return False


def make_parser() -> CommandParser:
    """Make the parser of the whole program."""
    parser = CommandParser(prog="scannet-prep", text=__doc__)
    parser.add_argument("--version", action="version", version=f"scannet-prep {VERSION}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name in _COMMANDS:
        module = import_module(f"scannet_prep.cli.{name}")
        text = module.__doc__ or ""
        summary = text[:1].lower() + text[1:].partition(".\n")[0]
        command: CommandParser = commands.add_parser(name, text=text, help=summary)
        module.add_arguments(command)
        add_output_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _mend_streams() -> None:
    """Make sure that every message can be written: a stream may be closed, or lack letters that a path has."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for the rest of the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
