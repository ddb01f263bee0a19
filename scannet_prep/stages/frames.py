"""Sensor streams in, a folder of images, depth and poses out: `plan`, then `run`.

    raw scenes --> those with a stream --> those that the folder lacks, or has from other files
    scenes --> workers --> hidden work folder --> final names

`scene_job` shows the order of the steps. A folder of a scene gets its final name when it is
complete, so a run that was killed leaves only whole scenes, and the next run continues from there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from scannet_prep.base.errors import FileError, MissingFileError, UsageError
from scannet_prep.base.files import (
    check_is_folder,
    make_directory,
    output_error,
    remove_temporaries,
    write_if_changed,
)
from scannet_prep.base.images import require_pillow
from scannet_prep.base.progress import Progress
from scannet_prep.base.run_lock import run_lock
from scannet_prep.frames.extraction import (
    Estimate,
    FrameSources,
    estimate,
    extract_scene,
    measure_sources,
)
from scannet_prep.frames.options import LABEL_KINDS, STREAM, FrameOptions
from scannet_prep.frames.record import RECORD_NAME, FramesRecord, iter_records, read_record
from scannet_prep.processed.folder import FAILED_NAME, TERMS_NAME, TERMS_TEXT, write_failed_list
from scannet_prep.raw.layout import RawScene, download_hint, find_raw_scenes
from scannet_prep.release.findings import Finding
from scannet_prep.release.label_map import LabelMap, label_map_for
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.pool import run_tasks
from scannet_prep.stages.scene_job import SceneJob
from scannet_prep.stages.selection import Selection, select_scenes

_WORK_NAME = ".scannet-prep-work"
_ALL_STREAMS = "1.2 TB for all scenes, about 0.8 GB for each"


@dataclass(frozen=True, slots=True)
class FramesTask:
    """One scene of a run.

    Attributes:
        scene: Its raw files.
        split: Its split.
    """

    scene: RawScene
    split: Split

    @property
    def scene_id(self) -> SceneId:
        """The scene."""
        return self.scene.scene_id

    @property
    def source(self) -> Path:
        """The sensor stream, for messages."""
        return self.scene.path(STREAM)


@dataclass(frozen=True, slots=True)
class FramesContext:
    """The settings that all tasks of a run share.

    Attributes:
        options: What is extracted.
        label_map: The label map, for label images.
        work_dir: The hidden folder for unfinished scenes.
    """

    options: FrameOptions
    label_map: LabelMap
    work_dir: Path


@dataclass(frozen=True, slots=True)
class FramesPlan:
    """The work of one run; making the plan writes nothing.

    Attributes:
        raw_dir: The raw tree.
        out_dir: The folder for the frames.
        options: What is extracted.
        label_map: The label map, for label images.
        tasks: The scenes to extract.
        kept: The records of selected scenes that are up to date.
        without_stream: Scenes that were not named, and have no sensor stream.
        failures: Scenes that were named, and cannot be extracted.
    """

    raw_dir: Path
    out_dir: Path
    options: FrameOptions
    label_map: LabelMap
    tasks: tuple[FramesTask, ...]
    kept: tuple[FramesRecord, ...]
    without_stream: tuple[str, ...]
    failures: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class FramesReport:
    """The result of a run.

    Attributes:
        out_dir: The folder of the frames.
        options: What was extracted.
        made: Scenes that were extracted.
        kept: Scenes that were up to date.
        failures: Scenes that could not be extracted.
        without_stream: Scenes that were not named, and have no sensor stream.
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


@dataclass(frozen=True, slots=True)
class FramesEstimate:
    """What a run would do.

    Attributes:
        scenes: What would be extracted, by scene.
        failures: Scenes that could not be extracted.
    """

    scenes: Mapping[str, Estimate] = field(hash=False)
    failures: tuple[Finding, ...]


def plan(
    raw_dir: Path,
    out_dir: Path,
    options: Mapping[str, Any] | FrameOptions | None = None,
    *,
    selection: Selection | None = None,
) -> FramesPlan:
    """Decide which scenes to extract. Writes nothing and opens no stream.

    Args:
        raw_dir: The raw tree.
        out_dir: The folder for the frames: new, empty, or with the same options.
        options: What to extract. Fields that a mapping omits are those of the folder.
        selection: The scenes; by default all that have a sensor stream.

    Raises:
        UsageError: The options contradict each other or those of the folder, or the folder holds
            something else.
        MissingFileError: There is no raw tree, or no selected scene has a sensor stream.
        FileError: A folder, a record or the label map cannot be read.
        UnknownSceneError: A named scene does not exist.
        OutputError: `out_dir` is not a folder.
    """
    selection = selection or Selection()
    check_is_folder(out_dir)
    records = _read_records(out_dir)
    chosen = _choose_options(out_dir, options or {}, records)
    if chosen.needs_pillow:
        require_pillow()
    if not records:
        _check_is_empty(out_dir)
    label_map = label_map_for(raw_dir)

    # Scenes that are not named may lack a stream: few people have all of them.
    raw_scenes = find_raw_scenes(raw_dir)
    candidates = raw_scenes
    if selection.scene_ids is None:
        candidates = {name: scene for name, scene in raw_scenes.items() if _has_stream(scene)}
    selected, failures = select_scenes(candidates, selection, raw_dir)

    tasks = []
    kept = []
    for scene_id, split in selected:
        task = FramesTask(raw_scenes[scene_id], split)
        record = records.get(scene_id)
        if not _has_stream(task.scene):
            failures += (_report_missing_stream(task.source, raw_dir, scene_id),)
        elif record is not None and _is_current(record, task, chosen, label_map):
            kept.append(record)
        else:
            tasks.append(task)
    if not tasks and not kept:
        raise _no_streams(raw_dir, selection)
    return FramesPlan(
        raw_dir=raw_dir,
        out_dir=out_dir,
        options=chosen,
        label_map=label_map,
        tasks=tuple(tasks),
        kept=tuple(kept),
        without_stream=tuple(sorted(raw_scenes.keys() - candidates.keys())),
        failures=failures,
    )


def estimate_plan(
    plan: FramesPlan, *, jobs: int = 1, progress: Progress | None = None
) -> FramesEstimate:
    """Find what a run would extract, from the indexes of the streams.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
    """
    progress = progress or Progress()
    estimates = {}
    failures = list(plan.failures)
    with progress.work("frames", len(plan.tasks), "scenes"):
        for task, outcome in run_tasks(_estimate, plan.tasks, plan.options, jobs=jobs):
            if isinstance(outcome, Estimate):
                estimates[str(task.scene_id)] = outcome
            elif isinstance(outcome, Finding):
                failures.append(outcome)
            else:
                failures.append(Finding.from_failure(outcome, task.source, task.scene_id))
            progress.advance()
    return FramesEstimate(dict(sorted(estimates.items())), tuple(failures))


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
        job = _FramesJob(plan, progress or Progress())
        job.run(_extract, job.context, jobs=jobs, progress=progress, executor=executor)
    return job.report()


class _FramesJob(SceneJob[FramesTask, tuple[FramesRecord, Path]]):
    """One run of `frames`.

    Args:
        plan: The plan.
        progress: Shows how many frames and bytes are written.

    Attributes:
        context: The settings that all tasks share.
    """

    title = "frames"

    def __init__(self, plan: FramesPlan, progress: Progress) -> None:
        # Another run may have written into the folder since the plan was made.
        _choose_options(plan.out_dir, plan.options, _read_records(plan.out_dir))
        super().__init__(plan.out_dir, plan.tasks, len(plan.tasks) + len(plan.kept))
        self._plan = plan
        self._progress = progress
        self._made: dict[str, FramesRecord] = {}
        self._started_s = time.monotonic()
        self.context = FramesContext(plan.options, plan.label_map, plan.out_dir / _WORK_NAME)

    def remove_leftovers(self) -> None:
        """Remove the work folder, and temporary files of notices and lists."""
        shutil.rmtree(self.context.work_dir, ignore_errors=True)
        remove_temporaries(self._out_dir)

    def begin(self) -> None:
        """Make the work folder, and write the notice about the terms."""
        if self._tasks:
            write_if_changed(self._out_dir / TERMS_NAME, TERMS_TEXT.encode())
            make_directory(self.context.work_dir)

    def finish(self, task: FramesTask, result: tuple[FramesRecord, Path]) -> None:
        """Move the folder of a scene to its final name; an outdated one is moved away."""
        record, work_path = result
        target = self._out_dir / task.scene_id
        try:
            if os.path.lexists(target):
                if not (target / RECORD_NAME).is_file():
                    error = FileError(target, "is in the way", "remove or rename it")
                    self.fail(task, Finding.from_failure(error, task.source, task.scene_id))
                    return
                target.replace(self.context.work_dir / secrets.token_hex(8))
            work_path.replace(target)
        except OSError as error:
            raise output_error(target, error) from error
        self._made[task.scene_id] = record
        self._show_rate()

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

    def _show_rate(self) -> None:
        """Show the number of frames, and how fast they are written."""
        frame_count = sum(len(record.frames) for record in self._made.values())
        size_bytes = sum(record.size_bytes for record in self._made.values())
        seconds = max(time.monotonic() - self._started_s, 1e-3)
        self._progress.status(f"{frame_count:,} frames, {size_bytes / seconds / 1e6:.0f} MB/s")


def _read_records(out_dir: Path) -> dict[SceneId, FramesRecord]:
    """Read the records of all scenes of a folder."""
    return {scene_id: read_record(path) for scene_id, path in iter_records(out_dir)}


def _extract(task: FramesTask, context: FramesContext) -> tuple[FramesRecord, Path]:
    """Extract a scene into the work folder, in a worker.

    Returns:
        Its record, and the folder.
    """
    work_path = context.work_dir / secrets.token_hex(8)
    make_directory(work_path)
    with _checked_scene(task):
        record = extract_scene(
            task.scene, task.split, context.options, context.label_map, out_dir=work_path
        )
    return record, work_path


def _estimate(task: FramesTask, options: FrameOptions) -> Estimate | Finding:
    """Estimate the frames of a scene, in a worker."""
    try:
        sources = FrameSources.from_scene(task.scene, task.split, options)
        with _checked_scene(task):
            return estimate(sources, task.split, options)
    except Exception as error:  # noqa: BLE001 - a bug must not stop the other scenes
        return Finding.from_failure(error, task.source, task.scene_id)


@contextmanager
def _checked_scene(task: FramesTask) -> Iterator[None]:
    """Check that the folder of a scene can be used, and add hints to errors of its files."""
    if task.scene.problem:
        raise FileError(task.scene.directory, task.scene.problem)
    try:
        yield
    except FileError as error:
        if error.hint:
            raise
        raise type(error)(error.path, error.problem, download_hint(error.path)) from None


def _choose_options(
    out_dir: Path,
    options: Mapping[str, Any] | FrameOptions,
    records: Mapping[SceneId, FramesRecord],
) -> FrameOptions:
    """Return the options of a run, which are those of the folder if it holds scenes.

    Raises:
        UsageError: The folder has other options, or its scenes differ in theirs.
    """
    folder_options = {record.options for record in records.values()}
    if len(folder_options) > 1:
        raise UsageError(
            f"{out_dir}: holds frames with different options", "choose a new folder with -o"
        )
    present = folder_options.pop() if folder_options else None
    if isinstance(options, FrameOptions):
        chosen = options
    else:
        chosen = replace(present or FrameOptions(), **options)
    if present is not None and chosen != present:
        raise UsageError(
            f"{out_dir}: holds frames with other options ({present.flags}), "
            f"not those of this command ({chosen.flags})",
            "choose a new folder with -o",
        )
    return chosen


def _check_is_empty(out_dir: Path) -> None:
    """Refuse a folder that holds something else than notices and lists of earlier runs.

    Raises:
        UsageError: It does.
    """
    names = sorted(path.name for path in out_dir.iterdir()) if out_dir.exists() else []
    for name in names:
        if not name.startswith(".") and name not in {TERMS_NAME, FAILED_NAME}:
            problem = f"{out_dir}: holds {name}, and was not made by scannet-prep frames"
            raise UsageError(problem, "choose a new folder with -o")


def _has_stream(scene: RawScene) -> bool:
    """Whether a scene has a sensor stream, or a link to one that leads nowhere."""
    return os.path.lexists(scene.path(STREAM))


def _is_current(
    record: FramesRecord, task: FramesTask, options: FrameOptions, label_map: LabelMap
) -> bool:
    """Whether the extracted frames of a scene are those of its present files."""
    if record.split != task.split or record.label_map not in {"", label_map.digest}:
        return False
    sources = FrameSources.from_scene(task.scene, task.split, options)
    return measure_sources(sources.paths) == dict(record.sources)


def _report_missing_stream(path: Path, raw_dir: Path, scene_id: SceneId) -> Finding:
    """Describe a named scene that has no stream."""
    hint = f"{_download_command(raw_dir)} --scenes {scene_id}"
    return Finding.from_failure(MissingFileError(path, "no such file", hint), path, scene_id)


def _no_streams(raw_dir: Path, selection: Selection) -> MissingFileError:
    """Make the error for a tree in which no selected scene has a stream."""
    scenes = " ".join(selection.scene_ids or ["scene0000_00"])
    suffixes = " ".join(kind.suffix for kind in LABEL_KINDS.values())
    return MissingFileError(
        raw_dir,
        "no selected scene has a sensor stream (.sens)",
        f"{_download_command(raw_dir)} --scenes {scenes} "
        f"({_ALL_STREAMS}; for --with labels instances, add {suffixes} to --types)",
    )


def _download_command(raw_dir: Path) -> str:
    return f"scannet-prep download --types {STREAM.suffix} -o {quote(str(raw_dir))}"
