"""Synthetic scenes through every stage, for people who want to see the program at work before they have the data."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from scannet_prep.dataset import ScanNet
from scannet_prep.errors import OutputError, UsageError
from scannet_prep.files import make_directory, write_atomically
from scannet_prep.labels import SCANNET20, SCANNET200
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.progress import Progress
from scannet_prep.release import BASE_URL
from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages import download, pack, process, view
from scannet_prep.stages.process import ProcessReport
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release

_SCENE_COUNTS = {Split.TRAIN: 6, Split.VAL: 3, Split.TEST: 2}
_VERTICES = 20_000
_MARKER_NAME = "SYNTHETIC.txt"
_MARKER_TEXT = b"""\
The scenes in this folder are synthetic: made by `scannet-prep demo`, which may overwrite them. Nothing is from ScanNet.
"""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Where the demo writes: what its server hands out, the same scenes downloaded, processed, and as one archive."""

    server_dir: Path
    raw_dir: Path
    processed_dir: Path
    archive_path: Path


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo did.

    Attributes:
        plan: Where it wrote.
        process: Report of that stage.
        archive_bytes: Of the archive.
        classes: Names of the classes of the train split, the most frequent first, by what a user types to open it.
        arrays: Type and shape of each array of a sample, as text.
        views: A picture and a page of a scene.
    """

    plan: DemoPlan
    process: ProcessReport
    archive_bytes: int
    classes: dict[str, tuple[str, ...]]
    arrays: dict[str, str]
    views: tuple[Path, ...]


def plan(demo_dir: Path) -> DemoPlan:
    """Decide where the demo writes.

    Raises:
        UsageError: The folder holds something that no demo made; synthetic scenes never mix with real ones.
    """
    is_empty = not demo_dir.exists() or (demo_dir.is_dir() and not any(demo_dir.iterdir()))
    if not is_empty and not (demo_dir / _MARKER_NAME).exists():
        raise UsageError(f"{demo_dir}: is not an empty folder, and was not made by the demo", "name a new folder")
    return DemoPlan(*(demo_dir / name for name in ("server", "ScanNet", "processed", "scannet.tar.zst")))


def run(plan: DemoPlan, *, jobs: int = 1, progress: Progress | None = None) -> DemoReport:
    """Make synthetic scenes, download them from a server on this machine, process, pack, read and show them.

    Raises:
        OutputError: The folder cannot be written to.
    """
    demo_dir = plan.server_dir.parent
    make_directory(demo_dir)
    write_atomically(demo_dir / _MARKER_NAME, [_MARKER_TEXT])
    scenes = tuple(scene for split, count in _SCENE_COUNTS.items() for scene in official_scenes(split)[:count])
    write_release(plan.server_dir, scenes, vertices=_VERTICES, irregular=scenes[:1])
    choose = partial(download.plan, plan.raw_dir, ["seg"], selection=Selection(scene_ids=scenes))
    with _serve(
        {file.url.removeprefix(BASE_URL[:-1]): plan.server_dir / file.local_path for file in choose().files}
    ) as base_url:
        downloaded = download.run(choose(base_url=base_url), progress=progress, needs_terms=False)
    options = ProcessOptions(scannet200=True, align_axis=True)
    processed = process.run(process.plan(plan.raw_dir, plan.processed_dir, options), jobs=jobs, progress=progress)
    faults = [failure.message for failure in downloaded.failures] + [item.message for item in processed.failures]
    if faults:
        raise OutputError(f"{demo_dir}: the demo failed: {faults[0]}", "please report this")
    packed = pack.run(pack.plan(plan.processed_dir, plan.archive_path), jobs=jobs, progress=progress)
    classes = {}
    for place, label_set in ((plan.processed_dir, SCANNET200), (plan.archive_path, SCANNET20)):
        dataset = ScanNet(place, split=Split.TRAIN, labels=label_set)
        counts = dataset.class_counts()
        found = tuple(label_set.names[index] for index in np.argsort(-counts, kind="stable") if counts[index])
        classes[f'ScanNet("{place}", split="train", labels=SCANNET{len(label_set)})'] = found
    arrays = {key: f"{value.dtype} {value.shape}" for key, value in dataset[0].items() if hasattr(value, "dtype")}
    views = tuple(demo_dir / name for name in ("scene.png", "scene.html"))
    viewing = view.open_scenes([dataset.scene_ids[0]], plan.processed_dir, label_set=SCANNET200)
    for path in views:
        view.run(viewing, path, progress=progress)
    return DemoReport(plan, processed, packed.size_bytes, classes, arrays, views)


@contextmanager
def _serve(paths: Mapping[str, Path]) -> Iterator[str]:
    """Serve files under the paths of their addresses on a free port of 127.0.0.1; gives the base URL."""

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def translate_path(self, path: str) -> str:
            return str(paths.get(path, ""))

        def log_message(self, *_arguments: object) -> None:
            """Nothing on standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
