"""Synthetic scenes through every stage, for people who want to see the program at work before they have the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scannet_prep.dataset import Sample, ScanNet
from scannet_prep.errors import OutputError, UsageError
from scannet_prep.files import make_directory, write_atomically
from scannet_prep.labels import SCANNET20, SCANNET200
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.progress import Progress
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages import download, pack, process
from scannet_prep.stages.demo.server import serve_release
from scannet_prep.stages.download import DownloadReport
from scannet_prep.stages.pack import PackReport
from scannet_prep.stages.process import ProcessReport
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_label_map, write_release
from scannet_prep.typed_json import to_plain

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
    """

    demo_dir: Path

    @property
    def server_dir(self) -> Path:
        """Scenes in the format of the release, as the demo's own server hands them out."""
        return self.demo_dir / "server"

    @property
    def raw_dir(self) -> Path:
        """The same scenes, downloaded."""
        return self.demo_dir / "ScanNet"

    @property
    def processed_dir(self) -> Path:
        """The processed folder."""
        return self.demo_dir / "processed"

    @property
    def archive_path(self) -> Path:
        """The processed folder as one archive."""
        return self.demo_dir / "scannet.tar.zst"


@dataclass(frozen=True, slots=True)
class DatasetView:
    """What the dataset gives for one split and label set.

    Attributes:
        code: What a user types.
        scene_count: Number of scenes.
        arrays: Type and shape of each array of the first sample, as text.
        labeled: Share of labeled vertices over the split, 0..1.
        class_names: Classes that occur in the split, the most frequent first.
    """

    code: str
    scene_count: int
    arrays: dict[str, str]
    labeled: float
    class_names: tuple[str, ...]


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
            "raw_dir": str(self.plan.raw_dir),
            "processed_dir": str(self.plan.processed_dir),
            "raw_scenes": self.raw_counts,
            "download": self.downloaded.to_json(),
            "process": self.processed.to_json(),
            "pack": to_plain(self.packed),
            "dataset": [
                {
                    "code": view.code,
                    "scenes": view.scene_count,
                    "arrays": view.arrays,
                    "labeled": view.labeled,
                    "classes": list(view.class_names),
                }
                for view in self.views
            ],
        }


def plan(demo_dir: Path) -> DemoPlan:
    """Decide where the demo writes.

    Raises:
        UsageError: The folder holds something that no demo made; synthetic scenes never mix with real ones.
    """
    if demo_dir.exists() and not demo_dir.is_dir():
        raise UsageError(f"{demo_dir}: is no folder", "name another one: scannet-prep demo DIR")
    if demo_dir.is_dir() and any(demo_dir.iterdir()) and not (demo_dir / _MARKER_NAME).exists():
        raise UsageError(
            f"{demo_dir}: is not empty and was not made by the demo, which would overwrite scenes in it",
            "name a new folder: scannet-prep demo DIR",
        )
    return DemoPlan(demo_dir)


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
    scene_ids = [scene_id for group in scenes.values() for scene_id in group]
    write_release(plan.server_dir, scene_ids, vertices=_VERTICES, irregular=scenes[Split.TRAIN][:1])
    write_label_map(plan.server_dir)
    downloaded = _download(plan, scene_ids, progress)
    report = process.run(
        process.plan(plan.raw_dir, plan.processed_dir, ProcessOptions(scannet200=True, align_axis=True)),
        jobs=jobs,
        progress=progress,
    )
    if report.failures:
        raise OutputError(f"{plan.processed_dir}: the demo failed: {report.failures[0].message}", "please report this")
    packed = pack.run(pack.plan(plan.processed_dir, plan.archive_path), jobs=jobs, progress=progress)
    return DemoReport(
        plan=plan,
        raw_counts={str(split): len(group) for split, group in scenes.items()},
        downloaded=downloaded,
        processed=report,
        packed=packed,
        views=(_view(plan.processed_dir, "SCANNET200"), _view(plan.archive_path, "SCANNET20")),
    )


def _download(plan: DemoPlan, scene_ids: list[SceneId], progress: Progress | None) -> DownloadReport:
    selection = Selection(scene_ids=tuple(scene_ids))
    everything = download.plan(plan.raw_dir, ["seg"], selection=selection)
    with serve_release(plan.server_dir, list(everything.files)) as base_url:
        download_plan = download.plan(plan.raw_dir, ["seg"], selection=selection, base_url=base_url)
        report = download.run(download_plan, progress=progress, needs_terms=False)
    if report.failures:
        raise OutputError(f"{plan.raw_dir}: the demo failed: {report.failures[0].message}", "please report this")
    return report


def _view(place: Path, label_set_name: str) -> DatasetView:
    label_set = {"SCANNET20": SCANNET20, "SCANNET200": SCANNET200}[label_set_name]
    dataset = ScanNet(place, split=Split.TRAIN, labels=label_set)
    counts = np.zeros(len(label_set), np.int64)
    sample: Sample
    for sample in dataset:
        labels = sample["labels"]
        counts += np.bincount(labels[labels != dataset.ignore_id], minlength=len(label_set))
    order = np.argsort(-counts, kind="stable")
    return DatasetView(
        code=f'ScanNet("{place}", split="train", labels={label_set_name})',
        scene_count=len(dataset),
        arrays={
            key: f"{value.dtype} {value.shape}" for key, value in dataset[0].items() if isinstance(value, np.ndarray)
        },
        labeled=float(counts.sum() / dataset.lengths.sum()),
        class_names=tuple(label_set.names[index] for index in order if counts[index]),
    )
