"""Raw scenes in, processed folder out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from scannet_prep.errors import (
    AnnotationError,
    FileError,
    MissingFileError,
    OutputError,
    UnknownSplitError,
    UsageError,
    WorkerDiedError,
)
from scannet_prep.export import is_export
from scannet_prep.failures import SceneFailure
from scannet_prep.files import check_is_folder, make_directory, remove_file, remove_temporaries, run_lock
from scannet_prep.labels import label_map_for
from scannet_prep.processed.folder import (
    find_entries,
    is_unfinished,
    mark_finished,
    prepare_folder,
    processed_path,
    read_unfinished,
    write_failed_list,
)
from scannet_prep.processed.manifest import Manifest, read_manifest, write_manifest
from scannet_prep.processed.scene import ProcessOptions, read_meta
from scannet_prep.progress import Progress
from scannet_prep.raw.layout import RawScene, find_raw_scenes, find_strangers
from scannet_prep.release import MESH, SPLIT_DIRS
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.space import check_space
from scannet_prep.splits import find_official_split
from scannet_prep.stages.pool import run_in_workers
from scannet_prep.stages.process.scene_worker import (
    FinishedScene,
    ProcessTask,
    WorkContext,
    check_warnings,
    make_scene_file,
    read_seen,
    see_scene,
    write_seen,
)
from scannet_prep.stages.selection import Selection, select_scenes
from scannet_prep.version import VERSION


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What `run` is going to do; making it touches nothing.

    Attributes:
        raw_dir: Where the raw scenes are.
        out_dir: Where the processed ones go.
        context: How they are made.
        tasks: Scenes to make, or to keep where they are up to date.
        failures: Scenes that were asked for and cannot be had.
        existing: Scenes of `tasks` that the folder has, made with the same options (inputs are compared later).
        others: Scenes that the folder has, that are not among `tasks` and were made with other options, and what is
            different; a dataset of such a folder is refused.
        outdated: Scenes of `tasks` that the folder has, made with other options, and what is different.
        unlisted: Scenes of `tasks` that no official list names; they go into the one split that was asked for.
        strangers: Folders beside those of the scenes that are left out, because their names are not scene ids.
        is_restricted: Whether only a part of the scenes was asked for.
    """

    raw_dir: Path
    out_dir: Path
    context: WorkContext
    tasks: tuple[ProcessTask, ...]
    failures: tuple[SceneFailure, ...]
    existing: tuple[str, ...]
    others: Mapping[str, str] = field(hash=False)
    outdated: Mapping[str, str] = field(hash=False)
    unlisted: tuple[str, ...]
    strangers: tuple[str, ...]
    is_restricted: bool


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What `run` did.

    Attributes:
        out_dir: The processed folder.
        made: Scenes that were made.
        kept: Scenes that were up to date.
        failures: Scenes that could not be made.
        warnings: What was odd, each oddity once.
        vertices: Of all scenes made or kept.
        size_bytes: Size of their files.
        unfinished: Scenes that an interrupted run had still to make and that were not asked for now; until they are
            made, readers refuse the folder.
    """

    out_dir: Path
    made: tuple[str, ...]
    kept: tuple[str, ...]
    failures: tuple[SceneFailure, ...]
    warnings: tuple[WarningSummary, ...]
    vertices: int
    size_bytes: int
    unfinished: tuple[str, ...]


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
        UsageError: `out_dir` is the raw tree, or a folder of scenes in it, or an export.
        LabelMapError: The label map beside them is damaged.
        UnknownSceneError: The selection contradicts itself.
        UnknownSplitError: There are no scenes of the splits that were asked for.
    """
    selection = selection or Selection()
    check_is_folder(out_dir)
    try:
        raw_scenes = find_raw_scenes(raw_dir)
    except MissingFileError:
        from scannet_prep.tree import explain_no_raw_scenes  # it knows archives, and takes time to load

        explain_no_raw_scenes(raw_dir)
        raise
    _check_apart(raw_dir, out_dir, raw_scenes.values())
    manifest = _read_manifest(out_dir)
    filed = {scene_id: entry.split for scene_id, entry in manifest.scenes.items()}
    selected, failures = select_scenes(raw_scenes, selection, raw_dir, filed)
    if not selected and not failures:
        raise UnknownSplitError(
            f"{raw_dir}: has {len(raw_scenes):,} scenes, but none of {', '.join(selection.splits)}",
            "ask for other splits, or download them",
        )
    tasks = tuple(
        ProcessTask(raw_scenes[scene_id], split, processed_path(out_dir, split, scene_id))
        for scene_id, split in selected
    )
    found = _find_options(manifest, tasks)
    differences = {made_with: ", ".join(made_with.differences(options)) for made_with in set(found.values())}
    changes = {name: differences[made_with] for name, made_with in found.items()}
    asked_for = {task.scene.scene_id for task in tasks}
    return ProcessPlan(
        raw_dir=raw_dir,
        out_dir=out_dir,
        context=WorkContext(options, label_map_for(raw_dir), is_forced, is_strict, is_lenient, compares_bytes),
        tasks=tasks,
        failures=failures,
        existing=tuple(name for name, change in changes.items() if name in asked_for and not change),
        others={name: change for name, change in changes.items() if name not in asked_for and change},
        outdated={name: change for name, change in changes.items() if name in asked_for and change},
        unlisted=tuple(scene_id for scene_id, _ in selected if find_official_split(scene_id) is None),
        strangers=tuple(path.name for path in find_strangers(raw_scenes)),
        is_restricted=selection != Selection(),
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
        OutputError: The folder cannot be written to, or the disk is full, or lacks room from the start.
        WorkerDiedError: Worker processes cannot be started.
    """
    progress = progress or Progress()
    splits = {task.split for task in plan.tasks}
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir):
        prepare_folder(plan.out_dir, splits)
        for directory in (plan.out_dir, *(plan.out_dir / split for split in splits)):
            remove_temporaries(directory)
        return _run_locked(plan, jobs, progress)


def _run_locked(plan: ProcessPlan, jobs: int, progress: Progress) -> ProcessReport:
    previous = _read_manifest(plan.out_dir)  # another run may have changed it
    # After an interruption, files may be others than the manifest says.
    trusted = {} if is_unfinished(plan.out_dir) else previous.scenes
    seen = read_seen(plan.out_dir)
    finished: dict[str, FinishedScene] = {}
    failures = {failure.scene_id: failure for failure in plan.failures}
    tasks = []
    for task in plan.tasks:
        task = replace(task, recorded=previous.scenes.get(task.scene.scene_id))
        kept = _find_unchanged(task, seen, plan.context)
        if kept is None:
            tasks.append(task)
        else:
            finished[task.scene.scene_id] = kept
    _check_room(plan.out_dir, tasks, plan.context.options)
    unfinished = read_unfinished(plan.out_dir) | {task.scene.scene_id for task in tasks}
    context = replace(plan.context, run_pid=os.getpid(), unfinished=frozenset(unfinished))
    with progress.work("process", len(plan.tasks), "scenes"):
        progress.advance(len(finished))
        for task, outcome in run_in_workers(make_scene_file, tasks, context, jobs=jobs):
            scene_id = task.scene.scene_id
            if isinstance(outcome, OutputError):
                raise outcome
            if isinstance(outcome, WorkerDiedError):
                outcome = SceneFailure.from_exception(scene_id, outcome, task.scene.directory)
            if isinstance(outcome, SceneFailure):
                failures[scene_id] = outcome
                progress.status(f"{len(failures):,} failed")
            else:
                finished[scene_id] = outcome
            progress.advance()
    _remove_from_other_splits(plan.out_dir, finished)
    older = previous.failures if plan.is_restricted else {}
    failed = {name: item for name, item in older.items() if name not in finished} | failures
    entries = {**trusted, **{name: item.entry for name, item in finished.items()}}
    # An older result of a scene that failed may be whole, but nobody knows whether it is still right. What is damaged,
    # and was not asked for now, `verify` names.
    scenes, _ = find_entries(plan.out_dir, entries, failed)
    manifest = Manifest(scenes, failed, program_version=VERSION)
    if manifest != previous:
        write_manifest(plan.out_dir, manifest)
    write_failed_list(plan.out_dir, manifest.failures)
    mark_finished(plan.out_dir, finished.keys() | failures.keys() if plan.is_restricted else unfinished)
    now = {name: item.seen for name, item in finished.items()}
    known = {name: item for name, item in (seen | now).items() if name in manifest.scenes}
    if known != seen:
        with suppress(OutputError):  # it only saves time
            write_seen(plan.out_dir, known)
    return _report(plan, finished, failures.values())


def _check_room(out_dir: Path, tasks: Iterable[ProcessTask], options: ProcessOptions) -> None:
    """Check that the disk holds the scenes that are not there yet.

    Of the release, they take 22.6 B a vertex, and 22 B more with faces; the meshes take 41.
    """
    missing = [task for task in tasks if not task.path.exists()]
    mesh_bytes = 0
    for task in missing:
        with suppress(OSError):  # that it cannot be read, the scene says
            size_bytes = task.scene.path(MESH).stat().st_size
            mesh_bytes += size_bytes if size_bytes <= MESH.max_bytes else 0  # no scene is made of such a file
    check_space(out_dir, int(mesh_bytes * (1.1 if options.faces else 0.6)), len(missing))


def _find_unchanged(task: ProcessTask, seen: Mapping[str, str], context: WorkContext) -> FinishedScene | None:
    """A scene whose files are as the last run saw them, so that its file need not be opened; None where it must be."""
    entry = task.recorded
    if entry is None or context.is_forced or context.compares_bytes or task.scene.problem:
        return None
    if (entry.split, entry.options) != (task.split, context.options):
        return None
    known = see_scene(task, context.label_map)
    try:
        check_warnings(task, entry.warnings, context)
    except AnnotationError:  # the worker finds it again
        return None
    return FinishedScene(entry, known, is_new=False) if known == seen.get(task.scene.scene_id) else None


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
        vertices=sum(item.entry.vertex_count for item in finished.values()),
        size_bytes=sum(item.entry.fingerprint.size_bytes for item in finished.values()),
        unfinished=tuple(sorted(read_unfinished(plan.out_dir))),
    )


def _check_apart(raw_dir: Path, out_dir: Path, scenes: Iterable[RawScene]) -> None:
    """Refuse to write among the raw scenes; a folder beside `scans` is none of theirs."""
    beside_scenes = {Path(os.path.realpath(folder)) for folder in {scene.directory.parent for scene in scenes}}
    inside = {folder for folder in beside_scenes if folder.name in SPLIT_DIRS.values()}
    out, raw = (Path(os.path.realpath(folder)) for folder in (out_dir, raw_dir))  # which never raises
    if out in {raw, *beside_scenes, *(folder.parent for folder in inside)} or inside & set(out.parents):
        raise UsageError(f"{out_dir}: processed scenes would lie among the raw ones", "choose another folder with -o")
    if is_export(out_dir):
        raise UsageError(f"{out_dir}: processed scenes would lie among those of an export", "choose another folder")


def _read_manifest(out_dir: Path) -> Manifest:
    with suppress(FileError):  # rebuilt from the files
        return read_manifest(out_dir) or Manifest()
    return Manifest()


def _find_options(manifest: Manifest, tasks: tuple[ProcessTask, ...]) -> dict[str, ProcessOptions]:
    """How the scenes that the folder already has were made: the manifest knows, else their files."""
    found = {name: entry.options for name, entry in manifest.scenes.items()}
    for task in tasks:
        if not task.path.exists():
            found.pop(task.scene.scene_id, None)
        elif task.scene.scene_id not in found:
            with suppress(FileError):  # truncated, or not ours: made again
                found[task.scene.scene_id] = read_meta(task.path, task.scene.scene_id, task.split).options
    return found


def _remove_from_other_splits(out_dir: Path, finished: Mapping[str, FinishedScene]) -> None:
    """A scene that no official list names lies in the split it was put into last, and in no other."""
    for scene_id, item in finished.items():
        if find_official_split(scene_id) is None:
            for split in set(Split) - {item.entry.split}:
                remove_file(processed_path(out_dir, split, scene_id))
