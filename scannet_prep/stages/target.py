"""The folder that an archive is unpacked into: its files are written whole, and what it says of itself stays true."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from scannet_prep.archive.layout import OWN_PREFIX, ArchiveKind
from scannet_prep.errors import DiskFullError, FileError, ManifestError, OutputError, ScanNetPrepError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Buffer, make_directory, read_file, remove_temporaries, write_atomically
from scannet_prep.processed import folder as lists
from scannet_prep.processed import manifest as manifests
from scannet_prep.processed.folder import find_entries, find_mixture
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, parse_lock, read_lock, write_lock
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.tree import identify_tree, is_export
from scannet_prep.version import VERSION

_ELSEWHERE = "unpack into another folder with -o"


class UnpackedFile(NamedTuple):
    """One file that is there now.

    Attributes:
        name: Its name in the archive.
        size_bytes: Its size.
        outcome: What became of it: it was not there, had another content, or was right already.
    """

    name: str
    size_bytes: int
    outcome: Literal["written", "replaced", "kept"]


class Target:
    """A folder that archives of one kind are unpacked into.

    Nothing is written before something is found to be missing; what killed runs left is removed at once.

    Args:
        kind: What the archives were made from.
        out_dir: The folder.
        selection: Which scenes were asked for.

    Attributes:
        scenes: The files of each scene that is there now, by id.
        failures: Scenes that could not be unpacked, by id.

    Raises:
        OutputError: The folder holds scenes of the other kind, or an export.
        ManifestError: Its manifest is damaged.
    """

    def __init__(self, kind: ArchiveKind, out_dir: Path, selection: Selection) -> None:
        self.scenes: dict[str, list[UnpackedFile]] = {}
        self.failures: dict[str, SceneFailure] = {}
        self._kind, self._out_dir, self._selection = kind, out_dir, selection
        self._others: dict[str, UnpackedFile] = {}
        self._lock = threading.Lock()
        self._has_begun = False
        self._came: dict[str, SceneEntry] = {}
        self._came_failures: dict[str, SceneFailure] = {}
        self._came_digests: dict[str, LockEntry] = {}
        self._is_complete, self._program = True, ""
        if is_export(out_dir):
            raise OutputError(f"{out_dir}: is an export for another program", _ELSEWHERE)
        with suppress(FileError):
            if (found := str(identify_tree(out_dir))) != kind:
                raise OutputError(f"{out_dir}: holds {found} scenes, and the archive {kind} ones", _ELSEWHERE)
        for folder in (out_dir, *(out_dir / split for split in Split)):
            remove_temporaries(folder)  # also where nothing else is left to do
        self._previous = (manifests.read_manifest(out_dir) if kind is ArchiveKind.PROCESSED else None) or Manifest()

    @property
    def files(self) -> list[UnpackedFile]:
        """What is there now."""
        return [*self._others.values(), *chain.from_iterable(self.scenes.values())]

    @property
    def expected(self) -> Mapping[str, SceneEntry]:
        """The scenes that the manifests of the archives name, and that were asked for."""
        return {name: entry for name, entry in self._came.items() if self._selection.wants(name, entry.split)}

    def begin(self, files: Mapping[str, bytes]) -> None:
        """Take the files of an archive that belong to no scene; raises an `OutputError` where they cannot be written.

        Raises:
            ManifestError: The folder has scenes that were made in another way, so that no dataset could read both.
        """
        own = {lists.FAILED_NAME, lists.UNFINISHED_NAME, LOCK_NAME, MANIFEST_NAME}
        if self._kind is ArchiveKind.PROCESSED and MANIFEST_NAME in files:
            came = manifests.parse_manifest(files[MANIFEST_NAME], f"{MANIFEST_NAME} of the archive")
            self._came |= came.scenes
            self._is_complete, self._program = self._is_complete and came.is_complete, came.program_version
            for name, failure in came.failures.items():
                if self._selection.wants(name, find_official_split(name)):
                    self._came_failures[name] = failure
            if (fault := find_mixture(self._out_dir, {**self._previous.scenes, **self.expected})) is not None:
                raise ManifestError(fault.place, fault.problem, f"{_ELSEWHERE}: no dataset can be read from both")
        if self._kind is ArchiveKind.RAW and LOCK_NAME in files:
            with suppress(FileError):  # it was packed as it was; without it, verify takes the files as they are
                self._came_digests |= parse_lock(files[LOCK_NAME], Path(LOCK_NAME))
        for name, data in files.items():
            if name not in own and not name.startswith(OWN_PREFIX):
                self._others[name] = self._write_file(name, data)

    def write(self, scene_id: str, contents: Mapping[str, Buffer]) -> None:
        """Write the files of a scene, or take note of why they cannot be written; may be called in several threads.

        An `OutputError` says that nothing can be written at all.
        """
        try:
            if self._kind is ArchiveKind.RAW:
                remove_temporaries((self._out_dir / next(iter(contents))).parent)
            self.scenes[scene_id] = [self._write_file(name, data) for name, data in contents.items()]
        except (OutputError, FileError) as error:
            if isinstance(error, DiskFullError) or not self._has_begun:
                raise
            self.fail(scene_id, error)

    def fail(self, scene_id: str, error: ScanNetPrepError) -> None:
        """Take note of a scene that could not be unpacked; what was written before that was known is removed."""
        self.failures[scene_id] = SceneFailure(scene_id, type(error).__name__, error.message, error.hint)
        for file in self.scenes.pop(scene_id, []):
            if file.outcome != "kept":
                (self._out_dir / file.name).unlink(missing_ok=True)

    def end(self) -> None:
        """All has been done that could be: bring what the folder says of itself up to date."""
        if self._kind is ArchiveKind.PROCESSED:
            manifest = self._merge_manifest()
            manifests.write_manifest(self._out_dir, manifest)
            lists.write_failed_list(self._out_dir, manifest.failures)
            lists.mark_finished(self._out_dir, self.scenes.keys() | self.failures.keys())
        else:
            self._merge_lock()
            lists.write_failed_list(self._out_dir, sorted(self.failures))

    def _write_file(self, name: str, data: Buffer) -> UnpackedFile:
        path = self._out_dir / name
        for folder in path.parents[: name.count("/")]:
            if folder.is_symlink():
                raise OutputError(f"{folder}: is a link that may lead anywhere", f"remove it, or {_ELSEWHERE}")
        if _has_content(path, data):
            return UnpackedFile(name, len(data), "kept")
        with self._lock:
            if not self._has_begun and self._kind is ArchiveKind.PROCESSED:
                lists.mark_unfinished(self._out_dir)
            self._has_begun = True
        is_there = os.path.lexists(path)
        make_directory(path.parent)
        write_atomically(path, [data])
        return UnpackedFile(name, len(data), "replaced" if is_there else "written")

    def _merge_manifest(self) -> Manifest:
        came = {name: entry for name, entry in self._came.items() if name in self.scenes}
        # What is damaged, and was not asked for now, `verify` names.
        scenes, _ = find_entries(self._out_dir, {**self._previous.scenes, **came}, self.failures)
        all_failures = {**self._previous.failures, **self._came_failures, **self.failures}
        failures = {name: failure for name, failure in all_failures.items() if name not in scenes}
        is_same = (scenes, failures) == (self._came, self._came_failures)
        is_complete = self._previous.is_complete and self._is_complete
        return Manifest(scenes, failures, is_complete, self._program if is_same else VERSION)

    def _merge_lock(self) -> None:
        """Record in `scannet.lock` what that of the archive says of the files that are there now."""
        entries = dict[str, LockEntry]()
        with suppress(FileError):
            entries = read_lock(self._out_dir / LOCK_NAME)
        if found := self._came_digests.keys() & {file.name for file in self.files}:
            write_lock(self._out_dir / LOCK_NAME, entries | {name: self._came_digests[name] for name in found})


def _has_content(path: Path, data: Buffer) -> bool:
    """Whether a file is there, is not a link, and has that content."""
    try:
        return not path.is_symlink() and read_file(path, len(data)) == data
    except (FileError, OSError):
        return False  # not there, larger, or not readable: to write it tells
