"""Processed scenes in, the folder that another program reads out.

format, label set, frame --> the head of export.json; a folder with another head is refused
selection                --> scenes, without those that the format cannot hold
scene, export.json       --> the reason why it has to be made, or none: its files are kept
task --> a worker: processed file --> export_<format> --> temporary files
records of all scenes    --> share_<format> --> lists
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from scannet_prep.base.files import have_sizes, read_file, write_if_changed, write_temporary
from scannet_prep.base.findings import Finding, note
from scannet_prep.base.json import parse_record
from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError, MissingFileError, UsageError
from scannet_prep.export import COMPUTED_SEGMENTS, EXPORT_NAME, FORMATS, find_function
from scannet_prep.export.arrays import encode_file, in_frame
from scannet_prep.processed.manifest import write_manifest
from scannet_prep.release.label_sets import SCANNET20, LabelSet, parse_label_set
from scannet_prep.release.scenes import Split
from scannet_prep.source.place import ProcessedScenes, open_processed
from scannet_prep.stages.scene_run import RunPlan, Stage, run
from scannet_prep.stages.selection import Selection

__all__ = ["plan", "run"]

_HINT_FOLDER = "choose a new folder with -o"
_HINT_SCENES = "scannet-prep info PLACE --table scenes lists the existing scenes"
_HINT_DAMAGED = "remove the folder of the export, then run the same command again"


class ExportEntry(msgspec.Struct, frozen=True):
    """One scene of an export.

    Attributes:
        split: Its split.
        source_crc32: CRC-32 of the processed file that it was made from.
        sizes: The size of each of its files in bytes, by name.
        record: The values of the scene that the lists of the format need.
    """

    split: Split
    source_crc32: str
    sizes: Mapping[str, int]
    record: Mapping[str, Any]


class ExportManifest(msgspec.Struct, frozen=True):
    """`export.json`: the content of an export. All of its scenes were made in the same way.

    Attributes:
        options: Format, label set, frame, and the options of the processed scenes, in words.
        scenes: The exported scenes, by id.
        failures: Scenes that failed in the last run that tried them, by id.
        unfinished: Scenes that a run has still to make, or had when it was interrupted.
    """

    options: str
    scenes: Mapping[str, ExportEntry] = {}
    failures: Mapping[str, Finding] = {}
    unfinished: tuple[str, ...] = ()


_DECODER = msgspec.json.Decoder(ExportManifest)


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


class ExportContext(NamedTuple):
    """What all tasks of a run share.

    Attributes:
        place: The folder or archive of the processed scenes.
        format_name: The format.
        label_set: The classes of the labels, for formats that hold a single label set.
        is_aligned: Whether points are in the axis-aligned frame.
        out_dir: The folder of the export.
    """

    place: ProcessedScenes
    format_name: str
    label_set: LabelSet
    is_aligned: bool
    out_dir: Path


def plan(
    place: str | Path,
    out_dir: Path,
    format_name: str,
    *,
    label_set: LabelSet | str | None = None,
    is_aligned: bool | None = None,
    selection: Selection = Selection(),
    is_forced: bool = False,
) -> RunPlan:
    """Decide what to export. Writes nothing and reads no scene.

    Args:
        place: A processed folder, or the path or address of an archive.
        out_dir: The folder of the export: new, empty, or an export made in the same way.
        format_name: One of `FORMATS`.
        label_set: The label set, or its name, if the format has only one; by default that of the
            scenes.
        is_aligned: Whether points are in the axis-aligned frame; by default as the program expects,
            or as in the scenes if it accepts both.
        selection: The scenes to export; all by default.
        is_forced: Make scenes again even if they are up to date.

    Raises:
        UsageError: The format leaves no such choice, `out_dir` holds something else, or there is
            nothing to export of the selected splits.
        FileError: The processed scenes cannot be used, or the manifest of the export is damaged.
        UnknownSceneError: A selected scene does not exist.
        TransferError: A web server does not send an archive.
    """
    # Checks that need no scenes come first: opening an archive on a server may take a while.
    _, choices, aligned_with, needs = FORMATS[format_name]
    for name, value in {"label set": label_set, "frame": is_aligned}.items():
        if value is not None and name not in choices:
            raise UsageError(f"the format {format_name} has no choice of a {name}", "leave it out")
    before = _read_manifest(out_dir)
    opened = open_processed(place)
    stored = opened.options
    default = stored.label_set if "label set" in choices else SCANNET20
    label_set = parse_label_set(label_set or default)
    if is_aligned is None:
        is_aligned = stored.align_axis if aligned_with is None else label_set.name == aligned_with
    options = f"format: {format_name}"
    if "label set" in choices:
        options += f", label set: {label_set.name}"
    if "frame" in choices:
        options += ", frame: axis-aligned" if is_aligned else ", frame: of the scan"
    options += f", processed with: {stored.flags}"
    if before.options not in {"", options}:
        problem = f"holds an export with other options ({before.options}); this run has {options}"
        raise UsageError(f"{out_dir}: {problem}", _HINT_FOLDER)
    selected, notes = _select(opened, needs, selection)
    tasks = []
    kept = []
    for scene_id in selected:
        entry = before.scenes.get(scene_id)
        reason = _find_reason(out_dir, entry, opened.manifest.scenes[scene_id].crc32)
        if reason or is_forced:
            tasks.append(ExportTask(scene_id, opened.file_path(scene_id), reason or "--force"))
        else:
            kept.append(scene_id)
    return RunPlan(
        stage=_STAGE,
        source=opened.name,
        out_dir=out_dir,
        about=options,
        context=ExportContext(opened, format_name, label_set, is_aligned, out_dir),
        before=before,
        head=ExportManifest(options),
        tasks=tasks,
        kept=kept,
        findings=notes,
        has_all=selection.has_all,
    )


def _read_manifest(out_dir: Path) -> ExportManifest:
    """Read the manifest of an export; an empty one if the folder is empty.

    Raises:
        FileError: It cannot be read, is damaged, or was written by another program.
        UsageError: The folder holds something else.
    """
    path = out_dir / EXPORT_NAME
    try:
        return parse_record(read_file(path), path, _DECODER, _HINT_DAMAGED)
    except MissingFileError:
        for found in sorted(out_dir.glob("[!.]*")):
            problem = f"holds {found.name}, and was not made by scannet-prep export"
            raise UsageError(f"{out_dir}: {problem}", _HINT_FOLDER) from None
    return ExportManifest("")


def _select(
    place: ProcessedScenes, needs: str, selection: Selection
) -> tuple[list[str], list[Finding]]:
    """Select the scenes to export; the limit applies after test scenes are left out.

    Returns:
        The scenes, sorted by id; and what is left out and why.

    Raises:
        UnknownSceneError: A selected scene does not exist.
        UsageError: No scene is left.
    """
    selected = selection.find(place.name, place.scenes, _HINT_SCENES)
    notes = []
    if place.failures and not selection.scene_ids:
        notes.append(f"not made, because they failed in processing: {list_some([*place.failures])}")
    if needs and not (needs == COMPUTED_SEGMENTS and place.options.compute_segments):
        count = len(selected)
        selected = [name for name in selected if place.scenes[name].split != Split.TEST]
        if len(selected) < count:
            notes.append(f"left out: test scenes have no {needs}")
    if not selected:
        raise UsageError("; ".join([f"{place.name}: nothing to export", *notes]))
    return selected[: selection.limit], [*map(note, notes)]


def _find_reason(out_dir: Path, entry: ExportEntry | None, crc32: str) -> str:
    """Find the reason why a scene has to be made; empty if its files can stay.

    Args:
        out_dir: The folder of the export.
        entry: The scene in it.
        crc32: CRC-32 of the processed file.
    """
    if entry is None:
        return "not made yet"
    if entry.source_crc32 != crc32:
        return "processed again"
    return "" if have_sizes(out_dir, entry.sizes) else "its files were changed"


def _make_scene(task: ExportTask, context: ExportContext) -> tuple[dict[Path, Path], ExportEntry]:
    """Make the files of a scene, in a worker.

    Returns:
        The temporary name of each file, by its final name; and the entry of the scene.

    Raises:
        FileError: The processed scene is damaged, or something is in the way of its files.
        ScanNetPrepError: The format cannot represent the scene.
        OutputError: The files cannot be written.
    """
    scene = in_frame(context.place.read(task.scene_id), is_aligned=context.is_aligned)
    export = find_function("export", context.format_name)
    files, record = export(scene, context.label_set)
    paths = {}
    sizes = {}
    for name, content in files.items():
        path = context.out_dir / name
        paths[path] = write_temporary(path, encode_file(name, content))
        sizes[name] = paths[path].stat().st_size
    crc32 = context.place.manifest.scenes[task.scene_id].crc32
    return paths, ExportEntry(scene.meta.split, crc32, sizes, record)


def _write_lists(plan: RunPlan, manifest: ExportManifest) -> list[Finding]:
    """Write the files that concern all scenes, and remove files that no scene has any more.

    Raises:
        FileError: The manifest holds records of another format.
    """
    outdated = {name for entry in plan.before.scenes.values() for name in entry.sizes}
    records: dict[Split, dict[str, Any]] = {split: {} for split in Split}
    for scene_id, entry in sorted(manifest.scenes.items()):
        outdated -= entry.sizes.keys()
        records[entry.split][scene_id] = entry.record
    for name in outdated:
        with suppress(OSError):  # what the manifest does not list does not count
            (plan.out_dir / name).unlink()
    share = find_function("share", plan.context.format_name)
    try:
        lists = share(records, plan.context.label_set)
    except KeyError as error:
        problem = f"has records of another format: {error} is missing"
        raise FileError(plan.out_dir / EXPORT_NAME, problem, _HINT_DAMAGED) from None
    for name, data in lists.items():
        write_if_changed(plan.out_dir / name, b"".join(encode_file(name, data)))
    return []


_STAGE = Stage(
    name="export",
    make=_make_scene,
    read=_read_manifest,
    write=partial(write_manifest, name=EXPORT_NAME),
    finish=_write_lists,
)
