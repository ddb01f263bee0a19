"""Keeps what a folder says of itself true while an archive is unpacked into it: manifest, lists, digests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from scannet_prep.archive.extraction import UnpackedFile
from scannet_prep.archive.index import ArchiveKind, find_scene_id
from scannet_prep.errors import LockError, MissingFileError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import locked_directory, make_directory, read_file, write_if_changed
from scannet_prep.processed.folder import FAILED_NAME, UNFINISHED_NAME, encode_lists, write_failed_list
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, encode_lock, parse_lock, read_lock


class FolderRecord:
    """What one run unpacked, for folders that say nothing of themselves.

    Args:
        out_dir: The folder.

    Attributes:
        files: What became of each file, by name.
        failures: Scenes that could not be unpacked, by id.
        failed_path: Where these are listed; None where they are not.
    """

    _kind = ArchiveKind.FILES

    def __init__(self, out_dir: Path) -> None:
        self.out_dir = out_dir
        self.files: dict[str, UnpackedFile] = {}
        self.failures: dict[str, SceneFailure] = {}
        self.failed_path: Path | None = None
        self._has_begun = False
        self._begin_lock = threading.Lock()

    @property
    def captured_names(self) -> frozenset[str]:
        """See the function of that name."""
        return captured_names(self._kind)

    def add_captured(self, captured: Mapping[str, bytes | bytearray]) -> None:
        """Take the files of that kind of one archive."""

    def begin(self) -> None:
        """Something is about to be written. May be called often, and from several threads.

        Raises:
            OutputError: The folder cannot be written to.
        """
        with self._begin_lock:
            if not self._has_begun:
                make_directory(self.out_dir)
                self._begin()
                self._has_begun = True

    def add_files(self, files: Iterable[UnpackedFile]) -> None:
        """These files have their names."""
        self.files.update((file.name, file) for file in files)

    def remove(self, name: str) -> None:
        """A file turned out to be wrong and has been removed."""
        self.files.pop(name, None)

    def add_failure(self, failure: SceneFailure) -> None:
        """A scene could not be unpacked."""
        self.failures[failure.scene_id] = failure

    def end(self, *, is_whole: bool) -> None:  # noqa: ARG002 - some records need it
        """All has been done that could be.

        Args:
            is_whole: Whether all scenes of the archive were asked for.

        Raises:
            OutputError: The folder cannot be written to.
        """
        if FAILED_NAME not in self.files and self.out_dir.is_dir():
            self._update_failed_list()

    def release(self) -> None:
        """Let go of the folder, however the run ended; a mark on it stays."""

    def _begin(self) -> None:
        """Mark the folder, where there is something to mark."""

    def _update_failed_list(self) -> None:
        """List the scenes that failed, now or in an earlier run; none that has come since."""
        done = {find_scene_id(name) for name in self.files}
        listed = set(self.failures)
        with suppress(MissingFileError):
            lines = read_file(self.out_dir / FAILED_NAME).decode("utf-8", "replace").splitlines()
            if not lines or not lines[0].startswith("# scenes that failed"):
                return
            listed |= {line for line in lines[1:] if line and line not in done}
        write_failed_list(self.out_dir, sorted(listed))
        if self.failures:
            self.failed_path = self.out_dir / FAILED_NAME


class RawRecord(FolderRecord):
    """What one run unpacked into a raw tree: `scannet.lock` is merged with the tree's own."""

    _kind = ArchiveKind.RAW

    def __init__(self, out_dir: Path) -> None:
        super().__init__(out_dir)
        self._locks: list[bytes] = []

    def add_captured(self, captured: Mapping[str, bytes | bytearray]) -> None:
        """See `FolderRecord`."""
        if LOCK_NAME in captured:
            self._locks.append(bytes(captured[LOCK_NAME]))

    def end(self, *, is_whole: bool) -> None:
        """See `FolderRecord`."""
        super().end(is_whole=is_whole)
        if not self._locks:
            return
        path = self.out_dir / LOCK_NAME
        if is_whole and not path.exists() and len(set(self._locks)) == 1 and not self.failures:
            self.begin()
            write_if_changed(path, self._locks[0], is_durable=True)
            return
        found: dict[str, LockEntry] = {}
        for data in self._locks:
            with suppress(LockError):  # it was packed as it was; without it, verify takes the files as they are
                found |= {name: entry for name, entry in parse_lock(data, path).items() if self._has(name)}
        self.begin()
        with locked_directory(self.out_dir):
            try:
                entries = read_lock(path)
            except (MissingFileError, LockError):
                entries = {}
            write_if_changed(path, encode_lock(entries | found), is_durable=True)

    def _has(self, name: str) -> bool:
        return name in self.files


def captured_names(kind: ArchiveKind) -> frozenset[str]:
    """Files of an archive that are not written as they are, but merged with those of the folder."""
    if kind is ArchiveKind.PROCESSED:
        return frozenset({MANIFEST_NAME, FAILED_NAME, UNFINISHED_NAME, *encode_lists(Manifest())})
    return frozenset({LOCK_NAME} if kind is ArchiveKind.RAW else ())
