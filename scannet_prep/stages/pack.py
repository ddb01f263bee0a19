"""A folder of scenes in, one archive or several shards out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.layout import DEFAULT_LEVEL
from scannet_prep.archive.reader import Archive
from scannet_prep.archive.source import SUFFIX, Stream, find_shards, open_source, shard_path
from scannet_prep.archive.writer import Contents, iter_archive, write_archive
from scannet_prep.errors import (
    FileError,
    ForeignFileError,
    NotOnServerError,
    OutputError,
    ScanNetPrepError,
    UsageError,
)
from scannet_prep.files import make_directory, output_error, run_lock
from scannet_prep.progress import Progress
from scannet_prep.stages.contents import find_contents
from scannet_prep.stages.selection import Selection

_PIPE_NAME = "standard output"


@dataclass(frozen=True, slots=True)
class PackPlan:
    """What `run` is going to do; making it writes nothing.

    Attributes:
        target: The archive: a path, or an address in a bucket; None for a pipe.
        shard_bytes: Largest size of a file where there are to be several; None for one file.
        is_forced: Whether to pack again what is up to date.
    """

    source: Path
    target: Path | str | None
    contents: Contents
    shard_bytes: int | None
    is_forced: bool


@dataclass(frozen=True, slots=True)
class PackReport:
    """What `run` did.

    Attributes:
        archives: Sizes of the archive or the shards that were written, or are up to date, by path.
        scenes: How many scenes are in all archives.
        up_to_date: Whether nothing had to be done: the archive was read, and holds just what the folder does.
        missing: Why scenes are not there that failed in processing, by id.
    """

    archives: Mapping[str, int] = field(hash=False)
    scenes: int
    up_to_date: bool
    missing: Mapping[str, str] = field(hash=False)


def plan(
    source: Path,
    target: Path | str | None,
    *,
    selection: Selection | None = None,
    level: int = DEFAULT_LEVEL,
    shard_bytes: int | None = None,
    is_forced: bool = False,
) -> PackPlan:
    """Decide what to pack; nothing is written, and no scene is read.

    Args:
        source: A processed folder or a raw tree.
        target: The archive, `*.tar.zst`: a path, or an address in a bucket, such as `s3://BUCKET/NAME.tar.zst`; None
            for a pipe.
        selection: Which scenes; all by default.
        level: Compression level of zstd, 1..22; 0 stores.
        shard_bytes: Largest size of a file, for several shards; None for one file.
        is_forced: Whether to pack again what is up to date, and to replace an archive that holds more scenes.

    Raises:
        UsageError: What was asked for contradicts itself, or would replace an archive that holds more.
        FileError: The folder does not exist, holds no scenes, or is one that cannot be packed.
        OutputError: The target cannot be written.
        TransferError: It cannot be found out what is in the bucket.
    """
    if target is None and shard_bytes is not None:
        raise UsageError("a pipe takes one archive", "name a file")
    if target is not None:
        target = _check_target(target, shard_bytes)
    contents = find_contents(source, selection or Selection(), level=level)
    if not contents.scenes:
        raise FileError(source, "holds no scenes of those that were asked for", "name others, or another folder")
    if target is not None and not is_forced:
        for place in (target,) if isinstance(target, str) or shard_bytes is None else find_shards(target):
            _check_replaced(place, contents)
    return PackPlan(source, target, contents, shard_bytes, is_forced)


def run(plan: PackPlan, *, jobs: int = 1, progress: Progress | None = None, pipe: int = 1) -> PackReport:
    """Write the archive of a plan. It gets its name when it is whole and on the disk.

    Args:
        plan: From `plan`.
        jobs: How many threads compress.
        progress: Told of tar bytes.
        pipe: Number of the open file that takes the archive, where the plan has no target.

    Raises:
        FileError: A file cannot be read, or changed since it was found.
        OutputError: The archive cannot be written; then there is none, or still the older one.
        LockedError: Another run is writing into the same folder.
    """
    progress, contents, target = progress or Progress(), plan.contents, plan.target
    try:
        with ExitStack() as stack:
            if isinstance(target, Path):
                make_directory(target.parent)
                stack.enter_context(run_lock(target.parent))
                stack.callback(shutil.rmtree, _partial_dir(target), ignore_errors=True)
            archives = _find_same(plan, jobs, progress)
            is_same = bool(archives)
            if not is_same:
                stack.enter_context(progress.work("pack", contents.size_bytes, "B"))
                pieces = iter_archive(contents, jobs=jobs, progress=progress)  # which begins when they are taken
                if isinstance(target, Path):
                    archives = _write_files(plan, target, jobs, progress)
                elif target is None:
                    with os.fdopen(pipe, "wb", closefd=False) as file:
                        archives = {_PIPE_NAME: sum(map(file.write, pieces))}
                else:
                    from scannet_prep.remote.bucket import upload

                    archives = {target: upload(target, pieces, contents.size_bytes)}
    except ScanNetPrepError:
        raise
    except BrokenPipeError:
        raise OutputError("the program reading the pipe has stopped", "check its error message") from None
    except OSError as error:
        raise output_error(Path(target or _PIPE_NAME), error) from error
    return PackReport(
        archives=archives,
        scenes=len(contents.scenes),
        up_to_date=is_same,
        missing=contents.failures,
    )


def _check_target(target: Path | str, shard_bytes: int | None) -> Path | str:
    """Refuse what cannot be an archive; follow a link to the file that is going to be replaced, so that it stays."""
    if isinstance(target, str):
        from scannet_prep.remote.bucket import split_address

        split_address(target)  # refuses other addresses, and does not show what is secret
        if shard_bytes is not None:
            hint = "pack them into a folder and copy them, or make one archive"
            raise UsageError("shards are not written to a bucket, where they could not appear all at once", hint)
    if not str(target).endswith(SUFFIX):
        raise UsageError(f"{target}: an archive is a {SUFFIX} file", f"name it {target}{SUFFIX}")
    if isinstance(target, str):
        return target
    if target.is_symlink():
        target = target.resolve()
    if target.exists() and not target.is_file():
        raise OutputError(
            f"{target}: is not a regular file", f"name one, or write to it: scannet-prep pack - > {target}"
        )
    return target


def _check_replaced(path: Path | str, contents: Contents) -> None:
    """Refuse to replace an archive by one that holds less, or something else; a damaged one is made anew."""
    hint = "name another file, or force it"
    try:
        with Archive(path) as archive:
            index = archive.index
    except ForeignFileError as error:
        raise UsageError(f"{path}: {error.problem}, and would be replaced", hint) from None
    except (FileError, NotOnServerError):
        return
    if index.head.kind is not contents.head.kind:
        raise UsageError(f"{path}: holds {index.head.kind} scenes, and would be replaced by another kind", hint)
    if lost := sorted({scene.scene_id for scene in index.scenes} - {scene.scene_id for scene in contents.scenes}):
        problem = f"{path}: holds {len(lost):,} scenes that the new archive would not, for example {lost[0]}"
        raise UsageError(problem, hint)


def _find_same(plan: PackPlan, jobs: int, progress: Progress) -> dict[str, int]:
    """The archive that is there and its size, if it is just what would be written, byte for byte; else nothing."""
    if plan.target is None or plan.is_forced or plan.shard_bytes is not None:
        return {}
    with suppress(FileError, NotOnServerError):  # not there, empty, or changed in the meantime
        stream = Stream(open_source(plan.target))
        with progress.work("compare", plan.contents.size_bytes, "B"):
            pieces = iter_archive(plan.contents, jobs=jobs, progress=progress)
            if all(stream.take(len(piece)) == piece for piece in pieces) and not stream.take(1):
                return {str(plan.target): stream.offset}
    return {}


def _write_files(plan: PackPlan, target: Path, jobs: int, progress: Progress) -> dict[str, int]:
    """Write one archive or all shards into a folder of their own, then let them take the places of earlier ones.

    A run that is killed meanwhile leaves the old ones, or a set that lacks shards, which readers refuse; never a
    mixture.
    """
    parts, paths, old_paths = [plan.contents], [target], tuple[Path, ...]()
    if plan.shard_bytes is not None:
        parts, old_paths = plan.contents.split(plan.shard_bytes), find_shards(target)
        paths = [shard_path(target, number, len(parts)) for number in range(len(parts))]
    partial_dir = _partial_dir(target)
    shutil.rmtree(partial_dir, ignore_errors=True)  # of a run that was killed
    make_directory(partial_dir)
    for path, part in zip(paths, parts, strict=True):
        write_archive(part, partial_dir / path.name, jobs=jobs, progress=progress)
    for old in old_paths:
        old.unlink()
    for path in paths:
        (partial_dir / path.name).replace(path)
    return {str(path): path.stat().st_size for path in paths}


def _partial_dir(target: Path) -> Path:
    """Where archives are until they are whole; it goes at the end of every run, also of one that changes nothing."""
    return target.with_name(f".{target.name}.partial")
