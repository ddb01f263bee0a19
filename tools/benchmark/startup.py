"""How long the program takes to start, and how much is installed for it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmark.timing import time_call

if TYPE_CHECKING:
    from benchmark.settings import Result, Settings

_CALLS = {
    "python, empty program": ["-c", ""],
    "scannet-prep --help": ["-m", "scannet_prep", "--help"],
    "import scannet_prep": ["-c", "import scannet_prep"],
    "import ScanNet": ["-c", "from scannet_prep import ScanNet"],
}


def measure(settings: Settings) -> Result:
    """Time the start of fresh processes, and sum up the files of all required packages."""
    times = {name: _time_start(words, 2 * settings.repeat + 1) for name, words in _CALLS.items()}
    sizes: dict[str, int] = {}
    _add_size("scannet-prep", sizes)
    return {"ms": times, "bytes": sizes}


def describe(result: Result) -> str:
    """Show what `measure` returned as text for people."""
    lines = ["start of a process, median ms", *(f"  {name:24}{ms:8.0f}" for name, ms in result["ms"].items())]
    lines += ["", f"installed, without Python, in all {sum(result['bytes'].values()) / 1e6:.0f} MB"]
    return "\n".join([*lines, *(f"  {name:24}{size / 1e6:8.1f} MB" for name, size in result["bytes"].items())])


def _time_start(words: list[str], count: int) -> float:
    command = [sys.executable, *words]
    return float(np.median([1e3 * time_call(lambda: subprocess.check_output(command)) for _ in range(count)]))


def _add_size(name: str, sizes: dict[str, int]) -> None:
    """Bytes of a package's files and of what it requires, without extras; each once."""
    if name in sizes:
        return
    try:
        package = distribution(name)
    except PackageNotFoundError:  # one for another platform or Python
        return
    paths = [Path(path.locate()) for path in package.files or ()]
    sizes[name] = sum(path.stat().st_size for path in paths if path.is_file())
    for requirement in package.requires or ():
        found = re.match(r"[\w.-]+", requirement)
        if found and "extra ==" not in requirement:
            _add_size(found[0], sizes)
