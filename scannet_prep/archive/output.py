"""Write archives to files, a pipe or a bucket, and compare existing ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
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
def locked_folder_of(target: Path) -> Iterator[None]:
    """Lock the folder of an archive, and remove temporary files of this run and of killed runs."""
    folder = target.parent
    make_directory(folder)
    # The final names of this archive, its shards and their checksum files, for example
    # scannet.tar.zst and scannet-00000-of-00004.tar.zst.sha256. Temporary files of other names
    # stay: not every run that writes into the folder takes the lock.
    stem = re.escape(target.name.removesuffix(SUFFIX))
    final_names = rf"{stem}(-\d+-of-\d+)?{re.escape(SUFFIX)}(\.sha256)?"
    with run_lock(folder):
        remove_temporaries(folder, names=final_names)
        try:
            yield
        finally:
            remove_temporaries(folder, names=final_names)


def find_same(
    contents: Contents, target: Path | str, make: Make, progress: Progress
) -> WrittenArchive | None:
    """Compare an existing archive with the one that would be written, byte for byte.

    If they are the same, the checksum file beside it is written, unless it is right already.

    Returns:
        Its size and SHA-256; None if it differs, does not exist, or cannot be compared.

    Raises:
        OutputError: The checksum file cannot be written.
        FileError: A folder or a device has the name of the checksum file.
    """
    same = None
    # NotOnServerError: the bucket does not hold the archive. FileError: the archive does not exist
    # or cannot be read, or a file of its contents cannot be read. In all cases, the caller goes on
    # to write the archive; a file that cannot be read is then reported.
    with suppress(FileError, NotOnServerError):
        same = _compare(contents, target, make, progress)
    if same is not None and isinstance(target, Path):
        write_if_changed(checksum_path(target), encode_checksum(target, same.sha256))
    return same


def _compare(
    contents: Contents, target: Path | str, make: Make, progress: Progress
) -> WrittenArchive | None:
    """Compare an existing archive with the one that would be written.

    Returns:
        Its size and SHA-256; None if it differs.

    Raises:
        FileError: The archive, or a file of its contents, cannot be read.
        NotOnServerError: The bucket does not hold the archive.
        TransferError: The bucket cannot be read.
    """
    digest = Digest()
    with closing(open_bytes(target)) as source:
        existing = Stream(source)
        # `make` advances the progress.
        with progress.work("compare", contents.size_bytes, "B"):
            for piece in digest.watch(make(contents)):
                if existing.take(len(piece)) != piece:
                    return None
        is_longer = existing.peek(0, 1) != b""
    if is_longer:
        return None
    return WrittenArchive(digest.size_bytes, digest.sha256)


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
        make: Makes the bytes of an archive, and advances the progress.
        pipe: Open file descriptor that takes the archive if there is no target.
        has_shards: Whether shards are written. They replace those of an earlier run.

    Returns:
        Size and SHA-256 of each archive, by name.
    """
    if isinstance(target, Path):
        old_paths = find_shards(target) if has_shards else ()
        contents_by_path = {Path(name): contents for name, contents in parts.items()}
        return _write_files(contents_by_path, old_paths, make)

    # A pipe or a bucket takes no shards, so this is the only archive.
    (name,) = parts
    contents = parts[name]
    digest = Digest()
    # The digest is complete when all pieces have been written.
    pieces = digest.watch(make(contents))
    if target is None:
        with os.fdopen(pipe, "wb", closefd=False) as file:
            file.writelines(pieces)
    else:
        from scannet_prep.remote.bucket import upload

        upload(target, pieces, contents.size_bytes)
    return {name: WrittenArchive(digest.size_bytes, digest.sha256)}


def _write_files(
    parts: Mapping[Path, Contents], old_paths: Sequence[Path], make: Make
) -> dict[str, WrittenArchive]:
    """Write archives with their checksum files. They get their names when all are on the disk.

    A killed run leaves the old shards, or an incomplete set that readers refuse, but never a
    mixture. It may leave an archive without a checksum file, but never with a wrong one.

    Args:
        parts: The contents of each archive, by its path.
        old_paths: Shards of an earlier run, which are removed.
        make: Makes the bytes of an archive.

    Returns:
        Size and SHA-256 of each archive, by name.
    """
    temporary_paths: dict[Path, Path] = {}
    written: dict[str, WrittenArchive] = {}
    for path, contents in parts.items():
        digest = Digest()
        pieces = digest.watch(make(contents))
        # The digest is complete when all pieces have been written.
        temporary_paths[path] = write_temporary(path, pieces, is_durable=True)
        written[str(path)] = WrittenArchive(digest.size_bytes, digest.sha256)

    # Remove checksum files before the archives that they describe, and write them after: then none
    # ever lies beside an archive that it does not describe.
    for path in (*old_paths, *parts.keys()):
        remove_file(checksum_path(path))
    for path in old_paths:
        # Not remove_file, which would leave a link that leads nowhere.
        path.unlink()
    for path, temporary_path in temporary_paths.items():
        put_in_place(temporary_path, path)
        checksum = encode_checksum(path, written[str(path)].sha256)
        write_atomically(checksum_path(path), [checksum], is_durable=True)
    return written
