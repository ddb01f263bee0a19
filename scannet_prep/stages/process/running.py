"""Makes the scenes of a plan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from scannet_prep.errors import AnnotationError, OutputError, WorkerDiedError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Leader, make_directory, mark_run, remove_file, remove_temporaries, run_lock
from scannet_prep.processed.folder import (
    FAILED_NAME,
    find_entries,
    is_unfinished,
    mark_finished,
    mark_unfinished,
    prepare_folder,
    processed_path,
    read_unfinished,
    write_failed_list,
)
from scannet_prep.processed.manifest import Manifest, encode_manifest, shards_of, write_manifest
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.progress import Progress
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import summarize_warnings
from scannet_prep.space import check_space
from scannet_prep.splits import find_official_split
from scannet_prep.stages.pool import run_tasks
from scannet_prep.stages.process.planning import ProcessPlan, ProcessReport, count_mesh_bytes, read_known
from scannet_prep.stages.process.scene_worker import (
    SEEN_NAME,
    SHARD_SEEN_SUFFIX,
    FinishedScene,
    ProcessTask,
    WorkContext,
    check_warnings,
    make_scene_file,
    read_seen,
    see_scene,
    write_seen,
)
from scannet_prep.version import VERSION


def run(
    plan: ProcessPlan, *, jobs: int = 1, progress: Progress | None = None, executor: Executor | None = None
) -> ProcessReport:
    """Make the scenes of a plan. What is up to date is kept; one bad scene never stops the others.

    Each scene is written to a temporary name and renamed, so that a run that ends early, however it ends, leaves whole
    scenes, and the next one goes on from there.

    Args:
        plan: From `plan`. A shard takes no lock.
        jobs: Number of worker processes.
        progress: Told of every scene.
        executor: Does the work instead of worker processes; its workers see the same folders under the same names.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full, or lacks room from the start.
        LockedError: Another run is writing into the folder.
        WorkerDiedError: Worker processes cannot be started, or the executor takes no more tasks.
    """
    progress = progress or Progress()
    splits = {task.split for task in plan.tasks}
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir) if plan.share is None else nullcontext():
        prepare_folder(plan.out_dir, splits)
        for directory in (plan.out_dir, *(plan.out_dir / split for split in splits)) if plan.share is None else ():
            remove_temporaries(directory)
        with nullcontext(os.getpid()) if executor is None else mark_run(plan.out_dir) as leader:
            return _run(plan, jobs, progress, executor, leader)


def _run(plan: ProcessPlan, jobs: int, progress: Progress, executor: Executor | None, leader: Leader) -> ProcessReport:
    previous = read_known(plan.out_dir)  # another run may have changed it
    finished, tasks = _keep_unchanged(plan, previous, read_seen(plan.out_dir))
    failures = {failure.scene_id: failure for failure in plan.failures}
    share, was_finished = plan.share, previous.is_complete and not is_unfinished(plan.out_dir)
    known = previous.scenes.keys() | previous.failures.keys()
    if share is not None and not (tasks or failures) and share.is_covered_by(known):
        return _report(plan, finished, ())  # nothing to do, in a folder that was merged
    _check_room(plan.out_dir, tasks, plan.context.options)
    unfinished = frozenset(read_unfinished(plan.out_dir) | {task.scene.scene_id for task in tasks})
    context = replace(plan.context, leader=leader)
    if share is not None:
        share.begin()
    elif executor is None:
        context = replace(context, unfinished=unfinished)  # a worker marks the folder, if it has to
    elif tasks:
        mark_unfinished(plan.out_dir, unfinished)
    with progress.work("process", len(plan.tasks), "scenes"):
        progress.advance(len(finished))
        for task, outcome in run_tasks(make_scene_file, tasks, context, jobs=jobs, executor=executor):
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
    if share is None:
        _merge(plan, previous, finished, failures, was_finished=was_finished)
        mark_finished(plan.out_dir, finished.keys() | failures.keys() if plan.is_restricted else unfinished)
    else:
        scenes = {name: item.entry for name, item in finished.items()}
        write_seen(share.path(SHARD_SEEN_SUFFIX), {name: item.seen for name, item in finished.items()})
        write_failed_list(share.path(f".{FAILED_NAME}"), failures)
        share.finish(encode_manifest(Manifest(scenes, failures, program_version=VERSION)))
    return _report(plan, finished, failures.values())


def _keep_unchanged(
    plan: ProcessPlan, previous: Manifest, seen: Mapping[str, str]
) -> tuple[dict[str, FinishedScene], list[ProcessTask]]:
    """Sort out what need not be looked at: gives those scenes, and the tasks that are left."""
    finished, tasks = dict[str, FinishedScene](), []
    for task in plan.tasks:
        task = replace(task, recorded=previous.scenes.get(task.scene.scene_id))
        if kept := _find_unchanged(task, seen, plan.context):
            finished[task.scene.scene_id] = kept
        else:
            tasks.append(task)
    return finished, tasks


def _merge(
    plan: ProcessPlan,
    previous: Manifest,
    finished: Mapping[str, FinishedScene],
    failures: Mapping[str, SceneFailure],
    *,
    was_finished: bool,
) -> None:
    """Write what the folder holds now into one manifest, with what shards have made.

    Args:
        plan: The plan.
        previous: What was known before.
        finished: What this run has made or kept.
        failures: What it could not make.
        was_finished: Whether no run had been interrupted; else files may be others than `previous` says.
    """
    shards = shards_of(plan.out_dir)
    failed = {name: item for name, item in previous.failures.items() if plan.is_restricted and name not in finished}
    failed |= failures
    entries = {**(previous.scenes if was_finished else {}), **{name: item.entry for name, item in finished.items()}}
    # An older result of a scene that failed may be whole, but nobody knows whether it is still right. What is damaged,
    # and was not asked for now, `verify` names.
    scenes, _ = find_entries(plan.out_dir, entries, failed)
    manifest = Manifest(scenes, failed, program_version=VERSION)
    if manifest != previous or shards.exists():
        write_manifest(plan.out_dir, manifest)
    seen = read_seen(plan.out_dir) | {name: item.seen for name, item in finished.items()}
    write_seen(plan.out_dir / SEEN_NAME, {name: item for name, item in seen.items() if name in scenes})
    shards.remove()
    write_failed_list(plan.out_dir / FAILED_NAME, failed)


def _check_room(out_dir: Path, tasks: Iterable[ProcessTask], options: ProcessOptions) -> None:
    """Check that the disk holds the scenes that are not there yet.

    Of the release, they take 22.6 B a vertex, and 22 B more with faces; the meshes take 41.
    """
    missing = [task for task in tasks if not task.path.exists()]
    mesh_bytes = sum(count_mesh_bytes(task.scene) for task in missing)
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
        shard=plan.shard,
    )


def _remove_from_other_splits(out_dir: Path, finished: Mapping[str, FinishedScene]) -> None:
    """A scene that no official list names lies in the split it was put into last, and in no other."""
    for scene_id, item in finished.items():
        if find_official_split(scene_id) is None:
            for split in set(Split) - {item.entry.split}:
                remove_file(processed_path(out_dir, split, scene_id))
