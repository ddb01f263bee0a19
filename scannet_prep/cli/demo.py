"""Take synthetic scenes through every stage.

Makes small synthetic scenes in the format of the release (nothing in them is from ScanNet), downloads them from a
server on this machine, processes them, packs them, reads them as a dataset, and shows one. Needs no network and no
account.

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

from scannet_prep.base.units import format_duration
from scannet_prep.cli.arguments import CommandParser, add_jobs_argument, jobs_from, path_argument
from scannet_prep.cli.console import Console
from scannet_prep.release.files import TERMS_URL


def add_arguments(parser: CommandParser) -> None:
    """Add the arguments of the command."""
    what, default = "where to put them (default: data/demo)", Path("data/demo")
    parser.add_argument(
        "directory", nargs="?", type=path_argument, default=default, metavar="DIR", help=what
    )
    add_jobs_argument(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    from scannet_prep.stages import demo

    steps, processed = demo.run(arguments.directory, jobs=jobs_from(arguments), progress=console)
    return console.result(
        _describe(steps, console.seconds), {"steps": steps, "process": processed}, 0
    )


def _describe(steps: dict[str, list[str]], seconds: float) -> str:
    parts = [
        "\n   ".join([f"{number}. {title}", *lines])
        for number, (title, lines) in enumerate(steps.items(), 1)
    ]
    told = "\n\n".join(parts)
    return f"""\
{told}

All of it took {format_duration(seconds)}. The same with the real data, once you have signed its terms
({TERMS_URL}):
{_activation()}   scannet-prep download --types seg --accept-terms
   scannet-prep process --scannet200 --align-axis
   scannet-prep pack
and in Python:
   from scannet_prep import ScanNet
   dataset = ScanNet("data/processed", split="train")"""


def _activation() -> str:
    """What to type first, where the shell does not find this installation's commands."""
    found, path = shutil.which("scannet-prep"), Path(sys.prefix, "bin/activate")
    if not path.exists() or (found and Path(found).parent == Path(sys.executable).parent):
        return ""
    return f"   source {shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))}\n"
