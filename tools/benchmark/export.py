"""Part `export`: CPU time per scene and format, from the processed scene to the written files."""

from __future__ import annotations

import io
import shutil
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmark.scenes import make_scenes
from scannet_prep import SCANNET20, SCANNET200, read_processed
from scannet_prep.base.memory import keep_freed_memory
from scannet_prep.export.format import encode_lines
from scannet_prep.processed.manifest import processed_path
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.scene import Split
from scannet_prep.stages import export, process
from scannet_prep.stages.export import ExportTask, make_scene_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmark.settings import Result, Settings

# The scenes are axis-aligned and of ScanNet200, so that most formats have to convert them.
_FORMATS: dict[str, tuple[str, dict[str, object]]] = {
    "octformer, as processed": ("octformer", {"label_set": SCANNET200}),
    "octformer": ("octformer", {"label_set": SCANNET20}),
    "pointcept": ("pointcept", {}),
    "mask3d": ("mask3d", {"label_set": SCANNET20}),
    "mmdet3d": ("mmdet3d", {}),
    "oneformer3d": ("oneformer3d", {"label_set": SCANNET200}),
    "votenet": ("votenet", {}),
    "scanrefer": ("scanrefer", {}),
    "scanrefer, all points": ("scanrefer", {"points": None}),
    "benchmark-gt": ("benchmark-gt", {"label_set": SCANNET200}),
    "ply": ("ply", {}),
}


def measure(settings: Settings) -> Result:
    """Measure every format."""
    keep_freed_memory()  # as workers do
    raw_dir = settings.folder / "raw"
    processed_dir = settings.folder / "export" / "processed"
    scene_ids = make_scenes(raw_dir, settings.scene_count, settings.vertex_count, settings.seed)
    process_options = ProcessOptions(scannet200=True, align_axis=True, faces=True)
    process.run(process.plan(raw_dir, processed_dir, process_options))
    formats = {}
    for title, (name, options) in _FORMATS.items():
        formats[title] = _measure_format(processed_dir, scene_ids, name, options, settings)

    text_s = []
    savetxt_s = []
    for scene_id in scene_ids:
        scene = read_processed(processed_path(processed_dir, Split.TRAIN, scene_id))
        text_s.append(_time_cpu(encode_lines, scene.scannet_ids))
        savetxt_s.append(_time_cpu(np.savetxt, io.BytesIO(), scene.scannet_ids, "%d"))
    return {
        "scenes": len(scene_ids),
        "vertices": settings.vertex_count,
        "formats": formats,
        "text_ms": _summarize(text_s),
        "savetxt_ms": _summarize(savetxt_s),
    }


def _measure_format(
    processed_dir: Path,
    scene_ids: list[str],
    name: str,
    options: dict[str, object],
    settings: Settings,
) -> Result:
    out_dir = processed_dir.parent / name
    shutil.rmtree(out_dir, ignore_errors=True)
    plan = export.plan(processed_dir, out_dir, name, options)
    written_bytes = 0

    def export_one(scene_id: str) -> None:
        nonlocal written_bytes
        task = ExportTask(scene_id, out_dir, reason="")
        _, entry = make_scene_files(task, plan.context)
        written_bytes += sum(entry.sizes.values())

    best = []
    for scene_id in scene_ids:
        seconds = []
        for _ in range(settings.repeat):
            shutil.rmtree(out_dir, ignore_errors=True)
            seconds.append(_time_cpu(export_one, scene_id))
        best.append(min(seconds))
    shutil.rmtree(out_dir, ignore_errors=True)
    return {"ms": _summarize(best), "mb": written_bytes / len(scene_ids) / settings.repeat / 1e6}


def _time_cpu(function: Callable[..., object], *arguments: object) -> float:
    """Return the CPU seconds of a call, which depend less on other work on the machine."""
    start_s = time.process_time()
    function(*arguments)
    return time.process_time() - start_s


def _summarize(seconds: list[float]) -> dict[str, float]:
    """Return median and minimum over the scenes, in ms."""
    return {"median": statistics.median(seconds) * 1e3, "min": min(seconds) * 1e3}


def describe(result: Result) -> str:
    """Format the results as a table."""
    scenes = f"{result['scenes']} scenes of {result['vertices']:,} vertices"
    lines = [
        f"export: {scenes}, warm, one core",
        f"  {'ms of CPU per scene':<26}{'median':>9}{'min':>9}{'MB':>9}",
    ]
    for title, row in result["formats"].items():
        lines.append(
            f"  {title:<26}{row['ms']['median']:9.2f}{row['ms']['min']:9.2f}{row['mb']:9.2f}"
        )
    for title, key in (
        ("text, one id per line", "text_ms"),
        ("the same by np.savetxt", "savetxt_ms"),
    ):
        lines.append(f"  {title:<26}{result[key]['median']:9.2f}{result[key]['min']:9.2f}")
    return "\n".join(lines)
