"""Carry out a plan of `process`: make the scenes, put their files in place, and record them.

    plan --> lock the folder --> check that nobody changed it meanwhile
         --> mark it unfinished, once a file is to change
         --> tasks in workers --> temporary files --> final names
         --> manifest, failed.txt --> remove the mark

A kill at any moment leaves whole scenes and the mark, and the next run continues from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from scannet_prep.base.compiled import MIN_SCENES
from scannet_prep.base.disk import check_space
from scannet_prep.base.errors import LockedError
from scannet_prep.base.files import (
    make_directory,
    put_in_place,
    remove_file,
    remove_temporaries,
)
from scannet_prep.base.progress import Progress
from scannet_prep.base.run_lock import run_lock
from scannet_prep.base.version import VERSION
from scannet_prep.processed import folder
from scannet_prep.processed.manifest import Manifest, SceneEntry
from scannet_prep.release.findings import Finding
from scannet_prep.release.scene import Split
from scannet_prep.release.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.release.splits import find_official_split
from scannet_prep.stages.process import scene_worker
from scannet_prep.stages.process.planning import ProcessPlan, read_folder
from scannet_prep.stages.process.scene_worker import FinishedScene, ProcessTask, Reason
from scannet_prep.stages.process.seen import read_seen, write_seen
from scannet_prep.stages.scene_job import make_scenes

# Measured on the release: a processed scene takes 0.55 of the bytes of its mesh, or 1.1 with faces.
_SIZE_OF_MESH = 0.6
_SIZE_OF_MESH_WITH_FACES = 1.1

# Errors in the content of raw files. A result that was made before no longer holds then, and is removed. If raw files
# are missing or cannot be read, it stays.
_CONTENT_ERRORS = {
    "RawFileError",
    "AnnotationError",
}


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """The result of a run.

    Attributes:
        out_dir: The processed folder.
        made: Scenes that were made.
        kept: Scenes that were up to date, or whose raw files are gone.
        raw_gone: The kept scenes whose raw files are gone.
        failures: Scenes that could not be made.
        warnings: Oddities of the raw files, each once.
        vertices: Of all scenes made or kept.
        size_bytes: Size of their files.
        unfinished: Scenes that an interrupted run had still to make and that this run did not select. Until they are
            made, readers refuse the folder.
    """

    out_dir: Path
    made: tuple[str, ...]
    kept: tuple[str, ...]
    raw_gone: tuple[str, ...]
    failures: tuple[Finding, ...]
    warnings: tuple[WarningSummary, ...]
    vertices: int
    size_bytes: int
    unfinished: tuple[str, ...]


def run(
    plan: ProcessPlan,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> ProcessReport:
    """Make the scenes of a plan. Scenes that are up to date are kept; one bad scene never stops the others.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
        executor: Does the work instead of worker processes; its workers see the same folders under the same names.
            `jobs` is then the number of its workers, as far as numba is concerned.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full, or lacks room from the start.
        LockedError: Another run is writing into the folder, or has changed it since the plan was made.
        WorkerDiedError: Worker processes cannot be started, or the executor takes no more tasks.
    """
    out_dir = plan.out_dir
    make_directory(out_dir)
    with run_lock(out_dir):
        folder.prepare_folder(out_dir, {task.split for task in plan.tasks})
        # Temporary files of workers that were lost.
        folders = (out_dir, *(out_dir / split for split in Split))
        try:
            remove_temporaries(*folders)
            work = _ProcessRun(plan)
            work.begin()
            work.make(jobs, progress or Progress(), executor)
            work.end()
        finally:
            remove_temporaries(*folders)
        unfinished = folder.read_unfinished(out_dir)
    return work.report(unfinished)


class _ProcessRun:
    """One run, which holds the lock of the folder.

    Attributes:
        finished: The scenes that are in the folder by now, by id.
        failures: The scenes that failed, by id.
    """

    def __init__(self, plan: ProcessPlan) -> None:
        self._plan = plan
        self._out_dir = plan.out_dir
        self._previous = self._read_previous()
        self._tasks = [task for task in plan.tasks if task.reason is not Reason.UP_TO_DATE]
        self._unfinished = folder.read_unfinished(self._out_dir)
        # After an interruption, files may differ from what the manifest records.
        self._can_trust_manifest = not (self._out_dir / folder.UNFINISHED_NAME).exists()
        self._is_marked = False

        seen = read_seen(self._out_dir)
        self.failures = {failure.scene_id: failure for failure in plan.failures}
        self.finished: dict[str, FinishedScene] = {}
        for task in plan.tasks:
            scene_id = task.scene_id
            if task.reason is Reason.UP_TO_DATE and task.recorded is not None:
                self.finished[scene_id] = FinishedScene(task.recorded, seen.get(scene_id))

    def _read_previous(self) -> Manifest:
        """Read the manifest under the lock; refuse a folder that another run has changed since the plan was made."""
        found = read_folder(self._out_dir, is_forced=True)
        before = self._plan.before
        is_same = found.head is None
        if before is not None and found.head is not None:
            is_same = (found.head.options, found.head.label_map) == (
                before.options,
                before.label_map,
            )
        if not is_same:
            raise LockedError(
                f"{self._out_dir}: another run has changed the folder in the meantime",
                "run the same command again",
            )
        return found.manifest

    def begin(self) -> None:
        """Check that there is room. Record new options or a new label map before any scene is made with them."""
        context = self._plan.context
        missing = [task.mesh_bytes for task in self._tasks if not task.path.exists()]
        size_of_mesh = _SIZE_OF_MESH_WITH_FACES if context.options.faces else _SIZE_OF_MESH
        check_space(self._out_dir, int(sum(missing) * size_of_mesh), len(missing))
        if self._plan.starts_anew:
            # A folder with scenes is marked first: they are outdated as soon as the manifest changes. A new one gets
            # its options first: a run that is killed in between must be continued with them.
            if self._plan.before is not None:
                self._mark_unfinished()
            self._can_trust_manifest = False
            head = Manifest(context.options, context.label_map.digest, program_version=VERSION)
            folder.write_manifest(
                self._out_dir, msgspec.structs.replace(head, failures=self._previous.failures)
            )
            self._mark_unfinished()

    def make(self, jobs: int, progress: Progress, executor: Executor | None) -> None:
        """Make the scenes that are not up to date."""
        scene_count = sum(not task.reason.keeps_scene for task in self._tasks)
        context = replace(self._plan.context, uses_numba=scene_count >= MIN_SCENES * jobs)
        outcomes = make_scenes(
            scene_worker.make_scene_file, self._tasks, context, jobs=jobs, executor=executor
        )
        with progress.work("process", len(self._plan.tasks), "scenes"), closing(outcomes):
            progress.advance(len(self.finished))
            for task, outcome in outcomes:
                if isinstance(outcome, Finding):
                    self._fail(task, outcome)
                    progress.status(f"{len(self.failures):,} failed")
                else:
                    self._finish(task, outcome)
                progress.advance()

    def _finish(self, task: ProcessTask, scene: FinishedScene) -> None:
        if scene.temporary_path is not None:
            self._mark_unfinished()
            put_in_place(scene.temporary_path, task.path)
        self.finished[task.scene_id] = scene

    def _fail(self, task: ProcessTask, failure: Finding) -> None:
        self.failures[failure.scene_id] = failure
        is_outdated = (
            task.reason in {Reason.OPTIONS, Reason.LABEL_MAP} or failure.error in _CONTENT_ERRORS
        )
        if is_outdated and task.path.exists():
            self._mark_unfinished()
            remove_file(task.path)

    def _mark_unfinished(self) -> None:
        """Mark the folder, once a file is to change: a run that changes nothing must not disturb readers."""
        if not self._is_marked:
            scene_ids = self._unfinished | {task.scene_id for task in self._tasks}
            folder.mark_unfinished(self._out_dir, scene_ids)
            self._unfinished = scene_ids
            self._is_marked = True

    def end(self) -> None:
        """Record the scenes and remove the mark."""
        _remove_from_other_splits(self._out_dir, self.finished)
        now_seen = {
            name: scene.seen for name, scene in self.finished.items() if scene.seen is not None
        }
        write_seen(self._out_dir, read_seen(self._out_dir) | now_seen)

        known: dict[str, SceneEntry] = {}
        if self._can_trust_manifest:
            known.update(self._previous.scenes)
        known.update({name: scene.entry for name, scene in self.finished.items()})
        failures = dict(self.failures)
        if self._plan.is_restricted:
            for name, failure in self._previous.failures.items():
                if name not in self.finished:
                    failures.setdefault(name, failure)
        context = self._plan.context
        manifest = Manifest(
            options=context.options,
            label_map=context.label_map.digest,
            scenes=known,
            failures=failures,
            program_version=VERSION,
        )
        folder.record(self._out_dir, manifest)
        done = self._unfinished
        if self._plan.is_restricted:
            done = {*self.finished, *self.failures}
        folder.mark_finished(self._out_dir, done)

    def report(self, unfinished: set[str]) -> ProcessReport:
        """Summarize the run."""
        finished = dict(sorted(self.finished.items()))
        made = [name for name, scene in finished.items() if scene.temporary_path is not None]
        kept = [name for name, scene in finished.items() if scene.temporary_path is None]
        without_raw = {task.scene_id for task in self._tasks if task.reason is Reason.RAW_GONE}
        warnings = [
            (name, warning) for name, scene in finished.items() for warning in scene.entry.warnings
        ]
        return ProcessReport(
            out_dir=self._out_dir,
            made=tuple(made),
            kept=tuple(kept),
            raw_gone=tuple(name for name in kept if name in without_raw),
            failures=tuple(failure for _, failure in sorted(self.failures.items())),
            warnings=tuple(summarize_warnings(warnings)),
            vertices=sum(scene.entry.vertex_count for scene in finished.values()),
            size_bytes=sum(scene.entry.size_bytes for scene in finished.values()),
            unfinished=tuple(sorted(unfinished)),
        )


def _remove_from_other_splits(out_dir: Path, finished: Mapping[str, FinishedScene]) -> None:
    """Remove a scene that no official list names from all splits but the one it was put into last."""
    for scene_id, scene in finished.items():
        if find_official_split(scene_id) is None:
            for split in set(Split) - {scene.entry.split}:
                remove_file(folder.processed_path(out_dir, split, scene_id))
