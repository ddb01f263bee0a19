"""An archive in, the folder that it was made from out: files, addresses, or a pipe."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from shlex import quote

from scannet_prep.archive.groups import ArchiveSet
from scannet_prep.archive.layout import OWN_PREFIX, ArchiveKind
from scannet_prep.archive.source import Place
from scannet_prep.errors import (
    ArchiveError,
    FileError,
    ManifestError,
    MissingFileError,
    OutputError,
    ScanNetPrepError,
    UnknownSceneError,
)
from scannet_prep.export import is_export
from scannet_prep.failures import SceneFailure
from scannet_prep.files import (
    Buffer,
    has_content,
    make_directory,
    remove_temporaries,
    run_lock,
    write_atomically,
    write_if_changed,
)
from scannet_prep.processed import folder as lists
from scannet_prep.processed import manifest as manifests
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry
from scannet_prep.progress import Progress
from scannet_prep.raw import lock as locks
from scannet_prep.raw.lock import LOCK_NAME, LockEntry
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split, read_scene_list
from scannet_prep.stages.selection import Selection
from scannet_prep.tree import identify_tree
from scannet_prep.version import VERSION

_DEFAULT_DIRS = {ArchiveKind.PROCESSED: Path("data/processed"), ArchiveKind.RAW: Path("data/ScanNet")}
_ELSEWHERE = "unpack into another folder"
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
    make_directory(out_dir)
    with progress.work("unpack", archives.size_bytes, "B"), run_lock(out_dir):
        target = _Target(archives, out_dir, selection)
        warnings = target.warnings
        for reader in archives.readers:
            target.begin(reader.files, reader.read_manifest())
        for reader in archives.readers:
            target.write_others(reader.files)
            for group, problem in reader.read(target.write, jobs, progress):
                if problem:
                    message = f"{group.scene_id}: is damaged: {problem}"
                    target.fail(group.scene_id, ArchiveError(reader.name, message, _AGAIN_HINT))
            damages += [f"{reader.name}: {problem}" for problem in reader.problems]
            warnings += [f"{reader.name}: {warning}" for warning in reader.warnings]
        if selection.limit is None and not archives.missing_shards:
            target.fail_missing(is_cut=not archives.has_indexes)
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


class _Target:
    """A folder that archives of one kind are unpacked into.

    Nothing is written before something is found to be missing; what killed runs left is removed at once.

    Args:
        archives: What is unpacked into it.
        out_dir: The folder.
        selection: Which scenes were asked for.

    Attributes:
        scenes: Of each scene that is there now, by id, its files and what became of them: `written`, which were not
            there, `replaced`, which had another content, or `kept`, which were right already.
        failures: Scenes that could not be unpacked, by id.
        warnings: What is there and was not replaced, in words.

    Raises:
        OutputError: The folder holds scenes of the other kind, or an export.
        ManifestError: Its manifest is damaged, or it holds shards that have not finished.
        LockError: Its `scannet.lock` is damaged.
    """

    def __init__(self, archives: ArchiveSet, out_dir: Path, selection: Selection) -> None:
        self.scenes: dict[str, dict[str, str]] = {}
        self._others: dict[str, str] = {}
        self.failures: dict[str, SceneFailure] = {}
        self.warnings: list[str] = []
        self._out_dir, self._selection, self._is_raw = out_dir, selection, archives.kind is ArchiveKind.RAW
        self._chosen = {group.scene_id for group in archives.chosen}
        self._has_begun = False
        self._came, self._came_digests = Manifest(), dict[str, LockEntry]()
        if is_export(out_dir):
            raise OutputError(f"{out_dir}: is an export for another program", _ELSEWHERE)
        with suppress(FileError):
            if (found := str(identify_tree(out_dir))) != archives.kind:
                raise OutputError(f"{out_dir}: holds {found} scenes, and the archive {archives.kind} ones", _ELSEWHERE)
        self._before = (None if self._is_raw else manifests.read_manifest(out_dir)) or Manifest()
        self._digests = locks.read_locks(out_dir) if self._is_raw else {}
        self._shards = (locks if self._is_raw else manifests).shards_of(out_dir)
        if faults := self._shards.find_faults():
            raise faults[0]
        # Also where nothing else is left to do, but not those of shards at work.
        remove_temporaries(out_dir, *(out_dir / split for split in Split))

    @property
    def outcomes(self) -> dict[str, str]:
        """What became of each file that is there now."""
        return dict(chain.from_iterable(files.items() for files in (self._others, *self.scenes.values())))

    @property
    def _expected(self) -> Mapping[str, SceneEntry]:
        """The scenes that the manifests of the archives name, and that were asked for."""
        return {name: entry for name, entry in self._came.scenes.items() if self._selection.wants(name, entry.split)}

    @property
    def _wanted(self) -> set[str]:
        """The scenes that are to be there at the end, as far as they are known."""
        return self._chosen or set(self._expected)

    def begin(self, files: Mapping[str, bytes], came: Manifest | None) -> None:
        """Take note of what the manifest of an archive says, or its `scannet.lock`; nothing is written.

        Raises:
            ManifestError: The folder has scenes that were made in another way, so that no dataset could read both.
        """
        if came is not None:
            scenes, failures = {**self._came.scenes, **came.scenes}, {**self._came.failures, **came.failures}
            self._came = Manifest(scenes, failures, program_version=came.program_version)
            if (fault := lists.find_mixture(self._out_dir, {**self._before.scenes, **self._expected})) is not None:
                raise ManifestError(fault.place, fault.problem, f"{_ELSEWHERE}: no dataset can be read from both")
        if self._is_raw and LOCK_NAME in files:
            with suppress(FileError):  # it was packed as it was; without it, verify takes the files as they are
                self._came_digests |= locks.read_lock(Path(LOCK_NAME), files[LOCK_NAME])

    def write_others(self, files: Mapping[str, bytes]) -> None:
        """Write the files of an archive that belong to no scene, or raise an `OutputError`."""
        own = {lists.FAILED_NAME, lists.UNFINISHED_NAME, LOCK_NAME, MANIFEST_NAME}
        for name in [name for name in files if name not in own and not name.startswith(OWN_PREFIX)]:
            path = self._out_dir / name
            if path.is_file() and not path.is_symlink() and not has_content(path, files[name]):
                self.warnings.append(f"{path}: differs from that of the archive, and stays; to replace it, remove it")
            else:
                self._others[name] = self._write_file(name, files[name])

    def write(self, scene_id: str, contents: Mapping[str, Buffer]) -> None:
        """Write the files of a scene, or take note of what is in their way; may be called in several threads.

        Raises:
            OutputError: They cannot be written.
        """
        try:
            if self._is_raw:
                remove_temporaries((self._out_dir / next(iter(contents))).parent)
            self.scenes[scene_id] = {name: self._write_file(name, data) for name, data in contents.items()}
        except FileError as error:
            self.fail(scene_id, error)

    def fail(self, scene_id: str, error: ScanNetPrepError) -> None:
        """Take note of a scene that could not be unpacked; what was written before that was known is removed."""
        self.failures[scene_id] = SceneFailure(scene_id, type(error).__name__, error.message, error.hint)
        for name, outcome in self.scenes.pop(scene_id, {}).items():
            if outcome != "kept":
                (self._out_dir / name).unlink(missing_ok=True)

    def fail_missing(self, *, is_cut: bool) -> None:
        """Take note of scenes that did not come: those that were named, and of an archive that is cut off, all."""
        expected = {*(self._selection.scene_ids or ()), *(self._expected if is_cut else ())}
        for scene_id in sorted(expected - self.scenes.keys() - self.failures.keys()):
            self.fail(scene_id, UnknownSceneError(f"{scene_id}: is not in what is whole of the archive", _AGAIN_HINT))

    def end(self) -> None:
        """All has been done that could be: bring what the folder says of itself up to date."""
        if self._is_raw:
            self._end_raw()
            return
        came = {name: entry for name, entry in self._came.scenes.items() if name in self.scenes}
        wants, before = self._selection.wants, self._before
        came_failures = {name: it for name, it in self._came.failures.items() if wants(name, find_official_split(name))}
        failures = {**before.failures, **came_failures, **self.failures}
        failures = {name: failure for name, failure in failures.items() if name not in came}
        version = self._came.program_version if before.scenes.keys() <= came.keys() else VERSION
        whole = Manifest({**before.scenes, **came}, failures, before.is_complete, version)
        lists.record(self._out_dir, before, whole)
        lists.mark_finished(self._out_dir, self._wanted | self.scenes.keys() | self.failures.keys())

    def _end_raw(self) -> None:
        """Add what the `scannet.lock` of the archive says of the files that came of it, and the scenes that failed."""
        new = {name for name, outcome in self.outcomes.items() if outcome != "kept" or name not in self._digests}
        digests = self._digests | {name: self._came_digests[name] for name in self._came_digests.keys() & new}
        if digests != self._digests or self._shards.exists():
            write_if_changed(self._out_dir / LOCK_NAME, locks.encode_lock(digests), is_durable=True)
        failed = set(self.failures)
        with suppress(MissingFileError):
            failed.update(read_scene_list(self._out_dir / lists.FAILED_NAME))
        lists.write_failed_list(self._out_dir / lists.FAILED_NAME, failed - self.scenes.keys())
        self._shards.remove()

    def _write_file(self, name: str, data: Buffer) -> str:
        path = self._out_dir / name
        for folder in path.parents[: name.count("/")]:
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                problem = "is a link that may lead anywhere" if folder.is_symlink() else "is not a folder"
                raise FileError(folder, problem, f"remove it, or {_ELSEWHERE}")
        if has_content(path, data) and not path.is_symlink():  # in this order: of what cannot be looked into, no error
            return "kept"
        if not (self._has_begun or self._is_raw):
            lists.mark_unfinished(self._out_dir, lists.read_unfinished(self._out_dir) | self._wanted)
        self._has_begun = True
        is_there = os.path.lexists(path)
        make_directory(path.parent)
        write_atomically(path, [data])
        return "replaced" if is_there else "written"
