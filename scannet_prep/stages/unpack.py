"""An archive in, the folder that it was made from out: files, addresses, or a pipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from scannet_prep.archive.groups import ArchiveSet
from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.base.errors import ArchiveError
from scannet_prep.base.files import make_directory
from scannet_prep.base.progress import Progress
from scannet_prep.base.run_lock import run_lock
from scannet_prep.release.findings import Finding
from scannet_prep.source import Place
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.unpack_target import AGAIN_HINT, Target

_DEFAULT_DIRS = {
    ArchiveKind.PROCESSED: Path("data/processed"),
    ArchiveKind.RAW: Path("data/ScanNet"),
}


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """What a run did.

    Attributes:
        out_dir: Where the files are.
        files: How many files had each outcome: `written`, `replaced` and `kept`.
        scenes: Scenes of the archives that are whole in the folder now.
        failures: Scenes that could not be unpacked, and are not whole in the folder.
        damages: Other damage, in words: parts whose scene is not known, files that belong to no scene, and scenes that
            are not whole in the archives but are in the folder.
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
    """Unpack archives; what is there already is kept. One damaged scene never stops the others.

    Each file gets its name when it has been checked, so that a run that ends early, however it ends, leaves whole
    files, and the next one goes on from there. What is not safe is refused before anything is written.

    Args:
        places: One archive, or shards, or several archives of one kind; or a `PipeSource`.
        out_dir: Where the files go; by default `data/processed` or `data/ScanNet`, by the kind of the archives.
        selection: Which scenes; all by default. Files that belong to no scene are always unpacked.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.
        jobs: Number of threads.
        progress: Told of tar bytes.

    Raises:
        UnknownSceneError: A scene was asked for that no archive has.
        ArchiveError: An archive is refused.
        OutputError: The folder cannot be written to, or the disk is full.
        LockedError: Another run is writing into the folder.
        FileError: The folder holds scenes that were made in another way.
        ScanNetPrepError: What `ArchiveSet` raises.
    """
    selection = selection or Selection()
    progress = progress or Progress()
    archives = ArchiveSet(places, selection.wants, selection.limit, certificates)
    if archives.has_indexes:  # else nobody knows yet what there is
        hint = f"see scannet-prep info {quote(archives.names[0])} --scenes; or is it in a shard that was not given?"
        selection.check_found(archives.names[0], archives.held, hint)
    out_dir = out_dir or _DEFAULT_DIRS[archives.kind]
    make_directory(out_dir)
    with progress.work("unpack", archives.size_bytes, "B"), run_lock(out_dir):
        target = Target(archives, out_dir, selection)
        for reader in archives.readers:
            target.begin(reader.files, reader.read_manifest())
        for reader in archives.readers:
            target.write_others(reader.files)
            for group, problem in reader.read(target.write, jobs, progress):
                if problem:
                    message = f"{group.scene_id}: is damaged: {problem}"
                    error = ArchiveError(reader.name, message, AGAIN_HINT)
                    target.fail(group.scene_id, error, expected=group.members)
            target.damages += [f"{reader.name}: {problem}" for problem in reader.problems]
            target.warnings += [f"{reader.name}: {warning}" for warning in reader.warnings]
        if selection.limit is None and not archives.missing_shards:
            target.fail_missing(is_cut=not archives.has_indexes)
        target.end()
    if not (target.scenes or target.failures or target.damages):
        selection.check_found(archives.names[0], archives.held, "choose other splits with --splits")
    files = Counter(written=0, replaced=0, kept=0)
    files.update(file.outcome for file in target.files.values())
    return UnpackReport(
        out_dir=out_dir,
        files=files,
        scenes=tuple(sorted(target.scenes.keys() | target.spared)),
        failures=tuple(failure for _, failure in sorted(target.failures.items())),
        damages=tuple(target.damages),
        warnings=tuple(target.warnings),
    )
