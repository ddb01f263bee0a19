"""Take synthetic scenes through every stage, for users who do not have the data yet.

    write_scene -> ScanNet/ -> process -> processed/ -> pack -> scannet.tar.zst -> ScanNet
    processed/ -> view -> scene.png, scene.html
    processed/ -> guess by colour -> predictions/val, predictions/test
    ScanNet/ -> frames -> frames/

All of it lies in one folder, with a marker that distinguishes it from real data.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.base.text import format_bytes
from scannet_prep.errors import OutputError, UsageError
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.scenes import Split, official_scenes
from scannet_prep.stages import frames, pack, process, view
from scannet_prep.synthetic import make_scene, write_label_map, write_scene
from scannet_prep.training.dataset import ScanNet

SHOWN_SCENE = official_scenes(Split.VAL)[0]
"""The scene of the picture and the page."""

# Number of scenes, vertices of the first, and how many more each further one has. All test scenes,
# because the benchmark accepts only predictions of all. Smaller ones may have too few vertices for
# segments to be computed.
_SCENES = {
    Split.TRAIN: (6, 15_000, 1_500),
    Split.VAL: (3, 15_000, 1_500),
    Split.TEST: (100, 1_200, 25),
}
# Frames of each scene of the val split. Rendering one takes as long as processing a scene.
_FRAMES = 4
_CONTENTS = ("color", "depth", "pose", "labels", "instances")
_MARKER_NAME = "SYNTHETIC.txt"
_MARKER_TEXT = (
    b"The scenes in this folder are synthetic: made by `scannet-prep demo`, "
    b"which may overwrite them. Nothing is from ScanNet.\n"
)


def run(demo_dir: Path, *, jobs: int = 1, progress: Progress = Progress()) -> dict[str, Path]:
    """Make synthetic scenes, process, pack, read and show them, and extract frames.

    Args:
        demo_dir: The folder for everything; new, empty, or of an earlier demo.
        jobs: Number of processes and threads.
        progress: Receives the progress of each stage.

    Returns:
        The steps in words, each with the file or folder that it made.

    Raises:
        UsageError: The folder holds other files: synthetic scenes are never mixed with real ones.
        OutputError: The folder cannot be written to.
    """
    _mark_folder(demo_dir)
    raw_dir = demo_dir / "ScanNet"
    processed_dir = demo_dir / "processed"
    archive_path = demo_dir / "scannet.tar.zst"
    frames_dir = demo_dir / "frames"
    _write_scenes(raw_dir)
    scenes = process.plan(raw_dir, processed_dir, ProcessOptions(scannet200=True, align_axis=True))
    processed = process.run(scenes, jobs=jobs, progress=progress)
    streams = frames.plan(raw_dir, frames_dir, {"every": 1, "contents": _CONTENTS})
    extracted = frames.run(streams, jobs=jobs, progress=progress)
    failures = [*processed.failures, *extracted.failures]
    if failures:
        problem = failures[0].message
        raise OutputError(f"{demo_dir}: the demo failed: {problem}", "please report this")

    packed = pack.run(processed_dir, archive_path, is_forced=True, jobs=jobs, progress=progress)
    dataset = ScanNet(archive_path, split=Split.TRAIN)
    _write_predictions(dataset, processed_dir, demo_dir / "predictions")
    viewing = view.open_scenes([SHOWN_SCENE], processed_dir)
    for name in ("scene.png", "scene.html"):
        view.run(viewing, demo_dir / name, progress=progress)

    counts = f"{len(processed.made)} made, {len(processed.kept)} already there"
    return {
        "synthetic scenes in the format of the release": raw_dir,
        f"processed for ScanNet200, axis-aligned: {counts}": processed_dir,
        f"packed as one archive: {format_bytes(packed.stored_bytes)}": archive_path,
        f"read as a dataset: {len(dataset)} train scenes": archive_path,
        "predicted for val and test, from colours alone": demo_dir / "predictions",
        "drawn as a picture": demo_dir / "scene.png",
        "shown on a page for a browser": demo_dir / "scene.html",
        "frames of sensor streams, with poses and 2D labels": frames_dir,
    }


def _mark_folder(demo_dir: Path) -> None:
    """Make the folder of the demo, and mark its content as synthetic.

    Raises:
        UsageError: It holds files that are not from a demo.
        OutputError: It cannot be written to.
    """
    make_directory(demo_dir)
    if any(demo_dir.iterdir()) and not (demo_dir / _MARKER_NAME).exists():
        raise UsageError(
            f"{demo_dir}: is not an empty folder, and was not made by the demo",
            "name a new folder: scannet-prep demo DIR",
        )
    write_atomically(demo_dir / _MARKER_NAME, [_MARKER_TEXT])


def _write_scenes(raw_dir: Path) -> None:
    """Write scenes of different sizes."""
    for split, (count, least_vertices, step) in _SCENES.items():
        for number, scene_id in enumerate(official_scenes(split)[:count]):
            vertices = least_vertices + number * step
            frame_count = _FRAMES if split is Split.VAL else 0
            write_scene(make_scene(scene_id, vertices=vertices), raw_dir, frames=frame_count)
    write_label_map(raw_dir)


def _write_predictions(train: ScanNet, processed_dir: Path, predictions_dir: Path) -> None:
    """Predict, for each vertex of val and test, the class whose mean colour is nearest."""
    samples = list(train)
    colors = np.concatenate([sample["colors"] for sample in samples])
    labels = np.concatenate([sample["labels"] for sample in samples])
    classes = np.unique(labels[labels >= 0])
    means = np.stack([colors[labels == label].mean(axis=0) for label in classes])
    for split in (Split.VAL, Split.TEST):
        make_directory(predictions_dir / split)
        for sample in ScanNet(processed_dir, split=split):
            distances = np.square(sample["colors"][:, np.newaxis] - means).sum(axis=2)
            path = predictions_dir / split / f"{sample['scene_id']}.npy"
            np.save(path, classes[distances.argmin(axis=1)])
