"""One scene of a run, in a worker process: keep its file if it is up to date, else make a new one.

    processed file --> up to date?  keep it
                   --> else         process_scene --> temporary file

The worker writes under a temporary name, and the run itself renames the file: a worker that
outlives its run never overwrites a file of the next run.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from scannet_prep.base.backports import StrEnum
from scannet_prep.base.files import Fingerprint, read_file, write_temporary
from scannet_prep.errors import AnnotationError, FileError
from scannet_prep.processed.folder import read_entry
from scannet_prep.processed.make_scene import (
    RawFiles,
    find_raw_files,
    fingerprint_files,
    process_scene,
    read_raw_files,
    used_label_map,
)
from scannet_prep.processed.manifest import Manifest, SceneEntry
from scannet_prep.processed.scene import (
    MAX_FILE_BYTES,
    ProcessOptions,
    encode_processed,
    parse_processed,
)
from scannet_prep.raw.tree import RawScene, repair_hint
from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.scene_warnings import SceneWarning, WarningKind
from scannet_prep.stages.process.seen import SeenScene, describe_files

# The file that a warning is about. All others are about the file with the groups.
_FILES_OF_WARNINGS = {
    WarningKind.NO_FACES: MESH,
    WarningKind.NO_ALIGNMENT: INFO,
    WarningKind.NO_INFO: INFO,
    WarningKind.NOT_RIGID: INFO,
    WarningKind.LABELS_CONTRADICT_GROUPS: LABELS_MESH,
}


class Reason(StrEnum):
    """The reason why a scene is processed, or why it is kept, in the words of `--dry-run`."""

    NEW = "not processed yet"
    FORCED = "--force"
    OPTIONS = "other options, or an older format"
    LABEL_MAP = "the label map changed"
    RAW_CHANGED = "raw files changed"
    OUTPUT_CHANGED = "the processed file changed"
    UNKNOWN = "compared first, and processed if inputs or options differ"
    RAW_GONE = "raw files are gone, so it stays as it is"
    UP_TO_DATE = "up to date"


@dataclass(frozen=True, slots=True)
class ProcessTask:
    """One scene of a run.

    Attributes:
        scene: Its raw files.
        split: The split it goes into.
        path: The file to write.
        recorded: Its entry in the folder's manifest; None if it has none.
        reason: The reason why it is processed, or that it is up to date.
    """

    scene: RawScene
    split: Split
    path: Path
    recorded: SceneEntry | None
    reason: Reason = Reason.UNKNOWN

    @property
    def scene_id(self) -> SceneId:
        """The scene."""
        return self.scene.scene_id

    @property
    def source(self) -> Path:
        """The folder of its raw files, for messages; the processed file if they are gone."""
        return self.path if self.reason is Reason.RAW_GONE else self.scene.directory

    @property
    def mesh_bytes(self) -> int:
        """Size of the mesh, to estimate the disk space for the scene.

        It is 0 if no scene can be made of the mesh, because it is missing or too large.
        """
        # Not an error here, because the worker reports it when it reads the mesh.
        size_bytes = 0
        with suppress(OSError):
            size_bytes = self.scene.path(MESH).stat().st_size
        return size_bytes if size_bytes <= MESH.max_bytes else 0


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The settings that all tasks of a run share.

    Attributes:
        options: The options of the folder.
        label_map: Ids by raw category; the label map beside the raw scenes, else the built-in one.
        is_forced: Whether scenes are made again even if they are up to date.
        is_strict: Whether doubts about labels are errors.
        is_lenient: Whether damage that leaves a scene without alignment, groups or normals is only
            a warning.
        compares_bytes: Whether all files are read, rather than judged by their sizes and times.
    """

    options: ProcessOptions
    label_map: LabelMap
    is_forced: bool = False
    is_strict: bool = False
    is_lenient: bool = False
    compares_bytes: bool = False


@dataclass(frozen=True, slots=True)
class FinishedScene:
    """One scene that a run made, or found up to date.

    Attributes:
        entry: Its line in the manifest.
        seen: The state of its files; None if they are to be read again next time.
        temporary_path: The file that this run made and has yet to rename; None if the scene was up
            to date.
    """

    entry: SceneEntry
    seen: SeenScene | None
    temporary_path: Path | None = None


def make_scene_file(task: ProcessTask, context: ProcessContext) -> FinishedScene:
    """Make one scene in a worker, unless it is up to date.

    Raises:
        ScanNetPrepError: Raw files are missing or damaged, or their warnings are errors in this
            run.
        OutputError: Its file cannot be written.
    """
    if task.reason is Reason.RAW_GONE:
        return _keep_without_raw_files(task, context)

    # Before the raw files are read, so that the next run finds any later change of them.
    before = describe_files(task.scene, task.split, task.path, context.label_map)
    files = read_raw_files(find_raw_files(task.scene, task.split, context.options))
    if not context.is_forced:
        entry = _find_current(task, context, files)
        if entry is not None:
            _check_warnings(task, entry.warnings, context)
            return FinishedScene(entry, before)

    scene = process_scene(task.scene, task.split, context.options, context.label_map, files)
    _check_warnings(task, scene.meta.warnings, context)
    after = describe_files(task.scene, task.split, task.path, context.label_map)
    if after.inputs != before.inputs:
        problem = "its files changed while they were read"
        raise FileError(task.scene.directory, problem, "run the same command again")

    chunks = encode_processed(scene)
    temporary_path = write_temporary(task.path, chunks)
    entry = SceneEntry.from_scene(scene, Fingerprint.from_bytes(*chunks))
    # The run will rename the new file, which changes neither its size, nor its time, nor its inode.
    written = describe_files(task.scene, task.split, temporary_path, context.label_map)
    seen = replace(before, output=written.output)
    return FinishedScene(entry, seen, temporary_path)


def has_errors(task: ProcessTask, context: ProcessContext) -> bool:
    """Whether the recorded warnings of a scene are errors in this run."""
    if task.recorded is None:
        return False
    try:
        _check_warnings(task, task.recorded.warnings, context)
    except AnnotationError:
        return True
    return False


def _check_warnings(
    task: ProcessTask, warnings: tuple[SceneWarning, ...], context: ProcessContext
) -> None:
    """Raise an error for warnings that are errors in this run.

    Raises:
        AnnotationError: There is such a warning. The message names the files.
    """
    damage = [warning for warning in warnings if warning.kind.is_damage]
    is_own_or_test = task.scene.is_own or task.split is Split.TEST
    if damage and not is_own_or_test and not context.is_lenient:
        path = task.scene.path(_FILES_OF_WARNINGS.get(damage[0].kind, AGGREGATION))
        advice = f"every train and val scene has it; {repair_hint(path)}; or pass --lenient"
        raise _error_of_warnings(task, damage, advice)
    doubts = [warning for warning in warnings if warning.kind.is_doubt]
    if doubts and context.is_strict:
        raise _error_of_warnings(task, doubts, "to process the scene anyway, leave out --strict")


def _error_of_warnings(
    task: ProcessTask, warnings: list[SceneWarning], hint: str
) -> AnnotationError:
    """Describe warnings as one error that names the files."""
    faults = []
    for warning in warnings:
        path = task.scene.path(_FILES_OF_WARNINGS.get(warning.kind, AGGREGATION))
        faults.append(f"{path}: {warning.fault}")
    return AnnotationError("; ".join(faults), hint)


def _keep_without_raw_files(task: ProcessTask, context: ProcessContext) -> FinishedScene:
    """Keep a scene whose raw files are gone.

    Its file must be the recorded one. Without a record, for example because the manifest was
    removed, it must be intact and made with the options and the label map of the folder.

    Raises:
        FileError: The file is another one, or is not intact.
    """
    recorded = task.recorded
    try:
        if recorded is not None and Fingerprint.from_file(task.path) == recorded.fingerprint:
            return FinishedScene(recorded, seen=None)
        # The file must have been made with the options and the label map of this manifest. It needs
        # no scenes.
        expected = Manifest(context.options, context.label_map.digest)
        entry = read_entry(task.path, task.scene.scene_id, task.split, expected)
    except FileError as error:
        raise _error_without_raw_files(task, error.problem) from None
    # The file is intact, but it is not the recorded one.
    if recorded is not None:
        raise _error_without_raw_files(task, "is not the file that the manifest records")
    return FinishedScene(entry, seen=None)


def _error_without_raw_files(task: ProcessTask, problem: str) -> FileError:
    """Describe a processed scene that can neither be used nor be processed again."""
    hint = "put its raw files back, or remove the processed scene"
    return FileError(task.path, f"{problem}, and its raw files are gone", hint)


def _find_current(task: ProcessTask, context: ProcessContext, files: RawFiles) -> SceneEntry | None:
    """Return the entry of the scene's file, if it is intact and made from these inputs and options.

    A file is intact if it has the fingerprint that the manifest records. A file that the manifest
    does not record, for example after an interrupted run, is intact if encoding its content again
    gives the same bytes.
    """
    try:
        data = read_file(task.path, MAX_FILE_BYTES)
        scene = parse_processed(data, task.path)
    except FileError:
        # It is missing, truncated, or was made by another program or version.
        return None
    meta = scene.meta
    if meta.scene_id != task.scene_id or meta.split != task.split:
        return None
    if meta.options != context.options:
        return None
    if meta.label_map != used_label_map(files, context.label_map):
        return None
    if meta.inputs != fingerprint_files(task.scene, files):
        return None

    fingerprint = Fingerprint.from_bytes(data)
    is_recorded = task.recorded is not None and task.recorded.fingerprint == fingerprint
    if not is_recorded and b"".join(encode_processed(scene)) != data:
        return None
    return SceneEntry.from_scene(scene, fingerprint)
