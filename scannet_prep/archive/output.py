"""Write archives to files, a pipe or a bucket, and compare existing ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from scannet_prep.archive.byte_source import Stream, open_bytes
from scannet_prep.archive.checksum import Digest, checksum_path, encode_checksum
from scannet_prep.archive.contents import Contents
from scannet_prep.archive.shards import SUFFIX, find_shards
from scannet_prep.base.errors import FileError, NotOnServerError
from scannet_prep.base.files import (
    make_directory,
    put_in_place,
    remove_file,
    remove_temporaries,
    write_atomically,
    write_if_changed,
    write_temporary,
)
from scannet_prep.base.progress import Progress
from scannet_prep.base.run_lock import run_lock

PIPE_NAME = "standard output"

Make: TypeAlias = Callable[[Contents], Iterator[bytes]]
"""Makes the bytes of an archive, in order."""


class WrittenArchive(NamedTuple):
    """Size and SHA-256 of an archive that was written or compared."""

    size_bytes: int
    sha256: str


@contextmanager
def working_beside(target: Path) -> Iterator[None]:
    """Lock the folder of an archive, and remove temporary files of this and of killed runs."""
    make_directory(target.parent)
    with run_lock(target.parent):
        # Only those of this archive: other runs may write reports or archives there meanwhile.
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
    """Compare an existing archive with the one that would be written, byte for byte.

    If they are the same, the checksum file beside it is written, unless it is right already.

    Returns:
        Its size and SHA-256; None if it differs, or does not exist.

    Raises:
        OutputError: The checksum file cannot be written.
    """
    digest = Digest()
    # These errors mean that it does not exist, or that a file of the folder changes meanwhile.
    with suppress(FileError, NotOnServerError):
        stream = Stream(open_bytes(target))
        with progress.work("compare", contents.size_bytes, "B"):
            for piece in digest.watch(make(contents)):
                if stream.take(len(piece)) != piece:
                    return None
        if stream.peek(0, 1):
            return None
        if isinstance(target, Path):
            write_if_changed(checksum_path(target), encode_checksum(target, digest.sha256))
        return WrittenArchive(digest.size_bytes, digest.sha256)
    return None


def write_archives(
    parts: Mapping[str, Contents],
    target: Path | str | None,
    make: Make,
    *,
    pipe: int,
    has_shards: bool,
) -> dict[str, WrittenArchive]:
    """Write one archive, or all shards of a set.

    Args:
        parts: The contents of each archive, by its path or address.
        target: Path of the archive or of the set, address in a bucket, or None for a pipe.
        make: Makes the bytes of an archive.
        pipe: Open file descriptor that takes the archive if there is no target.
        has_shards: Whether shards are written. They replace those of an earlier run.

    Returns:
        Size and SHA-256 of each archive, by name.
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
    """Write archives with their checksum files. They get their names when all are on the disk.

    A killed run leaves the old shards, or an incomplete set that readers refuse, but never a
    mixture. It may leave an archive without a checksum file, but never with a wrong one.

    Args:
        parts: The contents of each archive.
        old_paths: Shards of an earlier run, which are removed.
        make: Makes the bytes of an archive.
    """
    temporaries = dict[Path, Path]()
    written = dict[str, WrittenArchive]()
    for path, contents in parts.items():
        digest = Digest()
        pieces = digest.watch(make(contents))
        temporaries[path] = write_temporary(path, pieces, is_durable=True)
        written[str(path)] = WrittenArchive(digest.size_bytes, digest.sha256)

    # In this order, a checksum file never lies beside an archive that it does not describe.
    for path in (*old_paths, *parts):
        remove_file(checksum_path(path))
    for path in old_paths:
        path.unlink()
    for path, temporary_path in temporaries.items():
        put_in_place(temporary_path, path)
        checksum = encode_checksum(path, written[str(path)].sha256)
        write_atomically(checksum_path(path), [checksum], is_durable=True)
    return written
