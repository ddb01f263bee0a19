"""Take synthetic scenes through every stage.

Makes synthetic scenes in the format of the release, processes and packs them,
reads them as a dataset, predicts their labels, shows one, and extracts frames
of sensor streams. The scenes contain nothing from ScanNet. Needs no network and
no account.

examples:
  scannet-prep demo
  scannet-prep demo /tmp/demo
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from shlex import quote

from scannet_prep.base.text import format_duration
from scannet_prep.cli import arguments as shared
from scannet_prep.cli.console import Console, Outcome
from scannet_prep.release.files import TERMS_URL

_REAL_DATA = f"\nThe same with the real data, once you have signed its terms ({TERMS_URL}):\n"
_REAL_COMMANDS = (
    "scannet-prep download --types seg --accept-terms",
    "scannet-prep process --scannet200 --align-axis",
    "scannet-prep pack",
)


def add_arguments(parser: shared.CommandParser) -> None:
    """Add the arguments of the command."""
    shared.add_path_argument(
        parser,
        "directory",
        metavar="DIR",
        default="data/demo",
        text="folder for the scenes and the results",
    )
    shared.add_jobs_argument(parser)


def run(arguments: argparse.Namespace, console: Console) -> Outcome:
    """Run the command."""
    from scannet_prep.stages import demo

    steps = demo.run(arguments.directory, jobs=shared.jobs_from(arguments), progress=console)
    commands = _list_commands(arguments.directory, demo.SHOWN_SCENE)
    lines = [
        f"{number}. {title}\n   {path}" for number, (title, path) in enumerate(steps.items(), 1)
    ]
    lines += [
        f"\nAll of it took {format_duration(console.seconds)}. Next, look at it:\n",
        *commands,
        _REAL_DATA,
    ]
    activate = Path(sys.executable).with_name("activate")
    if not _is_active() and activate.is_file():
        lines.append(f"source {quote(str(activate))}")
    lines += _REAL_COMMANDS
    return Outcome({"steps": steps, "commands": commands}, lines)


def _is_active() -> bool:
    """Whether the shell finds the program of this environment."""
    return shutil.which("scannet-prep") == str(Path(sys.executable).with_name("scannet-prep"))


def _list_commands(demo_dir: Path, scene_id: str) -> list[str]:
    """Return commands for the results, which work as they stand in the current folder."""
    python, program = "python", "scannet-prep"
    if not _is_active():
        python = quote(sys.executable)
        program = f"{python} -m scannet_prep"
    folder = quote(str(demo_dir))
    predictions = f"{folder}/predictions/val"
    dataset = f'ScanNet("{demo_dir}/processed", split="train")'
    code = quote(f"from scannet_prep import ScanNet; print({dataset}[0])")
    names = f"--source {folder}/processed --pred {predictions} -o {folder}/errors.html"
    return [
        f"{program} view {scene_id} {names}",
        f"{python} -c {code}",
        f"{program} evaluate {predictions} --gt {folder}/processed",
    ]
