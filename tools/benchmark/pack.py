"""Part `pack`: an archive compared with `tar | zstd`, and reading random scenes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from usage import Usage, run, run_ours

from benchmark.scenes import make_processed
from benchmark.timing import time_alternately
from scannet_prep import ScanNet

_JOBS = "2"
_READS = 40


def measure(
    folder: Path, scene_count: int, vertex_count: int, repeat: int
) -> Iterator[tuple[str, str]]:
    """Measure everything. All files are in the page cache."""
    make_processed(folder, scene_count, vertex_count)
    source = folder / "processed"
    ours = folder / "ours.tar.zst"
    theirs = folder / "theirs.tar.zst"
    zstd = f"tar -cf - -C {source} . | zstd -qf -T{_JOBS} -3 -o {theirs}"
    (folder / "untarred").mkdir()
    usages: dict[str, list[Usage]] = {}
    for turn in range(repeat):
        unpacked = folder / f"unpacked-{turn}"
        round_usages = {
            "tar | zstd -3": run("sh", "-c", zstd),
            "pack": run_ours("pack", source, "-o", ours, "--force", "--jobs", _JOBS),
            "tar --zstd -x": run("tar", "--zstd", "-xf", theirs, "-C", folder / "untarred"),
            "unpack": run_ours("unpack", ours, "-o", unpacked),
        }
        for title, usage in round_usages.items():
            usages.setdefault(title, []).append(usage)
        subprocess.run(["diff", "-r", source, unpacked], check=True)
    for title, runs in usages.items():
        cpu_s = min(usage.cpu_s for usage in runs)
        wall_s = min(usage.wall_s for usage in runs)
        peak_mb = max(usage.peak_mb for usage in runs)
        yield title, f"{cpu_s:.2f} s of CPU, {wall_s:.2f} s, {peak_mb:.0f} MB"
    yield "size of the archive", f"{ours.stat().st_size / 1e6:.0f} MB"
    yield "size of tar | zstd -3", f"{theirs.stat().st_size / 1e6:.0f} MB"

    stored = folder / "stored.tar.zst"
    run_ours("pack", source, "-o", stored, "--level", "0")
    chosen = np.random.default_rng(0).integers(scene_count, size=_READS).tolist()
    reads = {}
    for title, place in (("folder", source), ("archive", ours), ("archive, --level 0", stored)):
        dataset = ScanNet(place, split="train")
        reads[title] = lambda dataset=dataset: [dataset[index] for index in chosen]
    for title, seconds in time_alternately(reads, repeat).items():
        yield f"a random scene: {title}", f"{seconds / _READS * 1e3:.1f} ms of CPU"
