"""An archive in, the folder that it was made from out: files, addresses, or a pipe."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from scannet_prep.archive.groups import ArchiveSet
from scannet_prep.archive.layout import OWN_PREFIX, ArchiveKind, find_twice
from scannet_prep.archive.source import Place
from scannet_prep.errors import ArchiveError, UnknownSceneError, UsageError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import make_directory, run_lock
from scannet_prep.progress import Progress
from scannet_prep.space import check_space
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.target import Target

_DEFAULT_DIRS = {ArchiveKind.PROCESSED: Path("data/processed"), ArchiveKind.RAW: Path("data/ScanNet")}
_AGAIN_HINT = "copy or fetch the archive again, then run the same command: it takes just what is missing"


@dataclass(frozen=True, slots=True)
class UnpackPlan:
    """What `run` is going to do, once; making it writes nothing.

    Attributes:
        archives: The archives, and which scenes are chosen of each.
        needed_bytes, needed_files: What is to be written, as far as it is known.
        there_count: Scenes whose files are there by name and size; `run` compares their content.
    """

    archives: ArchiveSet
    kind: ArchiveKind
    out_dir: Path
    selection: Selection
    needed_bytes: int
    needed_files: int
    there_count: int


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """What a run did.

    Attributes:
        archives: Paths, addresses, or the name of a pipe.
        kind: What the archives were made from.
        out_dir: Where the files are.
        files: How many files had each outcome: `written`, `replaced` and `kept`.
        size_bytes: Size of all files.
        replaced: Names of files that were there with another content.
        scenes: Scenes that are there now, whole.
        new_scenes: Those of them of which something was written.
        failures: Scenes that could not be unpacked.
        damages: What else is damaged, in words: parts whose scene is not known, files that belong to no scene.
        warnings: What is damaged and harms no file.
        missing_shards: Names of shards that belong to the ones that were given.
    """

    archives: tuple[str, ...]
    kind: ArchiveKind
    out_dir: Path
    files: Mapping[str, int] = field(hash=False)
    size_bytes: int
    replaced: tuple[str, ...]
    scenes: tuple[str, ...]
    new_scenes: tuple[str, ...]
    failures: tuple[SceneFailure, ...]
    damages: tuple[str, ...]
    warnings: tuple[str, ...]
    missing_shards: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all that was asked for is there."""
        return not self.failures and not self.damages


def plan(
    archives: Sequence[Place],
    out_dir: Path | None = None,
    *,
    selection: Selection | None = None,
    certificates: bool | Path = True,
) -> UnpackPlan:
    """Decide what to unpack, and refuse what is not safe; nothing is written.

    Args:
        archives: One archive, or shards, or several archives of one kind; or a `PipeSource`.
        out_dir: Where the files go; by default `data/processed` or `data/ScanNet`, by the kind of the archives.
        selection: Which scenes; all by default. Files that belong to no scene are always unpacked.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.

    Raises:
        UnknownSceneError: A scene was asked for that no archive has.
        UsageError: The archives do not fit together, or shards are missing among several.
        ScanNetPrepError: What `ArchiveSet` raises.
    """
    selection = selection or Selection()
    found = ArchiveSet(archives, selection.wants, selection.limit, certificates)
    name, missing, kind, held = found.names[0], found.missing_shards, found.readers[0].head.kind, found.held
    if any(reader.head.kind is not kind for reader in found.readers):
        raise UsageError("the archives hold raw and processed scenes", "unpack one kind at a time")
    if missing and len(found.readers) > 1 and selection.scene_ids is None:
        problem = f"{len(missing):,} shards of the set are not among the archives: {', '.join(missing[:3])}"
        raise UsageError(problem, "name all of them, or unpack them one at a time, or name the scenes that you want")
    for scene_id, holder, other in find_twice((reader.name, reader.held) for reader in found.readers):
        raise UsageError(f"{scene_id} is in {holder} and in {other}", "name only one of them")
    manifests = [reader.read_manifest() for reader in found.readers if reader.index is None]
    for manifest in filter(None, manifests):
        held |= {scene_id: str(entry.split) for scene_id, entry in manifest.scenes.items()}
    if None not in manifests:  # else nobody knows yet what there is
        elsewhere = f"it may be in a shard that was not given: {', '.join(missing[:3])}"
        selection.check_found(
            name, held, elsewhere if missing else f"see scannet-prep info {quote(str(name))} --scenes"
        )
    out_dir = out_dir or _DEFAULT_DIRS[kind]
    sizes = {("", path): len(data) for reader in found.readers for path, data in reader.files.items()}
    sizes |= {(group.scene_id, item.name): item.size_bytes for group in found.chosen for item in group.members}
    lacking = {
        key: size_bytes
        for key, size_bytes in sizes.items()
        if not (key[1].startswith(OWN_PREFIX) or _has_size(out_dir / key[1], size_bytes))
    }
    there = {group.scene_id for group in found.chosen} - {scene_id for scene_id, _ in lacking}
    return UnpackPlan(found, kind, out_dir, selection, sum(lacking.values()), len(lacking), len(there))


def run(plan: UnpackPlan, *, jobs: int = 1, progress: Progress | None = None) -> UnpackReport:
    """Unpack what a plan names; what is there already is kept. One damaged scene never stops the others.

    Each file gets its name when it has been checked, so that a run that ends early, however it ends, leaves whole
    files, and the next one goes on from there.

    Args:
        plan: From `plan`.
        jobs: Number of threads.
        progress: Told of tar bytes.

    Raises:
        ArchiveError: An archive is refused.
        OutputError: The folder cannot be written to, or the disk is full.
        LockedError: Another run is writing into the folder.
        ManifestError: The folder holds scenes that were made in another way.
        TransferError: The server does not give it.
    """
    progress, archives, out_dir, damages = progress or Progress(), plan.archives, plan.out_dir, list[str]()
    check_space(out_dir, plan.needed_bytes, plan.needed_files)
    make_directory(out_dir)
    with progress.work("unpack", archives.size_bytes, "B"), run_lock(out_dir):
        target = Target(plan.kind, out_dir, plan.selection)
        warnings = target.warnings
        for reader in archives.readers:
            target.begin(reader.files, reader.read_manifest())
        for reader in archives.readers:
            for group, problem in reader.read(target.write, jobs, progress):
                if problem:
                    message = f"{group.scene_id}: is damaged: {problem}"
                    target.fail(group.scene_id, ArchiveError(reader.name, message, _AGAIN_HINT))
                if group.scene_id in target.failures:
                    progress.note(target.failures[group.scene_id].message)
            damages += [f"{reader.name}: {problem}" for problem in reader.problems]
            warnings += [f"{reader.name}: {warning}" for warning in reader.warnings]
            reader.source.close()
        _tell_missing(plan, target)
        target.end()
    if not (target.scenes or target.failures or damages):
        plan.selection.check_found(archives.names[0], archives.held, "ask for other splits")
    new = [name for name, files in target.scenes.items() if any(file.outcome != "kept" for file in files)]
    counts = Counter(file.outcome for file in target.files)
    return UnpackReport(
        archives=tuple(archives.names),
        kind=plan.kind,
        out_dir=out_dir,
        files={outcome: counts[outcome] for outcome in ("written", "replaced", "kept")},
        size_bytes=sum(file.size_bytes for file in target.files),
        replaced=tuple(sorted(file.name for file in target.files if file.outcome == "replaced")),
        scenes=tuple(sorted(target.scenes)),
        new_scenes=tuple(sorted(new)),
        failures=tuple(failure for _, failure in sorted(target.failures.items())),
        damages=tuple(damages),
        warnings=tuple(warnings),
        missing_shards=archives.missing_shards,
    )


def _tell_missing(plan: UnpackPlan, target: Target) -> None:
    """Tell of scenes that did not come: those that were named, and of an archive that is cut off, all."""
    if plan.selection.limit is not None or plan.archives.missing_shards:
        return
    expected = {*(plan.selection.scene_ids or ()), *(() if plan.archives.has_indexes else target.expected)}
    for scene_id in sorted(expected - set(target.scenes) - set(target.failures)):
        problem = f"{scene_id}: is not in the part of the archive that is whole"
        target.fail(scene_id, UnknownSceneError(problem, _AGAIN_HINT))


def _has_size(path: Path, size_bytes: int) -> bool:
    return os.path.isfile(path) and os.path.getsize(path) == size_bytes  # noqa: PTH113, PTH202 - asks without raising
