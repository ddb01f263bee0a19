"""Run the preprocessing scripts of other programs beside ours, and write docs/comparison.md.

You clone the other programs; the command shows what to type for those that are missing. A program
that cannot be run is listed in the page with the reason.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmark.machine import describe_machine

from comparison.irregular import IRREGULARITIES
from comparison.measure import measure_program
from comparison.page import Result, make_page
from comparison.programs import PROGRAMS, Job, Program, find_obstacle
from comparison.trials import NothingMadeError, Trials

_PAGE_PATH = Path(__file__).resolve().parent.parent.parent / "docs/comparison.md"


def main() -> None:
    """Run all programs, and write the page."""
    arguments = _parse_arguments()
    results = []
    with tempfile.TemporaryDirectory(prefix="scannet-prep-compare-") as temporary:
        for program in PROGRAMS:
            print(program.name, file=sys.stderr)
            results.append(_run(program, arguments, Path(temporary)))
    version = subprocess.run(
        [arguments.python, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    page = make_page(
        results,
        machine=describe_machine() | {"the other programs": version},
        scene_count=arguments.scenes,
        vertex_count=arguments.vertices,
    )
    arguments.output.write_text(page, encoding="utf-8")
    print(arguments.output)


def _run(program: Program, arguments: argparse.Namespace, folder: Path) -> Result:
    obstacle = find_obstacle(program, arguments.repositories)
    if obstacle:
        print(f"  not run: {obstacle}", file=sys.stderr)
        return Result(program, obstacle)
    # All programs read the same large scenes. Small ones are made for each run.
    small_job = Job(
        raw_dir=folder / "small",
        folder=folder / program.name / "small",
        clones_dir=arguments.repositories,
        python=arguments.python,
    )
    large_job = Job(
        raw_dir=folder / "large",
        folder=folder / program.name / "large",
        clones_dir=arguments.repositories,
        python=arguments.python,
    )
    try:
        trials = Trials(program, small_job)
    except NothingMadeError as error:
        print(f"  not run: {error}", file=sys.stderr)
        return Result(program, str(error))
    verdicts = {}
    for irregularity in IRREGULARITIES:
        verdict = trials.try_input(irregularity)
        print(f"  {irregularity.title}: {verdict.kind}", file=sys.stderr)
        verdicts[irregularity.title] = verdict
    measurement = measure_program(
        program, large_job, scene_count=arguments.scenes, vertex_count=arguments.vertices
    )
    print(f"  {measurement.cpu_s * 1e3:,.0f} ms per scene", file=sys.stderr)
    return Result(program, "", measurement, verdicts)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/compare", description=__doc__)
    parser.add_argument(
        "--repositories",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of your clones: octformer, Pointcept, Mask3D, mmdetection3d, ScanNet",
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PYTHON",
        help="interpreter of a Python 3.10 environment with the packages in "
        "tools/comparison/requirements.txt (default: the one of this package)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=_PAGE_PATH,
        metavar="FILE",
        help="the page to write (default: docs/comparison.md)",
    )
    parser.add_argument(
        "--scenes",
        type=int,
        default=21,
        metavar="N",
        help="number of scenes to measure with, at least 2 (default: %(default)s)",
    )
    parser.add_argument(
        "--vertices",
        type=int,
        default=124_000,
        metavar="N",
        help="number of vertices of each of them (default: %(default)s)",
    )
    arguments = parser.parse_args()
    if arguments.scenes < 2:
        parser.error("--scenes must be at least 2")
    arguments.repositories = arguments.repositories.absolute()
    return arguments


if __name__ == "__main__":
    main()
