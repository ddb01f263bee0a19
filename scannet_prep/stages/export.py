"""Processed scenes in, the folder that another program reads out: `plan`, then `run`.

format, settings  --> the head of the manifest; a folder with another head is refused
selection         --> scenes, without those that the format cannot hold
scene, manifest   --> the reason why it has to be made, or none: its files are kept
task --> a worker: processed file --> Format.encode --> temporary files
     --> the run itself: final names, manifest
records of all scenes --> Format.share --> lists
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from scannet_prep.base.files import (
    check_is_folder,
    have_sizes,
    make_directory,
    put_in_place,
    remove_temporaries,
    write_if_changed,
    write_temporary,
)
from scannet_prep.base.findings import Finding
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import OutputError, UsageError
from scannet_prep.export import find_format
from scannet_prep.export.format import ExportSettings, Format, Record
from scannet_prep.export.manifest import (
    ExportEntry,
    ExportManifest,
    Setting,
    read_export,
    write_export,
)
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.release.files import NOTICE_NAME, NOTICE_TEXT
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.source.place import open_processed
from scannet_prep.source.scenes import ProcessedScenes
from scannet_prep.stages.selection import Selection, write_failed_list

_SAVE_INTERVAL_S = 5.0
# What chooses each setting on the command line.
_FLAGS = {
    "label_set": "--label-set",
    "is_aligned": "--aligned or --unaligned",
    "points": "--points",
}
_NO_ANNOTATION = "test scenes have no annotation"
_NO_SEGMENTS = (
    "the release has no segments of test scenes; process the scenes with --compute-segments"
)
_FORCED = "--force"
_HINT_FOLDER = "choose a new folder with -o"
_HINT_SCENES = "info lists the scenes that are there"
_HINT_CHANGED = "run the same command again"


class ExportTask(NamedTuple):
    """One scene to make.

    Attributes:
        scene_id: The scene.
        source: Its processed file, for messages; a text if it is in an archive.
        reason: The reason why it has to be made.
    """

    scene_id: str
    source: Path | str
    reason: str


@dataclass(frozen=True, slots=True)
class ExportContext:
    """The settings that all tasks of a run share.

    Attributes:
        place: The folder or archive of the processed scenes.
        format: The format.
        settings: Its settings.
        out_dir: The folder of the export.
    """

    place: ProcessedScenes
    format: Format
    settings: ExportSettings
    out_dir: Path


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The work of one run; making the plan writes nothing.

    Attributes:
        context: What all scenes share.
        settings: The format, the settings that it uses, and the options of the processed scenes.
        before: The manifest of the folder; None if it has none.
        tasks: The scenes to make.
        kept: Scenes whose files are up to date.
        left_out: Why test scenes are left out; empty if they are not.
    """

    context: ExportContext
    settings: dict[str, Setting]
    before: ExportManifest | None
    tasks: tuple[ExportTask, ...]
    kept: tuple[str, ...]
    left_out: str


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of a run.

    Attributes:
        out_dir: The folder of the export.
        made: Scenes that were made.
        kept: Scenes that were up to date.
        failures: Scenes that could not be made.
        files: Number of files of all scenes of the export.
        size_bytes: Size of these files.
    """

    out_dir: Path
    made: tuple[str, ...]
    kept: tuple[str, ...]
    failures: tuple[Finding, ...]
    files: int
    size_bytes: int


def plan(
    place: str | Path,
    out_dir: Path,
    format_name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    selection: Selection | None = None,
    is_forced: bool = False,
) -> ExportPlan:
    """Decide what to export. Writes nothing and reads no scene.

    Args:
        place: A processed folder, or the path or address of an archive.
        out_dir: The folder of the export: new, empty, or an export with the same settings.
        format_name: One of `FORMATS`.
        settings: The fields of `ExportSettings` that are chosen. By default, the label set and the
            frame are those of the program, or of the scenes if it takes any.
        selection: The scenes to export; all by default.
        is_forced: Make scenes again even if they are up to date.

    Raises:
        UsageError: The format does not use a setting, `out_dir` holds something else, or there is
            nothing to export of the selected splits.
        FileError: The processed scenes cannot be used, or the manifest of the export is damaged.
        UnknownSceneError: A selected scene does not exist.
        OutputError: `out_dir` is not a folder.
        TransferError: A web server does not send an archive.
    """
    selection = selection or Selection()
    # Check first what can be refused without the scenes: opening them may take a while on a server.
    export_format = find_format(format_name)
    for name in settings or {}:
        if name not in export_format.uses:
            problem = f"the format {format_name} has no choice of {_FLAGS[name]}"
            raise UsageError(problem, "leave it out")
    check_is_folder(out_dir)
    before = read_export(out_dir)

    opened = open_processed(place)
    chosen = _choose_settings(opened, export_format, settings or {})
    described: dict[str, Setting] = {"format": format_name}
    described |= {name: getattr(chosen, name) for name in export_format.uses}
    if "label_set" in described:
        described["label_set"] = chosen.label_set.name
    described["processed_with"] = opened.options.flags
    _check_target(out_dir, opened, before, described)
    selected, left_out = _select(opened, export_format, selection)

    tasks = []
    kept = []
    for scene_id in selected:
        exported = None if before is None else before.scenes.get(scene_id)
        reason = _find_reason(opened.entries[scene_id], exported, out_dir)
        if reason or is_forced:
            task = ExportTask(scene_id, opened.file_path(scene_id), reason or _FORCED)
            tasks.append(task)
        else:
            kept.append(scene_id)
    return ExportPlan(
        context=ExportContext(opened, export_format, chosen, out_dir),
        settings=described,
        before=before,
        tasks=tuple(tasks),
        kept=tuple(kept),
        left_out=left_out,
    )


def _choose_settings(
    place: ProcessedScenes, export_format: Format, given: Mapping[str, Any]
) -> ExportSettings:
    """Choose the settings that are not given, by the format and by how scenes were processed."""
    settings = replace(ExportSettings(), **given)
    stored = place.options
    if "label_set" in export_format.uses and "label_set" not in given:
        settings = replace(settings, label_set=stored.label_set)
    aligned_with = export_format.aligned_with
    if "is_aligned" not in given:
        is_aligned = stored.align_axis
        if aligned_with is not None:
            is_aligned = settings.label_set in aligned_with
        settings = replace(settings, is_aligned=is_aligned)
    return settings


def _check_target(
    out_dir: Path,
    place: ProcessedScenes,
    before: ExportManifest | None,
    settings: Mapping[str, Setting],
) -> None:
    """Check that an export may be written into a folder.

    Raises:
        UsageError: The folder holds an export with other settings, or something else.
    """
    if before is not None:
        changes = [
            f"{name}: {before.settings.get(name)} -> {value}"
            for name, value in settings.items()
            if before.settings.get(name) != value
        ]
        if changes:
            problem = f"{out_dir}: holds an export with other options ({', '.join(changes)})"
            raise UsageError(problem, _HINT_FOLDER)
        return
    for path in sorted(out_dir.iterdir()) if out_dir.exists() else ():
        # The processed scenes may lie in the folder of the export.
        has_scenes = place.folder is not None and place.folder.resolve().is_relative_to(
            path.resolve()
        )
        if not path.name.startswith(".") and not has_scenes:
            problem = f"{out_dir}: holds {path.name}, and was not made by scannet-prep export"
            raise UsageError(problem, _HINT_FOLDER)


def _select(
    place: ProcessedScenes, export_format: Format, selection: Selection
) -> tuple[list[str], str]:
    """Select the scenes to export; the limit applies after test scenes are left out.

    Returns:
        The scenes, sorted by id; and the reason why test scenes are left out, if they are.

    Raises:
        UnknownSceneError: A selected scene does not exist.
        UsageError: No scene is left.
    """
    splits = {scene_id: entry.split for scene_id, entry in place.entries.items()}
    selection.check_found(place.name, splits, _HINT_SCENES)
    selected = sorted(selection.select(splits))
    reason = ""
    if export_format.needs == "annotation":
        reason = _NO_ANNOTATION
    elif export_format.needs == "segments" and not place.options.compute_segments:
        reason = _NO_SEGMENTS
    left = [scene_id for scene_id in selected if not reason or splits[scene_id] is not Split.TEST]
    if not left:
        raise UsageError(f"{place.name}: nothing to export: {reason or 'has no scenes'}")
    return left[: selection.limit], reason if len(left) < len(selected) else ""


def _find_reason(processed: SceneEntry, exported: ExportEntry | None, out_dir: Path) -> str:
    """Find the reason why a scene has to be made; empty if its files can stay."""
    if exported is None:
        return "not made yet"
    if (exported.split, exported.source_crc32) != (processed.split, processed.crc32):
        return "processed again"
    return "" if have_sizes(out_dir, exported.sizes) else "its files were changed"


def run(
    plan: ExportPlan,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> ExportReport:
    """Export the scenes of a plan. A bad scene does not stop the others.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Advanced by each scene.
        executor: Does the work instead of worker processes. Its workers see the same folders under
            the same names.

    Raises:
        OutputError: The folder cannot be written to, or the disk is full.
        OutputError: Another run is writing into the folder, or has changed it since the plan was
            made.
        WorkerDiedError: Worker processes cannot be started.
    """
    progress = progress or Progress()
    out_dir = plan.context.out_dir
    make_directory(out_dir)
    with run_lock(out_dir):
        if read_export(out_dir) != plan.before:
            raise OutputError(f"{out_dir}: another run has changed it", _HINT_CHANGED)
        _remove_temporaries(out_dir)
        scenes = _find_current(plan)
        made: list[str] = []
        failures: dict[str, Finding] = {}
        if plan.tasks:
            _save(plan, scenes)
            # Own scenes do not derive from ScanNet.
            if any(SceneId.is_of_release(task.scene_id) for task in plan.tasks):
                write_if_changed(out_dir / NOTICE_NAME, NOTICE_TEXT.encode())
        try:
            with progress.work("export", len(plan.kept) + len(plan.tasks), "scenes"):
                progress.advance(len(plan.kept))
                saved_s = time.monotonic()
                for task, outcome in run_tasks(
                    make_scene_files, plan.tasks, plan.context, jobs, executor
                ):
                    if isinstance(outcome, Finding):
                        failures[task.scene_id] = outcome
                    else:
                        temporary_paths, scenes[task.scene_id] = outcome
                        for path, temporary_path in temporary_paths.items():
                            put_in_place(temporary_path, path)
                        made.append(task.scene_id)
                    progress.advance()
                    if time.monotonic() > saved_s + _SAVE_INTERVAL_S:
                        _save(plan, scenes)
                        saved_s = time.monotonic()
            _write_lists(plan.context, scenes)
        finally:
            if plan.tasks:
                _save(plan, scenes)
            write_failed_list(out_dir, failures)
            _remove_temporaries(out_dir)
    sizes = [size for entry in scenes.values() for size in entry.sizes.values()]
    return ExportReport(
        out_dir=out_dir,
        made=tuple(sorted(made)),
        kept=plan.kept,
        failures=tuple(failure for _, failure in sorted(failures.items())),
        files=len(sizes),
        size_bytes=sum(sizes),
    )


def _find_current(plan: ExportPlan) -> dict[str, ExportEntry]:
    """Return the scenes of the folder that count before the tasks of a plan are done.

    The older version of a scene does not, unless the scene is only forced.
    """
    scenes = {} if plan.before is None else dict(plan.before.scenes)
    for task in plan.tasks:
        if task.reason != _FORCED:
            scenes.pop(task.scene_id, None)
    return scenes


def _remove_temporaries(out_dir: Path) -> None:
    """Remove temporary files of workers that were lost."""
    remove_temporaries(out_dir, *(path for path in out_dir.rglob("*") if path.is_dir()))


def _save(plan: ExportPlan, scenes: Mapping[str, ExportEntry]) -> None:
    """Write the manifest."""
    manifest = ExportManifest(plan.settings, dict(sorted(scenes.items())))
    write_export(plan.context.out_dir, manifest)


def _write_lists(context: ExportContext, scenes: Mapping[str, ExportEntry]) -> None:
    """Write the files that concern all scenes."""
    records: dict[Split, dict[str, Record]] = {split: {} for split in Split}
    for scene_id, entry in sorted(scenes.items()):
        records[entry.split][scene_id] = entry.record
    for name, data in context.format.share(records, context.settings).items():
        write_if_changed(context.out_dir / name, data)


def make_scene_files(
    task: ExportTask, context: ExportContext
) -> tuple[dict[Path, Path], ExportEntry]:
    """Make the files of a scene, in a worker.

    A worker that outlives its run changes nothing: it never writes under a final name.

    Returns:
        The temporary name of each file, by its final name; and the entry of the scene.

    Raises:
        FileError: The processed scene is damaged, or something is in the way of its files.
        ScanNetPrepError: The format cannot represent the scene.
        OutputError: The files cannot be written.
    """
    processed = context.place.entries[task.scene_id]
    scene = context.place.read(task.scene_id)
    files, record = context.format.encode(scene, context.settings)
    temporary_paths = {}
    sizes = {}
    for name, chunks in files.items():
        path = context.out_dir / name
        temporary_paths[path] = write_temporary(path, chunks)
        sizes[name] = temporary_paths[path].stat().st_size
    return temporary_paths, ExportEntry(processed.split, processed.crc32, sizes, record)
