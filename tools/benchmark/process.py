"""Part `process`: a run with nothing to do, memory, size and reading."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from usage import run_ours

from benchmark.scenes import make_processed
from benchmark.timing import time_alternately
from scannet_prep import ScanNet
from scannet_prep.release.scenes import Split, official_scenes
from scannet_prep.synthetic import write_release

_LARGEST_VERTEX_COUNT = 550_000
_SMALL_VERTEX_COUNT = 500
_SPLITS = tuple(Split)


def measure(
    folder: Path, scene_count: int, vertex_count: int, repeat: int
) -> Iterator[tuple[str, str]]:
    """Measure everything."""
    scene_ids = make_processed(folder, scene_count, vertex_count)
    paths = [folder / f"processed/train/{scene_id}.npz" for scene_id in scene_ids]
    dataset = ScanNet(folder / "processed", split="train")
    best = time_alternately(
        {
            "dataset": lambda: [dataset[index] for index in range(scene_count)],
            "numpy": lambda: [load_npz(path) for path in paths],
        },
        repeat,
    )
    yield "dataset[i]", f"{best['dataset'] / scene_count * 1e3:.1f} ms of CPU"
    yield "np.load of all arrays of its file", f"{best['numpy'] / scene_count * 1e3:.1f} ms of CPU"
    size_bytes = sum(path.stat().st_size for path in paths)
    yield "size", f"{size_bytes / scene_count / vertex_count:.1f} bytes per vertex"

    make_processed(folder / "large", 1, _LARGEST_VERTEX_COUNT)
    words = ["process", folder / "large/raw", "-o", folder / "large/processed", "--jobs", "1"]
    usage = run_ours(*words, "--scannet200", "--align-axis", "--force")
    yield f"memory of a worker, {_LARGEST_VERTEX_COUNT:,} vertices", f"{usage.peak_mb:.0f} MB"

    every_id = list(chain.from_iterable(official_scenes(split) for split in _SPLITS))
    write_release(folder / "all/raw", every_id, vertices=_SMALL_VERTEX_COUNT)
    words = ["process", folder / "all/raw", "-o", folder / "all/processed"]
    run_ours(*words)
    cpu_s = min(run_ours(*words).cpu_s for _ in range(repeat))
    yield f"process with nothing to do, {len(every_id):,} scenes", f"{cpu_s:.2f} s of CPU"


def load_npz(path: Path) -> list[object]:
    """Load all arrays of a file, as plain loaders do."""
    with np.load(path) as content:
        return [content[key] for key in content.files]
