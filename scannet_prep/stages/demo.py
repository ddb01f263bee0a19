"""Synthetic scenes through every stage, for people who want to see the program at work before they have the data."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from scannet_prep.dataset import ScanNet
from scannet_prep.errors import OutputError, UsageError
from scannet_prep.files import make_directory, write_atomically
from scannet_prep.labels import SCANNET20, SCANNET200, LabelSet
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.progress import Progress
from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages import download, pack, process
from scannet_prep.stages.download import DownloadReport
from scannet_prep.stages.pack import PackReport
from scannet_prep.stages.process import ProcessReport
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release

_SCENES_PER_SPLIT = {Split.TRAIN: 6, Split.VAL: 3, Split.TEST: 2}
_VERTICES = 20_000
_MARKER_NAME = "SYNTHETIC.txt"
_MARKER_TEXT = b"""\
The scenes in this folder are synthetic: made by `scannet-prep demo`, which may overwrite them. Nothing is from ScanNet.
"""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Where the demo writes.

    Attributes:
        demo_dir: Folder for everything.
        server_dir: Scenes in the format of the release, as the demo's own server hands them out.
        raw_dir: The same scenes, downloaded.
        processed_dir: The processed folder.
        archive_path: The processed folder as one archive.
    """

    demo_dir: Path
    server_dir: Path
    raw_dir: Path
    processed_dir: Path
    archive_path: Path


@dataclass(frozen=True, slots=True)
class DatasetView:
    """What the dataset gives for the train split and one label set.

    Attributes:
        code: What a user types.
        scenes: Number of scenes.
        arrays: Type and shape of each array of the first sample, as text.
        labeled: Share of labeled vertices over the split, 0..1.
        classes: Names of the classes that occur in the split, the most frequent first.
    """

    code: str
    scenes: int
    arrays: dict[str, str]
    labeled: float
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo did.

    Attributes:
        plan: Where it wrote.
        raw_counts: Scenes by split.
        downloaded: Report of the download stage.
        processed: Report of the process stage.
        packed: Report of the pack stage.
        views: What the dataset gives.
    """

    plan: DemoPlan
    raw_counts: dict[str, int]
    downloaded: DownloadReport
    processed: ProcessReport
    packed: PackReport
    views: tuple[DatasetView, ...]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "demo_dir": str(self.plan.demo_dir),
            "raw_scenes": self.raw_counts,
            "download": self.downloaded.to_json(),
            "process": self.processed.to_json(),
            "pack": self.packed.to_json(),
            "dataset": [asdict(view) for view in self.views],
        }


def plan(demo_dir: Path) -> DemoPlan:
    """Decide where the demo writes.

    Raises:
        UsageError: The folder holds something that no demo made; synthetic scenes never mix with real ones.
    """
    if demo_dir.exists() and not demo_dir.is_dir():
        raise UsageError(f"{demo_dir}: is not a folder", "name a new folder for the demo")
    if demo_dir.is_dir() and any(demo_dir.iterdir()) and not (demo_dir / _MARKER_NAME).exists():
        raise UsageError(
            f"{demo_dir}: is not empty and was not made by the demo, which would overwrite scenes in it",
            "name a new folder for the demo",
        )
    return DemoPlan(
        demo_dir, demo_dir / "server", demo_dir / "ScanNet", demo_dir / "processed", demo_dir / "scannet.tar.zst"
    )


def run(plan: DemoPlan, *, jobs: int = 1, progress: Progress | None = None) -> DemoReport:
    """Make synthetic scenes, download them from a server on this machine, process, pack, and read them as a dataset.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes, and of compressing threads.
        progress: Told how far each stage is.

    Raises:
        OutputError: The folder cannot be written to.
    """
    make_directory(plan.demo_dir)
    write_atomically(plan.demo_dir / _MARKER_NAME, [_MARKER_TEXT])
    scenes = {split: official_scenes(split)[:count] for split, count in _SCENES_PER_SPLIT.items()}
    scene_ids = [scene_id for chosen in scenes.values() for scene_id in chosen]
    write_release(plan.server_dir, scene_ids, vertices=_VERTICES, irregular=scenes[Split.TRAIN][:1])
    selection = Selection(scene_ids=tuple(scene_ids))
    files = download.plan(plan.raw_dir, ["seg"], selection=selection).files
    with _serve({f"/{file.remote_path}": plan.server_dir / file.local_path for file in files}) as base_url:
        download_plan = download.plan(plan.raw_dir, ["seg"], selection=selection, base_url=base_url)
        downloaded = download.run(download_plan, progress=progress, needs_terms=False)
    options = ProcessOptions(scannet200=True, align_axis=True)
    processed = process.run(process.plan(plan.raw_dir, plan.processed_dir, options), jobs=jobs, progress=progress)
    faults = [failure.message for failure in downloaded.failures] + [item.message for item in processed.failures]
    if faults:
        raise OutputError(f"{plan.demo_dir}: the demo failed: {faults[0]}", "please report this")
    packed = pack.run(pack.plan(plan.processed_dir, plan.archive_path), jobs=jobs, progress=progress)
    views = (_view(plan.processed_dir, SCANNET200), _view(plan.archive_path, SCANNET20))
    counts = {str(split): len(chosen) for split, chosen in scenes.items()}
    return DemoReport(plan, counts, downloaded, processed, packed, views)


def _view(place: Path, label_set: LabelSet) -> DatasetView:
    dataset = ScanNet(place, split=Split.TRAIN, labels=label_set)
    counts = dataset.class_counts()
    name = "SCANNET200" if label_set is SCANNET200 else "SCANNET20"
    return DatasetView(
        code=f'ScanNet("{place}", split="train", labels={name})',
        scenes=len(dataset),
        arrays={key: f"{value.dtype} {value.shape}" for key, value in dataset[0].items() if hasattr(value, "dtype")},
        labeled=float(counts.sum() / dataset.lengths.sum()),
        classes=tuple(label_set.names[index] for index in np.argsort(-counts, kind="stable") if counts[index]),
    )


class _Handler(SimpleHTTPRequestHandler):
    """Hands out the files of a table, without a word on standard error."""

    protocol_version = "HTTP/1.1"

    def __init__(self, paths: Mapping[str, Path], *arguments: object) -> None:
        self._paths = paths
        super().__init__(*arguments)  # type: ignore[arg-type]  # handed through

    def translate_path(self, path: str) -> str:
        return str(self._paths.get(path, ""))

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def _serve(paths: Mapping[str, Path]) -> Iterator[str]:
    """Serve files under the paths of their addresses on a free port of 127.0.0.1; gives the base URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, paths)) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
