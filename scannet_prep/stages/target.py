"""The folder that an archive is unpacked into: its files are written whole, and what it says of itself stays true."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from scannet_prep.archive.layout import OWN_PREFIX, ArchiveKind
from scannet_prep.errors import (
    FileError,
    ManifestError,
    MissingFileError,
    OutputError,
    ScanNetPrepError,
)
from scannet_prep.export import is_export
from scannet_prep.failures import SceneFailure
from scannet_prep.files import (
    Buffer,
    has_content,
    make_directory,
    remove_temporaries,
    write_atomically,
    write_if_changed,
)
from scannet_prep.processed import folder as lists
from scannet_prep.processed import manifest as manifests
from scannet_prep.processed.folder import find_mixture
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry
from scannet_prep.raw import lock as locks
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, encode_lock, read_lock, read_locks
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split, read_scene_list
from scannet_prep.stages.selection import Selection
from scannet_prep.tree import identify_tree
from scannet_prep.version import VERSION

_ELSEWHERE = "unpack into another folder"


class Target:
    """A folder that archives of one kind are unpacked into.

    Nothing is written before something is found to be missing; what killed runs left is removed at once.

    Args:
        kind: What the archives were made from.
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

    def __init__(self, kind: ArchiveKind, out_dir: Path, selection: Selection) -> None:
        self.scenes: dict[str, dict[str, str]] = {}
        self._others: dict[str, str] = {}
        self.failures: dict[str, SceneFailure] = {}
        self.warnings: list[str] = []
        self._out_dir, self._selection, self._is_raw = out_dir, selection, kind is ArchiveKind.RAW
        self._has_begun = False
        self._came, self._came_digests = Manifest(), dict[str, LockEntry]()
        if is_export(out_dir):
            raise OutputError(f"{out_dir}: is an export for another program", _ELSEWHERE)
        with suppress(FileError):
            if (found := str(identify_tree(out_dir))) != kind:
                raise OutputError(f"{out_dir}: holds {found} scenes, and the archive {kind} ones", _ELSEWHERE)
        self._before = (None if self._is_raw else manifests.read_manifest(out_dir)) or Manifest()
        self._digests = read_locks(out_dir) if self._is_raw else {}
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
    def expected(self) -> Mapping[str, SceneEntry]:
        """The scenes that the manifests of the archives name, and that were asked for."""
        return {name: entry for name, entry in self._came.scenes.items() if self._selection.wants(name, entry.split)}

    def begin(self, files: Mapping[str, bytes], came: Manifest | None) -> None:
        """Take the files of an archive that belong to no scene, and what its manifest says.

        Raises:
            OutputError: They cannot be written.
            ManifestError: The folder has scenes that were made in another way, so that no dataset could read both.
        """
        if came is not None:
            scenes, failures = {**self._came.scenes, **came.scenes}, {**self._came.failures, **came.failures}
            self._came = Manifest(scenes, failures, program_version=came.program_version)
            if (fault := find_mixture(self._out_dir, {**self._before.scenes, **self.expected})) is not None:
                raise ManifestError(fault.place, fault.problem, f"{_ELSEWHERE}: no dataset can be read from both")
        if self._is_raw and LOCK_NAME in files:
            with suppress(FileError):  # it was packed as it was; without it, verify takes the files as they are
                self._came_digests |= read_lock(Path(LOCK_NAME), files[LOCK_NAME])
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
        lists.mark_finished(self._out_dir, self.scenes.keys() | self.failures.keys())

    def _end_raw(self) -> None:
        """Add what the `scannet.lock` of the archive says of the files that came of it, and the scenes that failed."""
        new = {name for name, outcome in self.outcomes.items() if outcome != "kept" or name not in self._digests}
        digests = self._digests | {name: self._came_digests[name] for name in self._came_digests.keys() & new}
        if digests != self._digests or self._shards.exists():
            write_if_changed(self._out_dir / LOCK_NAME, encode_lock(digests), is_durable=True)
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
            lists.mark_unfinished(self._out_dir)
        self._has_begun = True
        is_there = os.path.lexists(path)
        make_directory(path.parent)
        write_atomically(path, [data])
        return "replaced" if is_there else "written"
