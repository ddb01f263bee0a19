"""A folder of scenes in, one archive or several shards out."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.frames import DEFAULT_LEVEL, MAX_LEVEL
from scannet_prep.archive.index import Index
from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.archive.reader import Archive
from scannet_prep.archive.shards import SUFFIX, find_shards, shard_path, split_contents, sums_path
from scannet_prep.archive.writer import Contents, iter_archive, write_archive
from scannet_prep.errors import (
    ArchiveError,
    ForeignFileError,
    MissingFileError,
    OutputError,
    ScanNetPrepError,
    UsageError,
)
from scannet_prep.files import (
    make_directory,
    open_file,
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
        indexes = [_read_replaced(path, contents) for path in replaced]
        has_candidate = shard_bytes is None and indexes[0] is not None and indexes[0].head == contents.head
    return PackPlan(source, target, contents, level, shard_bytes, has_candidate, found.left_out)


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
    contents = plan.contents
    if plan.target is None:
        return _report(plan, _write(plan, jobs, progress, pipe))
    folder = plan.target.parent
    make_directory(folder)
    with run_lock(folder):
        remove_temporaries(folder)
        if plan.has_candidate and _is_same(plan.target, contents, plan.level, jobs, progress):
            archive = WrittenArchive(plan.target, plan.target.stat().st_size, len(contents.scenes))
            return _report(plan, [archive], up_to_date=True)
        check_space(folder, int(contents.size_bytes * _LEAST_RATIO[plan.kind]))
        return _report(plan, _write(plan, jobs, progress, pipe))


def _write(plan: PackPlan, jobs: int, progress: Progress, pipe: int | None) -> list[WrittenArchive]:
    """Write to the pipe, or one archive, or several shards."""
    parts = [plan.contents] if plan.shard_bytes is None else split_contents(plan.contents, plan.shard_bytes)
    progress.start("pack", sum(part.size_bytes for part in parts), "B")
    try:
        if plan.target is None:
            return [_write_pipe(plan, pipe, jobs, progress)]
        if plan.shard_bytes is not None:
            return _write_shards(parts, plan.target, plan.level, jobs, progress)
        write_archive(plan.contents, plan.target, level=plan.level, jobs=jobs, progress=progress)
        return [WrittenArchive(plan.target, plan.target.stat().st_size, len(plan.contents.scenes))]
    finally:
        progress.finish()


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


def _read_replaced(path: Path, contents: Contents) -> Index | None:
    """Refuse to replace an archive by one that holds less, or something else.

    Returns:
        What the archive holds; None where there is none, or a damaged one, which is made anew.

    Raises:
        UsageError: It holds more, or is a file of another kind.
    """
    hint = "name another file with -o, or add --force"
    try:
        with Archive(path) as archive:
            index = archive.index
    except ForeignFileError as error:
        raise UsageError(f"{path}: {error.problem}, and would be replaced", hint) from None
    except (MissingFileError, ArchiveError):
        return None
    if index.head.kind is not contents.head.kind:
        raise UsageError(f"{path}: holds {index.head.kind} scenes, and would be replaced by another kind", hint)
    lost = sorted({scene.scene_id for scene in index.scenes} - {scene.scene_id for scene in contents.scenes})
    if lost:
        problem = f"holds {len(lost):,} scenes that the new archive would not, for example {lost[0]}"
        raise UsageError(f"{path}: {problem}", hint)
    return index


def _is_same(target: Path, contents: Contents, level: int, jobs: int, progress: Progress) -> bool:
    """Whether a file is just the archive that would be written, byte for byte; reading ends where it is not."""
    progress.start("compare", contents.size_bytes, "B")
    try:
        with open_file(target, sys.maxsize) as file:
            pieces = iter_archive(contents, level=level, jobs=jobs, progress=progress)
            return all(file.read(len(piece)) == piece for piece in pieces) and not file.read(1)
    finally:
        progress.finish()


def _write_pipe(plan: PackPlan, pipe: int | None, jobs: int, progress: Progress) -> WrittenArchive:
    if pipe is None:
        raise UsageError("the plan has no target, and there is no pipe to write to")
    size_bytes = 0
    try:
        for piece in iter_archive(plan.contents, level=plan.level, jobs=jobs, progress=progress):
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(pipe, rest) :]
            size_bytes += len(piece)
    except ScanNetPrepError:
        raise
    except BrokenPipeError:
        raise OutputError(
            "standard output: the program reading the pipe has stopped", "check its error message"
        ) from None
    except OSError as error:
        raise output_error(Path("standard output"), error, "then pack again") from error
    return WrittenArchive(None, size_bytes, len(plan.contents.scenes))


def _write_shards(
    parts: Sequence[Contents], target: Path, level: int, jobs: int, progress: Progress
) -> list[WrittenArchive]:
    """Write all shards into a folder of their own, then let them take the places of earlier ones.

    A run that is killed meanwhile leaves the old set, or one that lacks shards, which readers refuse; never a mixture.
    """
    partial_dir = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial_dir, ignore_errors=True)
    make_directory(partial_dir)
    written = []
    try:
        for number, part in enumerate(parts):
            path, digest = shard_path(target, number, len(parts)), hashlib.sha256()
            partial = partial_dir / path.name
            write_archive(part, partial, level=level, jobs=jobs, progress=progress, observe=digest.update)
            written.append(WrittenArchive(path, partial.stat().st_size, len(part.scenes), digest.hexdigest()))
        for old in find_shards(target):
            old.unlink()
        for path in partial_dir.iterdir():
            path.replace(target.with_name(path.name))
    except ScanNetPrepError:
        raise
    except OSError as error:
        raise output_error(target, error) from error
    finally:
        shutil.rmtree(partial_dir, ignore_errors=True)
    lines = [f"{item.sha256}  {item.path.name}\n" for item in written if item.path is not None]
    write_atomically(sums_path(target), ["".join(lines).encode()], is_durable=True)
    return written


def _report(plan: PackPlan, archives: Sequence[WrittenArchive], *, up_to_date: bool = False) -> PackReport:
    scenes = plan.contents.scenes
    return PackReport(
        archives=tuple(archives),
        kind=plan.kind,
        splits=tuple(sorted({scene.split for scene in scenes} - {""})),
        scenes=len(scenes),
        vertices=sum(scene.vertex_count for scene in scenes),
        size_bytes=sum(archive.size_bytes for archive in archives),
        source_bytes=plan.contents.size_bytes,
        up_to_date=up_to_date,
        missing=plan.contents.failures,
    )
