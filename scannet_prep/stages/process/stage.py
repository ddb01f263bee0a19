"""Raw scenes in, processed folder out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.errors import (
    ManifestError,
    OutputError,
    ScanNetPrepError,
    UnknownSplitError,
    WorkerDiedError,
)
from scannet_prep.failures import SceneFailure
from scannet_prep.files import check_is_folder, read_file, remove_stale_temporaries
from scannet_prep.labels import LabelMap, builtin_label_map, find_label_map, read_label_map
from scannet_prep.processed.folder import find_processed_scenes, prepare_folder, processed_path
from scannet_prep.processed.manifest import Manifest, read_manifest
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import parse_meta
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.raw.layout import find_raw_scenes
from scannet_prep.scene_warnings import SceneWarning, WarningSummary, summarize_warnings
from scannet_prep.splits import find_official_split
from scannet_prep.stages.pool import run_in_workers
from scannet_prep.stages.process.record import FinishedScene, Record
from scannet_prep.stages.process.scene_worker import SceneTask, WorkContext, make_scene_file
from scannet_prep.stages.selection import Selection, select_scenes


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What `run` is going to do; making it touches nothing.

    Attributes:
        raw_dir: Where the raw scenes are.
        out_dir: Where the processed ones go.
        options: How they are made.
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
    """

    raw_dir: Path
    out_dir: Path
    options: ProcessOptions
    label_map: LabelMap
    tasks: tuple[SceneTask, ...]
    failures: tuple[SceneFailure, ...]
    existing: tuple[str, ...]
    others: Mapping[str, str] = field(hash=False)
    outdated: Mapping[str, str] = field(hash=False)
    unlisted: tuple[str, ...]
    is_restricted: bool
    is_forced: bool
    is_strict: bool


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
            "failures": [
                {"scene_id": item.scene_id, "error": item.error, "message": item.message, "hint": item.hint}
                for item in self.failures
            ],
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
) -> ProcessPlan:
    """Decide what to do; nothing is written.

    Args:
        raw_dir: Folder with `scans/` and `scans_test/`, or with the scene folders themselves.
        out_dir: Folder for the processed scenes.
        options: How to make them.
        selection: Which scenes; all by default.
        is_forced: Make scenes again even where they are up to date.
        is_strict: Treat doubts about labels, such as an unknown raw category, as errors.

    Raises:
        MissingFileError: There are no raw scenes.
        OutputError: `out_dir` is no folder.
        LabelMapError: The label map beside them is damaged.
        UnknownSceneError: The selection contradicts itself.
        UnknownSplitError: There are no scenes of the splits that were asked for.
    """
    selection = selection or Selection()
    check_is_folder(out_dir)
    raw_scenes = find_raw_scenes(raw_dir)
    label_map_path = find_label_map(raw_dir)
    label_map = builtin_label_map() if label_map_path is None else read_label_map(label_map_path)
    manifest = _read_manifest(out_dir)
    filed = {scene_id: entry.split for scene_id, entry in manifest.scenes.items()}
    selected = select_scenes(raw_scenes, selection, raw_dir, filed)
    if not selected.scenes and not selected.failures:
        raise UnknownSplitError(
            f"{raw_dir}: has {len(raw_scenes):,} scenes, but none of {', '.join(selection.splits)}",
            "name other --splits, or download them",
        )
    tasks = tuple(
        SceneTask(raw_scenes[scene_id], split, processed_path(out_dir, split, scene_id))
        for scene_id, split in selected.scenes
    )
    found = _find_options(out_dir, manifest, tasks)
    asked_for = {task.scene.scene_id for task in tasks}
    return ProcessPlan(
        raw_dir=raw_dir,
        out_dir=out_dir,
        options=options,
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
    prepare_folder(plan.out_dir, splits)
    directories = (plan.out_dir, *(plan.out_dir / split for split in splits))
    _remove_leftovers(directories)
    record = Record(plan.out_dir, plan.options, is_restricted=plan.is_restricted)
    record.begin([task.scene.scene_id for task in plan.tasks])
    for failure in plan.failures:
        record.add_failure(failure)
    context = WorkContext(plan.options, plan.label_map, plan.is_forced, plan.is_strict)
    progress.start("process", len(plan.tasks), "scenes")
    is_complete = False
    try:
        for task, outcome in run_in_workers(make_scene_file, plan.tasks, context, jobs=jobs):
            _take(task, outcome, record, progress)
        is_complete = True
    finally:
        progress.finish()
        _remove_leftovers(directories)  # of workers that were killed meanwhile
        record.end(is_complete=is_complete)
    return _report(plan, record)


def _remove_leftovers(directories: tuple[Path, ...]) -> None:
    for directory in directories:
        remove_stale_temporaries(directory)


def _take(
    task: SceneTask,
    outcome: FinishedScene | SceneFailure | OutputError | WorkerDiedError,
    record: Record,
    progress: Progress,
) -> None:
    scene_id = task.scene.scene_id
    if isinstance(outcome, OutputError):
        raise outcome
    if isinstance(outcome, WorkerDiedError):
        hint = "memory may have run out: try again with --jobs 1"
        outcome = SceneFailure(scene_id, type(outcome).__name__, f"{task.scene.directory}: {outcome}", hint)
    if isinstance(outcome, SceneFailure):
        progress.note(f"{scene_id} failed: {outcome.message}")
        record.add_failure(outcome)
    else:
        record.add_scene(scene_id, outcome)
    progress.advance()


def _report(plan: ProcessPlan, record: Record) -> ProcessReport:
    finished = record.finished
    warnings: Iterator[tuple[str, SceneWarning]] = (
        (scene_id, warning) for scene_id in sorted(finished) for warning in finished[scene_id].entry.warnings
    )
    return ProcessReport(
        out_dir=plan.out_dir,
        made=tuple(sorted(scene_id for scene_id, item in finished.items() if item.is_new)),
        kept=tuple(sorted(scene_id for scene_id, item in finished.items() if not item.is_new)),
        failures=tuple(failure for _, failure in sorted(record.failures.items())),
        warnings=tuple(summarize_warnings(warnings)),
        vertex_count=sum(item.entry.vertex_count for item in finished.values()),
        size_bytes=sum(item.entry.fingerprint.size_bytes for item in finished.values()),
    )


def _read_manifest(out_dir: Path) -> Manifest:
    try:
        return read_manifest(out_dir) or Manifest()
    except ManifestError:
        return Manifest()  # `run` rebuilds it from the files


def _find_options(out_dir: Path, manifest: Manifest, tasks: tuple[SceneTask, ...]) -> dict[str, ProcessOptions]:
    """How the scenes that the folder already has were made: the manifest knows, else their files."""
    present = find_processed_scenes(out_dir)
    found: dict[str, ProcessOptions] = {}
    for task in tasks:
        scene_id = task.scene.scene_id
        if scene_id not in present:
            continue
        if scene_id in manifest.scenes:
            found[scene_id] = manifest.scenes[scene_id].options
            continue
        try:
            found[scene_id] = parse_meta(NpzReader(read_file(task.path), task.path), task.path).options
        except ScanNetPrepError:
            continue  # truncated, or not ours: made again
    return found
