"""Part `superpoints`: CPU time and memory of `segment_mesh` on rooms with noise."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from benchmark.scenes import order_like_release
from benchmark.timing import time_alternately
from scannet_prep.superpoints import segment_mesh
from scannet_prep.synthetic import make_scene

_LARGEST_VERTEX_COUNT = 550_000


def measure(
    _folder: Path, _scene_count: int, vertex_count: int, repeat: int
) -> Iterator[tuple[str, str]]:
    """Measure everything."""
    scene = order_like_release(make_scene("scene0000_00", vertices=vertex_count))
    best = time_alternately({"": lambda: segment_mesh(scene.positions, scene.faces)}, repeat)
    yield f"segment_mesh, {vertex_count:,} vertices", f"{best['']:.2f} s of CPU"
    large = make_scene("scene0000_00", vertices=_LARGEST_VERTEX_COUNT)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    segment_mesh(large.positions, large.faces)
    growth_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    title = f"growth of the peak memory, {_LARGEST_VERTEX_COUNT:,} vertices"
    yield title, f"{growth_kb / 1e3:.0f} MB"
