"""Take synthetic scenes through every stage.

Makes small synthetic scenes in the format of the release, downloads them from a server on this
machine, processes and packs them, reads them as a dataset, shows one, and extracts frames if Pillow
is installed. The scenes contain nothing from ScanNet. Needs no network and no account.

examples:
  scannet-prep demo
  scannet-prep demo /tmp/demo
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path

from scannet_prep.base.text import format_duration
from scannet_prep.cli.arguments import CommandParser, add_jobs_argument, jobs_from, path_argument
from scannet_prep.cli.console import Console
from scannet_prep.release.files import TERMS_URL


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "directory",
        nargs="?",
        type=path_argument,
        default=Path("data/demo"),
        metavar="DIR",
        help="folder for the scenes and the results (default: data/demo)",
    )
    add_jobs_argument(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import demo

    steps, processed = demo.run(arguments.directory, jobs=jobs_from(arguments), progress=console)
    text = _describe(steps, console.seconds)
    return console.result(text, {"steps": steps, "process": processed}, status=0)


def _describe(steps: dict[str, list[str]], seconds: float) -> str:
    """Describe the steps, and the commands for the real data."""
    paragraphs = []
    for number, (title, lines) in enumerate(steps.items(), 1):
        paragraphs.append("\n   ".join([f"{number}. {title}", *lines]))
    steps_text = "\n\n".join(paragraphs)
    duration = format_duration(seconds)
    activation = _describe_activation()  # a whole line, or empty
    return f"""\
{steps_text}

All of it took {duration}. The same with the real data, once you have signed its terms
({TERMS_URL}):
{activation}   scannet-prep download --types seg --accept-terms
   scannet-prep process --scannet200 --align-axis
   scannet-prep pack
and in Python:
   from scannet_prep import ScanNet
   dataset = ScanNet("data/processed", split="train")"""


def _describe_activation() -> str:
    """Return the line that activates this environment, with its indent and its end.

    It is empty if the commands of the environment are on the PATH, or if it cannot be activated.
    """
    script_path = Path(sys.prefix, "bin/activate")
    if not script_path.exists():
        return ""
    command = shutil.which("scannet-prep")
    if command is not None and Path(command).parent == Path(sys.executable).parent:
        return ""
    if script_path.is_relative_to(Path.cwd()):
        script_path = script_path.relative_to(Path.cwd())
    return f"   source {shlex.quote(str(script_path))}\n"
