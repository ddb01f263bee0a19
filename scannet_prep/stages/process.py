"""Raw scenes in, processed folder out.

    raw tree, selection --> scenes
    scene, manifest     --> the reason why it has to be made, or none: its file is kept
    task --> a worker: raw files --> ProcessedScene --> temporary file

A folder has one set of options and one label map, the head of its manifest. A run with another head
is refused, unless it makes all scenes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scannet_prep.base.files import Fingerprint, write_temporary
from scannet_prep.base.findings import Finding, note
from scannet_prep.base.text import list_some
from scannet_prep.base.version import VERSION
from scannet_prep.errors import FileError, UsageError
from scannet_prep.export import EXPORT_NAME
from scannet_prep.processed.make_scene import process_scene
from scannet_prep.processed.manifest import (
    Manifest,
    SceneEntry,
    processed_path,
    read_manifest,
    write_manifest,
)
from scannet_prep.processed.scene import ProcessOptions, SceneMeta, encode_processed
from scannet_prep.raw.tree import RawScene, list_raw
from scannet_prep.release.files import MESH
from scannet_prep.release.label_map import LabelMap, describe_differences, label_map_at
from scannet_prep.release.scenes import Split, official_splits
from scannet_prep.stages.scene_run import RunPlan, SceneTask, Stage, run
from scannet_prep.stages.selection import Selection, select_scenes

__all__ = ["plan", "run"]

# Size of a processed scene, as a multiple of its mesh. Measured on the release: 0.55, and 1.1 with
# faces.
_SIZE_OF_MESH = 0.6
_SIZE_OF_MESH_WITH_FACES = 1.1
_HINT_FOLDER = "choose another output folder"
_HINT_HEAD = "choose another output folder; or process all of this one again, with --force"
_HINT_LABEL_MAP = "leave out --strict, or put the label map of the release there"
_HINT_DAMAGE = "every such scene of the release has it: download its files again"
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
    is_strict: bool


def plan(
    raw_dir: Path,
    out_dir: Path,
    options: ProcessOptions | Mapping[str, bool | str] | None = None,
    *,
    selection: Selection = Selection(),
    is_forced: bool = False,
    is_strict: bool = False,
) -> RunPlan:
    """Decide what to do; nothing is written.

    Args:
        raw_dir: Folder with the scenes; see `list_raw`.
        out_dir: Folder for the processed scenes.
        options: The options to process with. `ProcessOptions` sets all options, a mapping only the
            options that it names. Options that are not set have the values of the folder.
        selection: The scenes to process; all by default.
        is_forced: Make scenes again even if they are up to date; and the whole folder with other
            options or another label map.
        is_strict: Treat doubts about labels, such as an unknown raw category, as errors.

    Raises:
        MissingFileError: There are no raw scenes.
        UsageError: `out_dir` is a file, an export or the raw tree, or was made with other options
            or another label map; an option is wrong; or there are no scenes of the selected splits.
        FileError: The manifest of `out_dir` is damaged.
        FileError: The label map beside the raw scenes is damaged; or `is_strict` is set, and it
            differs from the release's.
        UnknownSceneError: A named scene is unknown, or is in none of the selected splits.
    """
    listing = list_raw(raw_dir)
    is_raw = out_dir.exists() and out_dir.samefile(raw_dir)
    if is_raw or (out_dir / EXPORT_NAME).exists() or out_dir.is_file():
        problem = "is a file, an export or the raw tree, expected a folder for processed scenes"
        raise UsageError(f"{out_dir}: {problem}", _HINT_FOLDER)
    before = read_manifest(out_dir, may_be_missing=True)
    options = before.options.updated(options or {})
    label_map = label_map_at(listing.label_map)
    notes = [*_check_label_map(label_map, describe_differences(label_map), is_strict=is_strict)]
    notes += listing.findings
    context = ProcessContext(options, label_map, is_strict)
    difference = _compare_heads(before, context)
    if difference and not (is_forced and selection.has_all):
        raise UsageError(f"{out_dir}: {difference}", _HINT_HEAD)

    previous_splits = {name: entry.split for name, entry in before.scenes.items()}
    splits = {scene_id: scene.split for scene_id, scene in listing.scenes.items()}
    selected, failures = select_scenes(
        previous_splits | splits, selection, raw_dir, previous_splits
    )
    if not selected and not failures:
        raise UsageError(f"{raw_dir}: has no scenes of {', '.join(selection.splits)}")
    tasks = []
    kept = []
    raw_gone = []
    forced_reason = "--force" if is_forced else ""
    for scene_id, split in selected:
        # A scene that is gone from the tree has no files there.
        scene = listing.scenes.get(scene_id, RawScene(scene_id, raw_dir / scene_id))
        task = SceneTask(scene, split, processed_path(out_dir, split, scene_id))
        entry = before.scenes.get(scene_id)
        try:
            reason = _find_reason(task, entry, context) or forced_reason
        except (FileError, OSError) as error:
            reason = ""
            if entry is not None:
                raw_gone.append(scene_id)
            # Missing raw files are not a failure of a scene that has been made.
            if entry is None or not isinstance(error, OSError):
                failures.append(Finding.from_error(error, scene_id=scene_id))
                continue
        if reason:
            tasks.append(replace(task, reason=reason))
        else:
            kept.append(scene_id)

    if raw_gone:
        notes.append(_note_gone(raw_gone, out_dir, difference))
    return RunPlan(
        stage=_STAGE,
        source=raw_dir,
        out_dir=out_dir,
        about=f"{options.flags}: {options.label_set.name}, label map: {label_map.source}",
        context=context,
        before=before,
        head=Manifest(options, label_map.digest, program_version=VERSION),
        tasks=tasks,
        kept=kept,
        findings=notes + failures,
        has_all=selection.has_all,
        needed_bytes=_estimate_bytes(tasks, options),
    )


def _compare_heads(before: Manifest, context: ProcessContext) -> str:
    """Describe how the folder was made differently; empty if it was not."""
    if not before.scenes:
        return ""
    if before.options != context.options:
        return f"was made with {before.options.flags}, this run has {context.options.flags}"
    if before.label_map != context.label_map.digest:
        return f"was made with another label map than {context.label_map.source}"
    return ""


def _note_gone(scene_ids: list[str], out_dir: Path, difference: str) -> Finding:
    """Describe the scenes that stay, although they cannot be made again.

    Raises:
        UsageError: The folder was made differently, so they cannot stay.
    """
    fault = f"raw files are gone or cannot be used: {list_some(scene_ids)}"
    if difference:
        raise UsageError(f"{out_dir}: {difference}, but {fault}", _HINT_FOLDER)
    return note(f"kept, although their {fault}")


def _estimate_bytes(tasks: Iterable[SceneTask], options: ProcessOptions) -> int:
    """Estimate the size of new files; existing ones are replaced by files of about their size."""
    mesh_bytes = 0
    for task in tasks:
        if not task.path.exists():
            with suppress(OSError):  # the worker reports what is wrong
                mesh_bytes += task.scene.path(MESH).stat().st_size
    return int(mesh_bytes * (_SIZE_OF_MESH_WITH_FACES if options.faces else _SIZE_OF_MESH))


def _check_label_map(label_map: LabelMap, difference: str, *, is_strict: bool) -> list[Finding]:
    """Note how the label map differs from that of the release, if it does.

    Raises:
        FileError: They differ, and the run is strict.
    """
    if not difference:
        return []
    if is_strict:
        raise FileError(label_map.source, difference, _HINT_LABEL_MAP)
    return [note(difference, label_map.source)]


def _find_reason(task: SceneTask, entry: SceneEntry | None, context: ProcessContext) -> str:
    """Find the reason why a scene has to be made: like `make`, by its record, sizes and times.

    Returns:
        The reason in words; empty if its file can stay.

    Raises:
        FileError, OSError: A raw file that it needs is gone, or its raw folder cannot be used. This
            is not checked if its file has to be made again anyway.
    """
    if entry is None:
        context.options.find_raw_files(task.scene, task.split)
        return "not made yet"
    if entry.split != task.split:
        return "in another split than before"
    try:
        output = task.path.stat()
    except OSError:
        return "its file is gone"
    if output.st_size != entry.size_bytes:
        return "its file was changed"
    raw_files = context.options.find_raw_files(task.scene, task.split)
    inputs = [path.stat() for path in raw_files.values()]
    size_bytes = sum(status.st_size for status in inputs)
    newest_ns = max(status.st_mtime_ns for status in inputs)
    if size_bytes != entry.input_bytes or newest_ns > output.st_mtime_ns:
        return "its raw files were changed"
    if context.is_strict and any(warning.kind.is_doubt for warning in entry.warnings):
        return "its labels are in doubt"
    return ""


def _make_scene(task: SceneTask, context: ProcessContext) -> tuple[dict[Path, Path], SceneEntry]:
    """Make a scene, in a worker.

    A worker that outlives its run changes nothing: it never writes under a final name.

    Returns:
        The temporary name of its file, by the final one, and its entry for the manifest.

    Raises:
        FileError: A raw file is missing or damaged, the raw files do not fit together, or their
            warnings are errors here.
        OutputError: Its file cannot be written.
    """
    scene = process_scene(task.scene, task.split, context.options, context.label_map)
    _check_warnings(task, scene.meta, is_strict=context.is_strict)
    chunks = encode_processed(scene)
    entry = SceneEntry.from_scene(scene, Fingerprint.from_bytes(*chunks))
    return {task.path: write_temporary(task.path, chunks)}, entry


def _check_warnings(task: SceneTask, meta: SceneMeta, *, is_strict: bool) -> None:
    """Raise an error for warnings that are errors in this run.

    Raises:
        FileError: There are such warnings.
    """
    is_of_release = meta.scene_id in official_splits()
    for warning in meta.warnings:
        if warning.kind.is_damage and is_of_release:
            raise FileError(task.source, warning.fault, _HINT_DAMAGE)
        if warning.kind.is_doubt and is_strict:
            raise FileError(task.source, warning.fault, _HINT_DOUBT)


def _find_outdated(task: SceneTask, outcome: object) -> set[Path]:
    """List the files of a scene that hold an earlier result, which no longer counts."""
    out_dir = task.path.parent.parent
    paths = {out_dir / split / task.path.name for split in Split}
    # After an error in the content of raw files, the earlier result of the scene no longer holds.
    # After any other error, such as a missing raw file, it stays.
    if not isinstance(outcome, Finding) or outcome.error != FileError.__name__:
        paths.remove(task.path)
    return paths


def _describe_warnings(_: object, manifest: Manifest) -> list[Finding]:
    """Describe the oddities of the raw files, each once."""
    return [note(f"{text} ({list_some(scenes)})") for text, scenes in manifest.summarize_warnings()]


_STAGE = Stage(
    name="process",
    make=_make_scene,
    read=partial(read_manifest, may_be_missing=True),
    write=write_manifest,
    find_outdated=_find_outdated,
    finish=_describe_warnings,
    subfolders=frozenset(Split),
)
