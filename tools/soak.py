"""Kill commands at random moments, and check after each kill that no file is damaged.

    demo (download, process, pack, frames), unpack and export  --killed-->  check  --again-->  ...

A kill hits the command alone, whose workers outlive it for a moment, or the command and its
workers. Every file with its final name must then have the same bytes as in a folder where nothing
was killed. After a number of kills, the commands run to their end, everything must be there, and a
new round begins.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

KILLS_PER_ROUND = 25
_PROGRAM = (sys.executable, "-m", "scannet_prep")
# Outputs of the commands, each of which `verify` can check.
_OUTPUTS = (
    "demo/ScanNet",
    "demo/processed",
    "demo/scannet.tar.zst",
    "demo/frames",
    "unpacked",
    "exported",
)
_TITLES = ("demo", "unpack", "demo", "export")
_CHECKED_SUFFIXES = {".npz", ".npy", ".ply", ".json", ".txt", ".tsv", ".zst", ".png", ".jpg"}
# Files that describe how far a run is.
_CHANGING_NAMES = {"failed.txt", "manifest.json", "export.json"}


def make_commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands to be killed, by name."""
    archive = str(folder / "demo" / "scannet.tar.zst")
    commands = {
        "demo": ["demo", str(folder / "demo"), "--jobs", "2"],
        "unpack": ["unpack", archive, "-o", str(folder / "unpacked")],
        "export": ["export", archive, "--format", "pointcept", "-o", str(folder / "exported")],
    }
    return {title: [*_PROGRAM, *words, "-q"] for title, words in commands.items()}


def find_files(folder: Path, *, is_complete: bool) -> dict[str, bytes]:
    """Read the files that have their final names, by path.

    Args:
        folder: The folder of all outputs.
        is_complete: Whether to include the files that describe how far a run is.
    """
    files = {}
    for path in folder.rglob("*"):
        relative_path = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in relative_path.parts)
        if path.suffix not in _CHECKED_SUFFIXES or is_hidden or "server" in path.parts:
            continue
        if path.name == "export.json":  # contains the path of the folder
            continue
        if path.name in _CHANGING_NAMES and not is_complete:
            continue
        files[str(relative_path)] = path.read_bytes()
    return files


def check(folder: Path, expected: dict[str, bytes], *, is_complete: bool) -> None:
    """Exit with an error unless the files of a folder are as expected.

    Args:
        folder: The folder of all outputs.
        expected: Content of the files where nothing was killed.
        is_complete: Whether all files must be there.
    """
    files = find_files(folder, is_complete=is_complete)
    wrong = [name for name, content in files.items() if expected.get(name) != content]
    if is_complete:
        wrong += sorted(set(expected) - set(files))
    if wrong:
        raise SystemExit(
            f"{folder}: {len(wrong)} files are missing or damaged: {', '.join(wrong[:5])}"
        )


def kill_once(command: list[str], max_delay_s: float) -> bool:
    """Start a command, and kill it after a random time.

    Returns:
        Whether it was still running.
    """
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    time.sleep(random.uniform(0, max_delay_s))  # noqa: S311 - not a secret
    is_running = process.poll() is None
    kill = random.choice((os.kill, os.killpg))  # noqa: S311 - not a secret
    with suppress(ProcessLookupError):
        kill(process.pid, signal.SIGKILL)
    process.wait()
    return is_running


def time_commands(folder: Path) -> dict[str, float]:
    """Run all commands to their end, and return the seconds of each, by name."""
    seconds = {}
    for title, command in make_commands(folder).items():
        start_s = time.monotonic()
        subprocess.run(command, check=True)
        seconds[title] = time.monotonic() - start_s
    return seconds


def run_round(
    folder: Path, expected: dict[str, bytes], max_delays_s: Mapping[str, float]
) -> Counter[str]:
    """Kill commands in a new folder, and check it after each kill.

    Returns:
        How often each command was killed, by name.
    """
    shutil.rmtree(folder, ignore_errors=True)
    commands = make_commands(folder)
    kills: Counter[str] = Counter()
    for number in range(KILLS_PER_ROUND):
        title = "demo"
        if (folder / "demo" / "scannet.tar.zst").exists():
            title = _TITLES[number % len(_TITLES)]
            if title == "demo":
                _remove_some_output(folder)
        if kill_once(commands[title], max_delays_s[title]):
            kills[title] += 1
        check(folder, expected, is_complete=False)
    return kills


def _remove_some_output(folder: Path) -> None:
    """Remove an output, so that `demo` has something to do."""
    path = folder / random.choice(_OUTPUTS)  # noqa: S311 - not a secret
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    """Kill commands, round after round, until there were enough kills."""
    parser = argparse.ArgumentParser(prog="tools/soak.py", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=1000, metavar="N", help="how many (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, help="repeat the same moments, as far as the machine allows"
    )
    arguments = parser.parse_args()
    random.seed(arguments.seed)

    kills: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="scannet-prep-soak-") as name:
        whole_dir = Path(name, "whole")
        killed_dir = Path(name, "killed")
        max_delays_s = time_commands(whole_dir)
        complete = find_files(whole_dir, is_complete=True)
        while kills.total() < arguments.kills:
            kills += run_round(killed_dir, complete, max_delays_s)
            time_commands(killed_dir)
            check(killed_dir, complete, is_complete=True)
            for output in _OUTPUTS:
                subprocess.run([*_PROGRAM, "verify", str(killed_dir / output), "-q"], check=True)
            counts = [f"{title} killed {count} times" for title, count in kills.items()]
            print(", ".join(counts), flush=True)


if __name__ == "__main__":
    main()
