"""A folder of scenes in, one archive or several shards out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.layout import DEFAULT_LEVEL, ArchiveKind
from scannet_prep.archive.reader import Archive
from scannet_prep.archive.source import SUFFIX, Stream, find_shards, open_source, shard_path
from scannet_prep.archive.writer import Contents, iter_archive
from scannet_prep.errors import (
    FileError,
    ForeignFileError,
    NotOnServerError,
    OutputError,
    ScanNetPrepError,
    UsageError,
)
from scannet_prep.files import make_directory, output_error, run_lock, write_atomically
from scannet_prep.progress import Progress
from scannet_prep.stages.contents import find_contents
from scannet_prep.stages.selection import Selection

_PIPE_NAME = "standard output"


@dataclass(frozen=True, slots=True)
class PackReport:
    """What `run` did.

    Attributes:
        archives: Sizes of the archive or the shards that were written, or are up to date, by path.
        kind: What they were made from.
        scenes: How many scenes are in all archives.
        splits: Their splits, each once.
        size_bytes: Size of what was packed, before compression.
        up_to_date: Whether nothing had to be done: the archive was read, and holds just what the folder does.
        missing: Why scenes are not there that failed in processing, by id.
        left_out: Files and folders that did not go in, because a tree of that kind has no such names; sorted.
    """

    archives: Mapping[str, int] = field(hash=False)
    kind: ArchiveKind
    scenes: int
    splits: tuple[str, ...]
    size_bytes: int
    up_to_date: bool
    missing: Mapping[str, str] = field(hash=False)
    left_out: tuple[str, ...]


def run(
    source: Path,
    target: Path | str | None,
    *,
    selection: Selection | None = None,
    level: int = DEFAULT_LEVEL,
    shard_bytes: int | None = None,
    is_forced: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
    pipe: int = 1,
) -> PackReport:
    """Pack a folder. The archive gets its name when it is whole and on the disk.

    Args:
        source: A processed folder or a raw tree.
        target: The archive, `*.tar.zst`: a path, or an address in a bucket, such as `s3://BUCKET/NAME.tar.zst`; None
            for a pipe.
        selection: Which scenes; all by default.
        level: Compression level of zstd, 1..22; 0 stores.
        shard_bytes: Largest size of a file, for several shards; None for one file.
        is_forced: Whether to pack again what is up to date, and to replace an archive that holds more scenes.
        jobs: How many threads compress.
        progress: Told of tar bytes.
        pipe: Number of the open file that takes the archive, where there is no target.

    Raises:
        UsageError: What was asked for contradicts itself, or would replace an archive that holds more.
        FileError: The folder does not exist, holds no scenes, or cannot be packed; or a file of it cannot be read, or
            changed since it was found.
        OutputError: The archive cannot be written; then there is none, or still the older one.
        LockedError: Another run is writing into the same folder.
        TransferError: It cannot be found out what is in the bucket.
    """
    target, progress = _check_target(target, shard_bytes), progress or Progress()
    contents = find_contents(source, selection or Selection(), level=level)
    if not contents.scenes:
        raise FileError(source, "holds no scenes of those that were asked for", "name others, or another folder")
    if target is not None and not is_forced:
        for path in (target,) if isinstance(target, str) or shard_bytes is None else find_shards(target):
            _check_replaced(path, contents)
    same = dict[str, int]()
    try:
        with ExitStack() as stack:
            if isinstance(target, Path):
                make_directory(target.parent)
                stack.enter_context(run_lock(target.parent))
                stack.callback(shutil.rmtree, _partial_dir(target), ignore_errors=True)
            if target is not None and shard_bytes is None and not is_forced:
                same = _find_same(contents, target, jobs, progress)
            archives = same or _write(contents, target, shard_bytes, jobs, progress, pipe)
    except ScanNetPrepError:
        raise
    except BrokenPipeError:
        raise OutputError("the program reading the pipe has stopped", "check its error message") from None
    except OSError as error:
        raise output_error(Path(target or _PIPE_NAME), error) from error
    return PackReport(
        archives=archives,
        kind=contents.head.kind,
        scenes=len(contents.scenes),
        splits=tuple(dict.fromkeys(scene.split for scene in contents.scenes)),
        size_bytes=contents.size_bytes,
        up_to_date=bool(same),
        missing=contents.failures,
        left_out=contents.left_out,
    )


def _check_target(target: Path | str | None, shard_bytes: int | None) -> Path | str | None:
    """Refuse what cannot be an archive; follow a link to the file that is going to be replaced, so that it stays."""
    if target is None and shard_bytes is not None:
        raise UsageError("a pipe takes one archive", "name a file")
    if isinstance(target, str):
        from scannet_prep.remote.bucket import split_address

        split_address(target)  # refuses other addresses, and does not show what is secret
        if shard_bytes is not None:
            hint = "pack them into a folder and copy them, or make one archive"
            raise UsageError("shards are not written to a bucket, where they could not appear all at once", hint)
    if target is not None and not str(target).endswith(SUFFIX):
        raise UsageError(f"{target}: an archive is a {SUFFIX} file", f"name it {target}{SUFFIX}")
    if not isinstance(target, Path):
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
        index = Archive(path).index
    except ForeignFileError as error:
        raise UsageError(f"{path}: {error.problem}, and would be replaced", hint) from None
    except (FileError, NotOnServerError):
        return
    if index.head.kind is not contents.head.kind:
        raise UsageError(f"{path}: holds {index.head.kind} scenes, and would be replaced by another kind", hint)
    if lost := sorted({scene.scene_id for scene in index.scenes} - {scene.scene_id for scene in contents.scenes}):
        problem = f"{path}: holds {len(lost):,} scenes that the new archive would not, for example {lost[0]}"
        raise UsageError(problem, hint)


def _find_same(contents: Contents, target: Path | str, jobs: int, progress: Progress) -> dict[str, int]:
    """The archive that is there and its size, if it is just what would be written, byte for byte; else nothing."""
    with suppress(FileError, NotOnServerError):  # not there, empty, or changed in the meantime
        stream = Stream(open_source(target))
        with progress.work("compare", contents.size_bytes, "B"):
            pieces = iter_archive(contents, jobs=jobs, progress=progress)
            if all(stream.take(len(piece)) == piece for piece in pieces) and not stream.take(1):
                return {str(target): stream.offset}
    return {}


def _write(
    contents: Contents, target: Path | str | None, shard_bytes: int | None, jobs: int, progress: Progress, pipe: int
) -> dict[str, int]:
    """Write one archive or all shards; gives their sizes by path."""
    with progress.work("pack", contents.size_bytes, "B"):
        if isinstance(target, Path):
            return _write_files(contents, target, shard_bytes, jobs, progress)
        pieces = iter_archive(contents, jobs=jobs, progress=progress)
        if target is None:
            with os.fdopen(pipe, "wb", closefd=False) as file:
                return {_PIPE_NAME: sum(map(file.write, pieces))}
        from scannet_prep.remote.bucket import upload

        return {target: upload(target, pieces, contents.size_bytes)}


def _write_files(
    contents: Contents, target: Path, shard_bytes: int | None, jobs: int, progress: Progress
) -> dict[str, int]:
    """Write one archive or all shards into a folder of their own, then let them take the places of earlier ones.

    A run that is killed meanwhile leaves the old ones, or a set that lacks shards, which readers refuse; never a
    mixture.
    """
    parts, paths, old_paths = [contents], [target], tuple[Path, ...]()
    if shard_bytes is not None:
        parts, old_paths = contents.split(shard_bytes), find_shards(target)
        paths = [shard_path(target, number, len(parts)) for number in range(len(parts))]
    partial_dir = _partial_dir(target)
    shutil.rmtree(partial_dir, ignore_errors=True)  # of a run that was killed
    make_directory(partial_dir)
    for path, part in zip(paths, parts, strict=True):
        write_atomically(partial_dir / path.name, iter_archive(part, jobs=jobs, progress=progress), is_durable=True)
    for old in old_paths:
        old.unlink()
    for path in paths:
        (partial_dir / path.name).replace(path)
    return {str(path): path.stat().st_size for path in paths}


def _partial_dir(target: Path) -> Path:
    """Where archives are until they are whole; it goes at the end of every run, also of one that changes nothing."""
    return target.with_name(f".{target.name}.partial")
