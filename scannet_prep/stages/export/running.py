"""Carry out a plan of `export`: make the files of the scenes, move them in, and record them.

    plan --> lock the folder --> move outdated scenes away
         --> export.json names the scenes that are still to be made
         --> tasks in workers --> hidden work folder --> final names
         --> lists, export.json, failed.txt --> remove the work folder

A kill at any moment leaves whole scenes and the list of unfinished ones, and the next run
continues from there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from scannet_prep.base.errors import FileError, OutputError
from scannet_prep.base.files import (
    Fingerprint,
    make_directory,
    remove_file,
    remove_temporaries,
    write_if_changed,
)
from scannet_prep.base.progress import Progress
from scannet_prep.base.run_lock import run_lock
from scannet_prep.export import EXPORT_NAME
from scannet_prep.export.manifest import ExportEntry, ExportManifest, write_export
from scannet_prep.processed.folder import FAILED_NAME, prepare_folder, write_failed_list
from scannet_prep.release.findings import Finding
from scannet_prep.release.scene import Split
from scannet_prep.stages.export.planning import ExportPlan, check_target
from scannet_prep.stages.export.scene_worker import (
    ExportContext,
    ExportTask,
    MadeScene,
    export_scene,
    move_in,
    remove_scene,
)
from scannet_prep.stages.scene_job import make_scenes

_RECORD_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of a run.

    Attributes:
        out_dir: The folder of the export.
        settings: Format, label set, frame and variant.
        made: Scenes that were made.
        kept: Scenes that were up to date.
        failures: Scenes that could not be made.
        left_out: The reason why a selected split is left out, by split.
        files: Number of files of the whole export.
        size_bytes: Size of these files.
        unfinished: Scenes that an interrupted run had still to make and that this run did not
            select.
    """

    out_dir: Path
    settings: Mapping[str, bool | str] = field(hash=False)
    made: tuple[str, ...]
    kept: tuple[str, ...]
    failures: tuple[Finding, ...]
    left_out: Mapping[Split, str] = field(hash=False)
    files: int
    size_bytes: int
    unfinished: tuple[str, ...]


def run(
    plan: ExportPlan,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> ExportReport:
    """Export the scenes of a plan. Scenes that are up to date are kept; a bad one stops no other.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
        executor: Does the work instead of worker processes; its workers see the same folders under
            the same names.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full.
        LockedError: Another run is writing into the folder.
        UsageError: The folder holds something else by now.
        WorkerDiedError: Worker processes cannot be started, or the executor takes no more tasks.
    """
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir):
        work = _ExportRun(plan)
        work.begin()
        work.make(jobs, progress or Progress(), executor)
        manifest = work.end()
    return work.report(manifest)


class _ExportRun:
    """One run, which holds the lock of the folder.

    Attributes:
        entries: The scenes that the export holds by now, by id.
        made: The scenes that this run has made.
        failures: The scenes that this run could not make, by id.
    """

    def __init__(self, plan: ExportPlan) -> None:
        self._plan = plan
        self._out_dir = plan.out_dir
        # Each task brings the entry of its scene: the context goes to every worker.
        place = plan.place.without_entries()
        self._context = ExportContext(place, plan.format, plan.out_dir)
        self._previous = self._read_previous()

        self._outdated = _find_outdated(plan, self._previous)
        self._to_make = list(plan.scene_ids) if plan.is_forced else sorted(self._outdated)
        self._unfinished = {*self._previous.unfinished, *self._to_make}
        self.entries = dict(self._previous.scenes)
        for scene_id in self._outdated:
            self.entries.pop(scene_id, None)
        self.made: set[str] = set()
        self.failures: dict[str, Finding] = {}

    def _read_previous(self) -> ExportManifest:
        """Read the manifest under the lock; an empty one for a new export."""
        plan = self._plan
        manifest = check_target(plan.out_dir, plan.place.folder, plan.format.settings)
        return manifest or ExportManifest(plan.format.settings, plan.place.name)

    def begin(self) -> None:
        """Remove outdated scenes, and record which scenes are unfinished."""
        work_dir = self._context.work_dir
        shutil.rmtree(work_dir, ignore_errors=True)
        remove_temporaries(self._out_dir)
        if not self._to_make:
            return
        make_directory(work_dir)
        for scene_id in self._outdated & self._previous.scenes.keys():
            remove_scene(scene_id, self._previous.scenes[scene_id], self._context)
        self._record()
        prepare_folder(self._out_dir, set())

    def make(self, jobs: int, progress: Progress, executor: Executor | None) -> None:
        """Make the scenes, and record the finished ones every few seconds."""
        scene_ids = self._plan.scene_ids
        place = self._plan.place
        tasks = []
        for scene_id in self._to_make:
            processed = place.entries[scene_id]
            tasks.append(ExportTask(scene_id, processed, place.file_path(scene_id)))
        outcomes = make_scenes(export_scene, tasks, self._context, jobs=jobs, executor=executor)
        recorded_s = 0.0
        try:
            with progress.work("export", len(scene_ids), "scenes"), closing(outcomes):
                progress.advance(len(scene_ids) - len(tasks))
                for task, outcome in outcomes:
                    if isinstance(outcome, Finding):
                        self.failures[task.scene_id] = outcome
                    else:
                        self._finish(task, outcome)
                    if self.failures:
                        progress.status(f"{len(self.failures):,} failed")
                    progress.advance()
                    if self.made and time.monotonic() > recorded_s + _RECORD_INTERVAL_S:
                        self._record()
                        recorded_s = time.monotonic()
        finally:
            if self.made:
                with suppress(OutputError):  # the error that ended the run is worth more
                    self._record()

    def _finish(self, task: ExportTask, scene: MadeScene) -> None:
        """Move the files of a scene to their final names; one that is in the way is a failure."""
        try:
            move_in(scene, self._context)
        except FileError as error:
            failure = Finding.from_failure(error, task.source, task.scene_id)
            self.failures[task.scene_id] = failure
        else:
            self.entries[task.scene_id] = scene.entry
            self.made.add(task.scene_id)

    def end(self) -> ExportManifest:
        """Write the shared files, the manifest and `failed.txt`."""
        shared = self._write_shared()
        for name in self._previous.shared.keys() - shared.keys():
            remove_file(self._out_dir / name)

        # A scene that is no longer among the processed ones can neither fail nor be finished.
        missing = self._plan.place.entries.keys() - self.entries.keys()
        failures = dict(self.failures)
        for scene_id, failure in self._previous.failures.items():
            if scene_id in missing:
                failures.setdefault(scene_id, failure)
        self._unfinished &= missing - failures.keys()

        manifest = replace(self._manifest(), shared=shared, failures=failures)
        write_export(self._out_dir / EXPORT_NAME, manifest, is_durable=True)
        write_failed_list(self._out_dir / FAILED_NAME, manifest.failures)
        shutil.rmtree(self._context.work_dir, ignore_errors=True)
        return manifest

    def _write_shared(self) -> dict[str, Fingerprint]:
        """Write the files that concern all scenes, such as lists, and return their fingerprints."""
        records = {}
        for scene_id, entry in sorted(self.entries.items()):
            records[scene_id] = (entry.split, entry.record)
        shared = {}
        for name, data in self._plan.format.encode_shared(records).items():
            path = self._out_dir / name
            make_directory(path.parent)
            write_if_changed(path, data)
            shared[name] = Fingerprint.from_bytes(data)
        return shared

    def _record(self) -> None:
        """Write the manifest of the export as it is now."""
        write_export(self._out_dir / EXPORT_NAME, self._manifest())

    def _manifest(self) -> ExportManifest:
        """Return the manifest of the export as it is now, with the shared files of before."""
        return ExportManifest(
            settings=self._plan.format.settings,
            place=self._plan.place.name,
            shared=self._previous.shared,
            scenes=dict(sorted(self.entries.items())),
            failures=self._previous.failures,
            unfinished=tuple(sorted(self._unfinished)),
        )

    def report(self, manifest: ExportManifest) -> ExportReport:
        """Summarize the run."""
        done = self.made | self.failures.keys()
        kept = [scene_id for scene_id in self._plan.scene_ids if scene_id not in done]
        fingerprints = [fingerprint for _, fingerprint in manifest.files()]
        return ExportReport(
            out_dir=self._out_dir,
            settings=self._plan.format.settings,
            made=tuple(sorted(self.made)),
            kept=tuple(kept),
            failures=tuple(failure for _, failure in sorted(self.failures.items())),
            left_out=self._plan.left_out,
            files=len(fingerprints),
            size_bytes=sum(fingerprint.size_bytes for fingerprint in fingerprints),
            unfinished=manifest.unfinished,
        )


def _find_outdated(plan: ExportPlan, previous: ExportManifest) -> set[str]:
    """Find the scenes of a plan that an export lacks, or holds in another version."""
    return {scene_id for scene_id in plan.scene_ids if not _is_current(plan, previous, scene_id)}


def _is_current(plan: ExportPlan, previous: ExportManifest, scene_id: str) -> bool:
    """Whether an export holds a scene, whole, and made from the present version of its inputs."""
    if scene_id not in previous.scenes:
        return False
    exported = previous.scenes[scene_id]
    processed = plan.place.entries[scene_id]
    if exported.split != processed.split or exported.source != processed.fingerprint:
        return False
    extra_inputs = plan.format.extra_input_fingerprints(scene_id, processed.split)
    if not extra_inputs.items() <= exported.record.items():
        return False
    return _has_recorded_sizes(plan.out_dir, exported)


def _has_recorded_sizes(out_dir: Path, entry: ExportEntry) -> bool:
    """Whether all files of a scene are there, with the sizes that the manifest records."""
    try:
        for name, fingerprint in entry.files.items():
            if (out_dir / name).stat().st_size != fingerprint.size_bytes:
                return False
    except OSError:
        return False
    return True
