"""The scenes of a run, each with the reason why it is processed or kept.

Options and label map apply to a whole folder. A run that changes them has to process all scenes
that depend on them, or is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote

from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError, MissingFileError, UsageError
from scannet_prep.processed import folder
from scannet_prep.processed.make_scene import find_raw_files
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.stages.process.folder_before import FolderBefore
from scannet_prep.stages.process.scene_worker import ProcessContext, ProcessTask, Reason, has_errors
from scannet_prep.stages.process.seen import SeenScene, describe_files, read_seen


def plan_tasks(
    out_dir: Path,
    before: FolderBefore,
    context: ProcessContext,
    scenes: Mapping[SceneId, RawScene],
    splits: Mapping[SceneId, Split],
) -> tuple[ProcessTask, ...]:
    """Make the task of each scene, with the reason why it is processed or kept.

    Args:
        out_dir: The output folder.
        before: Its state before the run.
        context: The settings of the run.
        scenes: The raw files of the selected scenes.
        splits: The split of each of these.
    """
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


def _find_reason(
    task: ProcessTask, context: ProcessContext, before: FolderBefore, seen: SeenScene | None
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


def check_none_left_behind(
    out_dir: Path,
    before: FolderBefore,
    context: ProcessContext,
    selected: Mapping[SceneId, RawScene],
    *,
    how_to_select_all: str,
) -> None:
    """Refuse a run that changes the options or the label map for only a part of a folder.

    Args:
        out_dir: The folder.
        before: Its state before the run.
        context: The settings of the run.
        selected: The raw files of the scenes of the run.
        how_to_select_all: The hint for a run that does not select all scenes of the folder.

    Raises:
        UsageError: A scene of the folder was not selected, or its raw files are gone.
    """
    cause, outdated = _find_outdated(before, context)
    not_selected = sorted(outdated.keys() - selected.keys())
    if not_selected:
        raise UsageError(
            f"{out_dir}: {cause}, but {len(not_selected):,} of its scenes are not selected: "
            f"{list_some(not_selected)}",
            f"{how_to_select_all}; or write to another folder with -o DIR",
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


def _find_outdated(
    before: FolderBefore, context: ProcessContext
) -> tuple[str, Mapping[SceneId, Split]]:
    """Find the scenes that a change of the whole folder affects.

    Returns:
        What changes, in words, and the split of each scene that has to be processed again. An empty
        text and no scenes if nothing changes.
    """
    if before.head is None:
        cause = (
            "the whole folder has to be processed again, "
            "because nothing shows the options of its scenes"
        )
        return cause, before.held
    if before.is_old:
        cause = "the whole folder has to be processed again, because it has an older format"
        return cause, before.held
    if before.head.options != context.options:
        return "other options apply to the whole folder", before.held
    if before.head.label_map not in ("", context.label_map.digest):
        cause = (
            f"the label map has changed ({context.label_map.source}), "
            "which applies to all annotated scenes"
        )
        # Test scenes have no annotation.
        annotated = {name: split for name, split in before.held.items() if split != Split.TEST}
        return cause, annotated
    return "", {}


def _remove_command(out_dir: Path, before: FolderBefore, scene_ids: Iterable[SceneId]) -> str:
    """Return the command that removes scenes from the folder, or its beginning if they are many."""
    ordered = sorted(scene_ids)
    paths = [folder.processed_path(out_dir, before.held[name], name) for name in ordered]
    shown = " ".join(quote(str(path)) for path in paths[:3])
    return f"rm {shown}" if len(paths) <= 3 else f"rm {shown} ..."


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
