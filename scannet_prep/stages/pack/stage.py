"""A folder of scenes in, one archive or several shards out."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.frames import DEFAULT_LEVEL, MAX_LEVEL
from scannet_prep.archive.groups import GroupReader
from scannet_prep.archive.index import Group, Index
from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.archive.reader import Archive
from scannet_prep.archive.shards import SUFFIX, find_shards, shard_path, split_contents, sums_path
from scannet_prep.archive.source import FileSource
from scannet_prep.archive.writer import Contents, SourceGroup, iter_archive, write_archive
from scannet_prep.errors import (
    ArchiveError,
    DiskFullError,
    ForeignFileError,
    MissingFileError,
    OutputError,
    ScanNetPrepError,
    UsageError,
)
from scannet_prep.files import (
    SPACE_ERRNOS,
    make_directory,
    output_error,
    remove_temporaries,
    run_lock,
    write_atomically,
)
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.space import check_space
from scannet_prep.stages.pack.contents import find_contents
from scannet_prep.stages.selection import Selection

# The least that was measured of real scenes is 0.74 of a processed scene, and 0.28 of a raw one.
_LEAST_SHARD_BYTES = 1_000_000
_LEAST_RATIO = {ArchiveKind.PROCESSED: 0.6, ArchiveKind.RAW: 0.2}


@dataclass(frozen=True, slots=True)
class WrittenArchive:
    """One archive that was written, or is up to date.

    Attributes:
        path: Where; None for a pipe.
        size_bytes: Its size.
        scenes: How many scenes are in it.
        sha256: Of the whole file, in hexadecimal; empty unless it is one of several shards.
    """

    path: Path | None
    size_bytes: int
    scenes: int
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class PackPlan:
    """What `run` is going to do; making it writes nothing.

    Attributes:
        source: The folder.
        target: The archive; None for a pipe.
        contents: What goes in.
        level: Compression level of zstd; 0 stores.
        shard_bytes: Largest size of a file where there are to be several; None for one file.
        has_candidate: Whether `target` may hold all of it already, which `run` finds out by reading it.
        left_out: Files and folders that are not packed, because their names are not those of such a tree.
    """

    source: Path
    target: Path | None
    contents: Contents
    level: int
    shard_bytes: int | None
    has_candidate: bool
    left_out: tuple[str, ...]

    @property
    def kind(self) -> ArchiveKind:
        """What the folder is."""
        return self.contents.head.kind


@dataclass(frozen=True, slots=True)
class PackReport:
    """What `run` did.

    Attributes:
        archives: One archive, or the shards.
        kind: What was packed.
        splits: Splits of the scenes, sorted.
        scenes: How many scenes are in all archives.
        vertices: Of all scenes; 0 where they were not counted.
        size_bytes: Size of all archives.
        source_bytes: Size of the tar bytes.
        up_to_date: Whether nothing had to be done: the archive was read, and holds just what the folder does.
        missing: Why scenes are not there that failed in processing, by id.
    """

    archives: tuple[WrittenArchive, ...]
    kind: ArchiveKind
    splits: tuple[str, ...]
    scenes: int
    vertices: int
    size_bytes: int
    source_bytes: int
    up_to_date: bool
    missing: Mapping[str, str] = field(hash=False)


def plan(
    source: Path,
    target: Path | None,
    *,
    selection: Selection | None = None,
    level: int = DEFAULT_LEVEL,
    shard_bytes: int | None = None,
    allows_incomplete: bool = False,
    is_forced: bool = False,
) -> PackPlan:
    """Decide what to pack; nothing is written, and no scene is read.

    Args:
        source: A processed folder or a raw tree.
        target: The archive, `*.tar.zst`; None for a pipe.
        selection: Which scenes; all by default.
        level: Compression level of zstd, 1..22; 0 stores.
        shard_bytes: Largest size of a file, for several shards; None for one file.
        allows_incomplete: Whether a processed folder may lack scenes that failed, or that its manifest names.
        is_forced: Whether to pack again what is up to date, and to replace an archive that holds more scenes.

    Raises:
        UsageError: What was asked for contradicts itself, or would replace an archive that holds more.
        MissingFileError: The folder does not exist, or holds no scenes.
        SourceError: Something in it cannot be packed.
        ManifestError: The processed folder is damaged, incomplete or mixed.
        OutputError: The target cannot be written.
    """
    if not 0 <= level <= MAX_LEVEL:
        raise UsageError(f"the level is {level}, expected 0..{MAX_LEVEL}")
    if shard_bytes is not None and shard_bytes < _LEAST_SHARD_BYTES:
        raise UsageError(f"the shards would have {shard_bytes:,} bytes, expected at least {_LEAST_SHARD_BYTES:,}")
    if target is None and shard_bytes is not None:
        raise UsageError("a pipe takes one archive", "name a file: -o FILE")
    if target is not None:
        target = _check_target(target)
    found = find_contents(source, selection or Selection(), level=level, allows_incomplete=allows_incomplete)
    contents = found.contents
    if not contents.scenes:
        raise MissingFileError(
            source, "holds no scenes of those that were asked for", "name other splits, or another folder"
        )
    has_candidate = False
    if target is not None and not is_forced:
        replaced = find_shards(target) if shard_bytes is not None else (target,)
        indexes = [index for path in replaced if (index := _read_index(path)) is not None]
        _check_replaced(target, indexes, contents)
        has_candidate = shard_bytes is None and bool(indexes) and indexes[0].head == contents.head
    return PackPlan(
        source=source,
        target=target,
        contents=contents,
        level=level,
        shard_bytes=shard_bytes,
        has_candidate=has_candidate,
        left_out=found.left_out,
    )


def run(plan: PackPlan, *, jobs: int = 1, progress: Progress | None = None, pipe: int | None = None) -> PackReport:
    """Write the archive of a plan. It gets its name when it is whole and on the disk.

    Args:
        plan: From `plan`.
        jobs: How many threads compress.
        progress: Told of tar bytes.
        pipe: Number of the open file that takes the archive, where the plan has no target.

    Raises:
        SourceError: A file cannot be read, or changed since it was found.
        OutputError: The archive cannot be written; then there is none, or still the older one.
        LockedError: Another run is writing into the same folder.
    """
    progress = progress or NoProgress()
    if plan.target is None:
        if pipe is None:
            raise UsageError("the plan has no target, and there is no pipe to write to")
        return _report(plan, _write_pipe(plan, pipe, jobs, progress))
    folder = plan.target.parent
    make_directory(folder)
    with run_lock(folder):
        remove_temporaries(folder)
        if plan.has_candidate and _holds(plan.target, plan.contents, jobs, progress):
            archive = WrittenArchive(plan.target, plan.target.stat().st_size, len(plan.contents.scenes))
            return _report(plan, archive, up_to_date=True)
        check_space(folder, int(plan.contents.size_bytes * _LEAST_RATIO[plan.kind]))
        if plan.shard_bytes is not None:
            return _report(plan, *_write_shards(plan, plan.target, plan.shard_bytes, jobs, progress))
        progress.start("pack", plan.contents.size_bytes, "B")
        try:
            write_archive(plan.contents, plan.target, level=plan.level, jobs=jobs, progress=progress)
        finally:
            progress.finish()
        return _report(plan, WrittenArchive(plan.target, plan.target.stat().st_size, len(plan.contents.scenes)))


def _check_target(target: Path) -> Path:
    """Follow a link to the file that is going to be replaced, so that the link stays; refuse what cannot be one."""
    if not target.name.endswith(SUFFIX):
        raise UsageError(f"{target}: an archive is a {SUFFIX} file", f"name it so: -o {target.stem}{SUFFIX}")
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    if target.is_dir():
        raise OutputError(f"{target}: is a folder", f"name a file in it: -o {target / 'scannet.tar.zst'}")
    if target.exists() and not target.is_file():
        raise OutputError(
            f"{target}: is a device or a pipe, and a file would take its place", f"scannet-prep pack - > {target}"
        )
    return target


def _read_index(path: Path) -> Index | None:
    """What an archive holds that is going to be replaced; None where there is none, or it is damaged.

    Raises:
        UsageError: It is a file of another kind.
    """
    try:
        with Archive(path) as archive:
            return archive.index
    except MissingFileError:
        return None
    except ForeignFileError as error:
        raise UsageError(
            f"{path}: {error.problem}, and would be replaced", "name another file, or add --force"
        ) from None
    except ArchiveError:
        return None  # damaged: it is made anew


def _check_replaced(target: Path, indexes: list[Index], contents: Contents) -> None:
    """Refuse to replace an archive by one that holds less, or something else.

    Raises:
        UsageError: It would be.
    """
    hint = "name another file with -o, or add --force"
    held = {scene.scene_id for index in indexes for scene in index.scenes}
    lost = sorted(held - {scene.scene_id for scene in contents.scenes})
    if any(index.head.kind is not contents.head.kind for index in indexes):
        raise UsageError(f"{target}: holds {indexes[0].head.kind} scenes, and would be replaced by another kind", hint)
    if lost:
        raise UsageError(
            f"{target}: holds {len(lost):,} scenes that the new archive would not, for example {lost[0]}", hint
        )


def _holds(target: Path, contents: Contents, jobs: int, progress: Progress) -> bool:
    """Whether an archive holds just these contents, byte for byte: both are read."""
    sources = {group.scene_id: group for group in contents.groups}
    reader = GroupReader(
        FileSource(target), lambda group, data: _is_same(sources.get(group.scene_id), group, data), jobs=jobs
    )
    index = reader.open()
    if (
        index is None
        or [item.scene_id for item in index.groups] != list(sources)
        or index.failures != contents.failures
    ):
        return False
    progress.start("compare", contents.size_bytes, "B")
    try:
        for outcome in reader.read():
            if not outcome.result or outcome.warnings:
                return False
            progress.advance(outcome.group.size_bytes)
    finally:
        progress.finish()
        reader.source.close()
    return not reader.problems and not reader.warnings


def _is_same(source: SourceGroup | None, group: Group, data: list[memoryview]) -> bool:
    if source is None or [file.name for file in source.files] != [member.name for member in group.members]:
        return False
    for file, held in zip(source.files, data, strict=True):
        found = bytearray(file.size_bytes)
        file.read_into(memoryview(found))
        if found != held:
            return False
    return (source.split, source.vertex_count) == (group.split, group.vertex_count)


def _write_pipe(plan: PackPlan, pipe: int, jobs: int, progress: Progress) -> WrittenArchive:
    size_bytes = 0
    progress.start("pack", plan.contents.size_bytes, "B")
    try:
        for piece in iter_archive(plan.contents, level=plan.level, jobs=jobs, progress=progress):
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(pipe, rest) :]
            size_bytes += len(piece)
    except BrokenPipeError:
        raise OutputError(
            "standard output: the program reading the pipe has stopped", "check its error message"
        ) from None
    except OSError as error:
        if isinstance(error, ScanNetPrepError):
            raise
        kind = DiskFullError if error.errno in SPACE_ERRNOS else OutputError
        raise kind(f"standard output: cannot be written: {error.strerror or error}") from error
    finally:
        progress.finish()
    return WrittenArchive(None, size_bytes, len(plan.contents.scenes))


def _write_shards(
    plan: PackPlan, target: Path, shard_bytes: int, jobs: int, progress: Progress
) -> tuple[WrittenArchive, ...]:
    """Write all shards into a folder of their own, then let them take the places of earlier ones.

    A run that is killed meanwhile leaves the old set, or one that lacks shards, which readers refuse; never a mixture.
    """
    parts = split_contents(plan.contents, shard_bytes)
    partial_dir = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial_dir, ignore_errors=True)
    make_directory(partial_dir)
    written = []
    progress.start("pack", sum(part.size_bytes for part in parts), "B")
    try:
        for number, part in enumerate(parts):
            path, digest = shard_path(target, number, len(parts)), hashlib.sha256()
            partial = partial_dir / path.name
            write_archive(part, partial, level=plan.level, jobs=jobs, progress=progress, observe=digest.update)
            written.append(WrittenArchive(path, partial.stat().st_size, len(part.scenes), digest.hexdigest()))
        for old in find_shards(target):
            old.unlink()
        for path in partial_dir.iterdir():
            path.replace(target.with_name(path.name))
    except OSError as error:
        if isinstance(error, ScanNetPrepError):
            raise
        raise output_error(target, error) from error
    finally:
        progress.finish()
        shutil.rmtree(partial_dir, ignore_errors=True)
    lines = [f"{item.sha256}  {item.path.name}\n" for item in written if item.path is not None]
    write_atomically(sums_path(target), ["".join(lines).encode()], is_durable=True)
    return tuple(written)


def _report(plan: PackPlan, *archives: WrittenArchive, up_to_date: bool = False) -> PackReport:
    scenes = plan.contents.scenes
    return PackReport(
        archives=archives,
        kind=plan.kind,
        splits=tuple(sorted({scene.split for scene in scenes} - {""})),
        scenes=len(scenes),
        vertices=sum(scene.vertex_count for scene in scenes),
        size_bytes=sum(archive.size_bytes for archive in archives),
        source_bytes=plan.contents.size_bytes,
        up_to_date=up_to_date,
        missing=plan.contents.failures,
    )
