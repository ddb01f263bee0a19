"""What a worker process does with one scene: keep its file if it is up to date, else make a new one.

It writes under a temporary name; the run itself puts the file in place, so that a worker that outlives its run never
overwrites what the next run has made.

So that a rerun need not read files, sizes and times of those that were found right are kept beside the manifest. As
rsync does: a file is taken for unchanged where size, time of change in ns, and inode are the same, unless all bytes are
asked to be compared. That is not part of the folder's content: without it, the next run reads everything once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import AnnotationError, ContentError, FileError, OutputError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, read_file, write_if_changed, write_temporary
from scannet_prep.labels import LabelMap
from scannet_prep.processed.manifest import SceneEntry, shards_of
from scannet_prep.processed.scene import MAX_FILE_BYTES, ProcessOptions, encode_processed, parse_processed
from scannet_prep.raw.layout import RawScene
from scannet_prep.release import AGGREGATION, INFO, INPUT_KINDS, MESH
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import SceneWarning, WarningKind
from scannet_prep.stages.process.make_scene import find_raw_files, fingerprint_files, process_scene, used_label_map
from scannet_prep.typed_json import encode_json, parse_json

SEEN_NAME = ".scannet-prep-seen.json"
SHARD_SEEN_SUFFIX = ".seen.json"

# What warnings are about, where that is not the groups.
_FILES = {WarningKind.NO_FACES: MESH, WarningKind.NO_ALIGNMENT: INFO, WarningKind.NOT_RIGID: INFO}


@dataclass(frozen=True, slots=True)
class ProcessTask:
    """One scene to be made.

    Attributes:
        scene: Its raw files.
        split: The split it goes into.
        path: The file to write.
        recorded: What the manifest says of that file; None where it says nothing.
    """

    scene: RawScene
    split: Split
    path: Path
    recorded: SceneEntry | None


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What all tasks of a run share.

    Attributes:
        options: How scenes are made.
        label_map: Ids by raw category; the label map beside the raw scenes, else the built-in one.
        is_forced: Whether scenes are made again even where they are up to date.
        is_strict: Whether doubts about labels are errors.
        is_lenient: Whether damage that leaves a scene without alignment, groups or normals is only a warning.
        compares_bytes: Whether all files are read, and not taken for unchanged by their sizes and times.
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
        seen: What its files were like: their sizes, times and inodes.
        temporary_path: The file that this run made, which has still to be put in place; None where the scene was up to
            date.
    """

    entry: SceneEntry
    seen: str
    temporary_path: Path | None = None


def make_scene_file(task: ProcessTask, context: ProcessContext) -> FinishedScene | SceneFailure | OutputError:
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


def _check_warnings(task: ProcessTask, warnings: tuple[SceneWarning, ...], context: ProcessContext) -> None:
    """Make errors of warnings, where that is wanted.

    Raises:
        AnnotationError: There is such a warning; names the files that it is about.
    """
    found, hint = [item for item in warnings if item.kind.is_damage], ""
    if found and task.split is not Split.TEST and not context.is_lenient:
        hint = "every train and val scene of the release has it: download the file again, or be lenient about it"
    elif context.is_strict and (found := [item for item in warnings if item.kind.is_doubt]):
        hint = "to go on all the same, do not be strict about it"
    if hint:
        paths = (task.scene.path(_FILES.get(item.kind, AGGREGATION)) for item in found)
        raise AnnotationError("; ".join(f"{path}: {item.text}" for path, item in zip(paths, found, strict=True)), hint)


def _make(task: ProcessTask, context: ProcessContext) -> FinishedScene:
    inputs = _see_inputs(task, context.label_map)
    entry = None if context.is_forced else _find_current(task, context)
    if entry is not None:
        _check_warnings(task, entry.warnings, context)
        return FinishedScene(entry, f"{inputs} {_see(task.path)}")
    scene = process_scene(task.scene, task.split, context.options, context.label_map)
    _check_warnings(task, scene.meta.warnings, context)
    if _see_inputs(task, context.label_map) != inputs:
        raise FileError(task.scene.directory, "its files changed while they were read", "run the same command again")
    chunks = encode_processed(scene)
    path = write_temporary(task.path, chunks)
    entry = SceneEntry.from_scene(scene, Fingerprint.from_bytes(*chunks))
    # The inputs as they were before they were read: what has changed since is read again next time.
    return FinishedScene(entry, f"{inputs} {_see(path)}", path)


def _find_current(task: ProcessTask, context: ProcessContext) -> SceneEntry | None:
    """The scene's file, if it is whole and was made from the same inputs with the same options.

    Whole is what has the fingerprint that the manifest records; a file that the manifest does not know, for example
    after a run that was interrupted, is whole where to encode its content again gives the same bytes.
    """
    try:
        data = read_file(task.path, MAX_FILE_BYTES)
        scene = parse_processed(data, task.path)
    except FileError:
        return None  # not there, truncated, or not ours: made again
    paths = find_raw_files(task.scene, task.split, context.options)
    fingerprint, meta = Fingerprint.from_bytes(data), scene.meta
    is_recorded = task.recorded is not None and task.recorded.fingerprint == fingerprint
    is_same = (
        (meta.scene_id, meta.split) == (task.scene.scene_id, task.split)
        and meta.options == context.options
        and meta.label_map == used_label_map(paths, context.label_map)
        and (is_recorded or b"".join(encode_processed(scene)) == data)
        and meta.inputs == fingerprint_files(paths)
    )
    return SceneEntry.from_scene(scene, fingerprint) if is_same else None


def find_unchanged(
    tasks: Iterable[ProcessTask], entries: Mapping[str, SceneEntry], context: ProcessContext, seen: Mapping[str, str]
) -> dict[str, FinishedScene]:
    """The scenes whose files are as the last run saw them, so that they need not be opened."""
    found = dict[str, FinishedScene]()
    for task in () if context.is_forced or context.compares_bytes else tasks:
        entry, now = entries.get(task.scene.scene_id), ""
        if entry and (entry.split, entry.options) == (task.split, context.options) and not task.scene.problem:
            with suppress(AnnotationError):  # the worker finds it again
                _check_warnings(task, entry.warnings, context)
                now = f"{_see_inputs(task, context.label_map)} {_see(task.path)}"
        if entry and now and now == seen.get(task.scene.scene_id):
            found[task.scene.scene_id] = FinishedScene(entry, now)
    return found


def read_seen(out_dir: Path) -> dict[str, str]:
    """Read what the last run saw, and shards after it, by scene id; empty where nothing is known."""
    seen = dict[str, str]()
    for path in (out_dir / SEEN_NAME, *shards_of(out_dir).list_files(SHARD_SEEN_SUFFIX).values()):
        with suppress(FileError, ContentError):  # damaged: then everything is read again
            seen |= parse_json(read_file(path), dict[str, str])
    return seen


def write_seen(path: Path, scenes: Mapping[str, str]) -> None:
    """Write what this run saw, unless that cannot be written: it only saves time."""
    with suppress(OutputError):
        write_if_changed(path, encode_json(dict(sorted(scenes.items()))))


def _see_inputs(task: ProcessTask, label_map: LabelMap) -> str:
    """What the label map and the raw files are like: digest; size, time of change in ns and inode of each."""
    start = f"{task.scene.parent}/{task.scene.scene_id}/{task.scene.scene_id}"
    return " ".join([label_map.digest, *(_see(start + kind.suffix) for kind in INPUT_KINDS)])


def _see(path: str | Path) -> str:
    try:
        status = os.stat(path)  # noqa: PTH116 - eleven thousand of them, before anything else happens
    except OSError:
        return "-"
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
