"""Unpacks archives: files, addresses, or a pipe."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.archive.groups import GroupReader, Outcome
from scannet_prep.archive.index import Group
from scannet_prep.archive.layout import OWN_PREFIX, ArchiveKind
from scannet_prep.archive.shards import find_missing_shards
from scannet_prep.archive.source import ByteSource, open_sources
from scannet_prep.errors import ArchiveError, FileError, OutputError, UnknownSceneError, UsageError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import check_is_folder, make_directory, run_lock
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.space import check_space
from scannet_prep.stages.selection import Selection, check_named
from scannet_prep.stages.unpack.target import Target, UnpackedFile

DEFAULT_DIRS = {ArchiveKind.PROCESSED: Path("data/processed"), ArchiveKind.RAW: Path("data/ScanNet")}

_AGAIN_HINT = "copy or fetch the archive again, then run the same command: it takes just what is missing"

Written = list[UnpackedFile] | OutputError | FileError | dict[str, bytes]


@dataclass(frozen=True, slots=True)
class UnpackPlan:
    """What `run` is going to do; making it writes nothing.

    Attributes:
        sources: The archives.
        groups: What is unpacked of each archive; None where its index has not been read (a pipe, a damaged end).
        kind: What the archives were made from; None where nobody knows yet.
        out_dir: Where the files go; None for the default of their kind.
        selection: Which scenes.
        missing_shards: Names of shards that belong to the ones that were given.
        needed_bytes: What is to be written, as far as it is known.
        needed_files: How many files are to be written, as far as it is known.
        there_count: Scenes whose files are there by name and size; `run` compares their content.
    """

    sources: tuple[ByteSource, ...]
    groups: tuple[tuple[Group, ...] | None, ...]
    kind: ArchiveKind | None
    out_dir: Path | None
    selection: Selection
    missing_shards: tuple[str, ...]
    needed_bytes: int
    needed_files: int
    there_count: int

    @property
    def scene_ids(self) -> list[str]:
        """The scenes, sorted, as far as they are known."""
        return sorted(group.scene_id for groups in self.groups for group in groups or () if group.scene_id)

    @property
    def size_bytes(self) -> int:
        """Tar bytes of all groups; 0 where they are not known."""
        if None in self.groups:
            return 0
        return sum(group.size_bytes for groups in self.groups for group in groups or ())


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
    archives: Sequence[str | Path | ByteSource],
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
        certificates: Of addresses, whom to trust: True for the system's authorities, a file with others, False to
            accept any certificate.

    Raises:
        MissingFileError: An archive is not there.
        ArchiveError: It is of another program, or refused.
        UnknownSceneError: A scene was asked for that no archive has.
        UsageError: The archives do not fit together, or shards are missing among several.
        OutputError: Something is in the way in the folder.
    """
    selection = selection or Selection()
    sources = open_sources(archives, certificates=certificates)
    names = [source.name for source in sources]
    indexes = [GroupReader[None](source, lambda _group, _contents: None).open() for source in sources]
    kinds = {index.head.kind for index in indexes if index is not None}
    if len(kinds) > 1:
        raise UsageError("the archives hold raw and processed scenes", "unpack one kind at a time")
    kind = next(iter(kinds), None)
    missing = find_missing_shards(names)
    if missing and len(names) > 1 and selection.scene_ids is None:
        raise UsageError(
            f"{len(missing):,} shards of the set are not among the archives: {', '.join(missing[:3])}",
            "name all of them, or unpack them one at a time, or name the scenes that you want",
        )
    scenes: dict[str, tuple[str, Group]] = {}
    for name, index in zip(names, indexes, strict=True):
        for group in index.scenes if index is not None else ():
            other, _ = scenes.setdefault(group.scene_id, (name, group))
            if other != name:
                raise UsageError(f"{group.scene_id} is in {other} and in {name}", "name only one of them")
    wanted = [scene_id for scene_id, (_, group) in scenes.items() if selection.wants(scene_id, group.split)]
    if None not in indexes:
        hint = f"to see what is there: scannet-prep info {names[0]} --scenes"
        if missing:
            hint = f"it may be in a shard that was not given: {', '.join(missing[:3])}"
        check_named(names[0], selection, wanted, hint)
        if selection.splits and not wanted:
            raise UnknownSceneError(f"{names[0]}: has no scenes of {', '.join(selection.splits)}", hint)
    chosen = frozenset(sorted(wanted)[: selection.limit])
    groups = tuple(
        None if index is None else tuple(group for group in index.groups if group.scene_id in {"", *chosen})
        for index in indexes
    )
    out_dir = out_dir or (DEFAULT_DIRS[kind] if kind is not None else None)
    lacking = [] if out_dir is None else _find_lacking(out_dir, groups)
    return UnpackPlan(
        sources=tuple(sources),
        groups=groups,
        kind=kind,
        out_dir=out_dir,
        selection=selection,
        missing_shards=missing,
        needed_bytes=sum(size_bytes for _, size_bytes in lacking),
        needed_files=len(lacking),
        there_count=len(chosen - {scene_id for scene_id, _ in lacking}),
    )


def run(plan: UnpackPlan, *, jobs: int = 1, progress: Progress | None = None) -> UnpackReport:
    """Unpack what a plan names; what is there already is kept. One damaged scene never stops the others.

    Each file gets its name when it has been checked, so that a run that ends early, however it ends, leaves whole
    files, and the next one goes on from there.

    Args:
        plan: From `plan`.
        jobs: Number of threads.
        progress: Told of tar bytes.

    Raises:
        ArchiveError: An archive is of another program, refused, or nothing of it can be read.
        DiskFullError: The disk does not hold it.
        OutputError: The folder cannot be written to.
        LockedError: Another run is writing into the folder.
        ManifestError: The folder holds scenes that were made in another way.
        TransferError: The server does not give it.
    """
    run = _Run(plan, jobs, progress or NoProgress())
    run.progress.start("unpack", plan.size_bytes, "B")
    try:
        with run.stack:
            for source, groups in zip(plan.sources, plan.groups, strict=True):
                run.unpack(source, groups)
                source.close()
            return run.end()
    finally:
        run.progress.finish()


class _Run:
    """What has been done so far."""

    def __init__(self, plan: UnpackPlan, jobs: int, progress: Progress) -> None:
        self.stack = ExitStack()
        self.progress = progress
        self._plan = plan
        self._jobs = jobs
        self._target: Target | None = None
        self._damages: list[str] = []
        self._warnings: list[str] = []
        self._is_cut_off = False

    def unpack(self, source: ByteSource, groups: Sequence[Group] | None) -> None:
        """Unpack one archive."""
        chosen = None if groups is None else {group.scene_id for group in groups}
        selection = self._plan.selection

        def chooses(scene_id: str, split: str) -> bool:
            return selection.wants(scene_id, split) if chosen is None else scene_id in chosen

        reader: GroupReader[Written] = GroupReader(source, self._work, chooses, self._jobs)
        reader.open()
        for outcome in reader.read():
            if self._target is None and reader.head is not None:
                self._target = self._open(reader.head.kind)
            target = self._target
            if target is not None:
                self._take(source.name, outcome, target)
            self.progress.advance(outcome.group.size_bytes)
            if target is not None and chosen is None and len(target.scenes) == selection.limit:
                return
        if self._target is None:
            raise ArchiveError(source.name, f"nothing of it can be read: {'; '.join(reader.problems)}", _AGAIN_HINT)
        self._damages += [f"{source.name}: {problem}" for problem in reader.problems]
        self._warnings += [f"{source.name}: {warning}" for warning in reader.warnings]
        self._is_cut_off |= reader.index is None
        if reader.index is not None and groups is None:
            for scene_id in reader.index.failures:
                self._warnings.append(f"{source.name}: {scene_id} failed before it was packed")

    def end(self) -> UnpackReport:
        """Bring the folder up to date, and tell what was done."""
        target, plan = self._target, self._plan
        if target is None:
            raise UsageError("no archive was named")
        missing: set[str] = set(plan.selection.scene_ids or ())
        if self._is_cut_off:
            missing |= set(target.expected)
        for scene_id in sorted(missing - set(target.scenes) - set(target.failures)):
            if plan.selection.limit is None and not plan.missing_shards:
                problem = f"{scene_id}: is not in the part of the archive that is whole"
                target.fail(scene_id, UnknownSceneError(problem, _AGAIN_HINT))
        target.end()
        new = [name for name, files in target.scenes.items() if any(file.outcome != "kept" for file in files)]
        files = target.files
        counts = Counter(file.outcome for file in files)
        return UnpackReport(
            archives=tuple(source.name for source in plan.sources),
            kind=target.kind,
            out_dir=target.out_dir,
            files={"written": counts["written"], "replaced": counts["replaced"], "kept": counts["kept"]},
            size_bytes=sum(file.size_bytes for file in files),
            replaced=tuple(sorted(file.name for file in files if file.outcome == "replaced")),
            scenes=tuple(sorted(target.scenes)),
            new_scenes=tuple(sorted(new)),
            failures=tuple(failure for _, failure in sorted(target.failures.items())),
            damages=tuple(self._damages),
            warnings=tuple(self._warnings),
            missing_shards=plan.missing_shards,
        )

    def _open(self, kind: ArchiveKind) -> Target:
        out_dir = self._plan.out_dir or DEFAULT_DIRS[kind]
        check_is_folder(out_dir)
        check_space(out_dir, self._plan.needed_bytes, self._plan.needed_files)
        make_directory(out_dir)
        self.stack.enter_context(run_lock(out_dir))
        return Target(kind, out_dir, self._plan.selection)

    def _work(self, group: Group, contents: list[memoryview]) -> Written:
        if not group.scene_id:
            return {member.name: bytes(data) for member, data in zip(group.members, contents, strict=True)}
        if self._target is None:
            raise RuntimeError("a scene has come before the first group")
        return self._target.write(group, contents)

    def _take(self, name: str, outcome: Outcome[Written], target: Target) -> None:
        """Take note of one group."""
        group, result = outcome.group, outcome.result
        self._warnings += [f"{name}: {group.name}: {warning}" for warning in outcome.warnings]
        if isinstance(result, dict):
            target.begin(result)
        elif isinstance(result, list):
            target.scenes[group.scene_id] = result
        elif group.scene_id:
            error = result or ArchiveError(name, f"{group.scene_id}: is damaged: {outcome.problem}", _AGAIN_HINT)
            self.progress.note(f"{error}")
            target.fail(group.scene_id, error)
        else:
            what = group.name if not group.offset else f"a scene at byte {group.offset:,} that cannot be named"
            self._damages.append(f"{name}: {what}: damaged: {outcome.problem}")


def _find_lacking(out_dir: Path, groups: Sequence[Sequence[Group] | None]) -> list[tuple[str, int]]:
    """The files that are not there in the right size: scene and size of each."""
    lacking = []
    for group in (group for items in groups for group in items or ()):
        for member in group.members:
            if member.name.startswith(OWN_PREFIX):
                continue
            with suppress(OSError):
                if os.stat(os.path.join(out_dir, member.name)).st_size == member.size_bytes:  # noqa: PTH116, PTH118 - fast
                    continue
            lacking.append((group.scene_id, member.size_bytes))
    return lacking
