"""A folder of scenes in, one archive out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.archive.contents import Contents, SourceGroup
from scannet_prep.archive.frames import DEFAULT_LEVEL, MAX_LEVEL
from scannet_prep.archive.index import ArchiveKind, Index
from scannet_prep.archive.output import PipeOutput, resolve_output
from scannet_prep.archive.reader import ArchivedGroup, open_archive
from scannet_prep.archive.shards import find_shards, write_shards
from scannet_prep.archive.writer import WrittenArchive, write_archive
from scannet_prep.errors import ArchiveError, DiskFullError, MissingFileError, UsageError
from scannet_prep.files import Fingerprint, check_is_folder, find_free_bytes, remove_stale_temporaries
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.scene import Split
from scannet_prep.stages.pack.append import append_contents, locked_archive
from scannet_prep.stages.pack.contents import find_contents
from scannet_prep.stages.pack.processed import is_same
from scannet_prep.stages.selection import Selection

# The least that was measured of real scenes is 0.74 of a processed scene, and 0.28 of a raw one.
_LEAST_SHARD_BYTES = 1_000_000
_LEAST_RATIO = {ArchiveKind.PROCESSED: 0.6, ArchiveKind.RAW: 0.2, ArchiveKind.FILES: 0.0}


@dataclass(frozen=True, slots=True)
class PackPlan:
    """What `run` is going to do; making it writes nothing.

    Attributes:
        source: The folder.
        target: The archive; None for a pipe.
        contents: What goes in.
        level: Compression level of zstd.
        shard_bytes: Largest size of a file where there are to be several; None for one file.
        appends: Whether `target` is an archive that is added to.
        is_up_to_date: Whether `target` holds all of it already.
        left_out: Files that are not packed: hidden ones, and what interrupted programs left.
    """

    source: Path
    target: Path | None
    contents: Contents
    level: int
    shard_bytes: int | None
    appends: bool
    is_up_to_date: bool
    left_out: tuple[Path, ...]

    @property
    def kind(self) -> ArchiveKind:
        """What the folder is."""
        return self.contents.head.kind

    @property
    def size_bytes(self) -> int:
        """Size of the tar bytes."""
        files = sum(file.size_bytes for file in self.contents.files)
        return files + sum(scene.size_bytes for scene in self.contents.scenes)

    @property
    def vertex_count(self) -> int:
        """Vertices of all scenes; 0 where they were not counted."""
        scenes = (item.entry if isinstance(item, ArchivedGroup) else item for item in self.contents.scenes)
        return sum(scene.vertex_count for scene in scenes)

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits of the scenes, in the order of the benchmark; without scenes whose split nobody knows."""
        scenes = (item.entry if isinstance(item, ArchivedGroup) else item for item in self.contents.scenes)
        present = {scene.split for scene in scenes}
        return tuple(str(split) for split in Split if split in present)

    @property
    def new_scene_ids(self) -> tuple[str, ...]:
        """Scenes that are compressed, and not taken over from an archive."""
        return tuple(scene.scene_id for scene in self.contents.scenes if isinstance(scene, SourceGroup))


@dataclass(frozen=True, slots=True)
class PackReport:
    """What `run` did.

    Attributes:
        archives: What was written, or is up to date: one archive, or the shards.
        kind: What was packed.
        scene_count: Scenes in all archives.
        added_count: Scenes that were compressed.
        vertex_count: Vertices of all scenes; 0 where they were not counted.
        size_bytes: Size of all archives.
        source_bytes: Size of the tar bytes.
        is_up_to_date: Whether nothing had to be done.
        splits: Splits of the scenes.
        missing: Why scenes are not there that failed in processing, by id.
        stale_shards: Shards beside the new ones that belong to another set, from an earlier run.
    """

    archives: tuple[WrittenArchive, ...]
    kind: ArchiveKind
    scene_count: int
    added_count: int
    vertex_count: int
    size_bytes: int
    source_bytes: int
    is_up_to_date: bool
    splits: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]
    stale_shards: tuple[Path, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "kind": str(self.kind),
            "archives": [
                {"path": str(item.path), "size_bytes": item.size_bytes, "scenes": item.scene_count}
                | ({"sha256": item.sha256} if item.sha256 else {})
                for item in self.archives
            ],
            "scenes": self.scene_count,
            "added": self.added_count,
            "vertices": self.vertex_count,
            "size_bytes": self.size_bytes,
            "source_bytes": self.source_bytes,
            "up_to_date": self.is_up_to_date,
            "missing": dict(self.missing),
            "stale_shards": [str(path) for path in self.stale_shards],
        }


def plan(
    source: Path,
    target: Path | None,
    *,
    selection: Selection | None = None,
    level: int = DEFAULT_LEVEL,
    shard_bytes: int | None = None,
    appends: bool = False,
    allows_incomplete: bool = False,
) -> PackPlan:
    """Decide what to pack; nothing is written, and no scene is read.

    Args:
        source: A processed folder, a raw tree, or any folder whose files have scene ids in their paths.
        target: The archive, `*.tar.zst`; None for a pipe.
        selection: Which scenes; all by default.
        level: Compression level of zstd, 1..22.
        shard_bytes: Largest size of a file, for several shards; None for one file.
        appends: Whether to add to `target`.
        allows_incomplete: Whether a processed folder may lack scenes that failed, or that its manifest names.

    Raises:
        UsageError: What was asked for contradicts itself.
        MissingFileError: The folder does not exist, or holds nothing; or there is no archive to add to.
        SourceError: Something in it cannot be packed.
        ManifestError: The processed folder is damaged, incomplete or mixed.
        ArchiveError: The archive to add to is damaged, or holds other versions of the same scenes.
        OutputError: The target cannot be written.
    """
    _check_usage(target, level, shard_bytes, appends=appends)
    if target is not None:
        resolved = resolve_output(target)
        target = resolved if shard_bytes is None else target  # shards have names of their own
    found = find_contents(source, target, selection or Selection(), level=level, allows_incomplete=allows_incomplete)
    contents = found.contents
    if not contents.files and not contents.scenes:
        raise MissingFileError(source, "holds nothing that can be packed", "name another folder, or other --splits")
    if appends and target is not None:
        with locked_archive(target), open_archive(target) as archive:
            contents = append_contents(archive, found)
            has_new = any(isinstance(scene, SourceGroup) for scene in contents.scenes)
            is_up_to_date = not has_new and _has_files(archive.index, contents)
    else:
        is_up_to_date = shard_bytes is None and _holds(target, contents)
    return PackPlan(
        source=source,
        target=target,
        contents=contents,
        level=level,
        shard_bytes=shard_bytes,
        appends=appends,
        is_up_to_date=is_up_to_date,
        left_out=found.left_out,
    )


def run(
    plan: PackPlan, *, jobs: int = 1, progress: Progress | None = None, pipe: PipeOutput | None = None
) -> PackReport:
    """Write the archive of a plan. It gets its name when it is whole and on the disk.

    Args:
        plan: From `plan`.
        jobs: How many threads compress.
        progress: Told of tar bytes that were written.
        pipe: Takes the archive, where the plan has no target.

    Raises:
        SourceError: A file cannot be read, or changed since it was found.
        ArchiveError: The archive that is added to is damaged.
        OutputError: The archive cannot be written; then there is none, or still the older one.
    """
    progress = progress or NoProgress()
    if plan.is_up_to_date and plan.target is not None:
        size_bytes = plan.target.stat().st_size
        return _report(plan, (WrittenArchive(plan.target, size_bytes, len(plan.contents.scenes)),))
    if plan.target is not None:
        remove_stale_temporaries(plan.target.parent)
        _check_space(plan, plan.target.parent)
    progress.start("pack", plan.size_bytes, "B")
    try:
        return _report(plan, tuple(_write(plan, jobs, progress, pipe)))
    finally:
        progress.finish()


def _write(plan: PackPlan, jobs: int, progress: Progress, pipe: PipeOutput | None) -> Iterable[WrittenArchive]:
    if plan.shard_bytes is not None and plan.target is not None:
        return write_shards(
            plan.contents, plan.target, plan.shard_bytes, level=plan.level, jobs=jobs, progress=progress
        )
    target = plan.target or pipe
    if target is None:
        raise UsageError("the plan has no target, and there is no pipe to write to")
    with ExitStack() as stack:
        check = None
        if plan.appends and plan.target is not None:
            check = stack.enter_context(locked_archive(plan.target))
        archive = write_archive(
            plan.contents, target, level=plan.level, jobs=jobs, progress=progress, before_commit=check
        )
    return [archive]


def _check_usage(target: Path | None, level: int, shard_bytes: int | None, *, appends: bool) -> None:
    if not 1 <= level <= MAX_LEVEL:
        raise UsageError(f"the level is {level}, expected 1..{MAX_LEVEL}")
    if shard_bytes is not None and shard_bytes < _LEAST_SHARD_BYTES:
        raise UsageError(f"the shards would have {shard_bytes:,} bytes, expected at least {_LEAST_SHARD_BYTES:,}")
    if target is None and (appends or shard_bytes is not None):
        raise UsageError("a pipe takes one archive from its beginning", "name a file: -o FILE")
    if appends and shard_bytes is not None:
        raise UsageError("shards cannot be added to", "pack all of them again, or add to a single archive")
    if target is None:
        return
    check_is_folder(target.parent)


def _holds(target: Path | None, contents: Contents) -> bool:
    """Whether an archive holds just these contents already, as far as a manifest tells without reading them."""
    if target is None or contents.head.kind is not ArchiveKind.PROCESSED:
        return False
    try:
        with open_archive(target) as archive:
            index = archive.index
            if index.head != contents.head:
                return False
            found = {entry.scene_id: ArchivedGroup(archive, entry) for entry in index.scenes}
            is_same_set = list(found) == [scene.scene_id for scene in contents.scenes]
            if not is_same_set or not all(
                isinstance(scene, SourceGroup) and is_same(scene, found[scene.scene_id]) for scene in contents.scenes
            ):
                return False
    except (ArchiveError, MissingFileError):
        return False  # it is written anew
    return _has_files(index, contents)


def _has_files(index: Index, contents: Contents) -> bool:
    """Whether an archive holds just these files of no scene, and names the same failures."""
    held = [(item.name, Fingerprint(item.size_bytes, item.crc32)) for item in index.files.members[1:]]
    files = [(file.name, file.compute_fingerprint()) for file in contents.files]
    return held == files and index.failures == contents.failures


def _check_space(plan: PackPlan, folder: Path) -> None:
    """Stop before hours of work where the disk certainly is too small."""
    kept_bytes = sum(item.entry.stored_bytes for item in plan.contents.scenes if isinstance(item, ArchivedGroup))
    new_bytes = sum(item.size_bytes for item in plan.contents.scenes if isinstance(item, SourceGroup))
    needed_bytes = kept_bytes + int(new_bytes * _LEAST_RATIO[plan.kind])
    free_bytes = find_free_bytes(folder)
    if needed_bytes > free_bytes:
        raise DiskFullError(
            f"{folder}: has {free_bytes:,} bytes left, and the archive needs at least {needed_bytes:,}",
            "free some space or choose another place with -o",
        )


def _report(plan: PackPlan, archives: tuple[WrittenArchive, ...]) -> PackReport:
    paths = {archive.path for archive in archives}
    stale: tuple[Path, ...] = ()
    if plan.shard_bytes is not None and plan.target is not None:
        stale = tuple(path for path in find_shards(plan.target) if path not in paths)
    return PackReport(
        archives=archives,
        kind=plan.kind,
        scene_count=len(plan.contents.scenes),
        added_count=0 if plan.is_up_to_date else len(plan.new_scene_ids),
        vertex_count=plan.vertex_count,
        size_bytes=sum(archive.size_bytes for archive in archives),
        source_bytes=plan.size_bytes,
        is_up_to_date=plan.is_up_to_date,
        splits=plan.splits,
        missing=tuple(sorted(plan.contents.failures.items())),
        stale_shards=stale,
    )
