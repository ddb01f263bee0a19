"""Run parts of the benchmark: `tools/bench [PART ...]`."""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
from pathlib import Path

from benchmark.machine import describe_machine
from benchmark.settings import Part, Settings

# Each part is a module of this package, with the functions of `settings.Part`.
PARTS = ("process", "export", "download", "pack", "loader", "superpoints", "frames", "page")


def main() -> None:
    """Measure the chosen parts, and print the results."""
    arguments = _parse_arguments()
    with tempfile.TemporaryDirectory(prefix="scannet-prep-bench-") as temporary_dir:
        folder = arguments.keep or Path(temporary_dir)
        settings = Settings(
            folder=folder.absolute(),
            scene_count=arguments.scenes,
            vertex_count=arguments.vertices,
            repeat=arguments.repeat,
            reference_count=arguments.reference_scenes,
            seed=arguments.seed,
        )
        machine = describe_machine()
        if not arguments.json:
            print(", ".join(f"{key}: {value}" for key, value in machine.items()))
        results = {}
        for name in arguments.parts or PARTS:
            part: Part = importlib.import_module(f"benchmark.{name}")
            results[name] = part.measure(settings)
            if not arguments.json:
                print(f"\n{part.describe(results[name])}", flush=True)
        if arguments.json:
            report = {"machine": machine, "settings": settings.to_json(), **results}
            print(json.dumps(report, indent=1))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default"
    )
    parser.add_argument(
        "--scenes",
        type=int,
        default=20,
        metavar="N",
        help="number of scenes (default: %(default)s)",
    )
    parser.add_argument(
        "--vertices",
        type=int,
        default=124_000,
        metavar="N",
        help="number of vertices of each scene (default: %(default)s)",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=5,
        metavar="N",
        help="number of measurements, of which the fastest counts (default: %(default)s)",
    )
    parser.add_argument(
        "--reference-scenes",
        type=int,
        default=3,
        metavar="N",
        help="number of scenes that the slow reference processes too (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the scenes (default: %(default)s)"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep the scenes in this folder, and use those in it (default: a temporary folder)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {min(unknown)!r}; there are: {', '.join(PARTS)}")
    if arguments.scenes < 2 or min(arguments.repeat, arguments.reference_scenes) < 1:
        parser.error("--scenes must be at least 2, --repeat and --reference-scenes at least 1")
    return arguments


if __name__ == "__main__":
    main()
