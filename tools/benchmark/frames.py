"""Part `frames`: extraction from a stream, and projection of points."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from usage import run_ours

from benchmark.timing import time_alternately
from scannet_prep.frames import project
from scannet_prep.synthetic import make_scene, write_scene
from scannet_prep.synthetic.frames import DEPTH_CAMERA, render_frames

_SCENE = "scene0000_00"
_FRAME_COUNT = 500
_VERTEX_COUNT = 20_000


def measure(
    folder: Path, _scene_count: int, vertex_count: int, repeat: int
) -> Iterator[tuple[str, str]]:
    """Measure extraction and projection."""
    scene = make_scene(_SCENE, vertices=_VERTEX_COUNT)
    stream = write_scene(scene, folder / "raw", frames=_FRAME_COUNT) / f"{_SCENE}.sens"
    yield "stream", f"{_FRAME_COUNT} frames, {stream.stat().st_size / 1e6:.0f} MB"
    for every in ("20", "1"):
        usages = []
        for _ in range(repeat):
            shutil.rmtree(folder / "out", ignore_errors=True)
            words = ["frames", folder / "raw", "-o", folder / "out", "--jobs", "1"]
            usages.append(run_ours(*words, "--every", every))
        cpu_s = min(usage.cpu_s for usage in usages)
        yield f"--every {every}", f"{cpu_s:.2f} s of CPU, {usages[0].peak_mb:.0f} MB"

    points = make_scene(_SCENE, vertices=vertex_count).positions
    frame = next(render_frames(scene, 1))
    arguments = (points, frame.pose, DEPTH_CAMERA.intrinsic, DEPTH_CAMERA.size, frame.depth)
    best = time_alternately({"": lambda: project(*arguments)}, 10 * repeat)
    yield f"project, {vertex_count:,} points", f"{best[''] * 1e3:.1f} ms of CPU"
