"""Kills commands at random moments, again and again, and checks after each kill that no file has lost a byte.

`demo` (which downloads, processes and packs) and `unpack` run in a folder, and are killed: the process alone, whose
workers outlive it for a moment, or all of them. What has its final name must then be the same, byte for byte, as in a
folder that nobody disturbed. Now and then a run comes to its end, and all must be there; then it begins anew.
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
from contextlib import suppress
from pathlib import Path

KILLS_A_ROUND = 25
_PLACES = ("demo/ScanNet", "demo/processed", "demo/scannet.tar.zst", "unpacked", "exported")
_PROGRAM = (sys.executable, "-m", "scannet_prep")
_WHOLE = {".npz", ".npy", ".ply", ".json", ".txt", ".tsv", ".zst"}
_CHANGING = {"unfinished.txt", "failed.txt", "manifest.json"}  # they tell how far a run is


def make_commands(folder: Path) -> dict[str, list[str]]:
    """The commands that are killed, by name."""
    archive = str(folder / "demo" / "scannet.tar.zst")
    return {
        "demo": [*_PROGRAM, "demo", str(folder / "demo"), "-q", "--jobs", "2"],
        "unpack": [
            *_PROGRAM,
            "unpack",
            archive,
            "-o",
            str(folder / "unpacked"),
            "-q",
            "--jobs",
            "2",
        ],
        "export": [
            *_PROGRAM,
            "export",
            archive,
            "--format",
            "pointcept",
            "-o",
            str(folder / "exported"),
            "-q",
        ],
    }


def find_files(folder: Path, *, has_all: bool) -> dict[str, bytes]:
    """Content of the files that have their final names, by path; `has_all`: also of those that tell how far it is."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.suffix in _WHOLE
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and "server" not in path.parts
        and path.name != "export.json"  # it names the folder
        and (has_all or path.name not in _CHANGING)
    }


def check(folder: Path, expected: dict[str, bytes], *, has_all: bool) -> None:
    """Compare a folder with the undisturbed one."""
    found = find_files(folder, has_all=has_all)
    wrong = [name for name, data in found.items() if expected.get(name) != data]
    wrong += sorted(set(expected) - set(found)) if has_all else []
    if wrong:
        raise SystemExit(
            f"{folder}: {len(wrong)} files are missing or not what they should be: {', '.join(wrong[:5])}"
        )


def kill_once(command: list[str], longest_s: float) -> bool:
    """Start a command and kill it at some moment; gives whether it had ended before."""
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    time.sleep(random.uniform(0, longest_s))  # noqa: S311 - no secret
    has_ended = process.poll() is not None
    kill = random.choice((os.kill, os.killpg))  # noqa: S311
    with suppress(ProcessLookupError):
        kill(process.pid, signal.SIGKILL)
    process.wait()
    return has_ended


def main() -> None:
    """Kill as often as asked for."""
    parser = argparse.ArgumentParser(prog="tools/soak.py", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=1000, metavar="N", help="how many (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, help="to see the same moments again, as far as the machine allows"
    )
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    kills: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="scannet-prep-soak-") as name:
        whole, folder = Path(name, "whole"), Path(name, "killed")
        longest_s = {}
        for title, command in make_commands(whole).items():
            started_s = time.monotonic()
            subprocess.run(command, check=True)
            longest_s[title] = time.monotonic() - started_s
        expected = {
            title: find_files(whole, has_all=has_all)
            for title, has_all in (("all", True), ("whole", False))
        }
        commands = make_commands(folder)
        while kills.total() < arguments.kills:
            shutil.rmtree(folder, ignore_errors=True)
            for number in range(KILLS_A_ROUND):
                can_unpack = (folder / "demo" / "scannet.tar.zst").exists()
                title = ("demo", "unpack", "demo", "export")[number % 4] if can_unpack else "demo"
                if can_unpack and title == "demo":  # else there would soon be nothing left to do
                    place = folder / random.choice(_PLACES)  # noqa: S311
                    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
                if not kill_once(commands[title], longest_s[title]):
                    kills[title] += 1
                check(folder, expected["whole"], has_all=False)
            for command in commands.values():
                subprocess.run(command, check=True)
            check(folder, expected["all"], has_all=True)
            for tree in _PLACES:
                subprocess.run([*_PROGRAM, "verify", str(folder / tree), "-q"], check=True)
            print(
                ", ".join(f"{title} killed {count} times" for title, count in kills.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
