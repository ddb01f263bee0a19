"""What is going to be unpacked, and whether that is safe: known from the index alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.archive.index import ArchiveKind
from scannet_prep.archive.reader import Archive, ArchivedGroup
from scannet_prep.archive.shards import find_missing_shards
from scannet_prep.archive.source import ByteSource
from scannet_prep.archive.walk import Gap
from scannet_prep.errors import DiskFullError, UnknownSceneError, UsageError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import check_is_folder, find_free_bytes
from scannet_prep.splits import find_official_split
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.unpack.opening import (
    join_files,
    join_scenes,
    open_archives,
    open_place,
)
from scannet_prep.stages.unpack.record import captured_names
from scannet_prep.stages.unpack.salvage import FoundTask
from scannet_prep.stages.unpack.target import (
    RESERVE_BYTES,
    RESERVE_INODES,
    check_targets,
    find_free_inodes,
    find_missing_files,
)

DEFAULT_DIRS = {ArchiveKind.PROCESSED: Path("data/processed"), ArchiveKind.RAW: Path("data/ScanNet")}


@dataclass(frozen=True, slots=True)
class UnpackPlan:
    """What `run` is going to do; making it writes nothing.

    Attributes:
        archives: Paths and addresses.
        kind: What the archives were made from.
        out_dir: Where the files go.
        selection: Which scenes.
        tasks: What is unpacked: the files that belong to no scene, then scenes.
        gaps: Parts of archives without index that are damaged or broken off, by name of the archive.
        failures: Scenes that were asked for and are not in what is whole of an archive without index.
        left_out: Scenes that `--splits` left out because nobody knows their split.
        missing_shards: Names of shards that belong to the ones that were given.
        is_whole: Whether all scenes were asked for.
        is_salvage: Whether an index was lost.
        size_bytes: Tar bytes of all tasks.
        there_count: Scenes whose files are there by name and size; `run` compares their CRC-32.
        needed_bytes: What is to be written.
        needed_files: How many files are to be written.
        free_bytes: Free space on the disk.
        free_inodes: How many more files the disk can hold; None where that is unlimited.
    """

    archives: tuple[str, ...]
    kind: ArchiveKind
    out_dir: Path
    selection: Selection
    tasks: tuple[ArchivedGroup | FoundTask, ...]
    gaps: tuple[tuple[str, Gap], ...]
    failures: tuple[SceneFailure, ...]
    left_out: tuple[str, ...]
    missing_shards: tuple[str, ...]
    is_whole: bool
    is_salvage: bool
    size_bytes: int
    there_count: int
    needed_bytes: int
    needed_files: int
    free_bytes: int
    free_inodes: int | None

    @property
    def scene_ids(self) -> list[str]:
        """The scenes, sorted."""
        return sorted(task.scene_id for task in self.tasks if task.scene_id)

    @property
    def lacking_bytes(self) -> int:
        """How much more space is needed than there is; 0 where it suffices."""
        return max(0, self.needed_bytes + RESERVE_BYTES - self.free_bytes) if self.needed_bytes else 0

    @property
    def lacking_inodes(self) -> int:
        """How many more files are needed than the disk can hold; 0 where it can."""
        if self.free_inodes is None or not self.needed_files:
            return 0
        return max(0, self.needed_files + RESERVE_INODES - self.free_inodes)


def plan(
    archives: Sequence[str | Path | ByteSource],
    out_dir: Path | None = None,
    *,
    selection: Selection | None = None,
    is_salvage: bool = False,
    certificates: bool | Path = True,
) -> UnpackPlan:
    """Decide what to unpack, and refuse what is not safe; nothing is written.

    Args:
        archives: One archive, or shards, or several archives of one kind.
        out_dir: Where the files go; by default `data/processed` or `data/ScanNet`, by the kind of the archives.
        selection: Which scenes; all by default. Files that belong to no scene are always unpacked.
        is_salvage: Whether whole scenes are searched for in archives whose index is damaged or missing.
        certificates: Of addresses, whom to trust: True for the system's authorities, a file with others, False to
            accept any certificate.

    Raises:
        MissingFileError: An archive is not there.
        ArchiveError: It is truncated, damaged at its end, of another program, or not safe to unpack.
        UnknownSceneError: A scene was asked for that no archive has.
        UsageError: The archives do not fit together, shards are missing among several, or nothing is asked for.
        OutputError: Something is in the way in the folder.
    """
    selection = selection or Selection()
    sources = [open_place(item, certificates=certificates) for item in archives]
    missing = find_missing_shards([source.name for source in sources])
    opened, lost = open_archives(sources, is_salvage=is_salvage)
    heads = [(archive.name, archive.index.head) for archive in opened]
    heads += [(item.source.name, item.head) for item in lost if item.head is not None]
    kind = check_kinds([(name, head.kind) for name, head in heads]) if heads else ArchiveKind.FILES
    out_dir = choose_out_dir(kind, out_dir)
    scenes = join_scenes(opened)
    chosen, left_out = _choose(scenes, selection, opened, missing, must_find=not lost)
    if missing and len(sources) > 1 and selection.scene_ids is None and not is_salvage:
        raise UsageError(
            f"{len(missing):,} shards of the set are not among the archives: {', '.join(missing[:3])}",
            "name all of them, or unpack them one at a time, or say with --scenes what you want",
        )
    found = [
        task
        for item in lost
        for task in item.tasks
        if not task.scene_id or (task.scene_id not in scenes and is_wanted(selection, task.scene_id, ""))
    ]
    joined = [*join_files(opened, captured_names(kind)), *chosen]
    tasks: list[ArchivedGroup | FoundTask] = [*joined, *found]
    absent = sorted(set(selection.scene_ids or ()) - {task.scene_id for task in tasks})
    check_targets(out_dir, (task.entry for task in joined), sources)
    sizes = [(task, find_missing_files(out_dir, task.entry)) for task in joined]
    free_bytes, free_inodes = find_free_bytes(out_dir), find_free_inodes(out_dir)
    return UnpackPlan(
        archives=tuple(source.name for source in sources),
        kind=kind,
        out_dir=out_dir,
        selection=selection,
        tasks=tuple(tasks),
        gaps=tuple((item.source.name, gap) for item in lost for gap in item.gaps),
        failures=tuple(_absent(scene_id) for scene_id in absent),
        left_out=left_out,
        missing_shards=missing,
        is_whole=len(chosen) == len(scenes) and not missing and not lost,
        is_salvage=bool(lost),
        size_bytes=sum(task.size_bytes for task in tasks),
        there_count=sum(not absent for task, absent in sizes if task.scene_id),
        needed_bytes=sum(member.size_bytes for _, absent in sizes for member in absent)
        + sum(task.size_bytes for task in found),
        needed_files=sum(len(absent) for _, absent in sizes) + len(found),
        free_bytes=free_bytes,
        free_inodes=free_inodes,
    )


def check_space(plan: UnpackPlan) -> None:
    """Check that the disk will hold it.

    Raises:
        DiskFullError: It will not.
    """
    if plan.lacking_bytes or plan.lacking_inodes:
        raise DiskFullError(
            f"{plan.out_dir}: the disk lacks {plan.lacking_bytes:,} bytes and room for {plan.lacking_inodes:,} files",
            "free some space, choose another folder with -o, or unpack less with --splits or --scenes",
        )


def is_wanted(selection: Selection, scene_id: str, split: str) -> bool:
    """Whether a scene was asked for; its split is looked up in the official lists where none is given."""
    if selection.scene_ids is not None and scene_id not in selection.scene_ids:
        return False
    return not selection.splits or (split or find_official_split(scene_id)) in selection.splits


def find_unfiled(selection: Selection, splits: Mapping[str, str]) -> tuple[str, ...]:
    """Scenes that `--splits` leaves out because nobody knows their split."""
    if not selection.splits:
        return ()
    return tuple(name for name, split in splits.items() if not split and find_official_split(name) is None)


def choose_out_dir(kind: ArchiveKind, out_dir: Path | None) -> Path:
    """The folder that files go to.

    Raises:
        UsageError: None was given, and the kind has no default.
        OutputError: It is no folder.
    """
    if out_dir is None and kind not in DEFAULT_DIRS:
        raise UsageError("the archive is of neither raw nor processed scenes: where is it to go?", "say -o DIR")
    out_dir = out_dir or DEFAULT_DIRS[kind]
    check_is_folder(out_dir)
    return out_dir


def check_kinds(kinds: Sequence[tuple[str, ArchiveKind]]) -> ArchiveKind:
    """Check that all archives are of one kind.

    Raises:
        UsageError: They are not.
    """
    first_name, first = kinds[0]
    for name, kind in kinds:
        if kind is not first:
            raise UsageError(f"{first_name} is of the kind {first}, {name} of {kind}", "unpack one kind at a time")
    return first


def _choose(
    scenes: dict[str, ArchivedGroup],
    selection: Selection,
    archives: Sequence[Archive],
    missing: tuple[str, ...],
    *,
    must_find: bool,
) -> tuple[list[ArchivedGroup], tuple[str, ...]]:
    chosen = [task for scene_id, task in scenes.items() if is_wanted(selection, scene_id, task.entry.split)]
    left_out = find_unfiled(selection, {scene_id: task.entry.split for scene_id, task in scenes.items()})
    unknown = sorted(set(selection.scene_ids or ()) - {task.scene_id for task in chosen})
    if unknown and must_find:
        raise UnknownSceneError(*_explain_unknown(unknown, scenes, selection, archives, missing))
    if selection.splits and not chosen and must_find:
        present = sorted({task.entry.split or "unknown" for task in scenes.values()})
        raise UnknownSceneError(
            f"{archives[0].name}: has no scenes of {', '.join(selection.splits)}, only of {', '.join(present)}",
            "name other --splits",
        )
    return chosen[: selection.limit], left_out


def _explain_unknown(
    unknown: Sequence[str],
    scenes: dict[str, ArchivedGroup],
    selection: Selection,
    archives: Sequence[Archive],
    missing: tuple[str, ...],
) -> tuple[str, str]:
    first = unknown[0]
    more = f" ({len(unknown):,} of those asked for are not there)" if len(unknown) > 1 else ""
    name = archives[0].name if len(archives) == 1 else f"{len(archives)} archives"
    if first in scenes:
        split = scenes[first].entry.split or "unknown"
        return f"{first} is in the split {split}, but only {', '.join(selection.splits)} was asked for", (
            "leave out --splits or the scene"
        )
    failures = {key: text for archive in archives for key, text in archive.index.failures.items()}
    if first in failures:
        return f"{name}: has no {first}{more}: it failed before it was packed: {failures[first]}", "leave it out"
    if missing:
        return f"{name}: has no {first}{more}", f"it may be in a shard that was not given: {', '.join(missing[:3])}"
    return f"{name}: has no {first}{more}", f"scannet-prep info {archives[0].name} lists what is there"


def _absent(scene_id: str) -> SceneFailure:
    problem = f"{scene_id}: is not in the part of the archive that is whole"
    return SceneFailure(scene_id, UnknownSceneError.__name__, problem, "fetch or copy the archive again")
