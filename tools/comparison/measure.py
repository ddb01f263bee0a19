"""Time, memory, size and fields of a program, on scenes of usual size."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

from benchmark.scenes import make_scenes

from comparison.outputs import find_files, list_fields, read_arrays
from comparison.programs import Job, Program
from comparison.run import Run, run_program


@dataclass(frozen=True, slots=True)
class Measurement:
    """Figures of one program.

    Attributes:
        cpu_s: Seconds of CPU time per scene, without the start of the program.
        start_s: Seconds of CPU time of the start of the program.
        peak_bytes: Largest resident set of one of its processes.
        bytes_per_vertex: Size of the files of a scene.
        fields: What the files contain.
        rewritten_share: Share of the files of a scene that a second run wrote again.
    """

    cpu_s: float
    start_s: float
    peak_bytes: int
    bytes_per_vertex: float
    fields: str
    rewritten_share: float


def measure_program(
    program: Program, job: Job, *, scene_count: int, vertex_count: int, least_cpu_s: float
) -> Measurement:
    """Run a program on one scene, on that scene again, and on several.

    The CPU time of a scene is the difference between several scenes and one, so it is without the
    start of the program.

    Args:
        program: The program.
        job: Its `raw_dir` and `folder` get two folders, `one` and `several`.
        scene_count: Number of several scenes.
        vertex_count: Number of vertices of a scene.
        least_cpu_s: Short runs are repeated until they have used this CPU time.
    """
    one_job = replace(job, raw_dir=job.raw_dir / "one", folder=job.folder / "one")
    job = replace(job, raw_dir=job.raw_dir / "several", folder=job.folder / "several")
    (first_id,) = make_scenes(one_job.raw_dir, 1, vertex_count, seed=0)
    scene_ids = make_scenes(job.raw_dir, scene_count, vertex_count, seed=0)
    one = _find_fastest_run(program, one_job, least_cpu_s)
    rewritten_share = _measure_second_run(program, one_job, first_id)
    several = _find_fastest_run(program, job, least_cpu_s)

    paths = [path for scene_id in scene_ids for path in find_files(job.out_dir, scene_id)]
    size_bytes = sum(path.stat().st_size for path in paths)
    cpu_s = (several.cpu_s - one.cpu_s) / (scene_count - 1)
    return Measurement(
        cpu_s=cpu_s,
        # A start that is shorter than the noise may come out negative.
        start_s=max(0.0, one.cpu_s - cpu_s),
        peak_bytes=several.peak_bytes,
        bytes_per_vertex=size_bytes / (scene_count * vertex_count),
        fields=list_fields(read_arrays(job.out_dir, first_id), program.contents),
        rewritten_share=rewritten_share,
    )


def _measure_second_run(program: Program, job: Job, scene_id: str) -> float:
    """Run a program again, and return the share of the files of a scene that it writes again."""
    paths = find_files(job.out_dir, scene_id)
    times_ns = {path: path.stat().st_mtime_ns for path in paths}
    run_program(program, job)
    rewritten = [path for path in paths if path.stat().st_mtime_ns != times_ns[path]]
    return len(rewritten) / len(paths)


def _find_fastest_run(program: Program, job: Job, least_cpu_s: float) -> Run:
    """Run a program without earlier output, and return the run that used the least CPU time."""
    runs: list[Run] = []
    while sum(run.cpu_s for run in runs) < least_cpu_s:
        shutil.rmtree(job.out_dir, ignore_errors=True)
        runs.append(run_program(program, job))
    return min(runs, key=lambda run: run.cpu_s)
