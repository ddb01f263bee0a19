"""Downloads from a server that rejects requests, compared with aria2c and with no rejections."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.release_host import Network, serve
from scannet_prep.release.scene import SceneId
from scannet_prep.stages import download
from scannet_prep.stages.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmark.settings import Result
    from scannet_prep.stages.download import DownloadPlan

JOBS = 4
_LATENCY_S = 0.020
_SHARES = (0.03, 0.10, 0.30)
_PAUSE_S = 1
_REQUESTS_PER_S = 10
_MAX_SECONDS = 300

_NGINX_CONFIG = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    limit_req_zone $binary_remote_addr zone=all:1m rate={requests_per_s}r/s;
    server {{
        listen 127.0.0.1:{port};
        limit_req zone=all;
        location /scannet/v2/tasks/ {{ alias {root}/; }}
        location /scannet/v2/scans/ {{ alias {root}/scans/; }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Result of one run of a program.

    Attributes:
        seconds: Duration.
        asked_s: Total time of the pauses that the server asked for; overlaps count once.
        rejected: Number of rejected requests.
        missing: Number of files that are missing at the end.
    """

    seconds: float
    asked_s: float
    rejected: int
    missing: int


def measure_rejections(release_dir: Path, scene_ids: Sequence[str], repeat: int) -> Result:
    """Measure downloads at several shares of rejections, and behind `limit_req` of nginx."""
    programs: dict[str, Callable[[DownloadPlan], None]] = {"ours": _run_ours}
    if shutil.which("aria2c"):
        programs["aria2c"] = _run_aria2c
    # Share of the requests that are rejected, status, and `Retry-After`.
    cases = [(0.0, 503, "")]
    cases += [(share, 503, "") for share in _SHARES]
    cases += [(share, 429, str(_PAUSE_S)) for share in _SHARES]
    rows = []
    for share, status, pause in cases:
        row: Result = {"share": share, "status": status, "retry_after": pause}
        for name, run in programs.items():
            outcomes = [
                _measure(release_dir, scene_ids, run, share, status, pause) for _ in range(repeat)
            ]
            row[name] = _summarize(outcomes)
        rows.append(row)
    usual_s = rows[0]["ours"]["seconds"]
    for row in rows:
        row["ratio"] = (row["ours"]["seconds"] - row["ours"]["asked_s"]) / usual_s
    limited: Result = {}
    if shutil.which("nginx"):
        limited = _measure_limited(release_dir, scene_ids, programs, repeat)
    return {"rows": rows, "limited": limited}


def _measure(
    release_dir: Path,
    scene_ids: Sequence[str],
    run: Callable[[DownloadPlan], None],
    share: float,
    status: int,
    pause: str,
) -> _Outcome:
    """Run a program once, on a server that rejects a share of the requests."""
    with tempfile.TemporaryDirectory(dir=release_dir.parent) as folder:
        log = Path(folder, "rejections")
        network = Network(_LATENCY_S, 0.0, share, status, pause, str(log))
        with serve(release_dir, network) as (base_url,):
            plan = _plan(Path(folder, "data"), scene_ids, base_url)
            seconds = _time(run, plan)
        times = [float(line) for line in log.read_text("ascii").split()] if log.exists() else []
        return _Outcome(
            seconds, _join_pauses(times, float(pause or 0)), len(times), _count_missing(plan)
        )


def _measure_limited(
    release_dir: Path,
    scene_ids: Sequence[str],
    programs: dict[str, Callable[[DownloadPlan], None]],
    repeat: int,
) -> Result:
    """Run the programs behind nginx with `limit_req` and no burst."""
    result: Result = {"requests_per_s": _REQUESTS_PER_S}
    for name, run in programs.items():
        outcomes = []
        for _ in range(min(repeat, 2)):
            with tempfile.TemporaryDirectory(dir=release_dir.parent) as folder:
                with _nginx(release_dir, Path(folder)) as base_url:
                    plan = _plan(Path(folder, "data"), scene_ids, base_url)
                    outcomes.append(_Outcome(_time(run, plan), 0.0, 0, _count_missing(plan)))
                result["files"] = len(plan.files)
        result[name] = _summarize(outcomes)
    result["ideal_s"] = (result["files"] - 1) / _REQUESTS_PER_S
    result["ratio"] = result["ours"]["seconds"] / result["ideal_s"]
    return result


@contextmanager
def _nginx(release_dir: Path, folder: Path) -> Iterator[str]:
    """Serve a raw tree by nginx, and yield the base URL."""
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    settings = {
        "folder": folder,
        "port": port,
        "root": release_dir.absolute(),
        "requests_per_s": _REQUESTS_PER_S,
    }
    (folder / "nginx.conf").write_text(_NGINX_CONFIG.format(**settings), encoding="utf-8")
    folder.chmod(0o755)
    command = [
        "nginx",
        "-p",
        str(folder),
        "-c",
        str(folder / "nginx.conf"),
        "-e",
        str(folder / "error.log"),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:
                with (
                    suppress(ConnectionRefusedError),
                    socket.create_connection(("127.0.0.1", port)),
                ):
                    break
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}/scannet/"
        finally:
            process.terminate()


def _plan(data_dir: Path, scene_ids: Sequence[str], base_url: str) -> DownloadPlan:
    selection = Selection(scene_ids=tuple(map(SceneId, scene_ids)))
    return download.plan(data_dir, ["seg"], selection=selection, base_url=base_url)


def _run_ours(plan: DownloadPlan) -> None:
    download.run(plan, jobs=JOBS, accepts_terms=True)


def _run_aria2c(plan: DownloadPlan) -> None:
    """Run aria2c, with a pause of a second before it tries again after a 503.

    After a 429 it does not try again, so that files are missing. A run that takes too long is
    stopped.
    """
    text = "".join(f"{file.url}\n  out={file.local_path}\n" for file in plan.files)
    options = [
        "-j",
        str(JOBS),
        "--retry-wait=1",
        "--max-tries=0",
        "--file-allocation=none",
        "--quiet",
    ]
    command = ["aria2c", *options, "-d", str(plan.data_dir), "-i", "-"]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, input=text, text=True, check=False, timeout=_MAX_SECONDS)


def _time(run: Callable[[DownloadPlan], None], plan: DownloadPlan) -> float:
    start_s = time.perf_counter()
    run(plan)
    return time.perf_counter() - start_s


def _count_missing(plan: DownloadPlan) -> int:
    return sum(not (plan.data_dir / file.local_path).is_file() for file in plan.files)


def _join_pauses(times: Sequence[float], pause_s: float) -> float:
    """Add up pauses that begin at the given times; overlapping ones count once."""
    total_s = 0.0
    end_s = 0.0
    for time_s in sorted(times):
        total_s += max(0.0, time_s + pause_s - max(end_s, time_s))
        end_s = time_s + pause_s
    return total_s


def _summarize(outcomes: Sequence[_Outcome]) -> Result:
    """Return the run of median duration, not counting the pauses that the server asked for."""
    by_duration = sorted(outcomes, key=lambda outcome: outcome.seconds - outcome.asked_s)
    outcome = by_duration[len(by_duration) // 2]
    return {
        "seconds": outcome.seconds,
        "asked_s": outcome.asked_s,
        "rejected": outcome.rejected,
        "missing": outcome.missing,
    }


def describe_rejections(result: Result) -> list[str]:
    """Format the results as a table."""
    latency_ms = 1000 * _LATENCY_S
    title = f"rejections at random, {latency_ms:.0f} ms for each request; seconds, requested pauses"
    head = f"  {'':<26}{'ours':>8}{'asked':>8}{'rejected':>10}{'missing':>9}{'ratio':>8}"
    lines = [title, f"{head}{'aria2c':>10}{'missing':>9}"]
    for row in result["rows"]:
        title = "no rejections"
        if row["share"]:
            title = f"{100 * row['share']:.0f} % of {row['status']}"
            title += f", Retry-After: {row['retry_after']}" if row["retry_after"] else ""
        lines.append(_describe_row(title, row))
    limited = result["limited"]
    if limited:
        title = f"limit_req, {limited['requests_per_s']} requests/s"
        lines.append(_describe_row(title, limited))
        lines.append(f"  limit_req at its best: {limited['ideal_s']:.1f} s")
    return lines


def _describe_row(title: str, row: Result) -> str:
    ours = row["ours"]
    line = f"  {title:<26}{ours['seconds']:8.1f}{ours['asked_s']:8.1f}"
    line += f"{ours['rejected']:10,}{ours['missing']:9,}{row['ratio']:8.2f}"
    aria2c = row.get("aria2c")
    if aria2c:
        line += f"{aria2c['seconds']:10.1f}{aria2c['missing']:9,}"
    return line
