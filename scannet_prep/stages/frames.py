"""Sensor streams in, a folder of images, depth and poses out: `plan`, then `run`.

    raw tree, selection --> scenes that have a stream
    scene, frames.json  --> the reason why it has to be made, or none: its frames are kept
    task --> a worker: stream, zip files --> its folder in the hidden work folder
         --> the run itself: the folder gets its final name

A folder has one set of options; every scene records them. A scene's folder gets its final name when
it is complete.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from scannet_prep.base.files import (
    check_is_folder,
    have_sizes,
    make_directory,
    remove_temporaries,
    write_if_changed,
    writing,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import FileError, MissingFileError, OutputError, UsageError
from scannet_prep.frames.extraction import extract_scene, measure_sources
from scannet_prep.frames.options import STREAM, FrameOptions
from scannet_prep.frames.record import RECORD_NAME, FramesRecord, find_records, read_record
from scannet_prep.raw.sensor_stream import SensorStream
from scannet_prep.raw.tree import find_raw_scenes, repair_hint
from scannet_prep.release.files import NOTICE_NAME, NOTICE_TEXT
from scannet_prep.release.label_map import LabelMap, label_map_for
from scannet_prep.release.scene import SceneId
from scannet_prep.stages.selection import (
    FAILED_NAME,
    SceneTask,
    Selection,
    select_scenes,
    write_failed_list,
)

_WORK_NAME = ".scannet-prep-work"
_HINT_CHANGED = "run the same command again"
_HINT_FOLDER = "choose a new folder with -o"
_HINT_STREAMS = (
    "download those of some scenes, with --types .sens --scenes: all of them have 1.2 TB, each "
    "about 0.8 GB; for 2D labels, add _2d-label-filt.zip and _2d-instance-filt.zip to --types"
)


class FrameCount(NamedTuple):
    """How many frames a scene has.

    Attributes:
        frames: The frames that are extracted.
        lost: The frames without tracking.
    """

    frames: int
    lost: int


@dataclass(frozen=True, slots=True)
class FramesContext:
    """What all tasks of a run share.

    Attributes:
        options: What is extracted.
        label_map: The label map, for label images.
        work_dir: The hidden folder for unfinished scenes.
    """

    options: FrameOptions
    label_map: LabelMap
    work_dir: Path


@dataclass(frozen=True, slots=True)
class FramesPlan:
    """The work of one run; making the plan writes nothing.

    Attributes:
        raw_dir: The raw tree.
        out_dir: The folder for the frames.
        context: What all scenes share.
        tasks: The scenes to extract.
        kept: The records of selected scenes that are up to date.
        without_stream: Scenes that were not named, and have neither a sensor stream nor frames.
        failures: Scenes that were named, and cannot be extracted.
    """

    raw_dir: Path
    out_dir: Path
    context: FramesContext
    tasks: tuple[SceneTask, ...]
    kept: tuple[FramesRecord, ...]
    without_stream: tuple[str, ...]
    failures: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class FramesReport:
    """The result of a run.

    Attributes:
        out_dir: The folder of the frames.
        made: Scenes that were extracted.
        kept: Scenes that were up to date.
        failures: Scenes that could not be extracted.
        frames: Number of frames of the selected scenes, with those of scenes that were kept.
        lost_frames: Number of frames without tracking; they are omitted unless the options keep
            them.
        size_bytes: Size of the files of the selected scenes.
    """

    out_dir: Path
    made: tuple[str, ...]
    kept: tuple[str, ...]
    failures: tuple[Finding, ...]
    frames: int
    lost_frames: int
    size_bytes: int


def plan(
    raw_dir: Path,
    out_dir: Path,
    options: Mapping[str, Any] | None = None,
    *,
    selection: Selection | None = None,
) -> FramesPlan:
    """Decide which scenes to extract. Writes nothing and opens no stream.

    Args:
        raw_dir: The raw tree.
        out_dir: The folder for the frames: new, empty, or with the same options.
        options: The fields of `FrameOptions` that are chosen; the others are those of the folder.
        selection: The scenes; by default all that have a sensor stream.

    Raises:
        UsageError: The options contradict each other or those of the folder, or the folder holds
            something else.
        MissingFileError: There is no raw tree, or no selected scene has a sensor stream.
        FileError: A folder, a record or the label map cannot be read.
        UnknownSceneError: A named scene does not exist.
        OutputError: `out_dir` is not a folder.
    """
    selection = selection or Selection()
    check_is_folder(out_dir)
    records = _read_records(out_dir)
    chosen = _choose_options(out_dir, options or {}, records)
    label_map = label_map_for(raw_dir)

    # Scenes that are not named may lack a stream: few people have all of them. After an extraction,
    # a stream may have been removed to free the disk.
    raw_scenes = find_raw_scenes(raw_dir)
    with_stream = {
        scene_id for scene_id, scene in raw_scenes.items() if os.path.lexists(scene.path(STREAM))
    }
    candidates = set(raw_scenes)
    if selection.scene_ids is None:
        candidates &= records.keys() | with_stream
    splits = {scene_id: record.split for scene_id, record in records.items()}
    of_tree = {scene_id: raw_scenes[scene_id].split for scene_id in candidates}
    selected, failures = select_scenes(of_tree, selection, raw_dir, splits)

    tasks = []
    kept = []
    for scene_id, split in selected:
        task = SceneTask(raw_scenes[scene_id], split, out_dir / scene_id)
        record = records.get(scene_id)
        reason = _find_reason(task, record, chosen, label_map)
        if record is not None and not reason:
            kept.append(record)
        elif scene_id in with_stream:
            tasks.append(replace(task, reason=reason))
        else:
            error = MissingFileError(task.scene.path(STREAM), "no such file", _HINT_STREAMS)
            failures.append(Finding.from_error(error, task.source, task.scene_id))
    if not tasks and not kept:
        raise MissingFileError(
            raw_dir, "no selected scene has a sensor stream (.sens)", _HINT_STREAMS
        )
    return FramesPlan(
        raw_dir=raw_dir,
        out_dir=out_dir,
        context=FramesContext(chosen, label_map, out_dir / _WORK_NAME),
        tasks=tuple(tasks),
        kept=tuple(kept),
        without_stream=tuple(sorted(raw_scenes.keys() - candidates)),
        failures=tuple(failures),
    )


def _read_records(out_dir: Path) -> dict[SceneId, FramesRecord]:
    """Read the records of all scenes of a folder."""
    return {scene_id: read_record(path) for scene_id, path in find_records(out_dir).items()}


def _choose_options(
    out_dir: Path, options: Mapping[str, Any], records: Mapping[SceneId, FramesRecord]
) -> FrameOptions:
    """Return the options of a run, which are those of the folder if it holds scenes.

    Raises:
        UsageError: A scene of the folder has other options, or it holds something else.
    """
    if not records:
        for path in sorted(out_dir.iterdir()) if out_dir.exists() else ():
            if not path.name.startswith(".") and path.name not in {NOTICE_NAME, FAILED_NAME}:
                problem = f"{out_dir}: holds {path.name}, and was not made by scannet-prep frames"
                raise UsageError(problem, _HINT_FOLDER)
        return replace(FrameOptions(), **options)
    present = next(iter(records.values())).options
    chosen = replace(present, **options)
    for scene_id, record in records.items():
        if record.options != chosen:
            problem = f"{out_dir}: {scene_id} has frames with other options: {record.options.text}"
            raise UsageError(problem, _HINT_FOLDER)
    return chosen


def _find_reason(
    task: SceneTask, record: FramesRecord | None, options: FrameOptions, label_map: LabelMap
) -> str:
    """Find the reason why a scene has to be made; empty if its frames can stay."""
    if record is None:
        return "not made yet"
    if record.split != task.split:
        return "in another split than before"
    if record.label_map not in {"", label_map.digest}:
        return "made with another label map"
    sizes = measure_sources(task.scene, task.split, options)
    file_sizes = {name: fingerprint.size_bytes for name, fingerprint in record.files.items()}
    # Sources may have been removed to free the disk.
    if not sizes.items() <= record.sources.items():
        return "its stream or labels were changed"
    return "" if have_sizes(task.path, file_sizes) else "its files were changed"


def count(
    plan: FramesPlan, *, jobs: int = 1, progress: Progress | None = None
) -> tuple[dict[str, FrameCount], list[Finding]]:
    """Count the frames that a run would extract; nothing is written.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Advanced by each scene.

    Returns:
        The numbers of frames by scene, and the scenes that could not be extracted.
    """
    progress = progress or Progress()
    counts = {}
    failures = list(plan.failures)
    with progress.work("frames", len(plan.tasks), "scenes"):
        for task, outcome in run_tasks(_count_scene, plan.tasks, plan.context, jobs):
            if isinstance(outcome, Finding):
                failures.append(outcome)
            else:
                counts[str(task.scene_id)] = outcome
            progress.advance()
    return dict(sorted(counts.items())), failures


def _count_scene(task: SceneTask, context: FramesContext) -> FrameCount:
    """Count the frames of a scene, in a worker."""
    if task.scene.problem:
        raise FileError(task.source, task.scene.problem)
    with SensorStream(task.scene.path(STREAM)) as stream:
        numbers, lost = context.options.select(stream.is_tracked)
    return FrameCount(len(numbers), len(lost))


def run(
    plan: FramesPlan,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> FramesReport:
    """Extract the scenes of a plan. A bad one stops no other.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
        executor: Does the work instead of worker processes; its workers see the same folders under
            the same names.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full.
        OutputError: Another run is writing into the folder, or has changed it since the plan was
            made.
        WorkerDiedError: Worker processes cannot be started.
    """
    progress = progress or Progress()
    context = plan.context
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir):
        # Another run may have written into the folder since the plan was made.
        records = _read_records(plan.out_dir)
        if any(record.options != context.options for record in records.values()):
            raise OutputError(f"{plan.out_dir}: another run has changed it", _HINT_CHANGED)
        _remove_leftovers(plan)
        made: dict[str, FramesRecord] = {}
        failures = {failure.scene_id: failure for failure in plan.failures}
        if plan.tasks:
            write_if_changed(plan.out_dir / NOTICE_NAME, NOTICE_TEXT.encode())
            make_directory(context.work_dir)
        try:
            with progress.work("frames", len(plan.tasks) + len(plan.kept), "scenes"):
                progress.advance(len(plan.kept))
                for task, outcome in run_tasks(
                    make_scene_folder, plan.tasks, context, jobs, executor
                ):
                    if isinstance(outcome, Finding):
                        failures[str(task.scene_id)] = outcome
                    else:
                        made[str(task.scene_id)], work_path = outcome
                        _move_in(work_path, task.path)
                    progress.advance()
        finally:
            write_failed_list(plan.out_dir, failures)
            _remove_leftovers(plan)
    extracted = [*made.values(), *plan.kept]
    return FramesReport(
        out_dir=plan.out_dir,
        made=tuple(sorted(made)),
        kept=tuple(str(record.scene_id) for record in plan.kept),
        failures=tuple(failure for _, failure in sorted(failures.items())),
        frames=sum(len(record.frames) for record in extracted),
        lost_frames=sum(len(record.lost) for record in extracted),
        size_bytes=sum(record.size_bytes for record in extracted),
    )


def _remove_leftovers(plan: FramesPlan) -> None:
    """Remove the work folder, and temporary files of notices and lists."""
    shutil.rmtree(plan.context.work_dir, ignore_errors=True)
    remove_temporaries(plan.out_dir)


def _move_in(work_path: Path, path: Path) -> None:
    """Move the folder of a scene to its final name.

    Raises:
        OutputError: It cannot be moved.
    """
    outdated_path = work_path.with_name(f"{work_path.name}-outdated")
    with writing(path):
        if path.exists():
            path.replace(outdated_path)
        work_path.replace(path)
    shutil.rmtree(outdated_path, ignore_errors=True)


def make_scene_folder(task: SceneTask, context: FramesContext) -> tuple[FramesRecord, Path]:
    """Extract a scene into the work folder, in a worker. If it fails, its files are removed.

    Returns:
        Its record, and the folder.

    Raises:
        FileError: A source is missing or damaged, or something is in the way of its folder.
        OutputError: The folder cannot be written to.
    """
    if task.scene.problem:
        raise FileError(task.source, task.scene.problem)
    if os.path.lexists(task.path) and not (task.path / RECORD_NAME).is_file():
        raise FileError(task.path, "is in the way", "remove or rename it")
    work_path = context.work_dir / secrets.token_hex(8)
    try:
        record = extract_scene(
            task.scene, task.split, context.options, context.label_map, out_dir=work_path
        )
    except BaseException as error:
        # Not only at the end of the run: many scenes may fail in the same way.
        shutil.rmtree(work_path, ignore_errors=True)
        if isinstance(error, FileError) and not error.hint:
            raise type(error)(error.path, error.problem, repair_hint(error.path)) from None
        raise
    return record, work_path
