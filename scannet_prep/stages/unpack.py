"""An archive in, the folder that it was made from out: files, addresses, or a pipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.groups import GroupReader, open_readers
from scannet_prep.archive.layout import OWN_PREFIX, ArchiveKind, find_twice
from scannet_prep.archive.source import Place, find_missing_shards
from scannet_prep.errors import ArchiveError, UnknownSceneError, UsageError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import make_directory, run_lock
from scannet_prep.progress import Progress
from scannet_prep.space import check_space
from scannet_prep.stages.selection import Selection, check_named
from scannet_prep.stages.target import Target

_DEFAULT_DIRS = {ArchiveKind.PROCESSED: Path("data/processed"), ArchiveKind.RAW: Path("data/ScanNet")}
_AGAIN_HINT = "copy or fetch the archive again, then run the same command: it takes just what is missing"


@dataclass(frozen=True, slots=True)
class UnpackPlan:
    """What `run` is going to do, once; making it writes nothing.

    Attributes:
        readers: The archives, and which scenes are chosen of each.
        missing_shards: Names of shards that belong to the ones that were given.
        needed_bytes, needed_files: What is to be written, as far as it is known.
        there_count: Scenes whose files are there by name and size; `run` compares their content.
    """

    readers: tuple[GroupReader, ...]
    kind: ArchiveKind
    out_dir: Path
    selection: Selection
    missing_shards: tuple[str, ...]
    needed_bytes: int
    needed_files: int
    there_count: int

    @property
    def has_indexes(self) -> bool:
        """Whether all indexes could be read; not that of a pipe, or of a damaged end."""
        return all(reader.index is not None for reader in self.readers)

    @property
    def scene_ids(self) -> list[str]:
        """The scenes, sorted, as far as they are known."""
        return sorted(group.scene_id for reader in self.readers for group in reader.chosen)

    @property
    def size_bytes(self) -> int:
        """Tar bytes of all groups; 0 where they are not known."""
        return sum(reader.size_bytes for reader in self.readers) if self.has_indexes else 0


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
        ScanNetPrepError: What `open_readers` raises.
    """
    selection = selection or Selection()
    readers = tuple(open_readers(archives, selection.wants, selection.limit, certificates))
    names = [reader.name for reader in readers]
    kind = readers[0].head.kind
    if any(reader.head.kind is not kind for reader in readers):
        raise UsageError("the archives hold raw and processed scenes", "unpack one kind at a time")
    missing = find_missing_shards(names)
    if missing and len(names) > 1 and selection.scene_ids is None:
        problem = f"{len(missing):,} shards of the set are not among the archives: {', '.join(missing[:3])}"
        raise UsageError(problem, "name all of them, or unpack them one at a time, or name the scenes that you want")
    for scene_id, holder, other in find_twice((reader.name, reader.held) for reader in readers):
        raise UsageError(f"{scene_id} is in {holder} and in {other}", "name only one of them")
    has_indexes = all(reader.index is not None for reader in readers)
    held = {name: split for reader in readers for name, split in reader.held.items()}
    if not has_indexes and (manifest := readers[0].read_manifest()):
        held |= {name: str(entry.split) for name, entry in manifest.scenes.items()}
    wanted = [name for name, split in held.items() if selection.wants(name, split)]
    if has_indexes:
        elsewhere = f"it may be in a shard that was not given: {', '.join(missing[:3])}"
        hint = elsewhere if missing else f"to see what is there: scannet-prep info {names[0]} --scenes"
        check_named(names[0], selection, wanted, hint)
    if held:
        _check_splits(names[0], selection, wanted, held)
    out_dir = out_dir or _DEFAULT_DIRS[kind]
    lacking = [
        (group.scene_id, member.size_bytes)
        for reader in readers
        for group in reader.groups
        for member in group.members
        if not member.name.startswith(OWN_PREFIX) and _find_size(out_dir / member.name) != member.size_bytes
    ]
    there = {scene.scene_id for reader in readers for scene in reader.chosen} - {scene_id for scene_id, _ in lacking}
    needed_bytes = sum(size_bytes for _, size_bytes in lacking)
    return UnpackPlan(readers, kind, out_dir, selection, missing, needed_bytes, len(lacking), len(there))


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
    progress, out_dir, damages, warnings = progress or Progress(), plan.out_dir, list[str](), list[str]()
    check_space(out_dir, plan.needed_bytes, plan.needed_files)
    make_directory(out_dir)
    with progress.work("unpack", plan.size_bytes, "B"), run_lock(out_dir):
        target = Target(plan.kind, out_dir, plan.selection)
        for reader in plan.readers:
            target.begin(reader.files, reader.read_manifest())
        for reader in plan.readers:
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
    warnings += target.warnings
    came = [*target.scenes, *target.failures, *damages]
    _check_splits(plan.readers[0].name, plan.selection, came, plan.readers[0].held)
    new = [name for name, files in target.scenes.items() if any(file.outcome != "kept" for file in files)]
    counts = Counter(file.outcome for file in target.files)
    return UnpackReport(
        archives=tuple(reader.name for reader in plan.readers),
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
        missing_shards=plan.missing_shards,
    )


def _check_splits(place: str, selection: Selection, wanted: Collection[str], held: Mapping[str, str]) -> None:
    """Check that something was found of the splits that were asked for; else say which there are."""
    if selection.splits and not wanted:
        names = ", ".join(sorted({split or "scenes of no list" for split in held.values()})) or "no scenes at all"
        problem = f"{place}: has no scenes of {', '.join(selection.splits)}; it has: {names}"
        raise UnknownSceneError(problem, "ask for other splits")


def _tell_missing(plan: UnpackPlan, target: Target) -> None:
    """Tell of scenes that did not come: those that were named, and of an archive that is cut off, all."""
    if plan.selection.limit is not None or plan.missing_shards:
        return
    expected = {*(plan.selection.scene_ids or ()), *(() if plan.has_indexes else target.expected)}
    for scene_id in sorted(expected - set(target.scenes) - set(target.failures)):
        problem = f"{scene_id}: is not in the part of the archive that is whole"
        target.fail(scene_id, UnknownSceneError(problem, _AGAIN_HINT))


def _find_size(path: Path) -> int | None:
    """Size of a file; None where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None
