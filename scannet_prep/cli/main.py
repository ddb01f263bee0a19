"""Prepare ScanNet v2 for 3D semantic and instance segmentation.

examples:
  scannet-prep demo
  scannet-prep download --types seg
  scannet-prep process --scannet200 --align-axis
  scannet-prep pack
  scannet-prep verify data/processed
  scannet-prep view scene0011_00

more help:
  scannet-prep COMMAND --help
  scannet-prep --print-completion bash    # for the Tab key; also zsh, fish

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
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from scannet_prep.base.version import VERSION
from scannet_prep.cli.arguments import (
    CommandParser,
    add_output_arguments,
    path_argument,
    place_argument,
)
from scannet_prep.cli.console import Console, Outcome

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
)
_COMPLETION = "--print-completion"


def main(
    argv: Sequence[str] | None = None, before_result: Callable[[], None] = lambda: None
) -> int:
    """Run one command, and turn its outcome into an exit status.

    Args:
        argv: Arguments without the program's name; those of the process by default.
        before_result: Called when the command has ended, before its outcome is written.

    Returns:
        The exit status.

    Raises:
        KeyboardInterrupt: The command was interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _make_streams_writable()
    # Reports wrong arguments. It is replaced as soon as the arguments are known.
    console = Console(is_json="--json" in words)
    try:
        arguments = make_parser(can_complete=_COMPLETION in words).parse_args(words)
        console = Console(
            command=arguments.command,
            is_json=arguments.json,
            is_quiet=arguments.quiet,
            is_verbose=arguments.verbose,
            has_progress=not (arguments.no_progress or arguments.quiet),
        )
        outcome: Outcome | None = arguments.run(arguments, console)
        before_result()
        # None: everything has been shown.
        return 0 if outcome is None else console.show(outcome)
    except BrokenPipeError:
        # The program that reads the output has ended, for example `| head`.
        return 1
    except Exception as error:  # noqa: BLE001 - reported, with the traceback of a bug
        if isinstance(error.__context__, KeyboardInterrupt):
            # The cleanup has failed, for example at a lock that was left locked.
            raise KeyboardInterrupt from None
        before_result()
        return console.stop(error)


def _make_streams_writable() -> None:
    """Make sure that messages can be written: streams may be closed, or lack letters of a path."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def make_parser(*, can_complete: bool = False) -> CommandParser:
    """Make the parser of the whole program. The docstring of each command's module is its help.

    Args:
        can_complete: Whether the parser has the option that prints a script for a shell. It makes
            the start slower.
    """
    parser = CommandParser(prog="scannet-prep", text=__doc__)
    parser.add_argument("--version", action="version", version=f"scannet-prep {VERSION}")
    if can_complete:
        import shtab

        shtab.add_argument_to(parser, _COMPLETION)
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    for name in _COMMANDS:
        module = import_module(f"scannet_prep.cli.{name}")
        text = module.__doc__ or ""
        command: CommandParser = commands.add_parser(name, text=text, help=text.partition("\n")[0])
        module.add_arguments(command)
        add_output_arguments(command)
        command.set_defaults(run=module.run)
        # Scripts for shells complete paths.
        for action in command._actions:  # noqa: SLF001 - as shtab itself
            if can_complete and action.type in (path_argument, place_argument):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser
