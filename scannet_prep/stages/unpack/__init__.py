"""Unpacks archives, which are files, addresses or a pipe, into the folder that they were made from.

    ArchiveSet            opens the archives, and finds their scenes
    check_found           compares them with the selection
    GroupReader.read      each scene, checked -> UnpackTarget.write, in threads
    UnpackTarget.end      manifest or scannet.lock, and failed.txt

Formats and damage are the concern of `archive.groups`, the folder that of `target`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from scannet_prep.archive.archive_set import ArchiveSet
from scannet_prep.archive.byte_source import Place, open_bytes
from scannet_prep.archive.groups import GroupReader
from scannet_prep.archive.layout import ArchiveKind, StoredGroup
from scannet_prep.archive.threads import Threads
from scannet_prep.base.files import make_directory
from scannet_prep.base.findings import Finding
from scannet_prep.base.lock import run_lock
from scannet_prep.base.progress import Progress
from scannet_prep.errors import ArchiveError, FileError
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.unpack.processed_target import ProcessedTarget
from scannet_prep.stages.unpack.raw_target import RawTarget
from scannet_prep.stages.unpack.target import HINT_COPY_AGAIN, UnpackTarget

_TARGETS: dict[ArchiveKind, type[UnpackTarget]] = {
    ArchiveKind.PROCESSED: ProcessedTarget,
    ArchiveKind.RAW: RawTarget,
}


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """The result of a run.

    Attributes:
        out_dir: The folder.
        files: Number of files by outcome: `written`, `replaced` and `kept`.
        scenes: Scenes of the archives that are intact in the folder now.
        failures: Scenes that could not be unpacked, and are not intact in the folder.
        damages: Other damage, in words: scenes that cannot be named, files that belong to no scene,
            and scenes that are damaged in the archives but intact in the folder.
        warnings: Damage that affects no file.
    """

    out_dir: Path
    files: Mapping[str, int] = field(hash=False)
    scenes: tuple[str, ...]
    failures: tuple[Finding, ...]
    damages: tuple[str, ...]
    warnings: tuple[str, ...]


def run(
    places: Sequence[Place],
    out_dir: Path | None = None,
    *,
    selection: Selection | None = None,
    certificates: bool | Path = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> UnpackReport:
    """Unpack archives; files that the folder holds already are kept.

    A damaged scene does not stop the others. Each file gets its name after it has been checked. So
    an interrupted run, even a killed one, leaves complete files, and the next run continues from
    there. Unsafe archives are refused before anything is written.

    Args:
        places: One archive, all shards of a set, or several archives of one kind; or a
            `PipeSource`.
        out_dir: The folder; by default `data/processed` or `data/ScanNet`, by the kind of the
            archives.
        selection: The scenes to unpack; all by default. Files that belong to no scene are always
            unpacked.
        certificates: Certificate authorities to trust for servers; see `RangeSource`.
        jobs: Number of threads.
        progress: Receives the number of tar bytes.

    Raises:
        UnknownSceneError: No archive holds a selected scene.
        ArchiveError: An archive is refused.
        OutputError: The folder cannot be written to, or the disk is full.
        LockedError: Another run is writing into the folder.
        FileError: The folder holds scenes of other options or another label map.
        ScanNetPrepError: See `open_bytes` and `ArchiveSet`.
    """
    selection = selection or Selection()
    threads = Threads(jobs, progress)
    sources = [open_bytes(place, certificates=certificates) for place in places]
    archives = ArchiveSet(sources, selection.wants, selection.limit)
    first_name = archives.names[0]
    # Without indexes, the scenes are known only at the end.
    if archives.has_indexes:
        hint = (
            f"scannet-prep info {quote(first_name)} --scenes lists the scenes; "
            "if this is one of several shards, name all of them"
        )
        selection.check_found(first_name, archives.held, hint)

    target_type = _TARGETS[archives.kind]
    out_dir = out_dir or target_type.default_dir
    make_directory(out_dir)
    with threads.progress.work("unpack", archives.size_bytes, "B"), run_lock(out_dir):
        target = target_type(archives, out_dir, selection)
        # Check all archives before the first file is written.
        for reader in archives.readers:
            target.begin(reader)
        for reader in archives.readers:
            _unpack_archive(reader, target, threads)
        # With a limit, or with one shard of several, scenes are missing on purpose.
        if selection.limit is None and not archives.missing_shards:
            target.fail_missing(is_cut=not archives.has_indexes)
        target.end()

    # If nothing was unpacked, the selection may name splits without scenes. Without indexes, this
    # could not be checked before.
    if not (target.scenes or target.failures or target.damages):
        selection.check_found(first_name, archives.held, "choose other splits with --splits")
    files = Counter(written=0, replaced=0, kept=0)
    files.update(file.outcome for file in target.files.values())
    # Scenes that are spared are damaged in the archives, but were intact in the folder before.
    intact_scenes = target.scenes.keys() | target.spared
    failures = [target.failures[scene_id] for scene_id in sorted(target.failures)]
    return UnpackReport(
        out_dir=out_dir,
        files=files,
        scenes=tuple(sorted(intact_scenes)),
        failures=tuple(failures),
        damages=tuple(target.damages),
        warnings=tuple(target.warnings),
    )


def _unpack_archive(reader: GroupReader, target: UnpackTarget, threads: Threads) -> None:
    """Unpack one archive, and record its damage."""

    def write(group: StoredGroup, content: memoryview) -> None:
        try:
            target.write(group, content)
        except FileError as error:
            target.fail(group.scene_id, error, expected=group.members)

    target.write_others(reader.files)
    for group, problem in reader.read(write, threads):
        if problem:
            message = f"{group.scene_id}: is damaged: {problem}"
            error = ArchiveError(reader.name, message, HINT_COPY_AGAIN)
            target.fail(group.scene_id, error, expected=group.members)
    target.damages += [f"{reader.name}: {problem}" for problem in reader.problems]
    target.warnings += [f"{reader.name}: {warning}" for warning in reader.warnings]
