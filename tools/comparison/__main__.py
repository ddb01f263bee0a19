"""Run the preprocessing scripts of other programs beside ours, and write docs/comparison.md.

The summary is written to README.md, too.

You clone the other programs; the command shows what to type for those that are missing. A program
that cannot be run is listed in the page with the reason.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmark.machine import describe_machine

from comparison.irregular import IRREGULARITIES
from comparison.measure import measure_program
from comparison.page import Result, make_page, replace_summary
from comparison.programs import PROGRAMS, Job, Program, find_obstacle
from comparison.trials import NothingMadeError, Trials

_REPOSITORY_DIR = Path(__file__).resolve().parent.parent.parent
# Runs that use less CPU time are repeated.
_LEAST_CPU_S = 5.0


def main() -> None:
    """Run all programs, and write the page."""
    arguments = _parse_arguments()
    with tempfile.TemporaryDirectory(prefix="scannet-prep-compare-") as temporary:
        folder = Path(temporary)
        # Only the trials run side by side, because they measure no time.
        with ThreadPoolExecutor(len(PROGRAMS)) as pool:
            trials = pool.map(lambda program: _try_inputs(program, arguments, folder), PROGRAMS)
            results = list(trials)
        results = [_add_measurement(result, arguments, folder) for result in results]
    version = subprocess.run(
        [arguments.python, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    page = make_page(
        results,
        machine=describe_machine() | {"the other programs": version},
        scene_count=arguments.scenes,
        vertex_count=arguments.vertices,
    )
    page_path = arguments.output / "docs/comparison.md"
    page_path.write_text(page, encoding="utf-8")
    readme_path = arguments.output / "README.md"
    readme = readme_path.read_text(encoding="utf-8")
    readme_path.write_text(replace_summary(readme, results), encoding="utf-8")
    print(page_path)


def _try_inputs(program: Program, arguments: argparse.Namespace, folder: Path) -> Result:
    """Run a program on irregular inputs."""
    obstacle = find_obstacle(program, arguments.repositories)
    if obstacle:
        print(f"{program.name} is not run: {obstacle}", file=sys.stderr)
        return Result(program, obstacle)
    job = _make_job(arguments, raw_dir=folder / program.name / "raw", folder=folder / program.name)
    try:
        trials = Trials(program, job)
    except NothingMadeError as error:
        print(f"{program.name} is not run: {error}", file=sys.stderr)
        return Result(program, str(error))
    verdicts = {}
    for irregularity in IRREGULARITIES:
        verdict = trials.try_input(irregularity)
        print(f"{program.name}, {irregularity.title}: {verdict.kind}", file=sys.stderr)
        verdicts[irregularity.title] = verdict
    return Result(program, verdicts=verdicts)


def _add_measurement(result: Result, arguments: argparse.Namespace, folder: Path) -> Result:
    """Measure a program, if it can be run. All programs read the same scenes."""
    program = result.program
    if result.obstacle:
        return result
    measurement = measure_program(
        program,
        _make_job(arguments, raw_dir=folder / "raw", folder=folder / program.name),
        scene_count=arguments.scenes,
        vertex_count=arguments.vertices,
        least_cpu_s=_LEAST_CPU_S,
    )
    print(f"{program.name}: {measurement.cpu_s * 1e3:,.0f} ms per scene", file=sys.stderr)
    return replace(result, measurement=measurement)


def _make_job(arguments: argparse.Namespace, *, raw_dir: Path, folder: Path) -> Job:
    return Job(
        raw_dir=raw_dir, folder=folder, clones_dir=arguments.repositories, python=arguments.python
    )


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
        default=_REPOSITORY_DIR,
        metavar="DIR",
        help="folder with README.md and docs/ (default: this repository)",
    )
    parser.add_argument(
        "--scenes",
        type=int,
        default=6,
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
