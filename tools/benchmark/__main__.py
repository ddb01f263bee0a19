"""Run parts of the benchmark: `tools/bench [PART ...]`. Each prints the rows of a table."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

# Each part is a module of this package, whose function `measure` yields titles and figures.
PARTS = ("process", "export", "download", "pack", "loader", "superpoints", "frames", "page")


def main() -> None:
    """Measure the chosen parts, and print the results."""
    parser = argparse.ArgumentParser(prog="tools/bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default"
    )
    parser.add_argument("--scenes", type=int, default=20, help="number of scenes (default: 20)")
    parser.add_argument(
        "--vertices", type=int, default=124_000, help="vertices of each scene (default: 124,000)"
    )
    parser.add_argument(
        "--repeat", type=int, default=5, help="repetitions; the fastest one counts (default: 5)"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {min(unknown)!r}; there are: {', '.join(PARTS)}")

    python = f"Python {platform.python_version()}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {python}, NumPy {version('numpy')}")
    with tempfile.TemporaryDirectory(prefix="scannet-prep-bench-") as name:
        for part in arguments.parts or PARTS:
            folder = Path(name, part)
            folder.mkdir()
            print(f"\n{part}: {arguments.scenes} scenes of {arguments.vertices:,} vertices")
            rows = importlib.import_module(f"benchmark.{part}").measure(
                folder, arguments.scenes, arguments.vertices, arguments.repeat
            )
            for title, figure in rows:
                print(f"  {title:<52}{figure}", flush=True)


if __name__ == "__main__":
    main()
