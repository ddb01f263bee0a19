"""Part `download`: small files from a server on this machine, which delays and rejects requests."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from usage import run_ours

from benchmark.scenes import make_scenes
from benchmark.timing import time_alternately

_SMALL_VERTEX_COUNT = 600
_DELAYS_S = (0.0, 0.005, 0.03)
_REJECTIONS = ((0.03, "503"), (0.1, "503"), (0.3, "503"), (0.67, "503"), (0.3, "429:1"))


def measure(
    folder: Path, scene_count: int, _vertex_count: int, repeat: int
) -> Iterator[tuple[str, str]]:
    """Measure everything: five files for each scene, and the label map."""
    raw_dir = folder / "raw"
    scene_ids = make_scenes(raw_dir, scene_count, _SMALL_VERTEX_COUNT)
    with _serve(raw_dir, 0.02) as server:
        urls = run_ours(*_download(folder, scene_ids, server), "--print-urls").output.split()
        best = time_alternately(
            {
                "ours": lambda: _fetch(folder, scene_ids, server),
                "urlretrieve": lambda: [urllib.request.urlretrieve(url) for url in urls],  # noqa: S310
            },
            repeat,
            of_cpu=False,
        )
    for title, seconds in best.items():
        yield f"{title}, 20 ms for each request", f"{len(urls) / seconds:.0f} files per second"

    for delay_s in _DELAYS_S:
        with _serve(raw_dir, delay_s) as server:
            usual_s = min(_fetch(folder, scene_ids, server) for _ in range(repeat))
        yield f"{delay_s * 1e3:.0f} ms for each request", f"{usual_s:.1f} s"
        for share, status in _REJECTIONS:
            with _serve(raw_dir, delay_s, share, status) as server:
                seconds = min(_fetch(folder, scene_ids, server) for _ in range(repeat))
                title = f"  {share:.0%} of {status} rejected"
                yield title, f"{seconds:.1f} s, {seconds / usual_s:.1f} times"


def _download(folder: Path, scene_ids: list[str], server: str) -> list[object]:
    """Return the words of a download of all files."""
    words: list[object] = ["download", "-o", folder / "here", "--types", "seg"]
    words += ["--base-url", server]
    return [*words, "--accept-terms", "--scenes", *scene_ids]


def _fetch(folder: Path, scene_ids: list[str], server: str) -> float:
    """Download all files, check them, and return the seconds."""
    shutil.rmtree(folder / "here", ignore_errors=True)
    usage = run_ours(*_download(folder, scene_ids, server))
    for scene_id in scene_ids:
        compared = filecmp.dircmp(folder / "raw/scans" / scene_id, folder / "here/scans" / scene_id)
        if compared.left_only or compared.diff_files:
            raise SystemExit(f"{scene_id}: {compared.left_only} {compared.diff_files}")
    return usage.wall_s


@contextmanager
def _serve(raw_dir: Path, delay_s: float, share: float = 0.0, status: str = "503") -> Iterator[str]:
    """Serve a raw tree in a process of its own, and yield the base URL."""
    program = Path(__file__).with_name("server.py")
    command = [sys.executable, *map(str, (program, raw_dir, delay_s, share, status))]
    pipe = subprocess.PIPE
    # On standard error, it reports clients that hang up.
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        port = process.stdout.readline().strip() if process.stdout else ""
        yield f"http://127.0.0.1:{port}/"
        process.terminate()
