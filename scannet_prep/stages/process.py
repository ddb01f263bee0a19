"""Raw scenes in, processed folder out: `plan`, then `run`.

    raw tree, selection --> scenes
    scene, manifest     --> the reason why it has to be made, or none: its file is kept
    task --> a worker: raw files --> ProcessedScene --> temporary file
         --> the run itself: final name, manifest

A folder has one set of options and one label map, the head of its manifest. A run with another head
is refused, unless it makes all scenes again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from scannet_prep.base.files import (
    Fingerprint,
    check_is_folder,
    check_space,
    make_directory,
    put_in_place,
    remove_temporaries,
    write_if_changed,
    write_temporary,
)
from scannet_prep.base.findings import Finding, sort_findings
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.base.text import list_some
from scannet_prep.base.version import VERSION
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import (
    AnnotationError,
    FileError,
    MissingFileError,
    OutputError,
    UsageError,
)
from scannet_prep.export import is_export
from scannet_prep.processed.make_scene import find_raw_files, process_scene
from scannet_prep.processed.manifest import (
    Manifest,
    SceneEntry,
    processed_path,
    read_manifest,
    write_manifest,
)
from scannet_prep.processed.scene import ProcessOptions, SceneMeta, encode_processed
from scannet_prep.raw.tree import find_raw_scenes, find_strangers
from scannet_prep.release.files import MESH, NOTICE_NAME, NOTICE_TEXT
from scannet_prep.release.irregularities import WarningSummary, summarize_warnings
from scannet_prep.release.label_map import LabelMap, describe_differences, label_map_for
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.selection import SceneTask, Selection, select_scenes, write_failed_list

_SAVE_INTERVAL_S = 5.0
# Size of a processed scene, as a multiple of its mesh. Measured on the release: 0.55, and 1.1 with
# faces.
_SIZE_OF_MESH = 0.6
_SIZE_OF_MESH_WITH_FACES = 1.1
# Errors in the content of raw files: an earlier result of the scene no longer holds, and is
# removed. After any other error, such as a missing raw file, it stays.
_CONTENT_ERRORS = {FileError.__name__, AnnotationError.__name__}
_HINT_FOLDER = "choose another output folder"
_HINT_HEAD = "choose another output folder; or process all of this one again, with --force"
_HINT_CHANGED = "run the same command again"
_HINT_LABEL_MAP = "remove it to use the built-in one, or leave out --strict"
_HINT_DAMAGE = "every train and val scene of the release has it: download its files again"
_HINT_DOUBT = "to process the scene anyway, leave out --strict"


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The settings that all tasks of a run share.

    Attributes:
        options: The options of the folder.
        label_map: Ids by raw category; the label map beside the raw scenes, else the built-in one.
        is_strict: Whether doubts about labels are errors.
    """

    options: ProcessOptions
    label_map: LabelMap
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """The work of one run; making the plan writes nothing.

    Attributes:
        raw_dir: The raw scenes.
        out_dir: The processed folder.
        context: The settings that all scenes share.
        before: The manifest of the folder; an empty one if it has none.
        tasks: The scenes to make.
        kept: Scenes whose files are up to date, or whose raw files are gone.
        raw_gone: The kept scenes whose raw files are gone.
        failures: Selected scenes that are not available, and folders that look like scenes.
        notes: Oddities of the label map, and folders and meshes that are no scenes.
        has_all: Whether all scenes were selected.
    """

    raw_dir: Path
    out_dir: Path
    context: ProcessContext
    before: Manifest
    tasks: tuple[SceneTask, ...]
    kept: tuple[str, ...]
    raw_gone: tuple[str, ...]
    failures: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    has_all: bool


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """The result of a run.

    Attributes:
        out_dir: The processed folder.
        made: Scenes that were made.
        kept: Scenes that were up to date, or whose raw files are gone.
        raw_gone: The kept scenes whose raw files are gone.
        failures: Scenes that could not be made, and folders that look like scenes.
        warnings: Oddities of the raw files, each once.
        unfinished: Scenes that an interrupted run did not get to, and that this run did not
            select. Until they are made, readers refuse the folder.
    """

    out_dir: Path
    made: tuple[str, ...]
    kept: tuple[str, ...]
    raw_gone: tuple[str, ...]
    failures: tuple[Finding, ...]
    warnings: tuple[WarningSummary, ...]
    unfinished: tuple[str, ...]


def plan(
    raw_dir: Path,
    out_dir: Path,
    options: ProcessOptions | Mapping[str, bool | str] | None = None,
    *,
    selection: Selection | None = None,
    is_forced: bool = False,
    is_strict: bool = False,
) -> ProcessPlan:
    """Decide what to do; nothing is written.

    Args:
        raw_dir: Folder with `scans/` and `scans_test/`, or with the scene folders themselves.
        out_dir: Folder for the processed scenes.
        options: The options to process with. `ProcessOptions` sets all options, a mapping only the
            options that it names. Options that are not set have the values of the folder.
        selection: The scenes to process; all by default.
        is_forced: Make scenes again even if they are up to date; and the whole folder with other
            options or another label map.
        is_strict: Treat doubts about labels, such as an unknown raw category, as errors.

    Raises:
        MissingFileError: There are no raw scenes.
        OutputError: `out_dir` is not a folder.
        UsageError: `out_dir` is the raw tree or an export, or was made with other options or
            another label map; or there are no scenes of the selected splits.
        FileError: The manifest of `out_dir` is damaged.
        FileError: The label map beside the raw scenes is damaged; or `is_strict` is set, and it
            differs from the release's.
        UnknownSceneError: The selection contradicts itself.
    """
    selection = selection or Selection()
    check_is_folder(out_dir)
    raw_scenes = find_raw_scenes(raw_dir)
    if is_export(out_dir) or os.path.realpath(out_dir) == os.path.realpath(raw_dir):
        raise UsageError(f"{out_dir}: holds other files than processed scenes", _HINT_FOLDER)
    before = _read_before(out_dir)
    if not isinstance(options, ProcessOptions):
        options = replace(before.options, **(options or {}))  # type: ignore[arg-type]
    context = ProcessContext(options, label_map_for(raw_dir), is_strict)

    recorded = {SceneId(name): entry for name, entry in before.scenes.items()}
    previous_splits = {scene_id: entry.split for scene_id, entry in recorded.items()}
    splits = {scene_id: scene.split for scene_id, scene in raw_scenes.items()}
    selected, failures = select_scenes(
        previous_splits | splits, selection, raw_dir, previous_splits
    )
    if not selected and not failures:
        raise UsageError(f"{raw_dir}: has no scenes of {', '.join(selection.splits)}")
    tasks = []
    kept = []
    raw_gone = []
    for scene_id, split in selected:
        try:
            task = SceneTask(raw_scenes[scene_id], split, processed_path(out_dir, split, scene_id))
            reason = _find_reason(task, recorded.get(scene_id), context)
        except (KeyError, MissingFileError):
            raw_gone.append(str(scene_id))
            kept.append(str(scene_id))
            continue
        if reason or is_forced:
            tasks.append(replace(task, reason=reason or "--force"))
        else:
            kept.append(str(scene_id))

    head = (context.options, context.label_map.digest)
    if recorded and (before.options, before.label_map) != head:
        problem = f"{out_dir}: {_compare_heads(before, context)}"
        if not (is_forced and selection.has_all):
            raise UsageError(problem, _HINT_HEAD)
        if raw_gone:
            problem += f", but the raw files of {list_some(raw_gone)} are gone"
            raise UsageError(problem, _HINT_FOLDER)
    notes = [*_check_label_map(context), *find_strangers(raw_dir)]
    return ProcessPlan(
        raw_dir=raw_dir,
        out_dir=out_dir,
        context=context,
        before=before,
        tasks=tuple(tasks),
        kept=tuple(kept),
        raw_gone=tuple(raw_gone),
        failures=(*(note for note in notes if note.is_error), *failures),
        notes=tuple(note for note in notes if not note.is_error),
        has_all=selection.has_all,
    )


def _read_before(out_dir: Path) -> Manifest:
    """Read the manifest of the output folder; an empty one if it has none."""
    try:
        return read_manifest(out_dir)
    except MissingFileError:
        return Manifest(ProcessOptions())


def _compare_heads(before: Manifest, context: ProcessContext) -> str:
    """Describe how the folder was made, and what this run asks for."""
    if before.options == context.options:
        return f"was made with another label map than {context.label_map.source}"
    return f"was made with {before.options.flags}, this run has {context.options.flags}"


def _check_label_map(context: ProcessContext) -> list[Finding]:
    """Compare the label map with the one of the release, and describe the difference.

    Raises:
        FileError: They differ, and the run is strict.
    """
    source = context.label_map.source
    difference = describe_differences(context.label_map)
    if difference and context.is_strict:
        raise FileError(source, difference, _HINT_LABEL_MAP)
    note = Finding(message=difference, subject=source, severity="note")
    return [note] if difference else []


def _find_reason(task: SceneTask, entry: SceneEntry | None, context: ProcessContext) -> str:
    """Find the reason why a scene has to be made, from its record, sizes and times, as make does.

    Returns:
        The reason in words; empty if its file can stay.

    Raises:
        MissingFileError: Its file is there, but a raw file that it needs is gone.
    """
    if entry is None:
        return "not made yet"
    if entry.split != task.split:
        return "in another split than before"
    try:
        output = task.path.stat()
    except OSError:
        return "its file is gone"
    if output.st_size != entry.size_bytes:
        return "its file was changed"
    try:
        raw_files = find_raw_files(task.scene, task.split, context.options)
        inputs = [path.stat() for path in raw_files.values()]
    except MissingFileError:
        raise
    except (FileError, OSError):  # the worker says what is wrong
        return "its raw files cannot be read"
    size_bytes = sum(status.st_size for status in inputs)
    newest_ns = max(status.st_mtime_ns for status in inputs)
    if size_bytes != entry.input_bytes or newest_ns > output.st_mtime_ns:
        return "its raw files were changed"
    if context.is_strict and any(warning.kind.is_doubt for warning in entry.warnings):
        return "its labels are in doubt"
    return ""


def run(
    plan: ProcessPlan,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> ProcessReport:
    """Make the scenes of a plan. A bad one stops no other.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
        executor: Does the work instead of worker processes. Its workers see the same folders under
            the same names.

    Raises:
        OutputError: The folder cannot be written to, or the disk has not enough space.
        OutputError: Another run is writing into the folder, or has changed it since the plan was
            made.
        WorkerDiedError: Worker processes cannot be started.
    """
    progress = progress or Progress()
    out_dir = plan.out_dir
    make_directory(out_dir)
    with run_lock(out_dir):
        if _read_before(out_dir) != plan.before:
            raise OutputError(f"{out_dir}: another run has changed it", _HINT_CHANGED)
        _prepare_folder(plan)
        record = _Record(plan)
        record.save()
        try:
            with progress.work("process", len(plan.kept) + len(plan.tasks), "scenes"):
                progress.advance(len(plan.kept))
                for task, outcome in run_tasks(
                    make_scene_file, plan.tasks, plan.context, jobs, executor
                ):
                    record.settle(task, outcome)
                    progress.advance()
        finally:
            record.save()
            remove_temporaries(out_dir, *(out_dir / split for split in Split))
    return record.report()


def _prepare_folder(plan: ProcessPlan) -> None:
    """Check that there is room, create the folders of the splits, and write the notice."""
    size_of_mesh = _SIZE_OF_MESH_WITH_FACES if plan.context.options.faces else _SIZE_OF_MESH
    needed_bytes = 0.0
    for task in plan.tasks:
        make_directory(task.path.parent)
        # Other files are replaced by one of about the same size.
        if not task.path.exists():
            with suppress(OSError):  # the worker says what is wrong
                needed_bytes += size_of_mesh * task.scene.path(MESH).stat().st_size
    check_space(plan.out_dir, int(needed_bytes))
    # Own scenes do not derive from ScanNet.
    if any(SceneId.is_of_release(task.scene_id) for task in plan.tasks):
        write_if_changed(plan.out_dir / NOTICE_NAME, NOTICE_TEXT.encode())


class _Record:
    """What the manifest lists while a run makes scenes.

    Args:
        plan: The plan of the run.
    """

    def __init__(self, plan: ProcessPlan) -> None:
        self._plan = plan
        self._made: set[str] = set()
        self._new_failures = list(plan.failures)
        self._scenes = dict(plan.before.scenes)
        self._failures: dict[str, Finding] = {}
        self._unfinished: set[str] = set()
        # A run for all scenes finds out anew which of them exist, and which fail.
        if not plan.has_all:
            self._failures.update(plan.before.failures)
            self._unfinished.update(plan.before.unfinished)
        self._failures.update(
            (failure.scene_id, failure) for failure in plan.failures if failure.scene_id
        )
        for task in plan.tasks:
            self._scenes.pop(task.scene_id, None)
            self._unfinished.add(task.scene_id)
        self._saved = plan.before
        self._saved_s = 0.0

    def settle(self, task: SceneTask, outcome: tuple[Path, SceneEntry] | Finding) -> None:
        """Give the file of a scene its final name, or note its failure."""
        name = task.scene_id
        self._unfinished.discard(name)
        outdated_splits = set(Split) - {task.split}
        if isinstance(outcome, Finding):
            self._failures[name] = outcome
            self._new_failures.append(outcome)
            if outcome.error in _CONTENT_ERRORS:
                outdated_splits.add(task.split)
        else:
            temporary_path, self._scenes[name] = outcome
            put_in_place(temporary_path, task.path)
            self._made.add(name)
            self._failures.pop(name, None)
        for split in outdated_splits:
            with suppress(OSError):  # what the manifest does not list does not count
                processed_path(self._plan.out_dir, split, name).unlink()
        if time.monotonic() > self._saved_s + _SAVE_INTERVAL_S:
            self.save()

    def save(self) -> None:
        """Write the manifest and `failed.txt`, if they have changed."""
        context = self._plan.context
        manifest = Manifest(
            options=context.options,
            label_map=context.label_map.digest,
            scenes=dict(self._scenes),
            failures=dict(self._failures),
            unfinished=tuple(sorted(self._unfinished)),
            program_version=VERSION,
        )
        if manifest != self._saved:
            write_manifest(self._plan.out_dir, manifest)
        write_failed_list(self._plan.out_dir, self._failures)
        self._saved = manifest
        self._saved_s = time.monotonic()

    def report(self) -> ProcessReport:
        """Summarize the run."""
        warnings = []
        for name in sorted([*self._plan.kept, *self._made]):
            warnings += [(name, warning) for warning in self._scenes[name].warnings]
        return ProcessReport(
            out_dir=self._plan.out_dir,
            made=tuple(sorted(self._made)),
            kept=self._plan.kept,
            raw_gone=self._plan.raw_gone,
            failures=sort_findings(self._new_failures),
            warnings=tuple(summarize_warnings(warnings)),
            unfinished=tuple(sorted(self._unfinished)),
        )


def make_scene_file(task: SceneTask, context: ProcessContext) -> tuple[Path, SceneEntry]:
    """Make a scene, in a worker.

    A worker that outlives its run changes nothing: it never writes under a final name.

    Returns:
        Its file, under a temporary name, and its entry for the manifest.

    Raises:
        FileError: A raw file is missing or damaged.
        AnnotationError: The raw files do not fit together, or their warnings are errors here.
        OutputError: Its file cannot be written.
    """
    scene = process_scene(task.scene, task.split, context.options, context.label_map)
    _check_warnings(scene.meta, is_strict=context.is_strict)
    chunks = encode_processed(scene)
    entry = SceneEntry.from_scene(scene, Fingerprint.from_bytes(*chunks))
    return write_temporary(task.path, chunks), entry


def _check_warnings(meta: SceneMeta, *, is_strict: bool) -> None:
    """Raise an error for warnings that are errors in this run.

    Raises:
        AnnotationError: There are such warnings.
    """
    has_annotation = meta.split is not Split.TEST and SceneId.is_of_release(meta.scene_id)
    for warning in meta.warnings:
        if warning.kind.is_damage and has_annotation:
            raise AnnotationError(warning.fault, _HINT_DAMAGE)
        if warning.kind.is_doubt and is_strict:
            raise AnnotationError(warning.fault, _HINT_DOUBT)
