"""Part `shards`: shards side by side on this machine, beside worker processes; and what 100,000 scenes cost."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmark.scenes import make_scenes
from scannet_prep.processed.manifest import Manifest, encode_manifest, read_manifest, shards_of
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release import MESH
from scannet_prep.scene import Split
from scannet_prep.shards import Shard
from scannet_prep.stages import process
from scannet_prep.stages.process.scene_worker import SEEN_NAME
from scannet_prep.stages.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmark.settings import Result, Settings

_COUNTS = (1, 2, 4)
_MANY_SCENES, _MANY_SHARDS, _REPEAT = 100_000, 16, 3


def measure(settings: Settings) -> Result:
    """Measure everything; fails where merged shards are not what one run makes."""
    raw_dir, folder = settings.folder / "raw", settings.folder / "shards"
    make_scenes(raw_dir, 2 * settings.scene_count, settings.vertex_count, settings.seed)
    shutil.rmtree(folder, ignore_errors=True)
    jobs_s, shards_s, merge_s = {}, {}, {}
    for count in _COUNTS:
        out_dir = folder / f"jobs-{count}"
        jobs_s[count] = _time(lambda: _wait(_start(raw_dir, out_dir, "--jobs", count)))  # noqa: B023 - called at once
    for count in _COUNTS:
        out_dir = folder / f"shards-{count}"
        shards_s[count] = _time(lambda: _run_shards(raw_dir, out_dir, count))  # noqa: B023
        merge_s[count] = _time(lambda: _wait(_start(raw_dir, out_dir, "--jobs", 1)))  # noqa: B023
        _check_same(folder / "jobs-1", out_dir)
    entry = next(iter((read_manifest(folder / "jobs-1") or Manifest()).scenes.values()))
    manifest = Manifest(dict.fromkeys(_MANY_IDS, entry))
    return {
        "scenes": 2 * settings.scene_count,
        "vertices": settings.vertex_count,
        "jobs_s": jobs_s,
        "shards_s": shards_s,
        "merge_s": merge_s,
        "many": _measure_many(settings.folder / "many", manifest),
    }


_MANY_IDS = [f"scene{1000 + number // 100:04d}_{number % 100:02d}" for number in range(_MANY_SCENES)]


def _measure_many(folder: Path, manifest: Manifest) -> dict[str, float]:
    """Plan a shard of a raw tree of very many scenes (empty files), and take the parts of all shards together."""
    if not (folder / "raw/scans" / _MANY_IDS[-1]).exists():
        for scene_id in _MANY_IDS:
            directory = folder / "raw/scans" / scene_id
            directory.mkdir(parents=True)
            (directory / f"{scene_id}{MESH.suffix}").touch()
    sizes, options = dict.fromkeys(_MANY_IDS, 1), ProcessOptions()
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    selection, shard = Selection((Split.TRAIN,)), Shard(3, _MANY_SHARDS)
    plan_s = min(
        _time(
            lambda: process.plan(folder / "raw", folder / "out", options, selection=selection, shard=shard),
            time.process_time,
        )
        for _ in range(_REPEAT)
    )
    for index in range(_MANY_SHARDS):
        share = shards_of(folder / "out").take(Shard(index, _MANY_SHARDS), sizes, asdict(options), is_restricted=True)
        if share is not None:
            share.begin()
            part = Manifest({name: manifest.scenes[name] for name in share.names})
            share.finish(encode_manifest(part))
    merge_s = min(_time(lambda: read_manifest(folder / "out"), time.process_time) for _ in range(_REPEAT))
    return {"scenes": _MANY_SCENES, "shards": _MANY_SHARDS, "plan_s": plan_s, "merge_s": merge_s}


def _start(raw_dir: Path, out_dir: Path, *words: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "scannet_prep", "process", raw_dir, "-o", out_dir, "--quiet", *words]
    return subprocess.Popen([str(word) for word in command])


def _wait(run: subprocess.Popen[bytes]) -> None:
    if run.wait():
        raise RuntimeError(f"{run.args!r} ended with status {run.returncode}")


def _run_shards(raw_dir: Path, out_dir: Path, count: int) -> None:
    """Run all shards at once, each with one worker, as if they were machines."""
    for run in [_start(raw_dir, out_dir, "--jobs", 1, "--shard", f"{index}/{count}") for index in range(count)]:
        _wait(run)


def _check_same(one: Path, other: Path) -> None:
    """Compare two processed folders to the byte, apart from what is noted of times and inodes."""
    names = [
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != SEEN_NAME)
        for folder in (one, other)
    ]
    files = [name for name in names[0] if (one / name).is_file()]
    _, differing, unreadable = filecmp.cmpfiles(one, other, files, shallow=False)
    if names[0] != names[1] or differing or unreadable:
        raise RuntimeError(f"{one} and {other} differ: {differing or unreadable or set(names[0]) ^ set(names[1])}")


def _time(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start_s = clock()
    function()
    return clock() - start_s


def describe(result: Result) -> str:
    """Show the figures as a table."""
    many = result["many"]
    lines = [
        f"shards: {result['scenes']} scenes of {result['vertices']:,} vertices, s; merged trees are those of one run",
        f"  {'':<26}{'shards':>9}{'merge':>9}{'--jobs':>9}",
    ]
    lines += [
        f"  {count:<26}" + "".join(f"{result[key][count]:9.2f}" for key in ("shards_s", "merge_s", "jobs_s"))
        for count in result["shards_s"]
    ]
    lines += [
        f"  {many['scenes']:,} scenes, {many['shards']} shards",
        f"  {'plan of a shard, s of CPU':<26}{many['plan_s']:9.2f}",
        f"  {'reading parts, s of CPU':<26}{many['merge_s']:9.2f}",
    ]
    return "\n".join(lines)
