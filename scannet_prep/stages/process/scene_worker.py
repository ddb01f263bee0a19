"""What a worker process does with one scene: keep its file if it is up to date, else make it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import AnnotationError, OutputError, ProcessedFileError, ScanNetPrepError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, read_file, write_atomically
from scannet_prep.labels import LabelMap
from scannet_prep.processed.folder import mark_unfinished
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import ProcessedScene, encode_processed, parse_processed
from scannet_prep.raw.layout import RawScene
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import SceneWarning
from scannet_prep.stages.process.make_scene import RawFiles, process_scene, read_raw_files, used_label_map
from scannet_prep.stages.process.record import FinishedScene, identify_file


@dataclass(frozen=True, slots=True)
class SceneTask:
    """One scene to be made, and where to."""

    scene: RawScene
    split: Split
    path: Path


@dataclass(frozen=True, slots=True)
class WorkContext:
    """What all tasks of a run share.

    Attributes:
        options: How scenes are made.
        label_map: Ids by raw category.
        is_forced: Make scenes again even where they are up to date.
        is_strict: Treat doubts about labels as errors.
    """

    options: ProcessOptions
    label_map: LabelMap
    is_forced: bool
    is_strict: bool


def make_scene_file(task: SceneTask, context: WorkContext) -> FinishedScene | SceneFailure | OutputError:
    """Make one scene, unless it is up to date. Errors are returned, not raised: the worker goes on with others.

    Returns:
        The scene, or why it could not be made; an `OutputError` where no further scene could be written either.
    """
    scene_id = task.scene.scene_id
    try:
        return _make(task, context)
    except OutputError as error:
        return error
    except ScanNetPrepError as error:
        place = "" if str(task.scene.directory) in error.message else f"{task.scene.directory}: "
        return SceneFailure(scene_id, type(error).__name__, place + error.message, error.hint)
    except MemoryError:
        message = f"{task.scene.directory}: memory ran out"
        return SceneFailure(scene_id, "MemoryError", message, "try again with fewer --jobs")
    except Exception as error:  # noqa: BLE001 - a bug must not stop the other scenes; its traceback is kept and shown
        message = f"{task.scene.directory}: unforeseen {type(error).__name__}: {error}"
        return SceneFailure(scene_id, type(error).__name__, message, "please report this", traceback.format_exc())


def _make(task: SceneTask, context: WorkContext) -> FinishedScene:
    files = read_raw_files(task.scene, task.split, context.options)
    entry = None if context.is_forced else _find_current(task, files, context)
    if entry is not None:
        _check_doubts(entry.warnings, context)
        return FinishedScene(entry, identify_file(task.path), is_new=False)
    scene = process_scene(files, context.options, context.label_map)
    _check_doubts(scene.meta.warnings, context)
    # Before the first file is replaced, and not before it is known that one will be: a run that changes nothing must
    # not disturb those who read.
    mark_unfinished(task.path.parent.parent)
    return write_scene_file(scene, task.path)


def write_scene_file(scene: ProcessedScene, path: Path) -> FinishedScene:
    """Write a processed scene under its final name.

    Raises:
        OutputError: It cannot be written.
    """
    chunks = encode_processed(scene)
    write_atomically(path, chunks)
    return FinishedScene(
        SceneEntry.from_scene(scene, Fingerprint.from_bytes(*chunks)), identify_file(path), is_new=True
    )


def _check_doubts(warnings: tuple[SceneWarning, ...], context: WorkContext) -> None:
    doubts = [warning.text for warning in warnings if warning.kind.is_doubt]
    if context.is_strict and doubts:
        raise AnnotationError("; ".join(doubts), "leave out --strict to go on anyway")


def _find_current(task: SceneTask, files: RawFiles, context: WorkContext) -> SceneEntry | None:
    """The scene's file, if it is whole and was made from the same inputs with the same options."""
    if not task.path.exists():
        return None
    data = read_file(task.path)
    try:
        scene = parse_processed(data, task.path)
    except ProcessedFileError:
        return None  # truncated, or not ours: made again
    meta = scene.meta
    is_same = (
        (meta.scene_id, meta.split) == (files.scene_id, files.split)
        and meta.options == context.options
        and meta.inputs == files.fingerprints()
        and meta.label_map_digest == used_label_map(files, context.label_map)
    )
    return SceneEntry.from_scene(scene, Fingerprint.from_bytes(data)) if is_same else None
