"""Takes synthetic scenes through every stage, for users who do not have the data yet.

    write_scene -> server/ --HTTP--> download -> ScanNet/ -> process -> processed/
    processed/ -> pack -> scannet.tar.zst -> ScanNet
    processed/ -> view -> scene.png, scene.html
    processed/ -> guess by color -> predictions/val, predictions/test
    ScanNet/ -> frames -> frames/

All of it lies in one folder, with a marker that distinguishes it from real data.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.base.text import format_bytes
from scannet_prep.errors import OutputError, UsageError
from scannet_prep.frames.options import LABEL_KINDS, STREAM
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.stages import download, frames, pack, process, view
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import make_scene, write_label_map, write_scene
from scannet_prep.training.dataset import ScanNet

SHOWN_SCENE = official_scenes(Split.VAL)[0]
"""The scene of the picture and the page."""

# Number of scenes, and vertices of the first; the others have more. All test scenes, because the
# benchmark accepts only predictions of all.
_SCENES = {Split.TRAIN: (6, 15_000), Split.VAL: (3, 15_000), Split.TEST: (100, 500)}
# Frames of each scene of the val split. Rendering one takes as long as processing a scene.
_FRAMES = 4
# The types of files to download, and the splits whose scenes have them.
_DOWNLOADS = (
    (("seg",), tuple(Split)),
    ((STREAM.suffix, *(kind.suffix for kind in LABEL_KINDS.values())), (Split.VAL,)),
)
_MARKER_NAME = "SYNTHETIC.txt"
_MARKER_TEXT = (
    b"The scenes in this folder are synthetic: made by `scannet-prep demo`, "
    b"which may overwrite them. Nothing is from ScanNet.\n"
)


def run(demo_dir: Path, *, jobs: int = 1, progress: Progress | None = None) -> dict[str, Path]:
    """Make synthetic scenes, download, process, pack, read and show them, and extract frames.

    They are downloaded from a server on this machine.

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
    _write_scenes(demo_dir / "server")
    failures = []
    with _serve(demo_dir / "server") as base_url:
        for types, split_counts in _DOWNLOADS:
            selection = Selection(scene_ids=_list_scenes(*split_counts))
            files = download.plan(raw_dir, types, selection=selection, base_url=base_url)
            failures += download.run(files, progress=progress, needs_terms=False).failures
    scenes = process.plan(raw_dir, processed_dir, ProcessOptions(scannet200=True, align_axis=True))
    processed = process.run(scenes, jobs=jobs, progress=progress)
    contents = ("color", "depth", "pose", "labels", "instances")
    streams = frames.plan(raw_dir, frames_dir, {"every": 1, "contents": contents})
    extracted = frames.run(streams, jobs=jobs, progress=progress)
    failures += [*processed.failures, *extracted.failures]
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
        "synthetic scenes, downloaded from a server on this machine": raw_dir,
        f"processed for ScanNet200, axis-aligned: {counts}": processed_dir,
        f"packed as one archive: {format_bytes(packed.stored_bytes)}": archive_path,
        f"read as a dataset: {len(dataset)} train scenes": archive_path,
        "predicted for val and test, from colors alone": demo_dir / "predictions",
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


def _list_scenes(*splits: Split) -> tuple[SceneId, ...]:
    """List the scenes of the demo in some splits."""
    scene_ids: list[SceneId] = []
    for split in splits:
        count, _ = _SCENES[split]
        scene_ids += official_scenes(split)[:count]
    return tuple(scene_ids)


def _write_scenes(server_dir: Path) -> None:
    """Write scenes of different sizes."""
    for split, (_, least_vertices) in _SCENES.items():
        for number, scene_id in enumerate(_list_scenes(split)):
            vertices = least_vertices * (10 + number) // 10
            frame_count = _FRAMES if split is Split.VAL else 0
            write_scene(make_scene(scene_id, vertices=vertices), server_dir, frames=frame_count)
    write_label_map(server_dir)


def _write_predictions(train: ScanNet, processed_dir: Path, predictions_dir: Path) -> None:
    """Predict, for each vertex of val and test, the class whose mean color is nearest."""
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


@contextmanager
def _serve(folder: Path) -> Iterator[str]:
    """Serve all files below a folder on a free port of 127.0.0.1.

    Their names alone count: the folders of their addresses are those of ScanNet's server.

    Yields:
        The base URL.
    """
    paths = {path.name: str(path) for path in folder.rglob("*")}

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def translate_path(self, path: str) -> str:
            """Return the file of a path; for an unknown path, a name that gives a 404."""
            return paths.get(Path(path).name, "")

        def log_message(self, *_arguments: object) -> None:
            """Print nothing on standard error."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_arguments: object) -> None:
            """Ignore clients that leave because they were interrupted."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
