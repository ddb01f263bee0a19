"""Part `download`: speed compared with the official script, rejections, and cost of verification.

The server is on this machine, with added latency. Programs are measured alternately.
"""

from __future__ import annotations

import filecmp
import os
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmark.rejections import describe_rejections, measure_rejections
from benchmark.release_host import Network, serve
from benchmark.scenes import make_scenes
from scannet_prep.raw.check import check_file
from scannet_prep.raw.lock import digest_file
from scannet_prep.release.files import BASE_URL
from scannet_prep.release.scene import SceneId
from scannet_prep.stages import download
from scannet_prep.stages.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmark.settings import Result, Settings
    from scannet_prep.stages.download import DownloadPlan

_JOBS = 4
_LATENCY_S = 0.020
# The sequential loop takes 15 s per round.
_MAX_ROUNDS = 3

# 301 files: five per scene, and the label map.
_SMALL_SCENE_COUNT = 60
_SMALL_VERTEX_COUNT = 600
# 126 files.
_REJECTED_SCENE_COUNT = 25

_REFERENCE_BYTES_PER_S = 100e6


@dataclass(frozen=True, slots=True)
class _Cost:
    """Time of one download.

    Attributes:
        seconds: Elapsed time.
        cpu_s: CPU time of all threads of this process, which does not include the server.
    """

    seconds: float
    cpu_s: float


def measure(settings: Settings) -> Result:
    """Measure everything."""
    # For both programs, because a proxy could not reach the server.
    os.environ["no_proxy"] = "127.0.0.1"
    small_dir = settings.folder / "release-small"
    seg_dir = settings.folder / "release-seg"
    small = make_scenes(small_dir, _SMALL_SCENE_COUNT, _SMALL_VERTEX_COUNT, settings.seed)
    seg = make_scenes(seg_dir, 1, settings.vertex_count, settings.seed)
    round_trip = Network(_LATENCY_S, _LATENCY_S)
    requests_only = Network(_LATENCY_S, 0.0)
    rounds = min(settings.repeat, _MAX_ROUNDS)
    with serve(small_dir, round_trip, requests_only) as urls:
        both, request = _compare(small_dir, small, urls, rounds)
    rejections = measure_rejections(small_dir, small[:_REJECTED_SCENE_COUNT], rounds)
    verification = _measure_verification(seg_dir, seg, 2 * settings.repeat)
    return {
        "jobs": _JOBS,
        "latency_ms": 1000 * _LATENCY_S,
        "small": {
            "vertices": _SMALL_VERTEX_COUNT,
            "request_and_connection": both,
            "request": request,
        },
        "rejections": rejections,
        "verification": {"vertices": settings.vertex_count, **verification},
    }


def _compare(
    release_dir: Path, scene_ids: Sequence[str], base_urls: list[str], rounds: int
) -> list[Result]:
    """Download from each server, alternately by `run` and by a sequential loop."""
    ours: list[list[_Cost]] = [[] for _ in base_urls]
    sequential: list[list[_Cost]] = [[] for _ in base_urls]
    file_count = 0
    byte_count = 0
    for _ in range(rounds):
        for index, base_url in enumerate(base_urls):
            for fetch, costs in ((_run, ours[index]), (_retrieve_one_by_one, sequential[index])):
                with tempfile.TemporaryDirectory(dir=release_dir.parent) as folder:
                    plan = _plan(Path(folder), scene_ids, base_url)
                    start_s = time.perf_counter()
                    start_cpu_s = time.process_time()
                    fetch(plan)
                    seconds = time.perf_counter() - start_s
                    costs.append(_Cost(seconds, time.process_time() - start_cpu_s))
                    file_count = len(plan.files)
                    byte_count = _check_bytes(plan, release_dir)
    return [
        {
            "files": file_count,
            "mb": byte_count / 1e6,
            "ours": _summarize(mine, file_count, byte_count),
            "urlretrieve": _summarize(theirs, file_count, byte_count),
            "ratio": min(cost.seconds for cost in theirs) / min(cost.seconds for cost in mine),
            "ratio_of_worst_round": min(
                slow.seconds / fast.seconds for slow, fast in zip(theirs, mine, strict=True)
            ),
        }
        for mine, theirs in zip(ours, sequential, strict=True)
    ]


def _plan(data_dir: Path, scene_ids: Sequence[str], base_url: str) -> DownloadPlan:
    selection = Selection(scene_ids=tuple(map(SceneId, scene_ids)))
    return download.plan(data_dir, ["seg"], selection=selection, base_url=base_url)


def _run(plan: DownloadPlan) -> None:
    report = download.run(plan, jobs=_JOBS, accepts_terms=True)
    if len(report.fetched) < len(plan.files):
        raise RuntimeError(f"failed: {report.failures}")


def _retrieve_one_by_one(plan: DownloadPlan) -> None:
    """Do the same as the official script, except for its output."""
    for file in plan.files:
        path = plan.data_dir / file.local_path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as temporary:
            pass
        urllib.request.urlretrieve(file.url, temporary.name)  # noqa: S310 - our own server
        Path(temporary.name).rename(path)


def _check_bytes(plan: DownloadPlan, release_dir: Path) -> int:
    """Check that the downloaded files equal those of the server, and return their total size."""
    paths = [file.local_path for file in plan.files]
    _, wrong, missing = filecmp.cmpfiles(plan.data_dir, release_dir, paths, shallow=False)
    if wrong or missing:
        raise RuntimeError(f"wrong files: {wrong[:3]}, missing files: {missing[:3]}")
    return sum((release_dir / path).stat().st_size for path in paths)


def _summarize(costs: list[_Cost], file_count: int, byte_count: int) -> Result:
    seconds = min(cost.seconds for cost in costs)
    cpu_s = min(cost.cpu_s for cost in costs)
    return {
        "seconds": [cost.seconds for cost in costs],
        "files_per_s": file_count / seconds,
        "mb_per_s": byte_count / seconds / 1e6,
        "cpu_ms_per_file": 1000 * cpu_s / file_count,
    }


def _measure_verification(release_dir: Path, scene_ids: Sequence[str], repeat: int) -> Result:
    """Measure the CPU time to check and to hash the files of a scene, from the page cache."""
    files = [file for file in _plan(release_dir, scene_ids, BASE_URL).files if file.scene_id]
    kinds: dict[str, dict[str, float]] = {}
    for _ in range(repeat):
        for file in files:
            path = release_dir / file.local_path
            start_s = time.process_time()
            check_file(file.kind, path, file.scene_id)
            checked_s = time.process_time()
            entry = digest_file(path)
            digested_s = time.process_time()
            best = kinds.setdefault(file.kind.suffix, {"check_ms": np.inf, "digest_ms": np.inf})
            best["check_ms"] = min(best["check_ms"], 1000 * (checked_s - start_s))
            best["digest_ms"] = min(best["digest_ms"], 1000 * (digested_s - checked_s))
            best["mb"] = entry.size_bytes / 1e6
    byte_count = 1e6 * sum(kind["mb"] for kind in kinds.values())
    check_s = sum(kind["check_ms"] for kind in kinds.values()) / 1000
    digest_s = sum(kind["digest_ms"] for kind in kinds.values()) / 1000
    return {
        "kinds": kinds,
        "mb": byte_count / 1e6,
        "digest_mb_per_s": byte_count / digest_s / 1e6,
        "check_percent": _percent(check_s, byte_count),
        "digest_percent": _percent(digest_s, byte_count),
        "percent": _percent(check_s + digest_s, byte_count),
    }


def _percent(cpu_s: float, byte_count: float) -> float:
    """Return the share of one core, in percent, if the bytes arrive at 100 MB/s."""
    return 100 * cpu_s / (byte_count / _REFERENCE_BYTES_PER_S)


def describe(result: Result) -> str:
    """Format the results as tables."""
    jobs = result["jobs"]
    latency_ms = result["latency_ms"]
    small = result["small"]
    verification = result["verification"]
    trip = f"{latency_ms:.0f} ms for each request and {latency_ms:.0f} ms for each new connection"
    scene = f"scene of {verification['vertices']:,} vertices, {verification['mb']:.1f} MB"
    lines = [
        f"download: local server without TLS, {jobs} connections; urlretrieve, file by file",
        "",
        *_describe_comparison(
            f"small files, scenes of {small['vertices']} vertices; {trip}", small
        ),
        "",
        *_describe_comparison(
            f"small files; {latency_ms:.0f} ms for each request only", small, "request"
        ),
        f"  {jobs} connections can gain little more than {jobs}; above, they are also kept open",
        "",
        *describe_rejections(result["rejections"]),
        "",
        f"verification of a {scene}, CPU time",
        f"  {'':<34}{'MB':>9}{'check ms':>10}{'sha256 ms':>11}",
    ]
    lines += [
        f"  {suffix:<34}{kind['mb']:9.3f}{kind['check_ms']:10.2f}{kind['digest_ms']:11.2f}"
        for suffix, kind in verification["kinds"].items()
    ]
    percents = f"{verification['check_percent']:10.1f}{verification['digest_percent']:11.1f}"
    lines.append(f"  {'% of a core at 100 MB/s':<43}{percents}")
    lines.append(
        f"  sha256 at {verification['digest_mb_per_s']:,.0f} MB/s; "
        "a third of that without SHA instructions"
    )
    return "\n".join(lines)


def _describe_comparison(
    title: str, group: Result, network: str = "request_and_connection"
) -> list[str]:
    result = group[network]
    lines = [
        f"{title}: {result['files']} files, {result['mb']:.1f} MB",
        f"  {'':<14}{'files/s':>9}{'MB/s':>9}{'CPU ms/file':>13}",
    ]
    for name in ("ours", "urlretrieve"):
        row = result[name]
        rates = f"{row['files_per_s']:9.1f}{row['mb_per_s']:9.1f}"
        lines.append(f"  {name:<14}{rates}{row['cpu_ms_per_file']:13.2f}")
    worst = result["ratio_of_worst_round"]
    lines.append(f"  {'ratio':<14}{result['ratio']:9.2f}    worst round {worst:.2f}")
    return lines
