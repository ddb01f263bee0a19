"""Decide what a run of `process` has to do: options, scenes, and the reason why each is processed.

    raw tree + selection --> scenes
    command + manifest   --> options of the folder   (one set for all scenes, or the run is refused)
    sizes and times      --> reason per scene        (up to date, new, raw files changed, ...)

`folder_before` chooses the options, and `reasons` finds the reasons. Nothing is written here;
`running` does the work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from scannet_prep.base.files import check_is_folder
from scannet_prep.base.findings import Finding
from scannet_prep.errors import MissingFileError, RawFileError, UsageError
from scannet_prep.processed.manifest import Manifest
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw.tree import RawScene, find_raw_scenes, find_strangers
from scannet_prep.release.files import SPLIT_DIRS
from scannet_prep.release.label_map import (
    LABEL_MAP_HINT,
    LabelMap,
    describe_differences,
    label_map_for,
)
from scannet_prep.release.scene import SceneId
from scannet_prep.stages.process.folder_before import (
    HINT_OTHER_FOLDER,
    check_no_export,
    choose_options,
    name_options,
    read_before_run,
)
from scannet_prep.stages.process.reasons import check_none_left_behind, plan_tasks
from scannet_prep.stages.process.scene_worker import ProcessContext, ProcessTask, Reason
from scannet_prep.stages.selection import Selection, select_scenes


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
        strangers: What looks like a scene and is none; not recorded in the folder.
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
    strangers: tuple[Finding, ...]
    notes: tuple[str, ...]
    is_restricted: bool
    starts_anew: bool

    @property
    def is_own(self) -> bool:
        """Whether all scenes are own scenes, which do not derive from ScanNet."""
        return all(task.scene.is_own for task in self.tasks)

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
            or the run would leave scenes of the folder as they are that it has
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
    _check_apart(raw_dir, out_dir, {scene.directory.parent for scene in raw_scenes.values()})

    before = read_before_run(out_dir, [raw_dir], is_forced=is_forced)
    named = name_options(options)
    chosen_options, options_source = choose_options(out_dir, before, named, is_forced=is_forced)
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
    scenes = {name: RawScene(name, raw_dir / name) for name in before.held} | raw_scenes
    own_splits = {name: scene.split for name, scene in raw_scenes.items() if scene.is_own}
    selected, failures = select_scenes(scenes, selection, raw_dir, before.held, own_splits)
    strangers = find_strangers(raw_dir)
    stranger_notes = [
        f"warning: {item.subject} {item.message}" for item in strangers if not item.is_error
    ]
    if not selected and not failures:
        raise UsageError(
            f"{raw_dir}: has {len(raw_scenes):,} scenes, but none of {', '.join(selection.splits)}",
            f"check --splits, or run: scannet-prep download --types seg -o {quote(str(raw_dir))}",
        )
    chosen_scenes = {name: scenes[name] for name, _ in selected}
    check_none_left_behind(
        out_dir,
        before,
        context,
        chosen_scenes,
        how_to_select_all="leave out --scenes, --splits and --limit",
    )
    return ProcessPlan(
        raw_dir=raw_dir,
        out_dir=out_dir,
        context=context,
        options_source=options_source,
        before=before.head,
        tasks=plan_tasks(out_dir, before, context, chosen_scenes, dict(selected)),
        failures=failures,
        strangers=tuple(stranger for stranger in strangers if stranger.is_error),
        notes=(*label_map_notes, *stranger_notes),
        is_restricted=selection != Selection(),
        starts_anew=before.differs_from(chosen_options, label_map),
    )


def _find_raw_scenes(raw_dir: Path) -> dict[SceneId, RawScene]:
    """Find the raw scenes, or raise an error that identifies what the place holds instead."""
    try:
        return find_raw_scenes(raw_dir)
    except MissingFileError:
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
            f"{out_dir}: processed scenes would lie among the raw ones", HINT_OTHER_FOLDER
        )
    check_no_export(out_dir)


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
