"""An archive in, the folder that it was made from out: files, addresses, or a pipe."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from scannet_prep.archive.groups import ArchiveSet
from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.archive.source import Place
from scannet_prep.errors import ArchiveError, UnknownSceneError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import make_directory, run_lock
from scannet_prep.progress import Progress
from scannet_prep.space import check_space
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.target import Target

_DEFAULT_DIRS = {ArchiveKind.PROCESSED: Path("data/processed"), ArchiveKind.RAW: Path("data/ScanNet")}
_AGAIN_HINT = "copy or fetch the archive again, then run the same command: it takes just what is missing"


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """What a run did.

    Attributes:
        out_dir: Where the files are.
        files: How many files had each outcome: `written`, `replaced` and `kept`.
        scenes: Scenes that are there now, whole.
        failures: Scenes that could not be unpacked.
        damages: What else is damaged, in words: parts whose scene is not known, files that belong to no scene.
        warnings: What is damaged and harms no file.
    """

    out_dir: Path
    files: Mapping[str, int] = field(hash=False)
    scenes: tuple[str, ...]
    failures: tuple[SceneFailure, ...]
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
        ManifestError: The folder holds scenes that were made in another way.
        ScanNetPrepError: What `ArchiveSet` raises.
    """
    selection, progress, damages = selection or Selection(), progress or Progress(), list[str]()
    archives = ArchiveSet(places, selection.wants, selection.limit, certificates)
    if archives.has_indexes:  # else nobody knows yet what there is
        hint = f"see scannet-prep info {quote(archives.names[0])} --scenes; or is it in a shard that was not given?"
        selection.check_found(archives.names[0], archives.held, hint)
    out_dir = out_dir or _DEFAULT_DIRS[archives.kind]
    is_there = os.path.exists  # which asks without raising
    members = [member for group in archives.chosen for member in group.members if not is_there(out_dir / member.name)]
    check_space(out_dir, sum(member.size_bytes for member in members), needed_files=len(members))
    make_directory(out_dir)
    with progress.work("unpack", archives.size_bytes, "B"), run_lock(out_dir):
        target = Target(archives.kind, out_dir, selection)
        warnings = target.warnings
        for reader in archives.readers:
            target.begin(reader.files, reader.read_manifest())
        for reader in archives.readers:
            for group, problem in reader.read(target.write, jobs, progress):
                if problem:
                    message = f"{group.scene_id}: is damaged: {problem}"
                    target.fail(group.scene_id, ArchiveError(reader.name, message, _AGAIN_HINT))
            damages += [f"{reader.name}: {problem}" for problem in reader.problems]
            warnings += [f"{reader.name}: {warning}" for warning in reader.warnings]
            reader.source.close()
        _tell_missing(archives, selection, target)
        target.end()
    if not (target.scenes or target.failures or damages):
        selection.check_found(archives.names[0], archives.held, "ask for other splits")
    files = Counter(written=0, replaced=0, kept=0)
    files.update(target.outcomes.values())
    return UnpackReport(
        out_dir=out_dir,
        files=files,
        scenes=tuple(sorted(target.scenes)),
        failures=tuple(failure for _, failure in sorted(target.failures.items())),
        damages=tuple(damages),
        warnings=tuple(warnings),
    )


def _tell_missing(archives: ArchiveSet, selection: Selection, target: Target) -> None:
    """Tell of scenes that did not come: those that were named, and of an archive that is cut off, all."""
    if selection.limit is not None or archives.missing_shards:
        return
    expected = {*(selection.scene_ids or ()), *(() if archives.has_indexes else target.expected)}
    for scene_id in sorted(expected - set(target.scenes) - set(target.failures)):
        target.fail(scene_id, UnknownSceneError(f"{scene_id}: is not in what is whole of the archive", _AGAIN_HINT))
