"""Runs of `frames`: workers extract scenes, whose folders get their final names here."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Collection, Mapping
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
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import FileError
from scannet_prep.frames.options import FrameOptions
from scannet_prep.frames.record import RECORD_NAME, FramesRecord
from scannet_prep.release.files import NOTICE_NAME, NOTICE_TEXT
from scannet_prep.stages.frames.planning import FramesPlan, choose_options, read_records
from scannet_prep.stages.frames.scene_worker import FramesTask, extract_frames
from scannet_prep.stages.selection import write_failed_list


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
        OutputError: Another run is writing into the folder.
        UsageError: The folder has frames with other options by now.
        WorkerDiedError: Worker processes cannot be started.
    """
    progress = progress or Progress()
    make_directory(plan.out_dir)
    with run_lock(plan.out_dir):
        # Another run may have written into the folder since the plan was made.
        choose_options(plan.out_dir, plan.options, read_records(plan.out_dir))
        _remove_leftovers(plan)
        made: dict[str, FramesRecord] = {}
        failures = {failure.scene_id: failure for failure in plan.failures}
        if plan.tasks:
            write_if_changed(plan.out_dir / NOTICE_NAME, NOTICE_TEXT.encode())
            make_directory(plan.context.work_dir)
        started_s = time.monotonic()
        try:
            with progress.work("frames", len(plan.tasks) + len(plan.kept), "scenes"):
                progress.advance(len(plan.kept))
                for task, outcome in run_tasks(
                    extract_frames, plan.tasks, plan.context, jobs, executor
                ):
                    try:
                        if isinstance(outcome, Finding):
                            failures[task.scene_id] = outcome
                        else:
                            made[task.scene_id] = _move_in(task, *outcome, plan)
                    except FileError as error:
                        failure = Finding.from_error(error, task.source, task.scene_id)
                        failures[task.scene_id] = failure
                    progress.status(_describe_rate(made, failures, started_s))
                    progress.advance()
            write_failed_list(plan.out_dir, failures)
        finally:
            _remove_leftovers(plan)
    records = [*made.values(), *plan.kept]
    return FramesReport(
        out_dir=plan.out_dir,
        options=plan.options,
        made=tuple(sorted(made)),
        kept=tuple(str(record.scene_id) for record in plan.kept),
        failures=tuple(failure for _, failure in sorted(failures.items())),
        without_stream=plan.without_stream,
        frames=sum(len(record.frames) for record in records),
        lost_frames=sum(len(record.lost) for record in records),
        size_bytes=sum(record.size_bytes for record in records),
    )


def _remove_leftovers(plan: FramesPlan) -> None:
    """Remove the work folder, and temporary files of notices and lists."""
    shutil.rmtree(plan.context.work_dir, ignore_errors=True)
    remove_temporaries(plan.out_dir)


def _move_in(
    task: FramesTask, record: FramesRecord, work_path: Path, plan: FramesPlan
) -> FramesRecord:
    """Move the folder of a scene to its final name, and return its record.

    Raises:
        FileError: Something is in the way.
        OutputError: It cannot be moved.
    """
    target = plan.out_dir / task.scene_id
    outdated_path = plan.context.work_dir / secrets.token_hex(8)
    try:
        if os.path.lexists(target):
            if not (target / RECORD_NAME).is_file():
                raise FileError(target, "is in the way", "remove or rename it")
            target.replace(outdated_path)
        work_path.replace(target)
    except OSError as error:
        raise output_error(target, error) from error
    shutil.rmtree(outdated_path, ignore_errors=True)
    return record


def _describe_rate(
    made: Mapping[str, FramesRecord], failures: Collection[str], started_s: float
) -> str:
    """Describe how many frames are written, and how fast."""
    seconds = max(time.monotonic() - started_s, 1e-3)
    frames = sum(len(record.frames) for record in made.values())
    size_bytes = sum(record.size_bytes for record in made.values())
    rate = f"{frames:,} frames, {size_bytes / seconds / 1e6:.0f} MB/s"
    return f"{rate}, {len(failures):,} failed" if failures else rate
