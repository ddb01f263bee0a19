"""Part `superpoints`: time of `segment_mesh` compared with a plain loop, and its memory."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmark.scenes import order_like_release
from benchmark.segment_loop import segment_in_loop
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.superpoints import segment_mesh
from scannet_prep.synthetic import make_scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from benchmark.settings import Result, Settings

_LARGEST_VERTEX_COUNT = 550_000
_THRESHOLD = 0.01
_MIN_VERTICES = 20
# Metres. Without noise, most edges weigh 0, as the sides of synthetic rooms are planes.
_NOISE = 0.002


def measure(settings: Settings) -> Result:
    """Measure everything."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    scene_ids = [str(scene_id) for scene_id in official_scenes(Split.TRAIN)]
    ours = []
    loops = []
    for scene_id in scene_ids[: settings.reference_count]:
        mesh = _make_mesh(scene_id, settings.vertex_count, settings.seed)
        ours_s, loop_s = _compare(*mesh, settings.repeat)
        ours.append(ours_s)
        loops.append(loop_s)

    large_path = settings.folder / "large-mesh.npz"
    points, faces = _make_mesh(scene_ids[0], _LARGEST_VERTEX_COUNT, settings.seed)
    np.savez(large_path, points=points, faces=faces)
    return {
        "ms": statistics.median(ours) * 1e3,
        "loop_ms": statistics.median(loops) * 1e3,
        "ratio": statistics.median(a / b for a, b in zip(ours, loops, strict=True)),
        "scenes": len(ours),
        "vertices": settings.vertex_count,
        "memory": {"vertices": _LARGEST_VERTEX_COUNT, "mb": _measure_memory(large_path)},
    }


def _make_mesh(
    scene_id: str, vertex_count: int, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Make points and faces of a room with noise."""
    scene = order_like_release(make_scene(scene_id, vertices=vertex_count, seed=seed))
    noise = np.random.default_rng(seed).normal(0, _NOISE, scene.positions.shape)
    return (scene.positions + noise).astype(np.float32), scene.faces


def _compare(
    points: NDArray[np.float32], faces: NDArray[np.int32], repeat: int
) -> tuple[float, float]:
    """Time both programs alternately, and check that they make the same segments.

    Returns:
        CPU seconds of `segment_mesh` and of the loop, the least of each.
    """
    arguments = (points, faces, _THRESHOLD, _MIN_VERTICES)
    ours_s = float("inf")
    loop_s = float("inf")
    for _ in range(repeat):
        ours_s = min(ours_s, _time_cpu(segment_mesh, *arguments))
        loop_s = min(loop_s, _time_cpu(segment_in_loop, *arguments))

    segments = segment_mesh(*arguments)
    roots = segment_in_loop(*arguments)
    pairs = set(zip(segments.tolist(), roots, strict=True))
    if not len(pairs) == segments.max() + 1 == len(set(roots)):
        raise RuntimeError("segment_mesh and the loop made different segments")
    return ours_s, loop_s


def _time_cpu(function: Callable[..., object], *arguments: object) -> float:
    """Return the CPU seconds of a call, which depend less on other work on the machine."""
    start_s = time.process_time()
    function(*arguments)
    return time.process_time() - start_s


def _measure_memory(path: Path) -> float:
    """Segment a mesh in a new process, and return by how much its memory grows, in MB."""
    command = [sys.executable, "-m", "benchmark.superpoints", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def print_growth(path: Path) -> None:
    """Segment a mesh, and print the peak of memory above that with the mesh alone, in MB."""
    with np.load(path) as content:
        points = content["points"]
        faces = content["faces"]
    before_kb = _read_memory_kb("VmRSS")
    segment_mesh(points, faces, _THRESHOLD, _MIN_VERTICES)
    print((_read_memory_kb("VmHWM") - before_kb) / 1024)


def _read_memory_kb(name: str) -> int:
    """Read the resident memory of this process: VmRSS, now, or VmHWM, its peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def describe(result: Result) -> str:
    """Format the results as a table."""
    memory = result["memory"]
    lines = [
        f"superpoints: {result['scenes']} scenes of {result['vertices']:,} vertices, one core",
        f"  ms of CPU per scene     {result['ms']:9.0f}",
        f"  plain loop over lists   {result['loop_ms']:9.0f}",
        f"  ours / loop             {result['ratio']:9.2f}",
        f"memory for a scene of {memory['vertices']:,} vertices",
        f"  growth                  {memory['mb']:9.0f} MB",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print_growth(Path(sys.argv[1]))
