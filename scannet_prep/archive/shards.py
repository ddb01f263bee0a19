"""Writes several archives instead of one, for file systems and services with a largest size."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.archive.compression import Frame, compress_groups
from scannet_prep.archive.contents import Contents, SourceFile
from scannet_prep.archive.frames import DEFAULT_LEVEL
from scannet_prep.archive.output import FileOutput
from scannet_prep.archive.writer import ArchiveWriter, NextGroup, WrittenArchive, files_group, write_groups
from scannet_prep.errors import MissingFileError
from scannet_prep.files import Buffer, locked_directory, output_error, read_file, write_atomically
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.remote.address import is_url

SUFFIX = ".tar.zst"
SUMS_NAME = "SHA256SUMS"

_SHARD_NAME = re.compile(rf"(.+)-(\d{{5}})-of-(\d{{5}}){re.escape(SUFFIX)}", re.ASCII | re.DOTALL)


def shard_path(path: Path, number: int, count: int) -> Path:
    """Name of a shard: `name-00000-of-00004.tar.zst` of `name.tar.zst`."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}-{number:05d}-of-{count:05d}{SUFFIX}")


def find_shards(path: Path) -> tuple[Path, ...]:
    """All shards of `name.tar.zst` that lie in its folder, also those of several sets; sorted."""
    return tuple(sorted(item for item in path.parent.iterdir() if is_shard(item, path))) if path.parent.is_dir() else ()


def is_shard(item: Path, path: Path) -> bool:
    """Whether a file is named as a shard of `name.tar.zst` is."""
    stem = re.escape(path.name.removesuffix(SUFFIX))
    return re.fullmatch(rf"{stem}-\d{{5}}-of-\d{{5}}{re.escape(SUFFIX)}", item.name) is not None


def find_missing_shards(names: Iterable[str | Path]) -> tuple[str, ...]:
    """The shards that are needed to make whole sets of those that are there; sorted.

    A set may lie on several disks, or partly on the web: what belongs together is told by the last part of the names.

    Args:
        names: Paths, or addresses as messages show them.

    Returns:
        Each beside the first that there is of its set.
    """
    folders: dict[tuple[str, int], str] = {}
    numbers: dict[tuple[str, int], set[int]] = {}
    for name in map(str, names):
        folder, match = _split_name(name)
        if match is not None:
            key = match[1], int(match[3])
            folders.setdefault(key, folder)
            numbers.setdefault(key, set()).add(int(match[2]))
    missing = (
        f"{folders[stem, count]}{stem}-{number:05d}-of-{count:05d}{SUFFIX}"
        for (stem, count), found in numbers.items()
        for number in range(count)
        if number not in found
    )
    return tuple(sorted(missing))


def is_of_set(name: str) -> bool:
    """Whether an archive has the name of a shard, of whatever set."""
    return _split_name(name)[1] is not None


def _split_name(name: str) -> tuple[str, re.Match[str] | None]:
    """Folder, with the slash, and the parts of a shard's name; of an address, the query is none of it."""
    path = name.partition("?")[0] if is_url(name) else name
    folder, slash, last = path.rpartition("/")
    return folder + slash, _SHARD_NAME.fullmatch(last)


def write_shards(
    contents: Contents,
    path: Path,
    shard_bytes: int,
    *,
    level: int = DEFAULT_LEVEL,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[WrittenArchive]:
    """Write several archives, none larger than `shard_bytes`, and `SHA256SUMS` beside them.

    Each is a whole archive with a part of the scenes, and with the files that belong to no scene, unless those take
    more than a tenth of a shard (then only the first has them). A scene that is larger by itself gets an archive of its
    own, which is larger then. They get their names when all are on the disk.

    Args:
        contents: What goes in.
        path: Name without the numbers, `name.tar.zst`.
        shard_bytes: Largest size of a file.
        level: Compression level of zstd, 1..22.
        jobs: How many threads compress.
        progress: Told of tar bytes that were written.

    Raises:
        SourceError: A file cannot be read, or changed while it was.
        ArchiveError: A scene that is taken over from another archive is damaged.
        OutputError: An archive cannot be written. None of the new ones is there then.
    """
    with ExitStack() as stack:
        shards: list[_Shard] = []

        def begin_shard() -> ArchiveWriter:
            if shards:
                shards[-1].finish()
            output = _DigestOutput(path)
            stack.callback(output.discard)
            shards.append(_Shard(output, ArchiveWriter(output, contents)))
            return shards[-1].writer

        repeats_files = True

        def choose(following: NextGroup) -> ArchiveWriter:
            nonlocal repeats_files
            if not shards:
                return begin_shard()
            writer = shards[-1].writer
            if not writer.scene_count:
                repeats_files = 10 * writer.size_bytes <= shard_bytes
            if writer.scene_count and writer.size_with(following) > shard_bytes:
                writer = begin_shard()
                _write_first_group(writer, contents, contents.files if repeats_files else (), level)
            return writer

        write_groups(contents, level, jobs, progress or NoProgress(), choose)
        shards[-1].finish()
        written = []
        for number, shard in enumerate(shards):
            final_path = shard_path(path, number, len(shards))
            digest = shard.output.digest.hexdigest()
            written.append(WrittenArchive(final_path, shard.size_bytes, shard.writer.scene_count, digest))
        for archive in written:
            _remove_old(archive.path or path)
        for shard, archive in zip(shards, written, strict=True):
            shard.output.commit(archive.path or path)
        with locked_directory(path.parent):
            _write_sums(path, written)
    return written


class _DigestOutput(FileOutput):
    """A file whose sha256 is known when it is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.digest = hashlib.sha256()

    def write(self, data: Buffer, /) -> None:
        """Write all of the data.

        Raises:
            OutputError: It cannot be written.
        """
        super().write(data)
        self.digest.update(data)


@dataclass(slots=True)
class _Shard:
    output: _DigestOutput
    writer: ArchiveWriter
    size_bytes: int = 0

    def finish(self) -> None:
        """Bring all of it to the disk. It is closed before the next one begins: there may be more than open files."""
        self.size_bytes = self.writer.finish()
        self.output.close()


def _remove_old(path: Path) -> None:
    """Remove a shard of an earlier run of the same name, now that the new ones are on the disk.

    A run that is killed between the renames then leaves a set that lacks shards, which readers refuse, and never a
    mixture of old and new ones, which they could not tell from a set.
    """
    try:
        if not path.is_symlink():  # a link stays, and what it leads to is replaced
            path.unlink(missing_ok=True)
    except OSError as error:
        raise output_error(path, error) from error


def _write_first_group(writer: ArchiveWriter, contents: Contents, files: tuple[SourceFile, ...], level: int) -> None:
    for item in compress_groups([files_group(contents, files)], level, 1):
        if isinstance(item, Frame):
            writer.add_frame(item)
        else:
            writer.end_group(item)


def _write_sums(path: Path, written: list[WrittenArchive]) -> None:
    """Write what `sha256sum -c` reads; lines about other files stay, but none about earlier shards of `path`."""
    lines = {}
    sums_path = path.with_name(SUMS_NAME)
    try:
        for line in read_file(sums_path).decode("utf-8", "surrogateescape").splitlines():
            if not is_shard(Path(line[66:]), path):
                lines[line[66:]] = line
    except MissingFileError:
        pass
    names = [archive.path.name for archive in written if archive.path is not None]
    for name, archive in zip(names, written, strict=True):
        lines[name] = f"{archive.sha256}  {name}"
    text = "".join(f"{line}\n" for _, line in sorted(lines.items()))
    write_atomically(sums_path, [text.encode("utf-8", "surrogateescape")], is_durable=True)
