"""Packs a folder of scenes into one archive, or into several shards.

    find_contents               names, sizes and the manifest of the folder -> Contents
    PackTarget.check_replaced   refuse to replace an archive that holds other scenes
    PackTarget.is_up_to_date    compare ArchiveBytes with the existing archive
    PackTarget.write            ArchiveBytes -> the archive

A loop over `ArchiveBytes` reads the files and makes the bytes of the archive, in threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.layout import DEFAULT_LEVEL, ArchiveKind
from scannet_prep.archive.threads import Threads
from scannet_prep.archive.writer import ArchiveBytes
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.stages.pack.finding import find_contents
from scannet_prep.stages.pack.target import PackTarget
from scannet_prep.stages.selection import Selection

__all__ = ["PackReport", "find_contents", "run"]


@dataclass(frozen=True, slots=True)
class PackReport:
    """The result of `run`.

    Attributes:
        archives: Sizes of the archive or of the shards, written or up to date, by path.
        sha256: Their SHA-256, by path.
        has_checksum_files: Whether `PATH.sha256` is beside each archive; False for a pipe or a
            bucket.
        kind: The kind of the scenes.
        options: The options of processed scenes; None for raw ones.
        scenes: Number of scenes in all archives.
        splits: Number of scenes in each split.
        size_bytes: Size of the contents before compression.
        up_to_date: Whether nothing was written, because the archive already equals the folder.
        oversized: Sizes of the shards that exceed the maximum size, by scene id. Each of them holds
            a single scene.
        missing: Why scenes that failed in processing are missing, by id.
        left_out: Files and folders that were not packed, because their names do not belong in a
            tree of that kind; sorted.
    """

    archives: Mapping[str, int] = field(hash=False)
    sha256: Mapping[str, str] = field(hash=False)
    has_checksum_files: bool
    kind: ArchiveKind
    options: ProcessOptions | None
    scenes: int
    splits: Mapping[str, int] = field(hash=False)
    size_bytes: int
    up_to_date: bool
    oversized: Mapping[str, int] = field(hash=False)
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
    """Pack a folder. The archive gets its name when it is complete and on the disk.

    Args:
        source: A processed folder or a raw tree.
        target: The archive, `*.tar.zst`: a path, or an address in a bucket, such as
            `s3://BUCKET/NAME.tar.zst`; None for a pipe.
        selection: The scenes to pack; all by default.
        level: Compression level of zstd, 1..22; 0 stores.
        shard_bytes: Maximum size of a file, for several shards; None for one file.
        is_forced: Whether to pack even if the archive is up to date or holds more scenes.
        jobs: Number of threads that compress.
        progress: Receives the number of tar bytes.
        pipe: Open file descriptor that takes the archive if there is no target.

    Raises:
        UsageError: The arguments contradict each other, or an archive that holds more would be
            replaced.
        FileError: The folder does not exist, contains no selected scenes, or cannot be packed; or
            one of its files cannot be read, or has changed since it was found.
        OutputError: The archive cannot be written. An earlier one stays in place.
        LockedError: Another run is writing into the same folder.
        TransferError: The bucket cannot be read.
    """
    progress = progress or Progress()
    threads = Threads(jobs, progress)
    output = PackTarget(target, shard_bytes, pipe)
    contents = find_contents(source, selection or Selection(), level=level)
    if not contents.scenes:
        hint = "check --scenes and --splits, or name another folder"
        raise FileError(source, "contains none of the selected scenes", hint)
    if not is_forced:
        output.check_replaced(contents)

    archives = {}
    for name, part in output.divide(contents).items():
        archives[name] = ArchiveBytes(part, threads)
    # Comparing or writing an archive makes all of its bytes, and so its size and SHA-256.
    with output.opened():
        is_up_to_date = not is_forced and output.is_up_to_date(archives)
        if not is_up_to_date:
            with progress.work("pack", contents.size_bytes, "B"):
                output.write(archives)
    return PackReport(
        archives={name: archive.size_bytes for name, archive in archives.items()},
        sha256={name: archive.sha256 for name, archive in archives.items()},
        has_checksum_files=output.is_on_disk,
        kind=contents.head.kind,
        options=contents.head.options,
        scenes=len(contents.scenes),
        splits=Counter(scene.split for scene in contents.scenes),
        size_bytes=contents.size_bytes,
        up_to_date=is_up_to_date,
        oversized=_find_oversized(archives.values(), shard_bytes),
        missing=contents.failures,
        left_out=contents.left_out,
    )


def _find_oversized(archives: Iterable[ArchiveBytes], shard_bytes: int | None) -> dict[str, int]:
    """Find the archives that exceed the size of a shard.

    Returns:
        The size of each, by scene id. Each holds a single scene, because `Contents.split` never
        puts several scenes into a shard that would exceed the size.
    """
    if shard_bytes is None:
        return {}
    return {
        archive.contents.scenes[0].scene_id: archive.size_bytes
        for archive in archives
        if archive.size_bytes > shard_bytes
    }
