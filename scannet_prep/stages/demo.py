"""Takes synthetic scenes through every stage, for users who do not have the data yet.

    write_release -> server/ --HTTP--> download -> ScanNet/ -> process -> processed/
    processed/ -> pack -> scannet.tar.zst -> ScanNet
    processed/ -> view -> scene.png, scene.html
    ScanNet/ -> frames -> frames/        only if Pillow is installed

All of it lies in one folder, with a marker that distinguishes it from real data.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.base.images import has_pillow
from scannet_prep.base.progress import Progress
from scannet_prep.base.text import format_bytes
from scannet_prep.errors import OutputError, UsageError
from scannet_prep.frames import FrameOptions
from scannet_prep.frames.options import LABEL_KINDS, STREAM
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.release.files import BASE_URL
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split, official_scenes
from scannet_prep.stages import download, frames, pack, process, view
from scannet_prep.stages.process import ProcessReport
from scannet_prep.stages.selection import Selection
from scannet_prep.synthetic import write_release
from scannet_prep.training.dataset import ScanNet

_SCENE_COUNTS = {Split.TRAIN: 6, Split.VAL: 3, Split.TEST: 2}
_VERTICES = 20_000
# Frames of each scene of the val split. Rendering one takes as long as processing a scene.
_FRAMES = 4
_FRAME_SUFFIXES = [STREAM.suffix, *(kind.suffix for kind in LABEL_KINDS.values())]
_MARKER_NAME = "SYNTHETIC.txt"
_MARKER_TEXT = (
    b"The scenes in this folder are synthetic: made by `scannet-prep demo`, "
    b"which may overwrite them. Nothing is from ScanNet.\n"
)
_POLL_INTERVAL_S = 0.05


def run(
    demo_dir: Path, *, jobs: int = 1, progress: Progress | None = None
) -> tuple[dict[str, list[str]], ProcessReport]:
    """Make synthetic scenes, download, process, pack, read and show them, and extract frames.

    They are downloaded from a server on this machine.

    Args:
        demo_dir: The folder for everything; new, empty, or of an earlier demo.
        jobs: Number of processes and threads.
        progress: Receives the progress of each stage.

    Returns:
        The steps in words, each with the paths or the arrays that it made; and the report of
        `process`.

    Raises:
        UsageError: The folder holds other files: synthetic scenes are never mixed with real ones.
        OutputError: The folder cannot be written to.
    """
    _mark_folder(demo_dir)
    raw_dir = demo_dir / "ScanNet"
    processed_dir = demo_dir / "processed"
    archive_path = demo_dir / "scannet.tar.zst"
    view_paths = [demo_dir / "scene.png", demo_dir / "scene.html"]

    scene_ids: list[SceneId] = []
    for split, count in _SCENE_COUNTS.items():
        scene_ids += official_scenes(split)[:count]
    problems = _download(demo_dir / "server", raw_dir, scene_ids, progress)
    options = ProcessOptions(scannet200=True, align_axis=True)
    plan = process.plan(raw_dir, processed_dir, options)
    processed = process.run(plan, jobs=jobs, progress=progress)
    problems += [failure.message for failure in processed.failures]
    if problems:
        raise OutputError(f"{demo_dir}: the demo failed: {problems[0]}", "please report this")

    packed = pack.run(processed_dir, archive_path, jobs=jobs, progress=progress)
    dataset = ScanNet(archive_path, split=Split.TRAIN)
    viewing = view.open_scenes([dataset.scene_ids[0]], processed_dir)
    for path in view_paths:
        view.run(viewing, path, progress=progress)
    extracted = _extract_frames(raw_dir, demo_dir / "frames", jobs, progress)

    counts = (
        f"{len(processed.made)} made, {len(processed.kept)} already there, "
        f"{processed.vertices:,} vertices, {format_bytes(processed.size_bytes)}"
    )
    archive_size = format_bytes(sum(packed.archives.values()))
    steps = {
        "synthetic scenes, downloaded from a server on this machine, and checked": [str(raw_dir)],
        f"processed for ScanNet200, axis-aligned: {counts}": [str(processed_dir)],
        f"packed as one archive: {archive_size}": [str(archive_path)],
        f'read as a dataset: ScanNet("{archive_path}", split="train")': _list_arrays(dataset),
        "a picture of a scene, and a page for a browser": [str(path) for path in view_paths],
        **extracted,
    }
    return steps, processed


def _mark_folder(demo_dir: Path) -> None:
    """Make the folder of the demo, and mark its content as synthetic.

    Raises:
        UsageError: It holds files that are not from a demo.
        OutputError: It cannot be written to.
    """
    is_empty = not demo_dir.exists() or (demo_dir.is_dir() and not any(demo_dir.iterdir()))
    if not is_empty and not (demo_dir / _MARKER_NAME).exists():
        raise UsageError(
            f"{demo_dir}: is not an empty folder, and was not made by the demo",
            "name a new folder: scannet-prep demo DIR",
        )
    make_directory(demo_dir)
    write_atomically(demo_dir / _MARKER_NAME, [_MARKER_TEXT])


def _download(
    server_dir: Path, raw_dir: Path, scene_ids: Sequence[SceneId], progress: Progress | None
) -> list[str]:
    """Make synthetic scenes, and download them from a server on this machine.

    Returns:
        Why files failed, in words.
    """
    # The first scene lists every group twice, as some scenes of the release do.
    write_release(server_dir, scene_ids, vertices=_VERTICES, repeats_groups=scene_ids[:1])
    make_plans = [partial(download.plan, raw_dir, ["seg"], selection=_select(scene_ids))]
    if has_pillow():
        val_scenes = [name for name in scene_ids if find_official_split(name) is Split.VAL]
        write_release(server_dir, val_scenes, vertices=_VERTICES, frames=_FRAMES)
        selection = _select(val_scenes)
        make_plans.append(partial(download.plan, raw_dir, _FRAME_SUFFIXES, selection=selection))

    # These plans have the official addresses. The part after BASE_URL, with its slash, is also the
    # path on the server of this machine.
    paths = {}
    for make_plan in make_plans:
        for file in make_plan().files:
            path_on_server = file.url.removeprefix(BASE_URL.removesuffix("/"))
            paths[path_on_server] = server_dir / file.local_path
    problems = []
    with _serve(paths) as base_url:
        for make_plan in make_plans:
            plan = make_plan(base_url=base_url)
            report = download.run(plan, progress=progress, needs_terms=False)
            problems += [failure.message for failure in report.failures]
    return problems


def _select(scene_ids: Sequence[SceneId]) -> Selection:
    return Selection(scene_ids=tuple(scene_ids))


def _extract_frames(
    raw_dir: Path, frames_dir: Path, jobs: int, progress: Progress | None
) -> dict[str, list[str]]:
    """Extract the frames of the scenes that have some.

    Returns:
        The step, as `run` returns it; empty if Pillow is not installed.
    """
    if not has_pillow():
        return {}
    options = FrameOptions(every=1, contents=("color", "depth", "pose", "labels", "instances"))
    report = frames.run(frames.plan(raw_dir, frames_dir, options), jobs=jobs, progress=progress)
    if report.failures:
        problem = report.failures[0].message
        raise OutputError(f"{frames_dir}: the demo failed: {problem}", "please report this")
    counts = f"{report.frames} frames, {report.lost_frames} more without tracking"
    return {f"color, depth, poses and 2D labels: {counts}": [str(frames_dir)]}


def _list_arrays(dataset: ScanNet) -> list[str]:
    """List the arrays of the first sample of a dataset: name, dtype and shape."""
    lines = []
    for key, value in dataset[0].items():
        if isinstance(value, np.ndarray):
            lines.append(f"{key:<14} {value.dtype} {value.shape}")
    return lines


@contextmanager
def _serve(paths: Mapping[str, Path]) -> Iterator[str]:
    """Serve files on a free port of 127.0.0.1.

    Args:
        paths: The files, by the path of their address.

    Yields:
        The base URL.
    """

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def translate_path(self, path: str) -> str:
            """Return the file of a path; for an unknown path, a name that gives a 404."""
            return str(paths.get(path, ""))

        def log_message(self, *_arguments: object) -> None:
            """Print nothing on standard error."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_arguments: object) -> None:
            """Ignore clients that leave because they were interrupted."""

    with Server(("127.0.0.1", 0), Handler) as server:
        serve = partial(server.serve_forever, _POLL_INTERVAL_S)
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
