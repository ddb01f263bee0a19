"""Run parts of the benchmark: `tools/bench [PART ...]`. Each prints the rows of a table.

Parts whose packages are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
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
    parser.add_argument(
        "--scenes", type=int, default=20, help="number of scenes, at least 2 (default: 20)"
    )
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
    left_out = []
    with tempfile.TemporaryDirectory(prefix="scannet-prep-bench-") as name:
        for part in arguments.parts or PARTS:
            try:
                module = importlib.import_module(f"benchmark.{part}")
            except ModuleNotFoundError as error:
                left_out.append(f"{part}, which needs {error.name}")
                continue
            folder = Path(name, part)
            folder.mkdir()
            print(f"\n{part}: {arguments.scenes} scenes of {arguments.vertices:,} vertices")
            rows = module.measure(folder, arguments.scenes, arguments.vertices, arguments.repeat)
            for title, figure in rows:
                print(f"  {title:<52}{figure}", flush=True)
    if left_out:
        sys.exit(f"left out: {'; '.join(left_out)}")


if __name__ == "__main__":
    main()
