"""The archive that is packed: a file, shards, an object in a bucket, or a pipe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from shlex import quote

from scannet_prep.archive import open_archive
from scannet_prep.archive.byte_source import open_bytes
from scannet_prep.archive.checksum import checksum_path, encode_checksum
from scannet_prep.archive.contents import Contents
from scannet_prep.archive.shards import SUFFIX, find_shards, shard_path
from scannet_prep.archive.stream import Stream
from scannet_prep.archive.writer import ArchiveBytes
from scannet_prep.base.files import (
    make_directory,
    output_error,
    put_in_place,
    remove_file,
    remove_temporaries,
    write_atomically,
    write_if_changed,
    write_temporary,
)
from scannet_prep.base.lock import run_lock
from scannet_prep.errors import (
    FileError,
    ForeignFileError,
    NotOnServerError,
    OutputError,
    ScanNetPrepError,
    UsageError,
)

_PIPE_NAME = "standard output"


class PackTarget:
    """Where an archive is written to: a file, a set of shards, a bucket or a pipe.

    Args:
        place: Path of the archive or of the set, address in a bucket, or None for a pipe.
        shard_bytes: Maximum size of a file, for shards; None for one archive.
        pipe: Open file descriptor that takes the archive if there is no place.

    Raises:
        UsageError: The name is not that of an archive, or the place cannot take shards.
        OutputError: It exists, and is not a regular file.
    """

    def __init__(self, place: Path | str | None, shard_bytes: int | None, pipe: int) -> None:
        self._place = _check_place(place, has_shards=shard_bytes is not None)
        self._shard_bytes = shard_bytes
        self._pipe = pipe

    @property
    def is_on_disk(self) -> bool:
        """Whether it is a file or a set of shards."""
        return isinstance(self._place, Path)

    def check_replaced(self, contents: Contents) -> None:
        """Refuse to replace archives of more scenes or of another kind, unless they are damaged.

        Raises:
            UsageError: Scenes, or a file of another program, would be lost.
            TransferError: The bucket cannot be read.
        """
        if self._place is not None and self._shard_bytes is None:
            _check_replaced(self._place, contents)
        for path in self._find_old_shards():
            _check_replaced(path, contents)

    def divide(self, contents: Contents) -> dict[str, Contents]:
        """Return the contents of each archive, by its path or address."""
        if not isinstance(self._place, Path) or self._shard_bytes is None:
            return {str(self._place or _PIPE_NAME): contents}
        shards = contents.split(self._shard_bytes)
        paths = [shard_path(self._place, number, len(shards)) for number in range(len(shards))]
        return {str(path): shard for path, shard in zip(paths, shards, strict=True)}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Lock the folder of the archive, and translate errors of writing into an `OutputError`.

        Raises:
            LockedError: Another run is writing into the same folder.
            OutputError: The archive cannot be written.
        """
        try:
            with ExitStack() as stack:
                if isinstance(self._place, Path):
                    stack.enter_context(_locked_folder_of(self._place))
                yield
        except ScanNetPrepError:  # some of them are OSErrors, too
            raise
        except BrokenPipeError:
            problem = "the program reading the pipe has stopped"
            raise OutputError(problem, "check its error message") from None
        except OSError as error:
            raise output_error(Path(self._place or _PIPE_NAME), error) from error

    def is_up_to_date(self, archives: Mapping[str, ArchiveBytes]) -> bool:
        """Whether the archive exists as it would be written, byte for byte.

        If it does, the checksum file beside it is written, unless it is right already. Shards and
        a pipe are not compared.

        Args:
            archives: The archive, named by `divide`.

        Raises:
            OutputError: The checksum file cannot be written.
            FileError: A folder or a device has the name of the checksum file.
            TransferError: The bucket cannot be read.
        """
        if self._place is None or self._shard_bytes is not None:
            return False
        (archive,) = archives.values()
        is_same = False
        # NotOnServerError: the bucket does not hold the archive. FileError: the archive does not
        # exist or cannot be read, or a file of its contents cannot be read. In all cases, the
        # archive is written next; a file that cannot be read is then reported.
        with suppress(FileError, NotOnServerError), closing(open_bytes(self._place)) as source:
            existing = Stream(source)
            with archive.threads.progress.work("compare", archive.contents.size_bytes, "B"):
                has_same_beginning = all(existing.take(len(piece)) == piece for piece in archive)
            is_same = has_same_beginning and not existing.peek(0, 1)
        if is_same and isinstance(self._place, Path):
            checksum = encode_checksum(self._place, archive.sha256)
            write_if_changed(checksum_path(self._place), checksum)
        return is_same

    def write(self, archives: Mapping[str, ArchiveBytes]) -> None:
        """Write one archive, or all shards of a set, which replace those of an earlier run.

        Args:
            archives: The archives, named by `divide`.
        """
        if isinstance(self._place, Path):
            archives_by_path = {Path(name): archive for name, archive in archives.items()}
            _write_files(archives_by_path, self._find_old_shards())
            return
        (archive,) = archives.values()
        if self._place is None:
            with os.fdopen(self._pipe, "wb", closefd=False) as file:
                file.writelines(archive)
        else:
            from scannet_prep.remote.bucket import upload

            upload(self._place, archive, archive.contents.size_bytes)

    def _find_old_shards(self) -> Sequence[Path]:
        """Find the shards that new ones replace; none for one archive."""
        if not isinstance(self._place, Path) or self._shard_bytes is None:
            return ()
        return find_shards(self._place)


def _check_place(target: Path | str | None, *, has_shards: bool) -> Path | str | None:
    """Refuse a target that cannot become an archive.

    Returns:
        The target. For a link, the file that it leads to, which is replaced while the link stays.
    """
    if target is None:
        if has_shards:
            hint = "write shards to files: -o FILE, or leave out --shard-size"
            raise UsageError("a pipe takes one archive", hint)
        return None
    if isinstance(target, str):
        from scannet_prep.remote.bucket import parse_address

        parse_address(target)  # refuses other addresses, without showing secrets in them
        if has_shards:
            raise UsageError(
                "shards are not written to a bucket, where they could not appear all at once",
                "pack the shards into a folder (-o FILE) and copy them, or leave out --shard-size",
            )
    if not str(target).endswith(SUFFIX):
        hint = f"use -o {quote(f'{target}{SUFFIX}')}"
        raise UsageError(f"{target}: an archive is a {SUFFIX} file", hint)
    if isinstance(target, str):
        return target
    if target.is_symlink():
        target = target.resolve()
    if target.exists() and not target.is_file():
        command = f"scannet-prep pack - > {quote(str(target))}"
        raise OutputError(
            f"{target}: is not a regular file",
            f"name another one (-o FILE), or write to it: {command}",
        )
    return target


def _check_replaced(path: Path | str, contents: Contents) -> None:
    """Refuse to replace an archive if scenes, or a file of another program, would be lost.

    Raises:
        UsageError: They would be lost.
    """
    hint = "write to another file with -o FILE, or pass --force to replace this one"
    try:
        index = open_archive(path).index
    except ForeignFileError as error:
        raise UsageError(f"{path}: {error.problem}, and would be replaced", hint) from None
    except (FileError, NotOnServerError):
        return
    if index.head.kind is not contents.head.kind:
        problem = f"holds {index.head.kind} scenes, and would be replaced by another kind"
        raise UsageError(f"{path}: {problem}", hint)
    packed = {scene.scene_id for scene in contents.scenes}
    lost = [scene.scene_id for scene in index.scenes if scene.scene_id not in packed]
    if lost:
        count = f"{len(lost):,} scenes that the new archive would not"
        raise UsageError(f"{path}: holds {count}, for example {lost[0]}", hint)


@contextmanager
def _locked_folder_of(target: Path) -> Iterator[None]:
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


def _write_files(archives: Mapping[Path, ArchiveBytes], old_paths: Sequence[Path]) -> None:
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
