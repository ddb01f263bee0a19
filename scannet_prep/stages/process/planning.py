"""What processing is going to do, and what it did."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scannet_prep.errors import (
    FileError,
    ManifestError,
    MissingFileError,
    UnknownSplitError,
    UsageError,
)
from scannet_prep.export import is_export
from scannet_prep.failures import SceneFailure
from scannet_prep.files import (
    check_is_folder,
)
from scannet_prep.labels import label_map_for
from scannet_prep.processed.folder import (
    processed_path,
)
from scannet_prep.processed.manifest import Manifest, read_manifest, shards_of
from scannet_prep.processed.scene import ProcessOptions, read_meta
from scannet_prep.raw import lock
from scannet_prep.raw.layout import RawScene, find_parents, find_raw_scenes, find_strangers
from scannet_prep.release import MESH, SPLIT_DIRS
from scannet_prep.scene_warnings import WarningSummary
from scannet_prep.shards import Shard, Share
from scannet_prep.splits import find_official_split
from scannet_prep.stages.process.scene_worker import (
    ProcessTask,
    WorkContext,
)
from scannet_prep.stages.selection import Selection, select_scenes


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What `run` is going to do; making it touches nothing.

    Attributes:
        raw_dir: Where the raw scenes are.
        out_dir: Where the processed ones go.
        context: How they are made.
        tasks: Scenes to make, or to keep where they are up to date.
        failures: Scenes that were asked for and cannot be had.
        existing: Scenes of `tasks` that the folder has, made with the same options (inputs are compared later).
        others: Scenes that the folder has, that are not among `tasks` and were made with other options, and what is
            different; a dataset of such a folder is refused.
        outdated: Scenes of `tasks` that the folder has, made with other options, and what is different.
        unlisted: Scenes of `tasks` that no official list names; they go into the one split that was asked for.
        strangers: Folders beside those of the scenes that are left out, because their names are not scene ids.
        raw_faults: What is missing of the raw tree, where shards of a download have not ended.
        is_restricted: Whether only a part of the scenes was asked for.
        share: The shard that `tasks` and `failures` fall to; None where they are all that was asked for.
    """

    raw_dir: Path
    out_dir: Path
    context: WorkContext
    tasks: tuple[ProcessTask, ...]
    failures: tuple[SceneFailure, ...]
    existing: tuple[str, ...]
    others: Mapping[str, str] = field(hash=False)
    outdated: Mapping[str, str] = field(hash=False)
    unlisted: tuple[str, ...]
    strangers: tuple[str, ...]
    raw_faults: tuple[ManifestError, ...]
    is_restricted: bool
    share: Share | None

    @property
    def shard(self) -> str:
        """Which part of the job it is, such as `3/16`; empty for all of it."""
        return str(self.share.shard) if self.share else ""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What `run` did.

    Attributes:
        out_dir: The processed folder.
        made: Scenes that were made.
        kept: Scenes that were up to date.
        failures: Scenes that could not be made.
        warnings: What was odd, each oddity once.
        vertices: Of all scenes made or kept.
        size_bytes: Size of their files.
        unfinished: Scenes that an interrupted run had still to make and that were not asked for now; until they are
            made, readers refuse the folder.
        shard: Which part of the job it was, such as `3/16`; empty for all of it.
    """

    out_dir: Path
    made: tuple[str, ...]
    kept: tuple[str, ...]
    failures: tuple[SceneFailure, ...]
    warnings: tuple[WarningSummary, ...]
    vertices: int
    size_bytes: int
    unfinished: tuple[str, ...]
    shard: str


def plan(
    raw_dir: Path,
    out_dir: Path,
    options: ProcessOptions,
    *,
    selection: Selection | None = None,
    is_forced: bool = False,
    is_strict: bool = False,
    is_lenient: bool = False,
    compares_bytes: bool = False,
    shard: Shard | None = None,
) -> ProcessPlan:
    """Decide what to do; nothing is written.

    Args:
        raw_dir: Folder with `scans/` and `scans_test/`, or with the scene folders themselves.
        out_dir: Folder for the processed scenes.
        options: How to make them.
        selection: Which scenes; all by default.
        is_forced: Make scenes again even where they are up to date.
        is_strict: Treat doubts about labels, such as an unknown raw category, as errors.
        is_lenient: Take damage that leaves a train or val scene without alignment, groups or normals for a warning.
        compares_bytes: Read all files; else those whose size, time and inode are as before count as unchanged.
        shard: Which part of all that to do; other runs do the others, and a run without it merges them.

    Raises:
        MissingFileError: There are no raw scenes.
        OutputError: `out_dir` is not a folder.
        UsageError: `out_dir` is the raw tree, or a folder of scenes in it, or an export; or has other shards.
        LabelMapError: The label map beside them is damaged.
        UnknownSceneError: The selection contradicts itself.
        UnknownSplitError: There are no scenes of the splits that were asked for.
    """
    selection = selection or Selection()
    check_is_folder(out_dir)
    try:
        raw_scenes = find_raw_scenes(raw_dir)
    except MissingFileError:
        from scannet_prep.tree import explain_no_raw_scenes  # it knows archives, and takes time to load

        explain_no_raw_scenes(raw_dir)
        raise
    parents = find_parents(raw_scenes.values())
    _check_apart(raw_dir, out_dir, parents)
    manifest = read_known(out_dir)
    filed = {scene_id: entry.split for scene_id, entry in manifest.scenes.items()}
    selected, failures = select_scenes(raw_scenes, selection, raw_dir, filed)
    if not selected and not failures:
        raise UnknownSplitError(
            f"{raw_dir}: has {len(raw_scenes):,} scenes, but none of {', '.join(selection.splits)}",
            "ask for other splits, or download them",
        )
    share = None
    if shard is not None or shards_of(out_dir).exists():
        sizes = dict.fromkeys((failure.scene_id for failure in failures), 0)
        sizes |= {str(scene_id): count_mesh_bytes(raw_scenes[scene_id]) for scene_id, _ in selected}
        is_part = selection != Selection()
        if share := shards_of(out_dir).take(shard, sizes, asdict(options), is_restricted=is_part):
            selected = tuple(item for item in selected if item[0] in share.names)
            failures = tuple(failure for failure in failures if failure.scene_id in share.names)
    tasks = tuple(
        ProcessTask(raw_scenes[scene_id], split, processed_path(out_dir, split, scene_id))
        for scene_id, split in selected
    )
    found = _find_options(manifest, tasks)
    differences = {made_with: ", ".join(made_with.differences(options)) for made_with in set(found.values())}
    changes = {name: differences[made_with] for name, made_with in found.items()}
    asked_for = {task.scene.scene_id for task in tasks}
    return ProcessPlan(
        raw_dir=raw_dir,
        out_dir=out_dir,
        context=WorkContext(options, label_map_for(raw_dir), is_forced, is_strict, is_lenient, compares_bytes),
        tasks=tasks,
        failures=failures,
        existing=tuple(name for name, change in changes.items() if name in asked_for and not change),
        others={} if share else {name: it for name, it in changes.items() if name not in asked_for and it},
        outdated={name: change for name, change in changes.items() if name in asked_for and change},
        unlisted=tuple(scene_id for scene_id, _ in selected if find_official_split(scene_id) is None),
        strangers=tuple(path.name for path in find_strangers(parents)),
        raw_faults=tuple(lock.shards_of(raw_dir).find_faults()),
        is_restricted=selection != Selection(),
        share=share,
    )


def _check_apart(raw_dir: Path, out_dir: Path, parents: Iterable[Path]) -> None:
    """Refuse to write among the raw scenes; a folder beside `scans` is none of theirs."""
    beside_scenes = {Path(os.path.realpath(folder)) for folder in parents}
    inside = {folder for folder in beside_scenes if folder.name in SPLIT_DIRS.values()}
    out, raw = (Path(os.path.realpath(folder)) for folder in (out_dir, raw_dir))  # which never raises
    if out in {raw, *beside_scenes, *(folder.parent for folder in inside)} or inside & set(out.parents):
        raise UsageError(f"{out_dir}: processed scenes would lie among the raw ones", "choose another folder with -o")
    if is_export(out_dir):
        raise UsageError(f"{out_dir}: processed scenes would lie among those of an export", "choose another folder")


def read_known(out_dir: Path) -> Manifest:
    """Read what a processed folder holds, as far as its manifest can be read."""
    with suppress(FileError):  # rebuilt from the files
        return read_manifest(out_dir) or Manifest()
    return Manifest()


def _find_options(manifest: Manifest, tasks: tuple[ProcessTask, ...]) -> dict[str, ProcessOptions]:
    """How the scenes that the folder already has were made: the manifest knows, else their files."""
    found = {name: entry.options for name, entry in manifest.scenes.items()}
    for task in tasks:
        if not task.path.exists():
            found.pop(task.scene.scene_id, None)
        elif task.scene.scene_id not in found:
            with suppress(FileError):  # truncated, or not ours: made again
                found[task.scene.scene_id] = read_meta(task.path, task.scene.scene_id, task.split).options
    return found


def count_mesh_bytes(scene: RawScene) -> int:
    """Size of the mesh, as far as a scene can be made of it."""
    with suppress(OSError):  # that it cannot be read, the scene says
        size_bytes = os.stat(f"{scene.parent}/{scene.scene_id}/{scene.scene_id}{MESH.suffix}").st_size  # noqa: PTH116 - of all scenes
        return size_bytes if size_bytes <= MESH.max_bytes else 0
    return 0
