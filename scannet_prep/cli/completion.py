"""Print a script that completes commands and options with the Tab key.

Save the script once where your shell looks for such scripts, and open a new terminal.

examples:
  scannet-prep completion bash > ~/.scannet-prep-completion
  scannet-prep completion zsh > ~/.zsh/completions/_scannet-prep
  scannet-prep completion fish > ~/.config/fish/completions/scannet-prep.fish

shells:
  bash          add this line to ~/.bashrc: source ~/.scannet-prep-completion
  zsh           in ~/.zshrc, add the folder to fpath before compinit is called
  fish          nothing else is needed
"""

from __future__ import annotations

import argparse

from scannet_prep.cli.arguments import CommandParser, path_argument, place_argument
from scannet_prep.cli.console import Console


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    import shtab

    from scannet_prep.cli.main import make_parser

    parser = make_parser()
    _complete_paths(parser)
    _add_help(parser)
    script = shtab.complete(parser, arguments.shell)
    return console.result(script, {"shell": arguments.shell, "script": script}, status=0)


def _add_help(parser: argparse.ArgumentParser) -> None:
    """Add `help COMMAND`, which `main` replaces by `COMMAND --help`."""
    for action in parser._actions:  # noqa: SLF001 - as shtab itself
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            names = tuple(action.choices)
            command = action.add_parser("help", text="", help="show the help of a command")
            command.add_argument("command", choices=names, help="the command")


def _complete_paths(parser: argparse.ArgumentParser) -> None:
    """Give all arguments that are paths the attribute by which shtab completes names of files."""
    import shtab

    for action in parser._actions:  # noqa: SLF001 - as shtab itself
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                _complete_paths(command)
        elif action.type in (path_argument, place_argument):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
