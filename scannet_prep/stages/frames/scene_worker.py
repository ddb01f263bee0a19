"""The frames of one scene, extracted or estimated in a worker."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.base.files import make_directory
from scannet_prep.errors import FileError
from scannet_prep.frames.extraction import Estimate, estimate_scene, extract_scene
from scannet_prep.frames.options import FrameOptions
from scannet_prep.frames.record import FramesRecord
from scannet_prep.raw.tree import RawScene, repair_hint
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import SceneId, Split


@dataclass(frozen=True, slots=True)
class FramesTask:
    """One scene of a run.

    Attributes:
        scene: Its raw files.
        split: Its split.
    """

    scene: RawScene
    split: Split

    @property
    def scene_id(self) -> SceneId:
        """The scene."""
        return self.scene.scene_id

    @property
    def source(self) -> Path:
        """The folder with its stream and its zip files, for messages."""
        return self.scene.directory


@dataclass(frozen=True, slots=True)
class FramesContext:
    """The settings that all tasks of a run share.

    Attributes:
        options: What is extracted.
        label_map: The label map, for label images.
        work_dir: The hidden folder for unfinished scenes.
    """

    options: FrameOptions
    label_map: LabelMap
    work_dir: Path


def extract_frames(task: FramesTask, context: FramesContext) -> tuple[FramesRecord, Path]:
    """Extract a scene into the work folder, in a worker. If it fails, its files are removed.

    Returns:
        Its record, and the folder.
    """
    work_path = context.work_dir / secrets.token_hex(8)
    make_directory(work_path)
    try:
        with _checked_scene(task):
            record = extract_scene(
                task.scene, task.split, context.options, context.label_map, out_dir=work_path
            )
    except BaseException:
        # Not only at the end of the run: many scenes may fail in the same way.
        shutil.rmtree(work_path, ignore_errors=True)
        raise
    return record, work_path


def estimate_frames(task: FramesTask, context: FramesContext) -> Estimate:
    """Estimate the frames of a scene, in a worker."""
    with _checked_scene(task):
        return estimate_scene(task.scene, task.split, context.options, context.label_map)


@contextmanager
def _checked_scene(task: FramesTask) -> Iterator[None]:
    """Check that the folder of a scene can be used, and add hints to errors of its files."""
    if task.scene.problem:
        raise FileError(task.scene.directory, task.scene.problem)
    try:
        yield
    except FileError as error:
        if error.hint:
            raise
        raise type(error)(error.path, error.problem, repair_hint(error.path)) from None
