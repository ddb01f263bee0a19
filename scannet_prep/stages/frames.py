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

import msgspec

from scannet_prep.base.files import (
    check_is_folder,
    have_sizes,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import FileError, MissingFileError, UsageError
from scannet_prep.frames.extraction import extract_scene, measure_sources
from scannet_prep.frames.options import STREAM, FrameOptions
from scannet_prep.frames.record import RECORD_NAME, FramesRecord, find_records, read_record
from scannet_prep.raw.sensor_stream import SensorStream
from scannet_prep.raw.tree import find_raw_scenes, repair_hint
from scannet_prep.release.files import NOTICE_NAME
from scannet_prep.release.label_map import LabelMap, label_map_for
from scannet_prep.release.scene import SceneId
from scannet_prep.stages import scene_run
from scannet_prep.stages.selection import (
    FAILED_NAME,
    SceneTask,
    Selection,
    select_scenes,
)

_HINT_FOLDER = "choose a new folder with -o"
_HINT_STREAMS = (
    "download those of some scenes, with --types .sens --scenes: all of them have 1.2 TB, each "
    "about 0.8 GB; for 2D labels, add _2d-label-filt.zip and _2d-instance-filt.zip to --types"
)


class FrameCount(NamedTuple):
    """The number of frames of a scene.

    Attributes:
        frames: The frames that are extracted.
        lost: The frames without tracking.
    """

    frames: int
    lost: int


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


class FramesManifest(msgspec.Struct, frozen=True):
    """The content of a folder: the records of its scenes."""

    scenes: Mapping[str, FramesRecord] = {}
    failures: Mapping[str, Finding] = {}
    unfinished: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FramesPlan:
    """The work of one run; making the plan writes nothing.

    Attributes:
        raw_dir: The raw tree.
        out_dir: The folder for the frames.
        context: What all scenes share.
        before: What the folder holds.
        tasks: The scenes to extract.
        kept: The records of selected scenes that are up to date.
        without_stream: Scenes that were not named, and have neither a sensor stream nor frames.
        failures: Scenes that were named, and cannot be extracted.
    """

    raw_dir: Path
    out_dir: Path
    context: FramesContext
    before: FramesManifest
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
    before = _read_manifest(out_dir)
    records = {SceneId(name): record for name, record in before.scenes.items()}
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
        context=FramesContext(chosen, label_map, out_dir / scene_run.WORK_NAME),
        before=before,
        tasks=tuple(tasks),
        kept=tuple(kept),
        without_stream=tuple(sorted(raw_scenes.keys() - candidates)),
        failures=tuple(failures),
    )


def _read_manifest(out_dir: Path) -> FramesManifest:
    """Read the records of all scenes of a folder."""
    paths = find_records(out_dir)
    return FramesManifest({name: read_record(path) for name, path in paths.items()})


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
    """Extract the scenes of a plan; arguments and errors are those of `scene_run.run`."""
    work = scene_run.RunPlan(
        stage=_STAGE,
        source=plan.raw_dir,
        out_dir=plan.out_dir,
        about=plan.context.options.text,
        context=plan.context,
        before=plan.before,
        head=FramesManifest(),
        tasks=plan.tasks,
        kept=tuple(str(record.scene_id) for record in plan.kept),
        failures=plan.failures,
    )
    report = scene_run.run(work, jobs=jobs, progress=progress, executor=executor)
    extracted = [report.manifest.scenes[name] for name in (*report.made, *report.kept)]
    return FramesReport(
        out_dir=plan.out_dir,
        made=report.made,
        kept=report.kept,
        failures=report.failures,
        frames=sum(len(record.frames) for record in extracted),
        lost_frames=sum(len(record.lost) for record in extracted),
        size_bytes=sum(record.size_bytes for record in extracted),
    )


def make_scene_folder(
    task: SceneTask, context: FramesContext
) -> tuple[dict[Path, Path], FramesRecord]:
    """Extract a scene into the work folder, in a worker. If it fails, its files are removed.

    Returns:
        The folder by its final name, and its record.

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
    return {task.path: work_path}, record


_STAGE = scene_run.Stage(
    name="frames", make=make_scene_folder, read=_read_manifest, write=lambda _, __: None
)
