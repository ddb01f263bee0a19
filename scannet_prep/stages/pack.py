"""A folder of scenes in, one archive or several shards out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from scannet_prep.archive.layout import DEFAULT_LEVEL, ArchiveKind
from scannet_prep.archive.reader import Archive
from scannet_prep.archive.source import SUFFIX, Stream, find_shards, open_source, shard_path
from scannet_prep.archive.writer import Contents, iter_archive
from scannet_prep.errors import FileError, ForeignFileError, NotOnServerError, OutputError, ScanNetPrepError, UsageError
from scannet_prep.files import make_directory, output_error, put_in_place, remove_temporaries, run_lock, write_temporary
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
                remove_temporaries(target.parent)
                stack.callback(remove_temporaries, target.parent)
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
    """Write one archive or all shards; gives their sizes by path.

    A run that is killed meanwhile leaves the old shards, or a set that lacks some, which readers refuse; never a
    mixture.
    """
    make = partial(iter_archive, jobs=jobs, progress=progress)
    with progress.work("pack", contents.size_bytes, "B"):
        if target is None:
            with os.fdopen(pipe, "wb", closefd=False) as file:
                return {_PIPE_NAME: sum(map(file.write, make(contents)))}
        if isinstance(target, str):
            from scannet_prep.remote.bucket import upload

            return {target: upload(target, make(contents), contents.size_bytes)}
        parts, old_paths = {target: contents}, tuple[Path, ...]()
        if shard_bytes is not None:
            shards, old_paths = contents.split(shard_bytes), find_shards(target)
            parts = {shard_path(target, number, len(shards)): part for number, part in enumerate(shards)}
        whole = {path: write_temporary(path, make(part), is_durable=True) for path, part in parts.items()}
        for path in old_paths:
            path.unlink()
        for path, temporary_path in whole.items():
            put_in_place(temporary_path, path)
        return {str(path): path.stat().st_size for path in parts}
