"""Runs of `frames`: workers extract scenes, whose folders get their final names here."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.base.files import (
    make_directory,
    output_error,
    remove_temporaries,
    write_if_changed,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.progress import Progress
from scannet_prep.base.run_lock import run_lock
from scannet_prep.errors import FileError
from scannet_prep.frames.options import FrameOptions
from scannet_prep.frames.record import RECORD_NAME, FramesRecord
from scannet_prep.processed.folder import FAILED_NAME, TERMS_NAME, TERMS_TEXT, write_failed_list
from scannet_prep.stages.frames.planning import FramesPlan, choose_options, read_records
from scannet_prep.stages.frames.scene_worker import FramesTask, extract_frames
from scannet_prep.stages.scene_job import SceneJob


@dataclass(frozen=True, slots=True)
class FramesReport:
    """The result of a run.

    Attributes:
        out_dir: The folder of the frames.
        options: What was extracted.
        made: Scenes that were extracted.
        kept: Scenes that were up to date.
        failures: Scenes that could not be extracted.
        without_stream: Scenes that were not named, and have neither a sensor stream nor frames.
        frames: Number of frames of the selected scenes, with those of scenes that were kept.
        lost_frames: Number of frames without tracking; they are omitted unless the options keep
            them.
        size_bytes: Size of the files of the selected scenes.
        unfinished: Empty: scenes are complete, or not there.
    """

    out_dir: Path
    options: FrameOptions
    made: tuple[str, ...]
    kept: tuple[str, ...]
    failures: tuple[Finding, ...]
    without_stream: tuple[str, ...]
    frames: int
    lost_frames: int
    size_bytes: int
    unfinished: tuple[str, ...] = ()


def run(
    plan: FramesPlan,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> FramesReport:
    """Extract the scenes of a plan. A bad one stops no other.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
        executor: Does the work instead of worker processes; its workers see the same folders under
            the same names.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full.
        LockedError: Another run is writing into the folder.
        UsageError: The folder has frames with other options by now.
        WorkerDiedError: Worker processes cannot be started, or the executor takes no more tasks.
    """
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir):
        job = _FramesJob(plan)
        job.run(extract_frames, plan.context, jobs=jobs, progress=progress, executor=executor)
    return job.report()


class _FramesJob(SceneJob[FramesTask, tuple[FramesRecord, Path]]):
    """One run of `frames`.

    Args:
        plan: The plan.
    """

    title = "frames"

    def __init__(self, plan: FramesPlan) -> None:
        # Another run may have written into the folder since the plan was made.
        choose_options(plan.out_dir, plan.options, read_records(plan.out_dir))
        super().__init__(plan.out_dir, plan.tasks, len(plan.tasks) + len(plan.kept))
        self._plan = plan
        self._work_dir = plan.context.work_dir
        self._made: dict[str, FramesRecord] = {}
        self._made_frames = 0
        self._made_bytes = 0
        self._started_s = time.monotonic()

    def remove_leftovers(self) -> None:
        """Remove the work folder, and temporary files of notices and lists."""
        shutil.rmtree(self._work_dir, ignore_errors=True)
        remove_temporaries(self._out_dir)

    def begin(self) -> None:
        """Make the work folder, and write the notice about the terms."""
        if self._tasks:
            write_if_changed(self._out_dir / TERMS_NAME, TERMS_TEXT.encode())
            make_directory(self._work_dir)

    def finish(self, task: FramesTask, result: tuple[FramesRecord, Path]) -> None:
        """Move the folder of a scene to its final name; an outdated one is removed."""
        record, work_path = result
        target = self._out_dir / task.scene_id
        outdated_path = self._work_dir / secrets.token_hex(8)
        try:
            if os.path.lexists(target):
                if not (target / RECORD_NAME).is_file():
                    error = FileError(target, "is in the way", "remove or rename it")
                    self.fail(task, Finding.from_error(error, target, task.scene_id))
                    return
                target.replace(outdated_path)
            work_path.replace(target)
        except OSError as error:
            raise output_error(target, error) from error
        shutil.rmtree(outdated_path, ignore_errors=True)
        self._made[task.scene_id] = record
        self._made_frames += len(record.frames)
        self._made_bytes += record.size_bytes

    def status(self) -> str:
        """Describe how many frames are written, and how fast."""
        seconds = max(time.monotonic() - self._started_s, 1e-3)
        rate = f"{self._made_frames:,} frames, {self._made_bytes / seconds / 1e6:.0f} MB/s"
        failures = super().status()
        return f"{rate}, {failures}" if failures else rate

    def record(self) -> Collection[str]:
        """Write `failed.txt`. The folders of the scenes have their own records."""
        failures = {failure.scene_id for failure in self._plan.failures} | self.failures.keys()
        write_failed_list(self._out_dir / FAILED_NAME, failures)
        return ()

    def report(self) -> FramesReport:
        """Summarize the run."""
        records = [*self._made.values(), *self._plan.kept]
        failures = {failure.scene_id: failure for failure in self._plan.failures} | self.failures
        return FramesReport(
            out_dir=self._out_dir,
            options=self._plan.options,
            made=tuple(sorted(self._made)),
            kept=tuple(str(record.scene_id) for record in self._plan.kept),
            failures=tuple(failure for _, failure in sorted(failures.items())),
            without_stream=self._plan.without_stream,
            frames=sum(len(record.frames) for record in records),
            lost_frames=sum(len(record.lost) for record in records),
            size_bytes=sum(record.size_bytes for record in records),
        )
