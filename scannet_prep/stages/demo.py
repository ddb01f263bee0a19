"""Synthetic scenes through every stage, for people who want to see the program at work before they have the data."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from scannet_prep.base.disk import format_bytes
from scannet_prep.base.errors import OutputError, UsageError
from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.files import BASE_URL
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.stages import download, pack, process, view
from scannet_prep.stages.process import ProcessReport
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release
from scannet_prep.training.dataset import ScanNet

_SCENE_COUNTS = {Split.TRAIN: 6, Split.VAL: 3, Split.TEST: 2}
_VERTICES = 20_000
_MARKER_NAME = "SYNTHETIC.txt"
_MARKER_TEXT = b"""\
The scenes in this folder are synthetic: made by `scannet-prep demo`, which may overwrite them. Nothing is from ScanNet.
"""


def run(
    demo_dir: Path, *, jobs: int = 1, progress: Progress | None = None
) -> tuple[dict[str, list[str]], ProcessReport]:
    """Make synthetic scenes, download them from a server on this machine, process, pack, read and show them.

    Returns:
        Step by step, in words: what was done, and where the result is or what it looks like; and the report of
        `process`.

    Raises:
        UsageError: The folder holds something that no demo made; synthetic scenes never mix with real ones.
        OutputError: The folder cannot be written to.
    """
    is_empty = not demo_dir.exists() or (demo_dir.is_dir() and not any(demo_dir.iterdir()))
    if not is_empty and not (demo_dir / _MARKER_NAME).exists():
        raise UsageError(
            f"{demo_dir}: is not an empty folder, and was not made by the demo",
            "name a new folder: scannet-prep demo DIR",
        )
    names = ("server", "ScanNet", "processed", "scannet.tar.zst", "scene.png", "scene.html")
    server_dir, raw_dir, processed_dir, archive_path, *views = (demo_dir / name for name in names)
    make_directory(demo_dir)
    write_atomically(demo_dir / _MARKER_NAME, [_MARKER_TEXT])
    scenes = tuple(
        scene for split, count in _SCENE_COUNTS.items() for scene in official_scenes(split)[:count]
    )
    write_release(server_dir, scenes, vertices=_VERTICES, repeats_groups=scenes[:1])
    choose = partial(download.plan, raw_dir, ["seg"], selection=Selection(scene_ids=scenes))
    paths = {
        file.url.removeprefix(BASE_URL[:-1]): server_dir / file.local_path
        for file in choose().files
    }
    with _serve(paths) as base_url:
        downloaded = download.run(choose(base_url=base_url), progress=progress, needs_terms=False)
    options = ProcessOptions(scannet200=True, align_axis=True)
    processed = process.run(
        process.plan(raw_dir, processed_dir, options), jobs=jobs, progress=progress
    )
    faults = [failure.message for failure in downloaded.failures] + [
        item.message for item in processed.failures
    ]
    if faults:
        raise OutputError(f"{demo_dir}: the demo failed: {faults[0]}", "please report this")
    packed = pack.run(processed_dir, archive_path, jobs=jobs, progress=progress)
    dataset = ScanNet(archive_path, split=Split.TRAIN)
    viewing = view.open_scenes([dataset.scene_ids[0]], processed_dir)
    for path in views:
        view.run(viewing, path, progress=progress)
    counts = f"{len(processed.made)} made, {len(processed.kept)} already there, {processed.vertices:,} vertices"
    arrays = {key: value for key, value in dataset[0].items() if isinstance(value, np.ndarray)}
    steps = {
        "synthetic scenes, downloaded from a server on this machine, and checked": [str(raw_dir)],
        f"processed for ScanNet200, axis-aligned: {counts}, {format_bytes(processed.size_bytes)}": [
            str(processed_dir)
        ],
        f"packed as one archive: {format_bytes(sum(packed.archives.values()))}": [
            str(archive_path)
        ],
        f'read as a dataset: ScanNet("{archive_path}", split="train")': [
            f"{key:<14} {array.dtype} {array.shape}" for key, array in arrays.items()
        ],
        "a picture of a scene, and a page for a browser": [str(path) for path in views],
    }
    return steps, processed


@contextmanager
def _serve(paths: Mapping[str, Path]) -> Iterator[str]:
    """Serve files under the paths of their addresses on a free port of 127.0.0.1; gives the base URL."""

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def translate_path(self, path: str) -> str:
            return str(paths.get(path, ""))

        def log_message(self, *_arguments: object) -> None:
            """Nothing on standard error."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_arguments: object) -> None:
            """A client that has been interrupted leaves."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
