"""Raw scenes in, processed folder out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scannet_prep.errors import AnnotationError, FileError, OutputError, UnknownSplitError, WorkerDiedError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import check_is_folder, make_directory, remove_temporaries, run_lock
from scannet_prep.labels import LabelMap, builtin_label_map, find_label_map, read_label_map
from scannet_prep.processed.folder import find_processed_scenes, is_unfinished, prepare_folder, processed_path
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, read_manifest
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.state import read_scene_file
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.splits import find_official_split
from scannet_prep.stages.pool import run_in_workers
from scannet_prep.stages.process.record import update_folder
from scannet_prep.stages.process.scene_worker import (
    FinishedScene,
    ProcessTask,
    WorkContext,
    check_warnings,
    make_scene_file,
)
from scannet_prep.stages.process.seen import FileSeen, SceneSeen, look_at, look_at_scene, read_seen, write_seen
from scannet_prep.stages.selection import Selection, select_scenes
from scannet_prep.stages.tree import find_scenes_to_process


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What `run` is going to do; making it touches nothing.

    Attributes:
        raw_dir: Where the raw scenes are.
        out_dir: Where the processed ones go.
        options: How they are made.
        manifest: What the folder's manifest says; empty where there is none, or a damaged one.
        manifest_seen: What that file was like.
        label_map: Ids by raw category; the one beside the raw scenes, else the built-in one.
        tasks: Scenes to make, or to keep where they are up to date.
        failures: Scenes that were asked for and cannot be had.
        existing: Scenes of `tasks` that the folder has, made with the same options (inputs are compared later).
        others: Scenes that the folder has, that are not among `tasks` and were made with other options, and what is
            different; a dataset of such a folder is refused.
        outdated: Scenes of `tasks` that the folder has, made with other options, and what is different.
        unlisted: Scenes of `tasks` that no official list names; they go into the one split that was asked for.
        is_restricted: Whether only a part of the scenes was asked for.
        is_forced: Whether scenes are made again even where they are up to date.
        is_strict: Whether doubts about labels are errors.
        is_lenient: Whether damage that leaves a scene without alignment, groups or normals is only a warning.
        compares_bytes: Whether all files are read, and not taken for unchanged by their sizes and times.
    """

    raw_dir: Path
    out_dir: Path
    options: ProcessOptions
    manifest: Manifest = field(repr=False)
    manifest_seen: FileSeen
    label_map: LabelMap
    tasks: tuple[ProcessTask, ...]
    failures: tuple[SceneFailure, ...]
    existing: tuple[str, ...]
    others: Mapping[str, str] = field(hash=False)
    outdated: Mapping[str, str] = field(hash=False)
    unlisted: tuple[str, ...]
    is_restricted: bool
    is_forced: bool
    is_strict: bool
    is_lenient: bool
    compares_bytes: bool


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What `run` did.

    Attributes:
        out_dir: The processed folder.
        made: Scenes that were made.
        kept: Scenes that were up to date.
        failures: Scenes that could not be made.
        warnings: What was odd, each oddity once.
        vertex_count: Vertices of all scenes made or kept.
        size_bytes: Size of their files.
    """

    out_dir: Path
    made: tuple[str, ...]
    kept: tuple[str, ...]
    failures: tuple[SceneFailure, ...]
    warnings: tuple[WarningSummary, ...]
    vertex_count: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "out_dir": str(self.out_dir),
            "made": list(self.made),
            "kept": list(self.kept),
            "failures": [item.to_json() for item in self.failures],
            "warnings": [
                {"kind": str(item.warning.kind), "text": item.warning.text, "scenes": list(item.scene_ids)}
                for item in self.warnings
            ],
            "vertices": self.vertex_count,
            "size_bytes": self.size_bytes,
        }


def plan(
    raw_dir: Path,
    out_dir: Path,
    options: ProcessOptions,
    *,
    selection: Selection | None = None,
    is_forced: bool = False,
    is_strict: bool = False,
    is_lenient: bool = False,
    compares_bytes: bool = False,
) -> ProcessPlan:
    """Decide what to do; nothing is written.

    Args:
        raw_dir: Folder with `scans/` and `scans_test/`, or with the scene folders themselves.
        out_dir: Folder for the processed scenes.
        options: How to make them.
        selection: Which scenes; all by default.
        is_forced: Make scenes again even where they are up to date.
        is_strict: Treat doubts about labels, such as an unknown raw category, as errors.
        is_lenient: Take damage that leaves a train or val scene without alignment, groups or normals for a warning.
        compares_bytes: Read all files; else those whose size, time and inode are as before count as unchanged.

    Raises:
        MissingFileError: There are no raw scenes.
        OutputError: `out_dir` is not a folder.
        LabelMapError: The label map beside them is damaged.
        UnknownSceneError: The selection contradicts itself.
        UnknownSplitError: There are no scenes of the splits that were asked for.
    """
    selection = selection or Selection()
    check_is_folder(out_dir)
    raw_scenes = find_scenes_to_process(raw_dir)
    label_map_path = find_label_map(raw_dir)
    label_map = builtin_label_map() if label_map_path is None else read_label_map(label_map_path)
    manifest_seen, manifest = look_at(str(out_dir / MANIFEST_NAME)), _read_manifest(out_dir)
    filed = {scene_id: entry.split for scene_id, entry in manifest.scenes.items()}
    selected = select_scenes(raw_scenes, selection, raw_dir, filed)
    if not selected.scenes and not selected.failures:
        raise UnknownSplitError(
            f"{raw_dir}: has {len(raw_scenes):,} scenes, but none of {', '.join(selection.splits)}",
            "ask for other splits, or download them",
        )
    tasks = tuple(
        ProcessTask(raw_scenes[scene_id], split, processed_path(out_dir, split, scene_id))
        for scene_id, split in selected.scenes
    )
    found = _find_options(out_dir, manifest, tasks)
    asked_for = {task.scene.scene_id for task in tasks}
    return ProcessPlan(
        raw_dir=raw_dir,
        out_dir=out_dir,
        options=options,
        manifest=manifest,
        manifest_seen=manifest_seen,
        label_map=label_map,
        tasks=tasks,
        failures=selected.failures,
        existing=tuple(scene_id for scene_id, made_with in found.items() if made_with == options),
        others={
            scene_id: ", ".join(entry.options.differences(options))
            for scene_id, entry in manifest.scenes.items()
            if scene_id not in asked_for and entry.options != options
        },
        outdated={
            scene_id: ", ".join(made_with.differences(options))
            for scene_id, made_with in found.items()
            if made_with != options
        },
        unlisted=tuple(scene_id for scene_id, _ in selected.scenes if find_official_split(scene_id) is None),
        is_restricted=selection != Selection(),
        is_forced=is_forced,
        is_strict=is_strict,
        is_lenient=is_lenient,
        compares_bytes=compares_bytes,
    )


def run(plan: ProcessPlan, *, jobs: int = 1, progress: Progress | None = None) -> ProcessReport:
    """Make the scenes of a plan. What is up to date is kept; one bad scene never stops the others.

    Each scene is written to a temporary name and renamed, so that a run that ends early, however it ends, leaves whole
    scenes, and the next one goes on from there.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Told of every scene.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full.
        WorkerDiedError: Worker processes cannot be started.
    """
    progress = progress or NoProgress()
    splits = {task.split for task in plan.tasks}
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir):
        prepare_folder(plan.out_dir, splits)
        for directory in (plan.out_dir, *(plan.out_dir / split for split in splits)):
            remove_temporaries(directory)
        return _run_locked(plan, jobs, progress)


def _run_locked(plan: ProcessPlan, jobs: int, progress: Progress) -> ProcessReport:
    context = WorkContext(
        plan.options, plan.label_map, plan.is_forced, plan.is_strict, plan.is_lenient, run_pid=os.getpid()
    )
    is_same = look_at(str(plan.out_dir / MANIFEST_NAME)) == plan.manifest_seen
    previous = plan.manifest if is_same else _read_manifest(plan.out_dir)
    seen, was_unfinished = read_seen(plan.out_dir), is_unfinished(plan.out_dir)
    finished: dict[str, FinishedScene] = {}
    failures = {failure.scene_id: failure for failure in plan.failures}
    tasks = []
    for task in plan.tasks:
        entry = previous.scenes.get(task.scene.scene_id)
        task = replace(task, recorded=None if entry is None else entry.fingerprint)
        kept = None if plan.compares_bytes else _find_unchanged(task, previous, seen, context)
        if kept is None:
            tasks.append(task)
        else:
            finished[task.scene.scene_id] = kept
    progress.start("process", len(plan.tasks), "scenes")
    progress.advance(len(finished))
    try:
        for task, outcome in run_in_workers(make_scene_file, tasks, context, jobs=jobs):
            scene_id = task.scene.scene_id
            if isinstance(outcome, OutputError):
                raise outcome
            if isinstance(outcome, WorkerDiedError):
                outcome = SceneFailure.from_exception(scene_id, outcome, task.scene.directory)
            if isinstance(outcome, SceneFailure):
                progress.note(f"{scene_id} failed: {outcome.message}")
                failures[scene_id] = outcome
            else:
                finished[scene_id] = outcome
            progress.advance()
    finally:
        progress.finish()
    manifest = update_folder(
        plan.out_dir,
        previous,
        finished,
        failures,
        is_restricted=plan.is_restricted,
        was_unfinished=was_unfinished,
    )
    now = {name: item.seen for name, item in finished.items()}
    known = {name: item for name, item in (seen | now).items() if name in manifest.scenes}
    if known != seen:
        with suppress(OutputError):  # it only saves time
            write_seen(plan.out_dir, known)
    return _report(plan, finished, failures.values())


def _find_unchanged(
    task: ProcessTask, previous: Manifest, seen: Mapping[str, SceneSeen], context: WorkContext
) -> FinishedScene | None:
    """A scene whose files are as the last run saw them, so that its file need not be opened; None where it must be."""
    scene_id = task.scene.scene_id
    entry, known = previous.scenes.get(scene_id), seen.get(scene_id)
    if entry is None or known is None or context.is_forced or task.scene.problem:
        return None
    is_same = (
        (entry.split, entry.options) == (task.split, context.options)
        and known.label_map in ("", context.label_map.digest)
        and known.output is not None
        and known == look_at_scene(task.scene, task.path, known.label_map)
    )
    try:
        check_warnings(task, entry.warnings, context)
    except AnnotationError:  # the worker finds it again
        return None
    return FinishedScene(entry, known, is_new=False) if is_same else None


def _report(
    plan: ProcessPlan, finished: Mapping[str, FinishedScene], failures: Iterable[SceneFailure]
) -> ProcessReport:
    warnings = ((name, warning) for name in sorted(finished) for warning in finished[name].entry.warnings)
    return ProcessReport(
        out_dir=plan.out_dir,
        made=tuple(sorted(name for name, item in finished.items() if item.is_new)),
        kept=tuple(sorted(name for name, item in finished.items() if not item.is_new)),
        failures=tuple(sorted(failures, key=lambda item: item.scene_id)),
        warnings=tuple(summarize_warnings(warnings)),
        vertex_count=sum(item.entry.vertex_count for item in finished.values()),
        size_bytes=sum(item.entry.fingerprint.size_bytes for item in finished.values()),
    )


def _read_manifest(out_dir: Path) -> Manifest:
    try:
        return read_manifest(out_dir) or Manifest()
    except FileError:
        return Manifest()  # rebuilt from the files


def _find_options(out_dir: Path, manifest: Manifest, tasks: tuple[ProcessTask, ...]) -> dict[str, ProcessOptions]:
    """How the scenes that the folder already has were made: the manifest knows, else their files."""
    present = find_processed_scenes(out_dir)
    found: dict[str, ProcessOptions] = {}
    for task in tasks:
        scene_id = task.scene.scene_id
        if scene_id in present and scene_id in manifest.scenes:
            found[scene_id] = manifest.scenes[scene_id].options
        elif scene_id in present:
            with suppress(FileError):  # truncated, or not ours: made again
                found[scene_id] = read_scene_file(task.path, task.split).options
    return found
