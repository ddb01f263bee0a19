"""Part `process`: time per scene compared with a reference and a copy, memory, and reading."""

from __future__ import annotations

import shutil
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmark import memory, reference
from benchmark.scenes import make_scenes
from benchmark.timing import load_npz, time_call
from scannet_prep import ScanNet
from scannet_prep.base.files import put_in_place
from scannet_prep.base.memory import keep_freed_memory
from scannet_prep.processed.make_scene import find_raw_files
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.label_sets import SCANNET200
from scannet_prep.stages import process
from scannet_prep.stages.process import make_scene_file

if TYPE_CHECKING:
    from pathlib import Path

    from benchmark.settings import Result, Settings
    from scannet_prep.stages.process import ProcessContext, ProcessPlan, ProcessTask

_OPTIONS = ProcessOptions(scannet200=True, align_axis=True)
_LARGEST_VERTEX_COUNT = 550_000
_REFERENCE_REPEAT = 2


def measure(settings: Settings) -> Result:
    """Measure everything."""
    keep_freed_memory()  # as workers do
    raw_dir = settings.folder / "raw"
    out_dir = settings.folder / "processed"
    make_scenes(raw_dir, settings.scene_count, settings.vertex_count, settings.seed)
    result = _measure_scenes(process.plan(raw_dir, out_dir, _OPTIONS), settings)
    result["reading"] = _measure_reading(raw_dir, out_dir, settings)

    large_dir = settings.folder / "large"
    make_scenes(large_dir, 1, _LARGEST_VERTEX_COUNT, settings.seed)
    result["memory_mb"] = memory.measure(large_dir, settings.folder)
    return result


def _measure_scenes(plan: ProcessPlan, settings: Settings) -> Result:
    """Time each scene on one core: alternately `process`, a copy, and the reference."""
    tasks = plan.tasks
    shutil.rmtree(plan.out_dir, ignore_errors=True)
    for split in {task.split for task in tasks}:
        (plan.out_dir / split).mkdir(parents=True)
    ours = [float("inf")] * len(tasks)
    copies = [float("inf")] * len(tasks)
    references = [float("inf")] * min(settings.reference_count, len(tasks))
    sizes = []
    for repeat in range(settings.repeat):
        for index, task in enumerate(tasks):
            task.path.unlink(missing_ok=True)
            seconds = time_call(_make, task, plan.context)
            ours[index] = min(ours[index], seconds)
            seconds, read_bytes, written_bytes = _copy(task, settings.folder)
            copies[index] = min(copies[index], seconds)
            if repeat == 0:
                sizes.append((read_bytes, written_bytes))
            if index < len(references) and repeat < _REFERENCE_REPEAT:
                references[index] = min(references[index], _run_reference(task, settings.folder))

    vertex_count = sum(_count_vertices(task.path) for task in tasks)
    return {
        "ms": _summarize(ours),
        "copy_ms": _summarize(copies),
        "reference_ms": _summarize(references),
        "ratio_to_reference": statistics.median(
            slow / fast for slow, fast in zip(references, ours, strict=False)
        ),
        "ratio_to_copy": statistics.median(
            total / copy for total, copy in zip(ours, copies, strict=True)
        ),
        "read_mb_per_scene": statistics.mean(size[0] for size in sizes) / 1e6,
        "written_mb_per_scene": statistics.mean(size[1] for size in sizes) / 1e6,
        "bytes_per_vertex": sum(size[1] for size in sizes) / vertex_count,
        "scenes": len(tasks),
        "vertices": settings.vertex_count,
    }


def _make(task: ProcessTask, context: ProcessContext) -> None:
    temporary_path, _ = make_scene_file(task, context)
    put_in_place(temporary_path, task.path)


def _copy(task: ProcessTask, folder: Path) -> tuple[float, int, int]:
    """Read the same files as `process`, write the same bytes, and do nothing else.

    Returns:
        Seconds, bytes read, bytes written.
    """
    paths = find_raw_files(task.scene, task.split, _OPTIONS)
    content = task.path.read_bytes()
    target_path = folder / "copy.tmp"
    target_path.unlink(missing_ok=True)
    read_bytes = 0
    start = time.perf_counter()
    for path in paths.values():
        read_bytes += len(path.read_bytes())
    target_path.write_bytes(content)
    seconds = time.perf_counter() - start
    target_path.unlink()
    return seconds, read_bytes, len(content)


def _run_reference(task: ProcessTask, folder: Path) -> float:
    """Time the reference, and check that it makes the same arrays as `process`."""
    target_path = folder / "reference.npz"
    target_path.unlink(missing_ok=True)
    rows = {name: (ids.scannet_id, ids.nyu40_id) for name, ids in builtin_label_map().rows.items()}
    start = time.perf_counter()
    expected = reference.make_scene(task.scene.directory, target_path, rows, SCANNET200.ids)
    seconds = time.perf_counter() - start
    target_path.unlink()
    with np.load(task.path) as content:
        ours = {key: content[key] for key in content.files}
    for key in expected.keys() - {"points", "normals"}:
        np.testing.assert_array_equal(ours[key], expected[key], err_msg=key)
    np.testing.assert_allclose(ours["points"], expected["points"], rtol=0, atol=1e-6)
    normals = ours["normals"].astype(np.float32)
    np.testing.assert_allclose(normals, expected["normals"], rtol=0, atol=1e-3)
    return seconds


def _count_vertices(path: Path) -> int:
    with np.load(path) as content:
        return len(content["labels"])


def _measure_reading(raw_dir: Path, out_dir: Path, settings: Settings) -> Result:
    """Time `dataset[i]` and `np.load` of all members, alternately."""
    process.run(process.plan(raw_dir, out_dir, _OPTIONS))
    dataset = ScanNet(out_dir, split="train", labels=SCANNET200)
    ours = []
    plain = []
    for index in range(settings.scene_count):
        path = out_dir / "train" / f"{dataset.scene_ids[index]}.npz"
        ours_s = []
        plain_s = []
        for _ in range(2 * settings.repeat):
            ours_s.append(time_call(dataset.__getitem__, index))
            plain_s.append(time_call(load_npz, path))
        ours.append(min(ours_s))
        plain.append(min(plain_s))
    return {
        "dataset_ms": _summarize(ours),
        "np_load_ms": _summarize(plain),
        "ratio": statistics.median(a / b for a, b in zip(ours, plain, strict=True)),
    }


def _summarize(seconds: list[float]) -> dict[str, float]:
    """Return median and minimum over the scenes, in ms."""
    return {"median": statistics.median(seconds) * 1e3, "min": min(seconds) * 1e3}


def describe(result: Result) -> str:
    """Format the results as tables."""
    reading = result["reading"]
    megabytes = f"{result['read_mb_per_scene']:9.2f}{result['written_mb_per_scene']:9.2f}"
    lines = [
        f"process: {result['scenes']} scenes of {result['vertices']:,} vertices, warm, one core",
        f"  {'ms per scene':<26}{'median':>9}{'min':>9}",
        _describe_row("ours", result["ms"]),
        _describe_row("copy", result["copy_ms"]),
        _describe_row("reference", result["reference_ms"]),
        f"  reference / ours        {result['ratio_to_reference']:9.1f}",
        f"  ours / copy             {result['ratio_to_copy']:9.2f}",
        f"  MB read, written        {megabytes}",
        f"  bytes per vertex        {result['bytes_per_vertex']:9.2f}",
        "",
        f"memory of a worker, scene of {_LARGEST_VERTEX_COUNT:,} vertices",
        f"  {'':<22}{result['memory_mb']:9.0f} MB",
        "",
        "reading one scene, warm, ms",
        _describe_row("dataset[i]", reading["dataset_ms"]),
        _describe_row("np.load of all members", reading["np_load_ms"]),
        f"  dataset[i] / np.load    {reading['ratio']:9.2f}",
    ]
    return "\n".join(lines)


def _describe_row(title: str, milliseconds: dict[str, float]) -> str:
    return f"  {title:<26}{milliseconds['median']:9.2f}{milliseconds['min']:9.2f}"
