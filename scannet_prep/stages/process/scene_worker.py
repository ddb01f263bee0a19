"""What a worker process does with one scene: keep its file if it is up to date, else make it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import AnnotationError, FileError, OutputError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, read_file, write_atomically
from scannet_prep.labels import LabelMap
from scannet_prep.processed.folder import mark_unfinished
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import MAX_FILE_BYTES, encode_processed, parse_processed
from scannet_prep.raw.layout import RawScene
from scannet_prep.release import AGGREGATION, INFO, MESH
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import SceneWarning, WarningKind
from scannet_prep.stages.process.make_scene import RawFiles, find_raw_files, process_scene, used_label_map
from scannet_prep.stages.process.seen import SceneSeen, look_at_scene

_INFO_WARNINGS = {WarningKind.NO_ALIGNMENT, WarningKind.NOT_RIGID, WarningKind.NO_INFO}


@dataclass(frozen=True, slots=True)
class ProcessTask:
    """One scene to be made.

    Attributes:
        scene: Its raw files.
        split: The split it goes into.
        path: The file to write.
        recorded: Fingerprint of that file by the manifest; None where the manifest does not know it.
    """

    scene: RawScene
    split: Split
    path: Path
    recorded: Fingerprint | None = None


@dataclass(frozen=True, slots=True)
class WorkContext:
    """What all tasks of a run share.

    Attributes:
        options: How scenes are made.
        label_map: Ids by raw category; the label map beside the raw scenes, else the built-in one.
        is_forced: Whether scenes are made again even where they are up to date.
        is_strict: Whether doubts about labels are errors.
        is_lenient: Whether damage that leaves a scene without alignment, groups or normals is only a warning.
        compares_bytes: Whether all files are read, and not taken for unchanged by their sizes and times.
        run_pid: The process that leads the run.
    """

    options: ProcessOptions
    label_map: LabelMap
    is_forced: bool = False
    is_strict: bool = False
    is_lenient: bool = False
    compares_bytes: bool = False
    run_pid: int | None = None


@dataclass(frozen=True, slots=True)
class FinishedScene:
    """One scene that a run made, or found up to date.

    Attributes:
        entry: Its line in the manifest.
        seen: Sizes and times of its files.
        is_new: Whether this run made it.
    """

    entry: SceneEntry
    seen: SceneSeen
    is_new: bool


def make_scene_file(task: ProcessTask, context: WorkContext) -> FinishedScene | SceneFailure | OutputError:
    """Make one scene, unless it is up to date. Errors are returned, not raised: the worker goes on with others.

    Returns:
        The scene, or why it could not be made; an `OutputError` where no further scene could be written either.
    """
    try:
        return _make(task, context)
    except OutputError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug must not stop the other scenes; its traceback is kept and shown
        return SceneFailure.from_exception(task.scene.scene_id, error, task.scene.directory)


def check_warnings(task: ProcessTask, warnings: tuple[SceneWarning, ...], context: WorkContext) -> None:
    """Make errors of warnings, where that is wanted.

    Raises:
        AnnotationError: There is such a warning; names the file that it is about.
    """
    damage = [item for item in warnings if item.kind.is_damage]
    if damage and task.split is not Split.TEST and not context.is_lenient:
        hint = "every train and val scene of the release has it: download the file again, or be lenient about it"
        raise AnnotationError("; ".join(_name_file(task, item) for item in damage), hint)
    doubts = [item for item in warnings if item.kind.is_doubt]
    if doubts and context.is_strict:
        hint = "to go on all the same, do not be strict about it"
        raise AnnotationError("; ".join(_name_file(task, item) for item in doubts), hint)


def _name_file(task: ProcessTask, warning: SceneWarning) -> str:
    if warning.kind is WarningKind.OTHER_SCENE:
        return f"{task.scene.directory}: {warning.text}"
    kind = MESH if warning.kind is WarningKind.NO_FACES else INFO if warning.kind in _INFO_WARNINGS else AGGREGATION
    return f"{task.scene.path(kind)}: {warning.text}"


def _make(task: ProcessTask, context: WorkContext) -> FinishedScene:
    before = look_at_scene(task.scene, task.path)
    files = find_raw_files(task.scene, task.split, context.options)
    label_map = used_label_map(files, context.label_map)
    entry = None if context.is_forced else _find_current(task, files, context)
    if entry is not None:
        check_warnings(task, entry.warnings, context)
        return FinishedScene(entry, before._replace(label_map=label_map), is_new=False)
    scene = process_scene(files, context.options, context.label_map)
    check_warnings(task, scene.meta.warnings, context)
    if look_at_scene(task.scene, task.path).inputs != before.inputs:
        raise FileError(task.scene.directory, "its files changed while they were read", "run the same command again")
    # Before the first file is replaced, and not before it is known that one will be: a run that changes nothing must
    # not disturb those who read.
    mark_unfinished(task.path.parent.parent, context.run_pid)
    chunks = encode_processed(scene)
    write_atomically(task.path, chunks, run_pid=context.run_pid)
    entry = SceneEntry.from_scene(scene, Fingerprint.from_bytes(*chunks))
    # The inputs as they were before they were read: what has changed since is read again next time.
    seen = look_at_scene(task.scene, task.path, label_map)._replace(inputs=before.inputs)
    return FinishedScene(entry, seen, is_new=True)


def _find_current(task: ProcessTask, files: RawFiles, context: WorkContext) -> SceneEntry | None:
    """The scene's file, if it is whole and was made from the same inputs with the same options.

    Whole is what has the fingerprint that the manifest records; a file that the manifest does not know, for example
    after a run that was interrupted, is whole where to encode its content again gives the same bytes.
    """
    try:
        data = read_file(task.path, MAX_FILE_BYTES)
        scene = parse_processed(data, task.path)
    except FileError:
        return None  # not there, truncated, or not ours: made again
    fingerprint, meta = Fingerprint.from_bytes(data), scene.meta
    is_same = (
        (meta.scene_id, meta.split) == (files.scene_id, files.split)
        and meta.options == context.options
        and meta.label_map == used_label_map(files, context.label_map)
        and (fingerprint == task.recorded or b"".join(encode_processed(scene)) == data)
        and meta.inputs == files.fingerprints()
    )
    return SceneEntry.from_scene(scene, fingerprint) if is_same else None
