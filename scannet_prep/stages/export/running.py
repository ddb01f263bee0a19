"""Carry out a plan of `export`: the files of the scenes, the manifest, and the report.

outdated scenes --> hidden work folder
scenes --> workers --> hidden work folder --> final names
lists, export.json
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from scannet_prep.base.files import (
    Fingerprint,
    make_directory,
    remove_file,
    remove_temporaries,
    write_if_changed,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import FileError, OutputError
from scannet_prep.export import EXPORT_NAME, Setting
from scannet_prep.export.manifest import ExportEntry, ExportManifest, write_export
from scannet_prep.release.files import NOTICE_NAME, NOTICE_TEXT
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.export.planning import ExportPlan, check_target
from scannet_prep.stages.export.scene_worker import (
    ExportContext,
    ExportTask,
    MadeScene,
    export_scene,
    move_in,
    remove_scene,
)
from scannet_prep.stages.selection import write_failed_list

# Shorter intervals would rewrite the manifest more often than scenes are made.
_SAVE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of a run.

    Attributes:
        out_dir: The folder of the export.
        settings: Format, label set, frame, variant, and the drawn points if there are any.
        made: Scenes that were made.
        kept: Scenes that were up to date.
        failures: Scenes that could not be made.
        left_out: The reason why a selected split is left out, by split.
        files: Number of files of the whole export, with those of scenes that were kept.
        size_bytes: Size of these files.
        unfinished: Scenes that an interrupted run did not get to, and that this run did not
            select.
    """

    out_dir: Path
    settings: Mapping[str, Setting] = field(hash=False)
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
        OutputError: Another run is writing into the folder.
        UsageError: The folder holds something else by now.
        WorkerDiedError: Worker processes cannot be started.
    """
    progress = progress or Progress()
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir):
        job = _ExportJob(plan)
        try:
            job.remove_leftovers()
            job.begin()
            with progress.work("export", len(plan.scene_ids), "scenes"):
                progress.advance(len(plan.scene_ids) - len(job.tasks))
                for task, outcome in run_tasks(
                    export_scene, job.tasks, job.context, jobs, executor
                ):
                    job.settle(task, outcome)
                    if job.failures:
                        progress.status(f"{len(job.failures):,} failed")
                    progress.advance()
            job.record()
        except BaseException:
            # If saving fails as well, the error that ended the run is raised.
            with suppress(OutputError):
                job.save()
            raise
        finally:
            job.remove_leftovers()
    return job.report()


class _ExportJob:
    """One run of `export`. It is made and used while the process holds the lock of the folder.

    Attributes:
        tasks: The scenes to make.
        context: The settings that all tasks share.
        failures: The scenes that could not be made, by id.
        manifest: The manifest of the export; it has the scenes that are finished by now.
    """

    def __init__(self, plan: ExportPlan) -> None:
        self._plan = plan
        self._out_dir = plan.out_dir
        previous = check_target(plan.out_dir, plan.place.folder, plan.settings)
        self.manifest = previous or ExportManifest(plan.settings, plan.place.name)
        self._outdated = _find_outdated(plan, self.manifest)
        self.failures: dict[str, Finding] = {}
        self.tasks: list[ExportTask] = []
        scene_ids = plan.scene_ids if plan.is_forced else sorted(self._outdated)
        for scene_id in scene_ids:
            source = plan.place.file_path(scene_id)
            self.tasks.append(ExportTask(scene_id, plan.place.entries[scene_id], source))

        self.context = ExportContext(plan.place, plan.format, plan.out_dir)
        self._entries = dict(self.manifest.scenes)
        self._made: set[str] = set()
        self._unfinished = {*self.manifest.unfinished, *scene_ids}
        self._saved_s = 0.0

    def remove_leftovers(self) -> None:
        """Remove the work folder, and temporary files of the manifest and the lists."""
        shutil.rmtree(self.context.work_dir, ignore_errors=True)
        remove_temporaries(self._out_dir)

    def begin(self) -> None:
        """Move outdated scenes away. Scenes that are only forced stay until they are replaced."""
        if not self.tasks:
            return
        # The manifest comes first: the next run would refuse a folder with files but no manifest.
        self.save()
        # Own scans do not derive from ScanNet.
        if not any(map(SceneId.is_own, self._plan.scene_ids)):
            write_if_changed(self._out_dir / NOTICE_NAME, NOTICE_TEXT.encode())
        make_directory(self.context.work_dir)
        for scene_id in self._outdated & self._entries.keys():
            remove_scene(scene_id, self._entries.pop(scene_id), self.context)
        self.save()

    def settle(self, task: ExportTask, outcome: MadeScene | Finding) -> None:
        """Move the files of a scene to their final names, or note why it failed."""
        if not isinstance(outcome, Finding):
            try:
                move_in(outcome, self.context)
            except FileError as error:
                outcome = Finding.from_error(error, task.source, task.scene_id)
        self._unfinished.discard(task.scene_id)
        if isinstance(outcome, Finding):
            self.failures[task.scene_id] = outcome
        else:
            self._entries[task.scene_id] = outcome.entry
            self._made.add(task.scene_id)
        if time.monotonic() > self._saved_s + _SAVE_INTERVAL_S:
            self.save()

    def save(self) -> None:
        """Record the scenes that are finished by now, because their files alone do not show it."""
        self._saved_s = time.monotonic()
        scenes = dict(sorted(self._entries.items()))
        self.manifest = replace(
            self.manifest,
            place=self._plan.place.name,
            scenes=scenes,
            unfinished=tuple(sorted(self._unfinished)),
        )
        write_export(self._out_dir / EXPORT_NAME, self.manifest)

    def record(self) -> None:
        """Write the files that concern all scenes, the manifest, and `failed.txt`."""
        shared = self._write_shared()
        for name in self.manifest.shared.keys() - shared.keys():
            remove_file(self._out_dir / name)

        # Earlier failures still count for scenes that the export lacks, unless the scene no longer
        # exists among the processed ones.
        missing = self._plan.place.entries.keys() - self._entries.keys()
        failures = dict(self.failures)
        for scene_id, failure in self.manifest.failures.items():
            if scene_id in missing:
                failures.setdefault(scene_id, failure)

        self.manifest = ExportManifest(
            settings=self._plan.settings,
            place=self._plan.place.name,
            shared=shared,
            scenes=dict(sorted(self._entries.items())),
            failures=failures,
            # Scenes that the export lacks, and that have not failed, are still to be made.
            unfinished=tuple(sorted(self._unfinished & (missing - failures.keys()))),
        )
        write_export(self._out_dir / EXPORT_NAME, self.manifest, is_durable=True)
        write_failed_list(self._out_dir, failures)

    def _write_shared(self) -> dict[str, Fingerprint]:
        """Write the files that concern all scenes, such as lists, and return their fingerprints."""
        records = {}
        for scene_id, entry in sorted(self._entries.items()):
            records[scene_id] = (entry.split, entry.record)
        shared = {}
        for name, data in self._plan.format.encode_shared(records).items():
            path = self._out_dir / name
            make_directory(path.parent)
            write_if_changed(path, data)
            shared[name] = Fingerprint.from_bytes(data)
        return shared

    def report(self) -> ExportReport:
        """Summarize the run."""
        done = self._made | self.failures.keys()
        kept = [scene_id for scene_id in self._plan.scene_ids if scene_id not in done]
        fingerprints = [fingerprint for _, fingerprint in self.manifest.files()]
        return ExportReport(
            out_dir=self._out_dir,
            settings=self._plan.format.settings,
            made=tuple(sorted(self._made)),
            kept=tuple(kept),
            failures=tuple(failure for _, failure in sorted(self.failures.items())),
            left_out=self._plan.left_out,
            files=len(fingerprints),
            size_bytes=sum(fingerprint.size_bytes for fingerprint in fingerprints),
            unfinished=self.manifest.unfinished,
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
