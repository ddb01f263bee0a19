"""Writes archives with their checksum files: to files, into a pipe, or into a bucket; and compares older ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from scannet_prep.archive.checksum import Digest, checksum_path, encode_checksum
from scannet_prep.archive.source import SUFFIX, Stream, find_shards, open_source
from scannet_prep.archive.writer import Contents
from scannet_prep.base.errors import FileError, NotOnServerError
from scannet_prep.base.files import (
    make_directory,
    put_in_place,
    remove_file,
    remove_temporaries,
    run_lock,
    write_atomically,
    write_if_changed,
    write_temporary,
)
from scannet_prep.base.progress import Progress

PIPE_NAME = "standard output"

Make: TypeAlias = Callable[[Contents], Iterator[bytes]]
"""Makes the bytes of an archive, in order."""


class WrittenArchive(NamedTuple):
    """Size and SHA-256 of an archive that was written or compared."""

    size_bytes: int
    sha256: str


@contextmanager
def working_beside(target: Path) -> Iterator[None]:
    """Lock the folder of an archive, and remove what this and earlier runs leave there."""
    make_directory(target.parent)
    with run_lock(target.parent):
        # Reports, pictures and other archives may be written there at the same time.
        stem = re.escape(target.name.removesuffix(SUFFIX))
        names = rf"{stem}(-\d+-of-\d+)?{re.escape(SUFFIX)}(\.sha256)?"
        remove_temporaries(target.parent, names=names)
        try:
            yield
        finally:
            remove_temporaries(target.parent, names=names)


def find_same(
    contents: Contents, target: Path | str, make: Make, progress: Progress
) -> WrittenArchive | None:
    """Compare an archive with what would be written, byte for byte; None if they differ, or there is none.

    The checksum file of one that is the same is written if it is missing or differs.

    Raises:
        OutputError: The checksum file cannot be written.
    """
    digest = Digest()
    with suppress(FileError, NotOnServerError):  # not there, empty, or changed in the meantime
        stream = Stream(open_source(target))
        with progress.work("compare", contents.size_bytes, "B"):
            for piece in digest.watch(make(contents)):
                if stream.take(len(piece)) != piece:
                    return None
        if stream.take(1):
            return None
        if isinstance(target, Path):
            write_if_changed(checksum_path(target), encode_checksum(target, digest.sha256))
        return WrittenArchive(digest.size_bytes, digest.sha256)
    return None


def write(
    parts: Mapping[str, Contents],
    target: Path | str | None,
    make: Make,
    pipe: int,
    *,
    has_shards: bool,
) -> dict[str, WrittenArchive]:
    """Write one archive or all shards; gives size and SHA-256 of each, by name.

    Args:
        parts: What goes into each archive, by its name.
        target: As `run` takes it.
        make: Makes the bytes of an archive.
        pipe: Number of the open file that takes the archive, where there is no target.
        has_shards: Whether shards are written, and replace those of an earlier run.
    """
    if isinstance(target, Path):
        old_paths = find_shards(target) if has_shards else ()
        return _write_files({Path(name): part for name, part in parts.items()}, old_paths, make)
    ((name, contents),) = parts.items()
    digest = Digest()
    pieces = digest.watch(make(contents))
    if target is None:
        with os.fdopen(pipe, "wb", closefd=False) as file:
            file.writelines(pieces)
    else:
        from scannet_prep.remote.bucket import upload

        upload(target, pieces, contents.size_bytes)
    return {name: WrittenArchive(digest.size_bytes, digest.sha256)}


def _write_files(
    parts: Mapping[Path, Contents], old_paths: Iterable[Path], make: Make
) -> dict[str, WrittenArchive]:
    """Write archives with their checksum files; they get their names when all of them are on the disk.

    A run that is killed meanwhile leaves the old shards, or a set that lacks some, which readers refuse; never a
    mixture. It may leave an archive without a checksum file, but none with that of another archive.
    """
    temporaries = dict[Path, Path]()
    written = dict[str, WrittenArchive]()
    for path, contents in parts.items():
        digest = Digest()
        temporaries[path] = write_temporary(path, digest.watch(make(contents)), is_durable=True)
        written[str(path)] = WrittenArchive(digest.size_bytes, digest.sha256)
    for path in (*old_paths, *parts):
        remove_file(checksum_path(path))
    for path in old_paths:
        path.unlink()
    for path, temporary_path in temporaries.items():
        put_in_place(temporary_path, path)
        write_atomically(
            checksum_path(path), [encode_checksum(path, written[str(path)].sha256)], is_durable=True
        )
    return written
