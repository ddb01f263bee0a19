"""The scenes that a run of `frames` extracts, and with which options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from scannet_prep.base.files import check_is_folder
from scannet_prep.base.findings import Finding
from scannet_prep.errors import MissingFileError, UsageError
from scannet_prep.frames.encoding import FrameSources
from scannet_prep.frames.options import LABEL_KINDS, STREAM, FrameOptions
from scannet_prep.frames.record import FramesRecord, iter_records, read_record
from scannet_prep.raw.tree import RawScene, find_raw_scenes
from scannet_prep.release.files import NOTICE_NAME
from scannet_prep.release.label_map import LabelMap, label_map_for
from scannet_prep.release.scene import SceneId
from scannet_prep.stages.frames.scene_worker import FramesContext, FramesTask
from scannet_prep.stages.selection import FAILED_NAME, Selection, select_scenes

_WORK_NAME = ".scannet-prep-work"
# More scene ids than these were hardly typed.
_MAX_NAMED = 20
_ALL_STREAMS = "1.2 TB for all scenes, about 0.8 GB for each"


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
        without_stream: Scenes that were not named, and have neither a sensor stream nor frames.
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

    @property
    def context(self) -> FramesContext:
        """The settings that all tasks share."""
        return FramesContext(self.options, self.label_map, self.out_dir / _WORK_NAME)


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
    records = read_records(out_dir)
    chosen = choose_options(out_dir, options or {}, records)
    if not records:
        _check_is_empty(out_dir)
    label_map = label_map_for(raw_dir)

    # Scenes that are not named may lack a stream: few people have all of them. After an extraction,
    # a stream may have been removed to free the disk.
    raw_scenes = find_raw_scenes(raw_dir)
    candidates = raw_scenes
    if selection.scene_ids is None:
        candidates = {
            scene_id: scene
            for scene_id, scene in raw_scenes.items()
            if scene_id in records or _has_stream(scene)
        }
    splits = {scene_id: record.split for scene_id, record in records.items()}
    of_tree = {scene_id: scene.split for scene_id, scene in candidates.items()}
    selected, failures = select_scenes(of_tree, selection, raw_dir, splits)

    tasks = []
    kept = []
    for scene_id, split in selected:
        task = FramesTask(raw_scenes[scene_id], split)
        record = records.get(scene_id)
        if record is not None and _is_current(record, task, chosen, label_map):
            kept.append(record)
        elif _has_stream(task.scene):
            tasks.append(task)
        else:
            failures.append(_report_missing_stream(task, raw_dir))
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
        failures=tuple(failures),
    )


def read_records(out_dir: Path) -> dict[SceneId, FramesRecord]:
    """Read the records of all scenes of a folder."""
    return {scene_id: read_record(path) for scene_id, path in iter_records(out_dir)}


def choose_options(
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
        if not name.startswith(".") and name not in {NOTICE_NAME, FAILED_NAME}:
            problem = f"{out_dir}: holds {name}, and was not made by scannet-prep frames"
            raise UsageError(problem, "choose a new folder with -o")


def _has_stream(scene: RawScene) -> bool:
    """Whether a scene has a sensor stream, or a link to one that leads nowhere."""
    return os.path.lexists(scene.path(STREAM))


def _is_current(
    record: FramesRecord, task: FramesTask, options: FrameOptions, label_map: LabelMap
) -> bool:
    """Whether the extracted frames of a scene are those of its present files, if it has any."""
    if record.split != task.split or record.label_map not in {"", label_map.digest}:
        return False
    sources = FrameSources.from_scene(task.scene, task.split, options)
    return sources.measure().items() <= record.sources.items()


def _report_missing_stream(task: FramesTask, raw_dir: Path) -> Finding:
    """Describe a named scene that has no stream."""
    hint = f"{_download_command(raw_dir)} --scenes {task.scene_id}"
    error = MissingFileError(task.scene.path(STREAM), "no such file", hint)
    return Finding.from_error(error, task.source, task.scene_id)


def _no_streams(raw_dir: Path, selection: Selection) -> MissingFileError:
    """Make the error for a tree in which no selected scene has a stream."""
    suffixes = " ".join(kind.suffix for kind in LABEL_KINDS.values())
    return MissingFileError(
        raw_dir,
        "no selected scene has a sensor stream (.sens)",
        f"{_download_command(raw_dir)} {_suggest_selection(selection)} "
        f"({_ALL_STREAMS}; for --with labels instances, add {suffixes} to --types)",
    )


def _suggest_selection(selection: Selection) -> str:
    """Return options for a download of some scenes that were selected."""
    if selection.scene_ids is not None:
        are_few = len(selection.scene_ids) <= _MAX_NAMED
        return f"--scenes {' '.join(selection.scene_ids) if are_few else '@FILE'}"
    if selection.splits:
        return f"--splits {' '.join(selection.splits)} --limit 10"
    return "--scenes scene0000_00"


def _download_command(raw_dir: Path) -> str:
    return f"scannet-prep download --types {STREAM.suffix} -o {quote(str(raw_dir))}"
