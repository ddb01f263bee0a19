"""Carry out a plan of `process`: the files of the scenes, the manifest, and the report.

`scene_job` shows the order of the steps.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.base.files import (
    check_space,
    make_directory,
    put_in_place,
    remove_file,
    remove_temporaries,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.progress import Progress
from scannet_prep.base.run_lock import run_lock
from scannet_prep.base.version import VERSION
from scannet_prep.errors import LockedError
from scannet_prep.processed import folder
from scannet_prep.processed.manifest import Manifest, SceneEntry
from scannet_prep.release.scene import Split
from scannet_prep.release.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.release.splits import find_official_split
from scannet_prep.stages.process.folder_before import read_folder
from scannet_prep.stages.process.planning import ProcessPlan
from scannet_prep.stages.process.scene_worker import (
    FinishedScene,
    ProcessTask,
    Reason,
    make_scene_file,
)
from scannet_prep.stages.process.seen import read_seen, write_seen
from scannet_prep.stages.scene_job import SceneJob

# Size of a processed scene, as a multiple of its mesh. Measured on the release: 0.55, and 1.1 with
# faces.
_SIZE_OF_MESH = 0.6
_SIZE_OF_MESH_WITH_FACES = 1.1

# Errors in the content of raw files. An earlier result of the scene then no longer holds, and is
# removed. After any other error, such as a missing raw file, it stays.
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
        vertices: Number of vertices of all scenes that were made or kept.
        size_bytes: Size of the files of these scenes.
        unfinished: Scenes that an interrupted run did not get to, and that this run did not
            select. Until they are made, readers refuse the folder.
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
    """Make the scenes of a plan. Scenes that are up to date are kept; a bad one stops no other.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
        executor: Does the work instead of worker processes. Its workers see the same folders under
            the same names.

    Raises:
        OutputError: The folder cannot be written to, or the disk has not enough space.
        LockedError: Another run is writing into the folder, or has changed it since the plan was
            made.
        WorkerDiedError: Worker processes cannot be started, or the executor takes no more tasks.
    """
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir):
        job = _ProcessJob(plan)
        job.run(make_scene_file, plan.context, jobs=jobs, progress=progress, executor=executor)
        unfinished = folder.read_unfinished(plan.out_dir)
    return job.report(unfinished)


class _ProcessJob(SceneJob[ProcessTask, FinishedScene]):
    """One run of `process`.

    Attributes:
        finished: The scenes that are in the folder by now, by id.
    """

    title = "process"

    def __init__(self, plan: ProcessPlan) -> None:
        tasks = [task for task in plan.tasks if task.reason is not Reason.UP_TO_DATE]
        super().__init__(plan.out_dir, tasks, scene_count=len(plan.tasks))
        self._plan = plan
        self._previous = self._read_previous()
        # After an interruption, files may differ from what the manifest records.
        self._can_trust_manifest = not (plan.out_dir / folder.UNFINISHED_NAME).exists()
        # Selected scenes that are not available have failed from the start.
        self.failures = {failure.scene_id: failure for failure in plan.failures}
        self.finished = self._find_kept()

    def _read_previous(self) -> Manifest:
        """Read the manifest under the lock.

        Raises:
            LockedError: Another run has changed the folder since the plan was made.
        """
        # Forced, because the plan has already decided about an older format.
        current = read_folder(self._out_dir, is_forced=True)
        if current.head is not None and current.head != self._plan.before:
            raise LockedError(
                f"{self._out_dir}: another run has changed the folder in the meantime",
                "run the same command again",
            )
        return current.manifest

    def _find_kept(self) -> dict[str, FinishedScene]:
        """Find the scenes that are up to date, by id."""
        seen = read_seen(self._out_dir)
        kept: dict[str, FinishedScene] = {}
        for task in self._plan.tasks:
            # A scene that is up to date has a record; mypy needs the second condition.
            if task.reason is Reason.UP_TO_DATE and task.recorded is not None:
                kept[task.scene_id] = FinishedScene(task.recorded, seen.get(task.scene_id))
        return kept

    def remove_leftovers(self) -> None:
        """Remove temporary files of workers that were lost."""
        remove_temporaries(self._out_dir, *(self._out_dir / split for split in Split))

    def begin(self) -> None:
        """Check that there is room. Record new options before any scene is made with them."""
        # Own scenes do not derive from ScanNet.
        folder.prepare_folder(
            self._out_dir,
            {task.split for task in self._plan.tasks},
            has_terms=not self._plan.is_own,
        )
        options = self._plan.context.options
        # Only for new files: the others replace files of about the same size.
        missing = [task.mesh_bytes for task in self._tasks if not task.path.exists()]
        size_of_mesh = _SIZE_OF_MESH_WITH_FACES if options.faces else _SIZE_OF_MESH
        check_space(self._out_dir, int(sum(missing) * size_of_mesh))
        if self._plan.starts_anew:
            self._record_options()

    def _record_options(self) -> None:
        """Write a manifest with the options and the label map, but without scenes.

        A folder with scenes is marked first: they are outdated as soon as the manifest changes. A
        new folder gets its options first: a run that is killed in between must be continued with
        them.
        """
        if self._plan.before is not None:
            self.mark()
        self._can_trust_manifest = False
        context = self._plan.context
        manifest = Manifest(
            options=context.options,
            label_map=context.label_map.digest,
            failures=self._previous.failures,
            program_version=VERSION,
        )
        folder.write_manifest(self._out_dir, manifest)
        self.mark()

    def finish(self, task: ProcessTask, result: FinishedScene) -> None:
        """Give the file of a scene its final name."""
        if result.temporary_path is not None:
            self.mark()
            put_in_place(result.temporary_path, task.path)
        self.finished[task.scene_id] = result

    def fail(self, task: ProcessTask, failure: Finding) -> None:
        """Note that a scene could not be made, and remove its file if that no longer holds."""
        super().fail(task, failure)
        # A file that was made with other options does not belong in this folder.
        has_other_options = task.reason in {Reason.OPTIONS, Reason.LABEL_MAP}
        is_outdated = has_other_options or failure.error in _CONTENT_ERRORS
        if is_outdated and task.path.exists():
            self.mark()
            remove_file(task.path)

    def record(self) -> Collection[str]:
        """Write the manifest, `failed.txt`, and the sizes and times of the files."""
        self._remove_from_other_splits()
        # Keep the states of scenes that this run did not select.
        seen = dict(read_seen(self._out_dir))
        for scene_id, scene in self.finished.items():
            if scene.seen is not None:
                seen[scene_id] = scene.seen
        write_seen(self._out_dir, seen)

        # Without entries of the previous manifest, `folder.record` reads the files of its scenes.
        entries: dict[str, SceneEntry] = {}
        if self._can_trust_manifest:
            entries.update(self._previous.scenes)
        for scene_id, scene in self.finished.items():
            entries[scene_id] = scene.entry
        context = self._plan.context
        manifest = Manifest(
            options=context.options,
            label_map=context.label_map.digest,
            scenes=entries,
            failures=self._find_all_failures(),
            program_version=VERSION,
        )
        folder.record(self._out_dir, manifest)
        # A run for all scenes leaves none unfinished.
        if self._plan.is_restricted:
            return self.finished.keys() | self.failures.keys()
        return folder.read_unfinished(self._out_dir)

    def _remove_from_other_splits(self) -> None:
        """Remove scenes outside the official lists from splits that they no longer belong to."""
        for scene_id, scene in self.finished.items():
            has_no_list = find_official_split(scene_id) is None
            if has_no_list:
                for split in set(Split) - {scene.entry.split}:
                    remove_file(folder.processed_path(self._out_dir, split, scene_id))

    def _find_all_failures(self) -> dict[str, Finding]:
        """Find the failures of this run, and of earlier runs for scenes that it did not try."""
        failures = dict(self.failures)
        if self._plan.is_restricted:
            for scene_id, failure in self._previous.failures.items():
                if scene_id not in self.finished:
                    failures.setdefault(scene_id, failure)
        return failures

    def report(self, unfinished: set[str]) -> ProcessReport:
        """Summarize the run."""
        finished = dict(sorted(self.finished.items()))
        made = [name for name, scene in finished.items() if scene.temporary_path is not None]
        kept = [name for name, scene in finished.items() if scene.temporary_path is None]
        warnings = []
        for scene_id, scene in finished.items():
            warnings += [(scene_id, warning) for warning in scene.entry.warnings]
        without_raw = {task.scene_id for task in self._tasks if task.reason is Reason.RAW_GONE}
        return ProcessReport(
            out_dir=self._out_dir,
            made=tuple(made),
            kept=tuple(kept),
            raw_gone=tuple(scene_id for scene_id in kept if scene_id in without_raw),
            failures=(
                *self._plan.strangers,
                *(failure for _, failure in sorted(self.failures.items())),
            ),
            warnings=tuple(summarize_warnings(warnings)),
            vertices=sum(scene.entry.vertex_count for scene in finished.values()),
            size_bytes=sum(scene.entry.size_bytes for scene in finished.values()),
            unfinished=tuple(sorted(unfinished)),
        )
