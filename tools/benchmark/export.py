"""Part `export`: CPU time per scene and format, from the processed scene to the written files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from usage import Usage, run_ours

from benchmark.scenes import make_processed

# The scenes are axis-aligned and of ScanNet200, so that most formats have to convert them.
_COMMANDS = (
    "octformer --label-set scannet200 --aligned",
    "octformer --label-set scannet20 --unaligned",
    "pointcept",
    "mask3d",
    "mmdet3d",
    "oneformer3d --label-set scannet200",
    "votenet",
    "scanrefer",
    "benchmark-gt --label-set scannet200",
)


def measure(
    folder: Path, scene_count: int, vertex_count: int, repeat: int
) -> Iterator[tuple[str, str]]:
    """Measure every format: several scenes minus one, which excludes the start of the command."""
    scene_ids = make_processed(folder, scene_count, vertex_count)
    for command in _COMMANDS:
        runs = []
        for count in (1, scene_count):
            usages: list[Usage] = []
            for _ in range(repeat):
                shutil.rmtree(folder / "out", ignore_errors=True)
                words = ["export", folder / "processed", "-o", folder / "out", "--jobs", "1"]
                selection = ["--scenes", *scene_ids[:count]]
                usages.append(run_ours(*words, "--format", *command.split(), *selection))
            runs.append(min(usage.cpu_s for usage in usages))
        ms = (runs[1] - runs[0]) / (scene_count - 1) * 1e3
        files = [path for path in (folder / "out").rglob("*") if path.is_file()]
        mb = sum(path.stat().st_size for path in files) / scene_count / 1e6
        yield command, f"{ms:.1f} ms of CPU, {mb:.1f} MB per scene"
