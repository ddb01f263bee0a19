"""Part `download`: files and bytes per second beside what the official script does, and what verification costs.

The server is on this machine; latency is added. What is compared is measured in turns.
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

from benchmark.rejections import describe_rejections, measure_rejections
from benchmark.release_host import Network, serve
from benchmark.scenes import make_scenes
from scannet_prep.raw.lock import digest_file
from scannet_prep.release.files import BASE_URL
from scannet_prep.release.scene import SceneId
from scannet_prep.stages import download
from scannet_prep.stages.download import FileOutcome
from scannet_prep.stages.download.content import check_file
from scannet_prep.stages.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmark.settings import Result, Settings
    from scannet_prep.stages.download import DownloadPlan

_JOBS = 4
_LATENCY_S = 0.020
_ROUNDS = 3  # at most; a round of the sequential loop takes a quarter of a minute

# With its five files of each scene and the label map, a release of 301 files.
_SMALL_SCENE_COUNT = 60
_SMALL_VERTEX_COUNT = 600
_REJECTED_SCENE_COUNT = 25  # 126 files

_REFERENCE_RATE = 100e6  # bytes per second


@dataclass(frozen=True, slots=True)
class _Cost:
    """What it took to bring some files.

    Attributes:
        seconds: By the clock.
        cpu_s: Of this process, all threads; the server is another one.
    """

    seconds: float
    cpu_s: float


def measure(settings: Settings) -> Result:
    """Measure everything."""
    os.environ["no_proxy"] = (
        "127.0.0.1"  # for both: a proxy could not reach the server, and would be what is measured
    )
    small_dir = settings.folder / "release-small"
    seg_dir = settings.folder / "release-seg"
    small = make_scenes(small_dir, _SMALL_SCENE_COUNT, _SMALL_VERTEX_COUNT, settings.seed)
    seg = make_scenes(seg_dir, 1, settings.vertex_count, settings.seed)
    round_trip = Network(_LATENCY_S, _LATENCY_S)
    requests_only = Network(_LATENCY_S, 0.0)
    rounds = min(settings.repeat, _ROUNDS)
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
    """Bring the files from each of the servers by `run` and by a sequential loop, in turns."""
    ours: list[list[_Cost]] = [[] for _ in base_urls]
    sequential: list[list[_Cost]] = [[] for _ in base_urls]
    file_count = byte_count = 0
    for _ in range(rounds):
        for index, base_url in enumerate(base_urls):
            for bring, costs in ((_run, ours[index]), (_retrieve_one_by_one, sequential[index])):
                with tempfile.TemporaryDirectory(dir=release_dir.parent) as folder:
                    plan = _plan(Path(folder), scene_ids, base_url)
                    start_s, start_cpu_s = time.perf_counter(), time.process_time()
                    bring(plan)
                    costs.append(
                        _Cost(time.perf_counter() - start_s, time.process_time() - start_cpu_s)
                    )
                    file_count, byte_count = len(plan.files), _check_bytes(plan, release_dir)
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
    if any(result.outcome is not FileOutcome.FETCHED for result in report.results):
        raise RuntimeError(f"failed: {report.failures}")


def _retrieve_one_by_one(plan: DownloadPlan) -> None:
    """Do what the official script does, apart from its printing."""
    for file in plan.files:
        path = plan.data_dir / file.local_path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as temporary:
            pass
        urllib.request.urlretrieve(file.url, temporary.name)  # noqa: S310 - our own server
        Path(temporary.name).rename(path)


def _check_bytes(plan: DownloadPlan, release_dir: Path) -> int:
    """Make sure that what has arrived is what the server has; gives its size."""
    paths = [file.local_path for file in plan.files]
    _, wrong, missing = filecmp.cmpfiles(plan.data_dir, release_dir, paths, shallow=False)
    if wrong or missing:
        raise RuntimeError(f"not as on the server: {wrong[:3]} {missing[:3]}")
    return sum((release_dir / path).stat().st_size for path in paths)


def _summarize(costs: list[_Cost], file_count: int, byte_count: int) -> Result:
    seconds, cpu_s = min(cost.seconds for cost in costs), min(cost.cpu_s for cost in costs)
    return {
        "seconds": [cost.seconds for cost in costs],
        "files_per_s": file_count / seconds,
        "mb_per_s": byte_count / seconds / 1e6,
        "cpu_ms_per_file": 1000 * cpu_s / file_count,
    }


def _measure_verification(release_dir: Path, scene_ids: Sequence[str], repeat: int) -> Result:
    """CPU time to check and to digest the files of a scene, from memory, as just after their arrival."""
    files = [
        file for file in _plan(release_dir, scene_ids, BASE_URL).files if file.scene_id is not None
    ]
    kinds: dict[str, dict[str, float]] = {}
    for _ in range(repeat):
        for file in files:
            path = release_dir / file.local_path
            start_s = time.process_time()
            check_file(file, path)
            checked_s = time.process_time()
            entry = digest_file(path)
            digested_s = time.process_time()
            found = {
                "check_ms": 1000 * (checked_s - start_s),
                "digest_ms": 1000 * (digested_s - checked_s),
            }
            before = kinds.get(file.kind.suffix, found)
            kinds[file.kind.suffix] = {key: min(value, before[key]) for key, value in found.items()}
            kinds[file.kind.suffix]["mb"] = entry.size_bytes / 1e6
    byte_count = 1e6 * sum(kind["mb"] for kind in kinds.values())
    check_s, digest_s = (
        sum(kind[key] for kind in kinds.values()) / 1000 for key in ("check_ms", "digest_ms")
    )
    return {
        "kinds": kinds,
        "mb": byte_count / 1e6,
        "digest_mb_per_s": byte_count / digest_s / 1e6,
        "check_percent": _percent(check_s, byte_count),
        "digest_percent": _percent(digest_s, byte_count),
        "percent": _percent(check_s + digest_s, byte_count),
    }


def _percent(cpu_s: float, byte_count: float) -> float:
    """CPU time as a share of one core, were the bytes to arrive at 100 MB/s."""
    return 100 * cpu_s / (byte_count / _REFERENCE_RATE)


def describe(result: Result) -> str:
    """Show the figures as a table."""
    jobs, latency_ms = result["jobs"], result["latency_ms"]
    small, verification = result["small"], result["verification"]
    trip = f"{latency_ms:.0f} ms for each request and {latency_ms:.0f} ms for each new connection"
    lines = [
        f"download: local server without TLS, {jobs} connections; beside it urlretrieve, one file after the other",
        "",
        *_describe_comparison(
            f"small files, scenes of {small['vertices']} vertices; {trip}", small
        ),
        "",
        *_describe_comparison(
            f"small files; {latency_ms:.0f} ms for each request only", small, "request"
        ),
        f"  {jobs} connections can gain little more than {jobs} times here; the rest above comes from keeping them",
        "",
        *describe_rejections(result["rejections"]),
        "",
        f"verification of a scene of {verification['vertices']:,} vertices, {verification['mb']:.1f} MB, CPU time",
        f"  {'':<34}{'MB':>9}{'check ms':>10}{'sha256 ms':>11}",
    ]
    lines += [
        f"  {suffix:<34}{kind['mb']:9.3f}{kind['check_ms']:10.2f}{kind['digest_ms']:11.2f}"
        for suffix, kind in verification["kinds"].items()
    ]
    lines += [
        "  {:<43}{:10.1f}{:11.1f}".format(
            "% of a core at 100 MB/s", verification["check_percent"], verification["digest_percent"]
        ),
        f"  sha256 at {verification['digest_mb_per_s']:,.0f} MB/s; a third without the processor's help",
    ]
    return "\n".join(lines)


def _describe_comparison(
    title: str, group: Result, network: str = "request_and_connection"
) -> list[str]:
    found = group[network]
    rows = {"ours": found["ours"], "urlretrieve": found["urlretrieve"]}
    return [
        f"{title}: {found['files']} files, {found['mb']:.1f} MB",
        f"  {'':<14}{'files/s':>9}{'MB/s':>9}{'CPU ms/file':>13}",
        *(
            f"  {name:<14}{row['files_per_s']:9.1f}{row['mb_per_s']:9.1f}{row['cpu_ms_per_file']:13.2f}"
            for name, row in rows.items()
        ),
        f"  {'ratio':<14}{found['ratio']:9.2f}    worst round {found['ratio_of_worst_round']:.2f}",
    ]
