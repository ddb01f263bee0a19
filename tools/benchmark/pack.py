"""Part `pack`: an archive compared with `tar | zstd`, opening it, and reading random scenes."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmark.scenes import make_scenes
from benchmark.timing import time_call
from scannet_prep import ScanNet
from scannet_prep.archive.format import Archive, Index, Owner
from scannet_prep.archive.sources import FileSource
from scannet_prep.archive.streaming import FileGroup, encode_archive
from scannet_prep.base.files import Fingerprint, write_atomically
from scannet_prep.processed.manifest import (
    MANIFEST_NAME,
    Manifest,
    SceneEntry,
    encode_manifest,
    processed_path,
)
from scannet_prep.processed.scene import ProcessOptions, encode_processed, read_processed
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.stages import pack, process

if TYPE_CHECKING:
    from benchmark.settings import Result, Settings
    from scannet_prep.processed.scene import ProcessedScene

_TOTAL_BYTES = 1_000_000_000
_BASE_COUNT = 6
_OPTIONS = ProcessOptions(scannet200=True, align_axis=True)
_JOBS = 2
_REPEAT = 3
_READS = 40
_RELEASE_SCENES = 1613
_NOISE_M = 1e-3
_RUN_AND_PRINT_PEAK = """
import pathlib, sys
from scannet_prep.cli.main import main
status = main(sys.argv[1:])
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
sys.exit(status)
"""


def measure(settings: Settings) -> Result:
    """Measure everything."""
    folder = settings.folder / "pack"
    source = folder / "processed"
    scene_count = _make_processed(settings, source)
    result = _measure_packing(folder, source) | {
        "scenes": scene_count,
        "vertices": settings.vertex_count,
    }
    result["open_ms"] = _measure_opening(folder)
    result["reading"] = _measure_reading(folder, source, settings.seed)
    return result


def _make_processed(settings: Settings, source: Path) -> int:
    """Make 1 GB of processed scenes.

    A few scenes are processed; all others are these with noise added to every vertex.

    Returns:
        Number of scenes.
    """
    raw_dir = settings.folder / "pack-raw"
    base_dir = settings.folder / "pack-base"
    make_scenes(raw_dir, _BASE_COUNT, settings.vertex_count, settings.seed)
    process.run(process.plan(raw_dir, base_dir, _OPTIONS), jobs=_JOBS)
    bases = [read_processed(path) for path in sorted((base_dir / "train").glob("*.npz"))]
    total = sum(path.stat().st_size for path in source.rglob("*.npz"))
    if total >= _TOTAL_BYTES:
        return len(list(source.rglob("*.npz")))
    shutil.rmtree(source, ignore_errors=True)
    (source / "train").mkdir(parents=True)
    noise = np.random.default_rng(settings.seed)
    entries: dict[str, SceneEntry] = {}
    written_bytes = 0
    for number, scene_id in enumerate(official_scenes(Split.TRAIN)):
        if written_bytes >= _TOTAL_BYTES:
            break
        scene = _move(bases[number % len(bases)], scene_id, noise)
        pieces = [bytes(piece) for piece in encode_processed(scene)]
        write_atomically(processed_path(source, Split.TRAIN, scene_id), pieces)
        entries[scene_id] = SceneEntry.from_scene(scene, Fingerprint.from_bytes(*pieces))
        written_bytes += sum(map(len, pieces))
    (source / MANIFEST_NAME).write_bytes(encode_manifest(Manifest(_OPTIONS, scenes=entries)))
    return len(entries)


def _move(scene: ProcessedScene, scene_id: SceneId, noise: np.random.Generator) -> ProcessedScene:
    points = scene.points + noise.normal(0, _NOISE_M, scene.points.shape).astype(np.float32)
    return replace(scene, points=points, meta=replace(scene.meta, scene_id=scene_id))


def _measure_packing(folder: Path, source: Path) -> Result:
    """Time both programs alternately, with the files in memory and the archive on the disk."""
    ours_path = folder / "ours.tar.zst"
    tar_path = folder / "tar.tar.zst"
    ours_dir = folder / "unpacked-by-us"
    tar_dir = folder / "unpacked-by-tar"
    command = [sys.executable, "-c", _RUN_AND_PRINT_PEAK]
    seconds: dict[str, list[float]] = {"pack": [], "tar_pack": [], "unpack": [], "tar_unpack": []}
    memory_mb = {"pack": 0.0, "unpack": 0.0}
    for _ in range(_REPEAT):
        ours_path.unlink(missing_ok=True)
        tar_path.unlink(missing_ok=True)
        shutil.rmtree(ours_dir, ignore_errors=True)
        shutil.rmtree(tar_dir, ignore_errors=True)
        tar_dir.mkdir()
        tar_pack = (
            f"tar -cf - -C '{source}' . | zstd -q -T{_JOBS} -3 -o '{tar_path}' && sync '{tar_path}'"
        )
        elapsed, _ = _run(["sh", "-c", tar_pack])
        seconds["tar_pack"].append(elapsed)
        elapsed, peak_mb = _run(
            [*command, "pack", str(source), "-o", str(ours_path), "-q", "--jobs", str(_JOBS)]
        )
        seconds["pack"].append(elapsed)
        memory_mb["pack"] = max(memory_mb["pack"], peak_mb)
        elapsed, _ = _run(["tar", "--zstd", "-xf", str(tar_path), "-C", str(tar_dir)])
        seconds["tar_unpack"].append(elapsed)
        elapsed, peak_mb = _run([*command, "unpack", str(ours_path), "-o", str(ours_dir), "-q"])
        seconds["unpack"].append(elapsed)
        memory_mb["unpack"] = max(memory_mb["unpack"], peak_mb)
    subprocess.run(["diff", "-r", source, ours_dir], check=True)
    shutil.rmtree(ours_dir)
    shutil.rmtree(tar_dir)
    best = {name: min(values) for name, values in seconds.items()}
    ours_bytes = ours_path.stat().st_size
    tar_bytes = tar_path.stat().st_size
    tar_path.unlink()
    return {
        "seconds": best,
        "pack_ratio": best["pack"] / best["tar_pack"],
        "unpack_ratio": best["unpack"] / best["tar_unpack"],
        "source_mb": sum(path.stat().st_size for path in source.rglob("*") if path.is_file()) / 1e6,
        "archive_mb": ours_bytes / 1e6,
        "tar_mb": tar_bytes / 1e6,
        "size_ratio": ours_bytes / tar_bytes,
        "memory_mb": memory_mb,
    }


def _run(command: list[str]) -> tuple[float, float]:
    """Run a program.

    Returns:
        Its seconds, and the peak memory in MB that it prints, 0 if it prints nothing.
    """
    start = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return time.perf_counter() - start, float(done.stdout or 0) / 1024


def _measure_opening(folder: Path) -> float:
    """Time opening an archive with as many scenes as the release, in ms."""
    path = folder / "many.tar.zst"
    path.write_bytes(b"npz")
    groups = [FileGroup(Owner(), {})]
    for split in Split:
        for scene_id in official_scenes(split):
            owner = Owner("processed", scene_id, split)
            groups.append(FileGroup(owner, {f"{split}/{scene_id}.npz": path}))
    if len(groups) != 1 + _RELEASE_SCENES:
        raise RuntimeError(f"the official lists have {len(groups) - 1} scenes")
    groups.sort(key=lambda group: group.owner.scene_id)
    pieces = encode_archive(
        Index("processed", _OPTIONS), groups, level=1, jobs=_JOBS, advance=lambda _: None
    )
    path.write_bytes(b"".join(pieces))
    return min(time_call(lambda: Archive(FileSource(path))) for _ in range(10)) * 1e3


def _measure_reading(folder: Path, source: Path, seed: int) -> Result:
    """Time reading random scenes, alternately from archives and from the folder."""
    stored_path = folder / "stored.tar.zst"
    pack.run(source, stored_path, level=0, is_forced=True, jobs=_JOBS)
    datasets = {
        "stored": ScanNet(stored_path, split="train"),
        "archive": ScanNet(folder / "ours.tar.zst", split="train"),
        "folder": ScanNet(source, split="train"),
    }
    chosen = np.random.default_rng(seed).integers(len(datasets["folder"]), size=_READS).tolist()
    best: dict[str, list[float]] = {name: [] for name in datasets}
    for index in chosen:
        for name, dataset in datasets.items():
            seconds = [time_call(dataset.__getitem__, index) for _ in range(3)]
            best[name].append(min(seconds))
    medians = {name: statistics.median(values) * 1e3 for name, values in best.items()}
    return {
        "ms": medians,
        "stored_to_folder": medians["stored"] / medians["folder"],
        "archive_to_folder": medians["archive"] / medians["folder"],
    }


def describe(result: Result) -> str:
    """Format the results as tables."""
    seconds = result["seconds"]
    reading = result["reading"]
    memory_mb = result["memory_mb"]
    names = {
        "archive": "ScanNet(archive)[i]",
        "stored": "ScanNet(archive, --level 0)[i]",
        "folder": "ScanNet(folder)[i]",
    }
    scenes = f"{result['scenes']} processed scenes of {result['vertices']:,} vertices"
    pack_row = f"{seconds['pack']:9.2f}{seconds['tar_pack']:9.2f}{result['pack_ratio']:9.2f}"
    unpack_row = (
        f"{seconds['unpack']:9.2f}{seconds['tar_unpack']:9.2f}{result['unpack_ratio']:9.2f}"
    )
    size_row = f"{result['archive_mb']:9.1f}{result['tar_mb']:9.1f}{result['size_ratio']:9.4f}"
    lines = [
        f"pack: {scenes}, {result['source_mb']:.0f} MB, {_JOBS} threads, warm",
        f"  {'':<26}{'ours':>9}{'tar':>9}{'ratio':>9}",
        f"  {'pack, s (tar | zstd -3)':<26}{pack_row}",
        f"  {'unpack, s':<26}{unpack_row}",
        f"  {'size, MB':<26}{size_row}",
        f"  peak memory, MB: pack {memory_mb['pack']:.0f}, unpack {memory_mb['unpack']:.0f}",
        f"  opening {_RELEASE_SCENES:,} scenes, ms {result['open_ms']:.1f}",
        "",
        "reading a scene at random, warm, median ms",
        *(f"  {name:<32}{reading['ms'][key]:9.2f}" for key, name in names.items()),
        f"  archive / folder                {reading['archive_to_folder']:9.2f}",
    ]
    return "\n".join(lines)
