"""Keeps manifest and lists of a processed folder true while an archive is unpacked into it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from scannet_prep.archive.index import ArchiveKind
from scannet_prep.errors import ManifestError, ScanNetPrepError
from scannet_prep.files import Fingerprint, locked_directory, read_file, write_if_changed
from scannet_prep.processed.folder import (
    FAILED_NAME,
    UNFINISHED_NAME,
    encode_lists,
    find_processed_scenes,
    processed_path,
)
from scannet_prep.processed.manifest import (
    MANIFEST_NAME,
    Manifest,
    SceneEntry,
    encode_manifest,
    parse_manifest,
    read_manifest,
    write_manifest,
)
from scannet_prep.processed.scene import parse_processed
from scannet_prep.scene import SceneId, Split
from scannet_prep.stages.unpack.record import FolderRecord, RawRecord
from scannet_prep.version import VERSION

_MAX_LOOKS = 10
_UNFINISHED_TEXT = b"""\
An archive is being unpacked here, or a run was interrupted: scenes may be missing.
Run the same scannet-prep unpack command again: it goes on where it stopped, and removes this file at its end.
"""


class ProcessedRecord(FolderRecord):
    """What one run unpacked into a processed folder: the manifest and the lists name just the scenes that are there.

    Args:
        out_dir: The folder.
        is_wanted: Whether a scene was asked for, by id and split; for the failures on record in the archive.
    """

    _kind = ArchiveKind.PROCESSED

    def __init__(self, out_dir: Path, is_wanted: Callable[[str, str], bool]) -> None:
        super().__init__(out_dir)
        self._is_wanted = is_wanted
        self._captured: dict[str, bytes] = {}
        self._came = Manifest()
        self._has_manifest = False
        self._mark = -1

    @property
    def manifest(self) -> Manifest:
        """What the archives say of their scenes."""
        return self._came

    def add_captured(self, captured: Mapping[str, bytes | bytearray]) -> None:
        """See `FolderRecord`.

        Raises:
            ManifestError: The folder has scenes that were made in another way, so that no dataset could read both.
        """
        self._captured |= {name: bytes(data) for name, data in captured.items() if name in self.captured_names}
        if MANIFEST_NAME in captured:
            try:
                came = parse_manifest(bytes(captured[MANIFEST_NAME]), Path(MANIFEST_NAME))
            except ManifestError:
                del self._captured[MANIFEST_NAME]  # it was damaged when it was packed: rebuilt from the scenes
                return
            self._came = Manifest({**self._came.scenes, **came.scenes}, {**self._came.failures, **came.failures})
            self._has_manifest = True
            self._check_mixture()

    def end(self, *, is_whole: bool) -> None:  # noqa: ARG002 - the manifest knows
        """See `FolderRecord`.

        Another run may be doing the same at the same moment; so whoever has written looks again, until no scene has
        come since.
        """
        if not self.out_dir.is_dir():
            self.begin()
        with locked_directory(self.out_dir):
            is_last = self._is_last()
            for _ in range(_MAX_LOOKS):
                present = find_processed_scenes(self.out_dir)
                manifest = self._merge(present)
                self._write(manifest, is_complete=is_last)
                if find_processed_scenes(self.out_dir) == present:
                    break
            if is_last:
                (self.out_dir / UNFINISHED_NAME).unlink(missing_ok=True)
            self.release()
        if self.failures:
            self.failed_path = self.out_dir / FAILED_NAME

    def release(self) -> None:
        """See `FolderRecord`."""
        if self._mark >= 0:
            os.close(self._mark)
            self._mark = -1

    def _begin(self) -> None:
        """Mark the folder as unfinished, and forget scenes that are about to be replaced."""
        with locked_directory(self.out_dir):
            path = self.out_dir / UNFINISHED_NAME
            if not path.exists():
                write_if_changed(path, _UNFINISHED_TEXT)
            # Held until the end, so that of several runs the last one removes the file. A killed run holds nothing.
            self._mark = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            with suppress(OSError):
                fcntl.flock(self._mark, fcntl.LOCK_SH)
            previous = self._read_previous()
            if previous is not None:
                kept = {
                    name: entry
                    for name, entry in previous.scenes.items()
                    if self._came.scenes.get(name, entry) == entry or not self._is_wanted(name, entry.split)
                }
                write_manifest(self.out_dir, Manifest(kept, previous.failures, False, previous.program_version))

    def _is_last(self) -> bool:
        """Whether no other run is unpacking into the folder."""
        if self._mark < 0:
            return not self._has_other_run()
        try:
            fcntl.flock(self._mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system without locks
        return True

    def _has_other_run(self) -> bool:
        try:
            descriptor = os.open(self.out_dir / UNFINISHED_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def _merge(self, present: Mapping[SceneId, tuple[Split, Path]]) -> Manifest:
        previous = self._read_previous() or Manifest()
        failures = dict(previous.failures)
        failures |= {
            name: failure for name, failure in self._came.failures.items() if self._is_wanted(name, "")
        } | self.failures
        scenes: dict[str, SceneEntry] = {}
        for scene_id, (split, path) in present.items():
            entry = self._find_entry(scene_id, split, previous)
            if scene_id in self.failures:
                continue
            if entry is None:
                with suppress(ScanNetPrepError):  # damaged, and not asked for now: `verify` names it
                    entry = _read_entry(path)
            if entry is not None:
                scenes[scene_id] = entry
                failures.pop(scene_id, None)
        return Manifest(scenes, failures, program_version=VERSION)

    def _find_entry(self, scene_id: str, split: Split, previous: Manifest) -> SceneEntry | None:
        file = self.files.get(str(processed_path(Path(), split, scene_id)))
        if file is not None:
            entry = self._came.scenes.get(scene_id)
            is_same = entry is not None and entry.fingerprint == Fingerprint(file.size_bytes, file.crc32)
            return entry if is_same and entry is not None and entry.split == split else None
        entry = previous.scenes.get(scene_id)
        return entry if entry is not None and entry.split == split else None

    def _write(self, manifest: Manifest, *, is_complete: bool) -> None:
        """Write manifest and lists: those of the archive, byte for byte, where they say the same."""
        had_manifest = (self.out_dir / MANIFEST_NAME).exists()
        lists = encode_lists(manifest)
        is_same = (manifest.scenes, manifest.failures) == (self._came.scenes, self._came.failures)
        if is_complete and (is_same if self._has_manifest else self._is_alone(manifest) and not had_manifest):
            captured = {name: data for name, data in self._captured.items() if name != UNFINISHED_NAME}
            others = {name: data for name, data in lists.items() if (self.out_dir / name).exists()}
            files = {MANIFEST_NAME: captured.pop(MANIFEST_NAME, None), **others, **captured}
        else:
            merged = Manifest(manifest.scenes, manifest.failures, is_complete, VERSION)
            files = {MANIFEST_NAME: encode_manifest(merged), **lists}
        for name, data in files.items():
            if data is not None:
                write_if_changed(self.out_dir / name, data, is_durable=name == MANIFEST_NAME)
        if not manifest.failures and FAILED_NAME not in files:
            (self.out_dir / FAILED_NAME).unlink(missing_ok=True)

    def _is_alone(self, manifest: Manifest) -> bool:
        """Whether all scenes of the folder came in this run, and none is missing."""
        return not manifest.failures and all(
            str(processed_path(Path(), entry.split, name)) in self.files for name, entry in manifest.scenes.items()
        )

    def _check_mixture(self) -> None:
        previous = self._read_previous()
        if previous is None:
            return
        coming = {name: entry for name, entry in self._came.scenes.items() if self._is_wanted(name, entry.split)}
        ours = {_way(entry): name for name, entry in coming.items()}
        for name, entry in previous.scenes.items():
            if name not in coming and ours and set(ours) != {_way(entry)}:
                (is_aligned, source), example = next(iter(ours.items()))
                raise ManifestError(
                    self.out_dir / MANIFEST_NAME,
                    f"names {name} with align_axis={entry.options.align_axis}, "
                    f"labels_from={entry.options.labels_from}, but the archive has {example} with "
                    f"align_axis={is_aligned}, labels_from={source}",
                    "unpack into another folder with -o: no dataset can be read from both",
                )

    def _read_previous(self) -> Manifest | None:
        try:
            return read_manifest(self.out_dir)
        except ManifestError:
            return None  # rebuilt from the files


def make_record(kind: ArchiveKind, out_dir: Path, is_wanted: Callable[[str, str], bool]) -> FolderRecord:
    """The record that fits the kind of archive."""
    if kind is ArchiveKind.PROCESSED:
        return ProcessedRecord(out_dir, is_wanted)
    return RawRecord(out_dir) if kind is ArchiveKind.RAW else FolderRecord(out_dir)


def _way(entry: SceneEntry) -> tuple[bool, str]:
    return entry.options.align_axis, entry.options.labels_from


def _read_entry(path: Path) -> SceneEntry:
    data = read_file(path)
    return SceneEntry.from_scene(parse_processed(data, path), Fingerprint.from_bytes(data))
