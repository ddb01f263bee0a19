"""Write archives to files, and compare existing ones.

write_files, is_same -- a loop over ArchiveBytes: writer -> contents, tar, frames
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from scannet_prep.archive.byte_source import open_bytes
from scannet_prep.archive.checksum import checksum_path, encode_checksum
from scannet_prep.archive.shards import SUFFIX
from scannet_prep.archive.stream import Stream
from scannet_prep.archive.writer import ArchiveBytes
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
from scannet_prep.base.run_lock import run_lock


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


def is_same(archive: ArchiveBytes, target: Path | str) -> bool:
    """Whether an existing archive is the one that would be written, byte for byte.

    If it is, the checksum file beside it is written, unless it is right already.

    Args:
        archive: The archive that would be written.
        target: The path of the existing archive, or its address in a bucket.

    Raises:
        OutputError: The checksum file cannot be written.
        FileError: A folder or a device has the name of the checksum file.
        TransferError: The bucket cannot be read.
    """
    is_equal = False
    # NotOnServerError: the bucket does not hold the archive. FileError: the archive does not exist
    # or cannot be read, or a file of its contents cannot be read. In all cases, the caller goes on
    # to write the archive; a file that cannot be read is then reported.
    with suppress(FileError, NotOnServerError), closing(open_bytes(target)) as source:
        existing = Stream(source)
        with archive.threads.progress.work("compare", archive.contents.size_bytes, "B"):
            has_same_beginning = all(existing.take(len(piece)) == piece for piece in archive)
        is_equal = has_same_beginning and not existing.peek(0, 1)
    if is_equal and isinstance(target, Path):
        write_if_changed(checksum_path(target), encode_checksum(target, archive.sha256))
    return is_equal


def write_files(archives: Mapping[Path, ArchiveBytes], old_paths: Sequence[Path]) -> None:
    """Write archives with their checksum files. They get their names when all are on the disk.

    A killed run leaves the old shards, or an incomplete set that readers refuse, but never a
    mixture. It may leave an archive without a checksum file, but never with a wrong one.

    Args:
        archives: The archives, by path.
        old_paths: Shards of an earlier run, which are removed.
    """
    temporary_paths: dict[Path, Path] = {}
    for path, archive in archives.items():
        temporary_paths[path] = write_temporary(path, archive, is_durable=True)

    # Remove checksum files before the archives that they describe, and write them after: then none
    # ever lies beside an archive that it does not describe.
    for path in (*old_paths, *archives):
        remove_file(checksum_path(path))
    for path in old_paths:
        # Not remove_file, which would leave a link that leads nowhere.
        path.unlink()
    for path, archive in archives.items():
        put_in_place(temporary_paths[path], path)
        checksum = encode_checksum(path, archive.sha256)
        write_atomically(checksum_path(path), [checksum], is_durable=True)
