"""Raw scenes in, processed folder out: `plan`, then `run`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from scannet_prep.errors import FileError, MissingFileError, OutputError, UnknownSplitError, UsageError, WorkerDiedError
from scannet_prep.export import is_export
from scannet_prep.failures import SceneFailure, list_some
from scannet_prep.files import (
    check_is_folder,
    make_directory,
    put_in_place,
    remove_file,
    remove_temporaries,
    run_lock,
)
from scannet_prep.labels import label_map_for
from scannet_prep.processed import folder
from scannet_prep.processed.manifest import Manifest, encode_manifest, read_manifest, shards_of
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.progress import Progress
from scannet_prep.raw import lock
from scannet_prep.raw.layout import RawScene, find_raw_scenes, find_strangers
from scannet_prep.release import MESH, SPLIT_DIRS
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.shards import Shard, Share
from scannet_prep.space import check_space
from scannet_prep.splits import find_official_split
from scannet_prep.stages.pool import run_tasks
from scannet_prep.stages.process import scene_worker
from scannet_prep.stages.process.scene_worker import FinishedScene, ProcessContext, ProcessTask
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
        notes: What there is to know of the folder and the raw tree, in words.
        is_restricted: Whether only a part of the scenes was asked for.
        share: The shard that `tasks` and `failures` fall to; None where they are all that was asked for.
    """

    raw_dir: Path
    out_dir: Path
    context: ProcessContext
    tasks: tuple[ProcessTask, ...]
    failures: tuple[SceneFailure, ...]
    notes: tuple[str, ...]
    is_restricted: bool
    share: Share | None


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
    shard: Shard | None = None,
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
        shard: Which part of all that to do; other runs do the others, and a run without it merges them.

    Raises:
        MissingFileError: There are no raw scenes.
        OutputError: `out_dir` is not a folder.
        UsageError: `out_dir` is the raw tree, or a folder of scenes in it, or an export; or has other shards.
        LabelMapError: The label map beside them is damaged.
        UnknownSceneError: The selection contradicts itself.
        UnknownSplitError: There are no scenes of the splits that were asked for.
    """
    selection = selection or Selection()
    check_is_folder(out_dir)
    try:
        raw_scenes = find_raw_scenes(raw_dir)
    except MissingFileError:
        from scannet_prep.tree import identify_tree  # it knows archives, and takes time to load

        identify_tree(raw_dir)  # of all other places, it says what they are
        raise MissingFileError(raw_dir, "holds processed scenes, expected raw ones", "give the raw folder") from None
    _check_apart(raw_dir, out_dir, {scene.parent for scene in raw_scenes.values()})
    manifest = _read_known(out_dir)
    filed = {scene_id: entry.split for scene_id, entry in manifest.scenes.items()}
    selected, failures = select_scenes(raw_scenes, selection, raw_dir, filed)
    if not selected and not failures:
        raise UnknownSplitError(
            f"{raw_dir}: has {len(raw_scenes):,} scenes, but none of {', '.join(selection.splits)}",
            "ask for other splits, or download them",
        )
    share, is_restricted = None, selection != Selection()
    if shard is not None or shards_of(out_dir).exists():
        sizes = dict.fromkeys((failure.scene_id for failure in failures), 0)
        sizes |= {str(scene_id): _count_mesh_bytes(raw_scenes[scene_id]) for scene_id, _ in selected}
        if share := shards_of(out_dir).take(shard, sizes, asdict(options), is_restricted=is_restricted):
            selected = tuple(item for item in selected if item[0] in share.names)
            failures = tuple(failure for failure in failures if failure.scene_id in share.names)
    tasks = tuple(
        ProcessTask(raw_scenes[name], split, folder.processed_path(out_dir, split, name), manifest.scenes.get(name))
        for name, split in selected
    )
    strangers = [path.name for path in find_strangers(raw_scenes)]
    asked_for, notes = {task.scene.scene_id for task in tasks}, list[str]()
    counts = Counter((entry.options, name in asked_for) for name, entry in manifest.scenes.items())
    for (before, is_asked_for), count in counts.items():
        if before != options and (is_asked_for or share is None):
            then = "are made again" if is_asked_for else "were not asked for: the folder would hold both kinds"
            olds, news = asdict(before), asdict(options)
            changes = ", ".join(f"{key}: {old} -> {news[key]}" for key, old in olds.items() if old != news[key])
            notes.append(f"warning: scenes that were made with other options ({changes}) {then}; scenes: {count:,}")
    notes += [f"warning: {it.message}; only what is there is processed" for it in lock.shards_of(raw_dir).find_faults()]
    if strangers:
        names = f"{len(strangers):,} ({list_some(strangers)})"
        notes.append(f"warning: left out: folders whose names are not scene ids: {names}")
    return ProcessPlan(
        raw_dir=raw_dir,
        out_dir=out_dir,
        context=ProcessContext(options, label_map_for(raw_dir), is_forced, is_strict, is_lenient, compares_bytes),
        tasks=tasks,
        failures=failures,
        notes=tuple(notes),
        is_restricted=is_restricted,
        share=share,
    )


def _check_apart(raw_dir: Path, out_dir: Path, parents: Iterable[Path]) -> None:
    """Refuse to write among the raw scenes; a folder beside `scans` is none of theirs."""
    beside_scenes = {Path(os.path.realpath(folder)) for folder in parents}
    inside = {folder for folder in beside_scenes if folder.name in SPLIT_DIRS.values()}
    out, raw = (Path(os.path.realpath(folder)) for folder in (out_dir, raw_dir))  # which never raises
    if out in {raw, *beside_scenes, *(folder.parent for folder in inside)} or inside & set(out.parents):
        raise UsageError(f"{out_dir}: processed scenes would lie among the raw ones", "choose another output folder")
    if is_export(out_dir):
        raise UsageError(f"{out_dir}: processed scenes would lie among those of an export", "choose another folder")


def _read_known(out_dir: Path) -> Manifest:
    """Read what a processed folder holds, as far as its manifest can be read."""
    with suppress(FileError):  # rebuilt from the files
        return read_manifest(out_dir) or Manifest()
    return Manifest()


def _count_mesh_bytes(scene: RawScene) -> int:
    """Size of the mesh, as far as a scene can be made of it."""
    with suppress(OSError):  # that it cannot be read, the scene says
        size_bytes = os.stat(f"{scene.parent}/{scene.scene_id}/{scene.scene_id}{MESH.suffix}").st_size  # noqa: PTH116 - of all scenes
        return size_bytes if size_bytes <= MESH.max_bytes else 0
    return 0


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
    splits = {task.split for task in plan.tasks}
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir) if plan.share is None else nullcontext():
        folder.prepare_folder(plan.out_dir, splits)
        # What workers have made that was lost; of shards, the run that merges removes it.
        folders = (plan.out_dir, *(plan.out_dir / split for split in Split)) if plan.share is None else ()
        try:
            remove_temporaries(*folders)
            finished, failures = _run(plan, jobs, progress or Progress(), executor)
        finally:
            remove_temporaries(*folders)
        unfinished = folder.read_unfinished(plan.out_dir)
    warnings = ((name, warning) for name in sorted(finished) for warning in finished[name].entry.warnings)
    return ProcessReport(
        out_dir=plan.out_dir,
        made=tuple(sorted(name for name, item in finished.items() if item.temporary_path)),
        kept=tuple(sorted(name for name, item in finished.items() if not item.temporary_path)),
        failures=tuple(item for _, item in sorted(failures.items())),
        warnings=tuple(summarize_warnings(warnings)),
        vertices=sum(item.entry.vertex_count for item in finished.values()),
        size_bytes=sum(item.entry.size_bytes for item in finished.values()),
        unfinished=tuple(sorted(unfinished)),
    )


def _run(
    plan: ProcessPlan, jobs: int, progress: Progress, executor: Executor | None
) -> tuple[dict[str, FinishedScene], dict[str, SceneFailure]]:
    """Make the scenes; gives those that are there now, and those that failed."""
    out_dir, share = plan.out_dir, plan.share
    previous = _read_known(out_dir)  # another run may have changed it
    # Where a run had been interrupted, files may be others than the manifest says.
    known = {} if (out_dir / folder.UNFINISHED_NAME).exists() or not previous.is_complete else previous.scenes
    seen = scene_worker.read_seen(out_dir)
    finished = scene_worker.find_unchanged(plan.tasks, previous.scenes, plan.context, seen)
    failures = {failure.scene_id: failure for failure in plan.failures}
    tasks = [task for task in plan.tasks if task.scene.scene_id not in finished]
    if share is not None and not (tasks or failures) and share.is_covered_by({*previous.scenes, *previous.failures}):
        return finished, failures  # nothing to do, in a folder that was merged
    missing = [_count_mesh_bytes(task.scene) for task in tasks if not task.path.exists()]
    # Of the release, scenes take 22.6 B a vertex, and 22 B more with faces; the meshes take 41.
    check_space(out_dir, int(sum(missing) * (1.1 if plan.context.options.faces else 0.6)), len(missing))
    unfinished = folder.read_unfinished(out_dir) | {task.scene.scene_id for task in tasks}
    if is_marked := share is not None:
        share.begin()
    outcomes = run_tasks(scene_worker.make_scene_file, tasks, plan.context, jobs=jobs, executor=executor)
    with progress.work("process", len(plan.tasks), "scenes"), closing(outcomes):
        progress.advance(len(finished))
        for task, outcome in outcomes:
            scene_id = task.scene.scene_id
            if isinstance(outcome, OutputError):
                raise outcome
            if isinstance(outcome, WorkerDiedError):
                outcome = SceneFailure.from_exception(scene_id, outcome, task.scene.directory)
            if isinstance(outcome, SceneFailure):
                failures[scene_id] = outcome
                progress.status(f"{len(failures):,} failed")
            else:
                if outcome.temporary_path is not None:
                    # Not before it is known that a file will be replaced: a run that changes nothing must not disturb
                    # those who read.
                    if not is_marked:
                        folder.mark_unfinished(out_dir, unfinished)
                        is_marked = True
                    put_in_place(outcome.temporary_path, task.path)
                finished[scene_id] = outcome
            progress.advance()
    _remove_from_other_splits(out_dir, finished)
    entries = {name: item.entry for name, item in finished.items()}
    now_seen = {name: item.seen for name, item in finished.items()}
    if share is not None:
        scene_worker.write_seen(share.path(scene_worker.SHARD_SEEN_SUFFIX), now_seen)
        folder.write_failed_list(share.path(f".{folder.FAILED_NAME}"), failures)
        share.finish(encode_manifest(Manifest(entries, failures, program_version=VERSION)))
        return finished, failures
    failed = {name: item for name, item in previous.failures.items() if plan.is_restricted and name not in finished}
    scene_worker.write_seen(out_dir / scene_worker.SEEN_NAME, seen | now_seen)
    folder.record(out_dir, previous, Manifest({**known, **entries}, failed | failures, program_version=VERSION))
    folder.mark_finished(out_dir, finished.keys() | failures.keys() if plan.is_restricted else unfinished)
    return finished, failures


def _remove_from_other_splits(out_dir: Path, finished: Mapping[str, FinishedScene]) -> None:
    """A scene that no official list names lies in the split it was put into last, and in no other."""
    for scene_id, item in finished.items():
        if find_official_split(scene_id) is None:
            for split in set(Split) - {item.entry.split}:
                remove_file(folder.processed_path(out_dir, split, scene_id))
