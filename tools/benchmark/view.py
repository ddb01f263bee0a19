"""Part `view`: CPU time of a picture of 800 x 600 pixels, as a mesh and as points, and size and time of a page."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmark.scenes import make_scenes
from scannet_prep import read_processed
from scannet_prep.processed.folder import processed_path
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.scene import Split
from scannet_prep.stages import process
from scannet_prep.view.coloring import view_scene
from scannet_prep.view.page import make_page
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import render_scene

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from benchmark.settings import Result, Settings

_AIM_MS = 200.0
_LARGE_VERTICES = 550_000  # of the largest scenes


def measure(settings: Settings) -> Result:
    """Measure scenes of the size that was chosen, and one of the largest."""
    return {
        "aim_ms": _AIM_MS,
        "scenes": [
            _measure_scenes(settings, settings.vertex_count, settings.scene_count),
            _measure_scenes(settings, _LARGE_VERTICES, 1),
        ],
    }


def _measure_scenes(settings: Settings, vertex_count: int, scene_count: int) -> Result:
    folder = settings.folder / "view" / str(vertex_count)
    scene_ids = make_scenes(folder / "raw", scene_count, vertex_count, settings.seed)
    options = ProcessOptions(scannet200=True, align_axis=True, faces=True)
    process.run(process.plan(folder / "raw", folder / "processed", options))
    meshes = [read_processed(processed_path(folder / "processed", Split.TRAIN, name)) for name in scene_ids]
    points = [replace(scene, faces=None) for scene in meshes]
    pages = [make_page([view_scene(scene)]) for scene in meshes[:1]]
    return {
        "scenes": scene_count,
        "vertices": vertex_count,
        "ms": {
            "mesh, by class": _measure(meshes, _render, settings.repeat),
            "mesh, colours of the scan": _measure(meshes, lambda scene: _render(scene, "rgb"), settings.repeat),
            "points, by class": _measure(points, _render, settings.repeat),
            "mesh, by class, as PNG": _measure(meshes, lambda scene: encode_png(_render(scene)), settings.repeat),
            "page, all colourings": _measure(meshes[:1], lambda scene: make_page([view_scene(scene)]), 1),
        },
        "page_bytes": len(pages[0]),
        "peak_bytes": _measure_memory(lambda: _render(meshes[0])),
    }


def _render(scene: ProcessedScene, color: str = "scannet200") -> NDArray[np.uint8]:
    return render_scene(view_scene(scene, only=color), color)


def _measure(scenes: list[ProcessedScene], function: Callable[[ProcessedScene], object], repeat: int) -> float:
    """Median over the scenes of the best time, in ms that a core was at work."""
    best = []
    for scene in scenes:
        seconds = []
        for _ in range(repeat):
            start_s = time.process_time()
            function(scene)
            seconds.append(time.process_time() - start_s)
        best.append(min(seconds))
    return statistics.median(best) * 1e3


def _measure_memory(function: Callable[[], object]) -> int:
    """Bytes that a call needs at most beside what is there."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def describe(result: Result) -> str:
    """Show the figures as a table."""
    first, second = result["scenes"]
    lines = [
        f"view: pictures of 800 x 600, one core; aim: at most {result['aim_ms']:.0f} ms",
        f"  {'ms of CPU, vertices':<26}{first['vertices']:>12,}{second['vertices']:>12,}",
    ]
    lines += [f"  {title:<26}{ms:12.1f}{second['ms'][title]:12.1f}" for title, ms in first["ms"].items()]
    for title, key in (("MB of the page", "page_bytes"), ("MB of memory, picture", "peak_bytes")):
        lines.append(f"  {title:<26}{first[key] / 1e6:12.1f}{second[key] / 1e6:12.1f}")
    return "\n".join(lines)
