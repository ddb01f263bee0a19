"""Decide what a run of `process` has to do: options, scenes, and the reason why each is processed.

    raw tree + selection --> scenes
    command + manifest   --> options of the folder   (one set for all scenes, or the run is refused)
    sizes and times      --> reason per scene        (up to date, new, raw files changed, ...)

Nothing is written here; `running` does the work.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote

from scannet_prep.base.errors import (
    FileError,
    MissingFileError,
    OldFormatError,
    RawFileError,
    UsageError,
)
from scannet_prep.base.failures import list_some
from scannet_prep.base.files import check_is_folder
from scannet_prep.export import is_export
from scannet_prep.processed import folder
from scannet_prep.processed.make_scene import find_raw_files
from scannet_prep.processed.manifest import Manifest, read_manifest, read_old_options
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw.layout import RawScene, find_raw_scenes, find_strangers
from scannet_prep.raw.own_scan import OwnScan
from scannet_prep.release.files import SPLIT_DIRS
from scannet_prep.release.findings import Finding
from scannet_prep.release.label_map import (
    LABEL_MAP_HINT,
    LabelMap,
    builtin_label_map,
    describe_differences,
    label_map_for,
)
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.process.scene_worker import ProcessContext, ProcessTask, Reason, has_errors
from scannet_prep.stages.process.seen import SeenScene, describe_files, read_seen
from scannet_prep.stages.selection import Selection, select_scenes

_HINT_OTHER_FOLDER = "choose another output folder with -o"


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """The work of one run; making the plan writes nothing.

    Attributes:
        raw_dir: The raw scenes.
        out_dir: The processed folder.
        context: The options, the label map and the strictness that all scenes share.
        options_source: Where the options come from, in words: the command, the folder, the
            defaults.
        before: Options and label map of the folder before the run, without scenes; None for a new
            folder, or if no file shows them.
        tasks: The selected scenes, each with the reason why it is processed, or why it stays as it
            is.
        failures: Selected scenes that are not available.
        notes: Warnings about the label map and the raw tree.
        is_restricted: Whether only a part of the scenes was selected.
        starts_anew: Whether the options, the label map or the format of the folder change, or the
            folder is new.
    """

    raw_dir: Path
    out_dir: Path
    context: ProcessContext
    options_source: str
    before: Manifest | None
    tasks: tuple[ProcessTask, ...]
    failures: tuple[Finding, ...]
    notes: tuple[str, ...]
    is_restricted: bool
    starts_anew: bool

    @property
    def is_own(self) -> bool:
        """Whether the scenes are own scans."""
        return any(isinstance(task.scene, OwnScan) for task in self.tasks)

    @property
    def to_process(self) -> list[str]:
        """The scenes that are processed for certain, not only if a comparison finds a change."""
        uncertain_or_kept = {Reason.UNKNOWN, Reason.RAW_GONE, Reason.UP_TO_DATE}
        return [str(task.scene_id) for task in self.tasks if task.reason not in uncertain_or_kept]

    @property
    def scenes_by_reason(self) -> dict[Reason, list[str]]:
        """Scene ids by the reason why they are processed, or that they are up to date."""
        by_reason: dict[Reason, list[str]] = {}
        for reason in Reason:
            scene_ids = [str(task.scene_id) for task in self.tasks if task.reason is reason]
            if scene_ids:
                by_reason[reason] = scene_ids
        return by_reason


@dataclass(frozen=True, slots=True)
class FoundFolder:
    """A processed folder before a run.

    Attributes:
        head: Options and label map, without scenes; None if no file shows them, as in a new folder.
        manifest: The manifest. It has no scenes if it is missing or damaged, so that files are read
            instead.
        held: The split of each scene whose file lies in the folder.
        is_old: Whether the folder has the format of an older version.
    """

    head: Manifest | None
    manifest: Manifest
    held: Mapping[SceneId, Split] = field(hash=False)
    is_old: bool = False


def plan(
    raw_dir: Path,
    out_dir: Path,
    options: ProcessOptions | Mapping[str, bool | str] | None = None,
    *,
    selection: Selection | None = None,
    is_forced: bool = False,
    is_strict: bool = False,
    is_lenient: bool = False,
    compares_bytes: bool = False,
) -> ProcessPlan:
    """Decide what to do; nothing is written.

    Args:
        raw_dir: Folder with `scans/` and `scans_test/`, or with the scene folders themselves.
        out_dir: Folder for the processed scenes.
        options: The options to process with. `ProcessOptions` sets all options, a mapping only the
            options that it names. Options that are not set have the values of the folder.
        selection: The scenes to process; all by default.
        is_forced: Process scenes again even if they are up to date; and the whole folder with other
            options.
        is_strict: Treat doubts about labels, such as an unknown raw category, as errors.
        is_lenient: Treat damage that leaves a train or val scene without alignment, groups or
            normals as a warning.
        compares_bytes: Read all files. By default, a file whose size, time and inode are as before
            is unchanged.

    Raises:
        MissingFileError: There are no raw scenes.
        OutputError: `out_dir` is not a folder.
        UsageError: `out_dir` lies in the raw tree, or is an export, or was made with other options;
            or holds own scans; or the run would leave scenes of the folder as they are that it has
            to process again; or arguments contradict each other; or there are no scenes of the
            selected splits.
        OldFormatError: `out_dir` has the format of an older version, and the run is not forced.
        RawFileError: The label map beside the raw scenes is damaged; or `is_strict` is set, and it
            differs from the release's.
        UnknownSceneError: The selection contradicts itself.
    """
    if is_strict and is_lenient:
        raise UsageError("--strict and --lenient contradict each other", "leave out one of them")
    selection = selection or Selection()
    check_is_folder(out_dir)
    raw_scenes = _find_raw_scenes(raw_dir)
    _check_apart(raw_dir, out_dir, {scene.parent for scene in raw_scenes.values()})

    folder.check_unmixed(out_dir, folder.find_scene_ids(out_dir) | raw_scenes.keys())
    before = _read_folder_before(out_dir, [raw_dir], is_forced=is_forced)
    chosen_options, options_source = _choose_options(out_dir, before, options, is_forced=is_forced)
    label_map = label_map_for(raw_dir)
    label_map_notes = _check_label_map(label_map, is_strict=is_strict)
    context = ProcessContext(
        options=chosen_options,
        label_map=label_map,
        is_forced=is_forced,
        is_strict=is_strict,
        is_lenient=is_lenient,
        compares_bytes=compares_bytes,
    )

    # Scenes of the folder without a raw folder belong to the run, too: a worker checks if they can
    # be kept, and the report lists them.
    scenes = {name: RawScene(name, raw_dir) for name in before.held} | raw_scenes
    selected, failures = select_scenes(scenes, selection, raw_dir, before.held)
    if not selected and not failures:
        raise UsageError(
            f"{raw_dir}: has {len(raw_scenes):,} scenes, but none of {', '.join(selection.splits)}",
            f"check --splits, or run: scannet-prep download --types seg -o {quote(str(raw_dir))}",
        )
    is_restricted = selection != Selection()
    chosen_scenes = {name: scenes[name] for name, _ in selected}
    _check_none_left_behind(out_dir, before, context, chosen_scenes)
    return ProcessPlan(
        raw_dir=raw_dir,
        out_dir=out_dir,
        context=context,
        options_source=options_source,
        before=before.head,
        tasks=_plan_tasks(out_dir, before, context, chosen_scenes, dict(selected)),
        failures=failures,
        notes=(*label_map_notes, *_find_notes(raw_scenes)),
        is_restricted=is_restricted,
        starts_anew=_starts_anew(before, context),
    )


def plan_own_scans(
    scans: Mapping[SceneId, OwnScan],
    out_dir: Path,
    options: ProcessOptions | Mapping[str, bool | str] | None = None,
    *,
    is_forced: bool = False,
    compares_bytes: bool = False,
) -> ProcessPlan:
    """Decide what to do with own scans, which go into the split `test`; nothing is written.

    Other scans of the folder stay as they are. The points are aligned if the scans have an
    alignment.

    Args:
        scans: From `find_own_scans`; at least one.
        out_dir: Folder for the processed scenes.
        options: As for `plan`.
        is_forced: As for `plan`.
        compares_bytes: As for `plan`.

    Raises:
        OutputError: `out_dir` is not a folder.
        UsageError: `out_dir` holds scenes of the release, or is an export, or was made with other
            options; or two names differ only in case; or only its scans, or only these, are
            aligned.
        OldFormatError: `out_dir` has the format of an older version, and the run is not forced.
    """
    files = [scan.file for scan in scans.values()]
    check_is_folder(out_dir)
    _check_no_export(out_dir)
    scene_ids = folder.find_scene_ids(out_dir) | scans.keys()
    folder.check_unmixed(out_dir, scene_ids)
    folder.check_apart_without_case(out_dir, scene_ids)
    before = _read_folder_before(out_dir, files, is_forced=is_forced)
    named = asdict(options) if isinstance(options, ProcessOptions) else dict(options or {})
    is_aligned = all(scan.alignment is not None for scan in scans.values())
    if is_aligned:
        named = {"align_axis": True} | named
    chosen_options, options_source = _choose_options(out_dir, before, named, is_forced=is_forced)
    if chosen_options.align_axis and not is_aligned:
        raise UsageError(
            f"{files[0]}: --align-axis aligns own scans only with --up or --matrix",
            "--up z if z points up in the file, --up y if y does; or --matrix FILE",
        )
    if is_aligned and not chosen_options.align_axis:
        raise UsageError(
            "--up and --matrix align the points, --no-align-axis forbids it", "leave out one"
        )
    context = ProcessContext(
        options=chosen_options,
        label_map=builtin_label_map(),
        is_forced=is_forced,
        compares_bytes=compares_bytes,
    )
    _check_none_left_behind(out_dir, before, context, scans)
    return ProcessPlan(
        raw_dir=files[0].parent,
        out_dir=out_dir,
        context=context,
        options_source=options_source,
        before=before.head,
        tasks=_plan_tasks(out_dir, before, context, scans, dict.fromkeys(scans, Split.TEST)),
        failures=(),
        notes=(),
        # Scans of the folder that are not named stay.
        is_restricted=True,
        starts_anew=_starts_anew(before, context),
    )


def _read_folder_before(out_dir: Path, raw: Sequence[Path], *, is_forced: bool) -> FoundFolder:
    """Read the folder as it is before the run.

    Args:
        out_dir: The folder.
        raw: The raw folder, or the files of own scans, for the hint.
        is_forced: Whether the folder may have the format of an older version.
    """
    try:
        return read_folder(out_dir, is_forced=is_forced)
    except OldFormatError as error:
        words = ["scannet-prep", "process", "--force", "-o", str(out_dir), *map(str, raw)]
        raise OldFormatError(
            error.path, error.problem, f"process the folder again: {shlex.join(words)}"
        ) from None


def _plan_tasks(
    out_dir: Path,
    before: FoundFolder,
    context: ProcessContext,
    scenes: Mapping[SceneId, RawScene],
    splits: Mapping[SceneId, Split],
) -> tuple[ProcessTask, ...]:
    """Make the task of each scene, with the reason why it is processed or kept."""
    seen = read_seen(out_dir)
    tasks = []
    for scene_id, scene in scenes.items():
        split = splits[scene_id]
        task = ProcessTask(
            scene=scene,
            split=split,
            path=folder.processed_path(out_dir, split, scene_id),
            recorded=before.manifest.scenes.get(scene_id),
        )
        reason = _find_reason(task, context, before, seen.get(scene_id))
        tasks.append(replace(task, reason=reason))
    return tuple(tasks)


def _starts_anew(before: FoundFolder, context: ProcessContext) -> bool:
    """Whether options and label map have to be written before any scene is made."""
    # A head that is missing, as in a new folder, differs, too.
    head = Manifest(context.options, context.label_map.digest)
    return before.is_old or before.head != head


def _find_raw_scenes(raw_dir: Path) -> dict[SceneId, RawScene]:
    """Find the raw scenes, or raise an error that identifies what the place holds instead."""
    try:
        return find_raw_scenes(raw_dir)
    except MissingFileError:
        _refuse_folder_of_meshes(raw_dir)
        # Imported only if needed, because the import takes time.
        from scannet_prep.source import SourceKind, identify_folder

        # Raises for every other kind of place. A raw tree may hold only files of no scene.
        if identify_folder(raw_dir) is SourceKind.RAW:
            raise
        raise MissingFileError(
            raw_dir,
            "holds processed scenes, expected raw ones",
            "give the raw folder: scannet-prep process RAW",
        ) from None


def _refuse_folder_of_meshes(raw_dir: Path) -> None:
    """Raise an error if a folder holds meshes of own scans, which are named one by one."""
    is_scene = SceneId.is_of_release(raw_dir.resolve().name)
    if not is_scene and any(raw_dir.glob("*.[pP][lL][yY]")):
        raise MissingFileError(
            raw_dir,
            "holds no scenes of the release, but PLY files",
            f"for own scans, name the files: scannet-prep process {quote(str(raw_dir))}/*.ply",
        )


def _check_apart(raw_dir: Path, out_dir: Path, parents: Iterable[Path]) -> None:
    """Refuse to write among raw scenes, or into an export. A folder beside `scans` is allowed."""
    # The output folder may lie in the raw folder. It must not be a folder of raw scenes, nor lie
    # anywhere below scans/ or scans_test/.
    beside_scenes = {Path(os.path.realpath(parent)) for parent in parents}
    split_dirs = {path for path in beside_scenes if path.name in SPLIT_DIRS.values()}
    # realpath never raises, unlike Path.resolve.
    out = Path(os.path.realpath(out_dir))
    raw = Path(os.path.realpath(raw_dir))
    roots = {raw, *beside_scenes, *(path.parent for path in split_dirs)}
    if out in roots or split_dirs & set(out.parents):
        raise UsageError(
            f"{out_dir}: processed scenes would lie among the raw ones", _HINT_OTHER_FOLDER
        )
    _check_no_export(out_dir)


def _check_no_export(out_dir: Path) -> None:
    if is_export(out_dir):
        raise UsageError(
            f"{out_dir}: processed scenes would lie among those of an export", _HINT_OTHER_FOLDER
        )


def _check_label_map(label_map: LabelMap, *, is_strict: bool) -> list[str]:
    """Compare the label map with the one of the release.

    Returns:
        A warning if they differ.

    Raises:
        RawFileError: They differ, and `is_strict` is set.
    """
    difference = describe_differences(label_map)
    if not difference:
        return []
    if is_strict:
        raise RawFileError(label_map.source, difference, f"{LABEL_MAP_HINT}, or leave out --strict")
    return [f"warning: {label_map.source}: {difference}"]


def read_folder(out_dir: Path, *, is_forced: bool) -> FoundFolder:
    """Read the options and the manifest of the output folder.

    Raises:
        OldFormatError: It has the format of an older version, and the run is not forced.
    """
    held = {scene_id: split for scene_id, split, _ in folder.iter_processed_scenes(out_dir)}
    try:
        manifest = read_manifest(out_dir)
    except OldFormatError:
        if not is_forced:
            raise
        head = Manifest(read_old_options(out_dir) or ProcessOptions())
        return FoundFolder(head=head, manifest=head, held=held, is_old=True)
    except FileError:
        # It is damaged, and is rebuilt from the files of the scenes, as if it were missing.
        manifest = None
    if manifest is None:
        head_of_files = folder.find_head(out_dir)
        manifest = head_of_files or Manifest(ProcessOptions())
        return FoundFolder(head=head_of_files, manifest=manifest, held=held)
    head = Manifest(manifest.options, manifest.label_map)
    return FoundFolder(head=head, manifest=manifest, held=held)


def _choose_options(
    out_dir: Path,
    before: FoundFolder,
    options: ProcessOptions | Mapping[str, bool | str] | None,
    *,
    is_forced: bool,
) -> tuple[ProcessOptions, str]:
    """Complete the named options by those of the folder.

    Returns:
        The options, and where they come from, in words.

    Raises:
        UsageError: The folder has other options, or holds scenes and nothing shows their options;
            and the run is not forced.
    """
    # The options that the caller sets, by name.
    named = asdict(options) if isinstance(options, ProcessOptions) else dict(options or {})
    if before.head is None and before.held and not named and not is_forced:
        raise UsageError(
            f"{out_dir}: holds scenes, but neither a manifest nor a whole scene of this format "
            "shows their options",
            "name them, for example --scannet200 --align-axis; "
            "or write to another folder with -o DIR",
        )
    if before.head is None:
        return ProcessOptions(**named), "the command" if named else "the defaults"
    old_options = before.head.options
    chosen = replace(old_options, **named)
    if chosen == old_options:
        return chosen, str(out_dir)
    if not is_forced:
        raise UsageError(
            f"{out_dir}: was made with {old_options.flags}; this command asks for {chosen.flags}",
            "write to another folder with -o DIR; or process the whole folder again with --force",
        )
    return chosen, "the command"


def _check_none_left_behind(
    out_dir: Path,
    before: FoundFolder,
    context: ProcessContext,
    selected: Mapping[SceneId, RawScene],
) -> None:
    """Refuse a run that changes the options or the label map for only a part of a folder.

    Raises:
        UsageError: A scene of the folder was not selected, or its raw files are gone.
    """
    is_own = any(isinstance(scene, OwnScan) for scene in selected.values())
    if before.head is None:
        cause = (
            "the whole folder has to be processed again, "
            "because nothing shows the options of its scenes"
        )
        outdated = dict(before.held)
    elif before.is_old:
        cause = "the whole folder has to be processed again, because it has an older format"
        outdated = dict(before.held)
    elif before.head.options != context.options:
        cause = "other options apply to the whole folder"
        outdated = dict(before.held)
    elif before.head.label_map not in ("", context.label_map.digest):
        cause = (
            f"the label map has changed ({context.label_map.source}), "
            "which applies to all annotated scenes"
        )
        # Test scenes have no annotation.
        outdated = {name: split for name, split in before.held.items() if split is not Split.TEST}
    else:
        return

    everything = "leave out --scenes, --splits and --limit"
    if is_own:
        everything = "name the files of all its scans"
    not_selected = sorted(outdated.keys() - selected.keys())
    if not_selected:
        raise UsageError(
            f"{out_dir}: {cause}, but {len(not_selected):,} of its scenes are not selected: "
            f"{list_some(not_selected)}",
            f"{everything}; or write to another folder with -o DIR",
        )
    gone = []
    for scene_id, split in sorted(outdated.items()):
        if _are_raw_files_gone(selected[scene_id], split, context.options):
            gone.append(scene_id)
    if gone:
        raise UsageError(
            f"{out_dir}: {cause}, but the raw files are gone for {len(gone):,} of its scenes: "
            f"{list_some(gone)}",
            "write to another folder with -o DIR; "
            f"or remove these scenes: {_remove_command(out_dir, before, gone)}",
        )


def _remove_command(out_dir: Path, before: FoundFolder, scene_ids: Iterable[SceneId]) -> str:
    """Return the command that removes scenes from the folder, or its beginning if they are many."""
    ordered = sorted(scene_ids)
    paths = [folder.processed_path(out_dir, before.held[name], name) for name in ordered]
    shown = " ".join(quote(str(path)) for path in paths[:3])
    return f"rm {shown}" if len(paths) <= 3 else f"rm {shown} ..."


def _find_reason(
    task: ProcessTask, context: ProcessContext, before: FoundFolder, seen: SeenScene | None
) -> Reason:
    """Find the reason why a scene is processed, as far as sizes and times show it."""
    now = describe_files(task.scene, task.split, task.path, context.label_map)
    if not now.output:
        return Reason.NEW
    if before.is_old or (before.head is not None and before.head.options != context.options):
        return Reason.OPTIONS
    is_recorded = task.recorded is not None and task.recorded.split == task.split
    can_compare = is_recorded and seen is not None and not context.compares_bytes
    is_unchanged = can_compare and seen == now
    if is_unchanged and not context.is_forced and not has_errors(task, context):
        return Reason.UP_TO_DATE
    # Before FORCED: such a scene stays even in a forced run.
    if _are_raw_files_gone(task.scene, task.split, context.options):
        return Reason.RAW_GONE
    if context.is_forced:
        return Reason.FORCED
    # `can_compare` implies a state; mypy needs the second condition.
    if not can_compare or seen is None:
        return Reason.UNKNOWN
    if seen.label_map != now.label_map:
        return Reason.LABEL_MAP
    if seen.inputs != now.inputs:
        return Reason.RAW_CHANGED
    if seen.output != now.output:
        return Reason.OUTPUT_CHANGED
    # Nothing has changed, but recorded warnings are errors in this run.
    return Reason.UNKNOWN


def _are_raw_files_gone(scene: RawScene, split: Split, options: ProcessOptions) -> bool:
    """Whether a raw file that the scene needs is missing, or its folder is a broken link."""
    # If the folder exists but cannot be used, the worker reports the problem.
    if scene.problem:
        return not scene.directory.exists()
    try:
        find_raw_files(scene, split, options)
    except MissingFileError:
        return True
    except FileError:
        # The worker reports it.
        return False
    return False


def _find_notes(raw_scenes: Mapping[SceneId, RawScene]) -> list[str]:
    """Return a warning if there are folders that are not scenes."""
    strangers = [path.name for path in find_strangers(raw_scenes)]
    if not strangers:
        return []
    names = f"{len(strangers):,} ({list_some(strangers)})"
    return [f"warning: ignored folders whose names are not scene ids: {names}"]
