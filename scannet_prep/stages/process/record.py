"""Keeps the manifest of a processed folder true while scenes are made, also where two runs share the folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scannet_prep.errors import ManifestError, OutputError, ProcessedFileError, ScanNetPrepError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, locked_directory, read_file
from scannet_prep.processed.folder import find_processed_scenes, mark_finished, mark_unfinished, write_lists
from scannet_prep.processed.manifest import Manifest, SceneEntry, read_manifest, write_manifest
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import parse_processed
from scannet_prep.version import VERSION

_MAX_LOOKS = 10

FileIdentity = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class FinishedScene:
    """One scene that a run made, or found up to date.

    Attributes:
        entry: Its line in the manifest.
        identity: Of the file, see `identify_file`; tells whether another process has replaced it since.
        is_new: Whether this run made it.
    """

    entry: SceneEntry
    identity: FileIdentity
    is_new: bool


def identify_file(path: Path) -> FileIdentity:
    """Inode, time of change in ns, and size of a file."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


class Record:
    """What one run found out, merged into the manifest at its beginning and end.

    Args:
        out_dir: The processed folder.
        options: How this run makes scenes.
        is_restricted: Whether the run works on a part of the scenes only; then older failures remain on record.
    """

    def __init__(self, out_dir: Path, options: ProcessOptions, *, is_restricted: bool) -> None:
        self._out_dir = out_dir
        self._options = options
        self._is_restricted = is_restricted
        self.finished: dict[str, FinishedScene] = {}
        self.failures: dict[str, SceneFailure] = {}

    def add_scene(self, scene_id: str, finished: FinishedScene) -> None:
        """A scene is in the folder."""
        self.finished[scene_id] = finished

    def add_failure(self, failure: SceneFailure) -> None:
        """A scene could not be made."""
        self.failures[failure.scene_id] = failure

    def begin(self, scene_ids: Sequence[str]) -> None:
        """Mark the folder as unfinished, unless it has all these scenes already.

        Scenes made with other options leave the manifest until they are made again: if the run is killed, nobody takes
        a mixture of two sets of options for a whole folder.
        """
        with locked_directory(self._out_dir):
            self._begin(scene_ids)

    def _begin(self, scene_ids: Sequence[str]) -> None:
        manifest = self._read_manifest()
        is_whole = manifest.is_complete and all(
            scene_id in manifest.scenes and manifest.scenes[scene_id].options == self._options for scene_id in scene_ids
        )
        if is_whole:
            return
        outdated = {
            scene_id
            for scene_id in scene_ids
            if scene_id in manifest.scenes and manifest.scenes[scene_id].options != self._options
        }
        mark_unfinished(self._out_dir)
        kept = {scene_id: entry for scene_id, entry in manifest.scenes.items() if scene_id not in outdated}
        write_manifest(self._out_dir, Manifest(kept, manifest.failures, is_complete=False, program_version=VERSION))

    def end(self, *, is_complete: bool) -> None:
        """Write manifest and lists.

        Another run may be writing them for its scenes at the same moment, perhaps on a file system whose locks do not
        hold. So whoever has written looks again, until no scene has come since: the last one has seen everything.
        """
        with locked_directory(self._out_dir):
            if not is_complete:
                with suppress(
                    OutputError
                ):  # the disk may be full; then the error that ended the run is the one to tell
                    write_manifest(self._out_dir, self._merge(set(), is_complete=False))
                return
            for _ in range(_MAX_LOOKS):
                present: set[str] = set()
                manifest = self._merge(present, is_complete=True)
                write_manifest(self._out_dir, manifest)
                write_lists(self._out_dir, manifest)
                if set(find_processed_scenes(self._out_dir)) == present:
                    break
            mark_finished(self._out_dir)

    def _merge(self, seen: set[str], *, is_complete: bool) -> Manifest:
        """Join the manifest on disk with what this run found out; `seen` gets the scenes that were there."""
        previous = self._read_manifest()
        present = find_processed_scenes(self._out_dir)
        seen.update(present)
        scenes: dict[str, SceneEntry] = {}
        failures = dict(previous.failures) if self._is_restricted else {}
        for scene_id in self.finished:
            failures.pop(scene_id, None)
        failures |= self.failures
        for scene_id, (split, path) in present.items():
            if scene_id in self.finished:
                self._check_unchanged(scene_id, path)
            if scene_id in self.failures:
                failures[scene_id] = self.failures[scene_id]
            elif scene_id in self.finished:
                scenes[scene_id] = self.finished[scene_id].entry
            elif scene_id in previous.scenes and previous.scenes[scene_id].split == split:
                scenes[scene_id] = previous.scenes[scene_id]
            elif scene_id not in failures:
                with suppress(ScanNetPrepError):  # damaged, and not asked for now: `verify` names it
                    scenes[scene_id] = _read_entry(path)
        return Manifest(scenes, failures, is_complete, VERSION)

    def _check_unchanged(self, scene_id: str, path: Path) -> None:
        """Another run may have replaced a file since; with the same options that is the same file."""
        finished = self.finished[scene_id]
        if path.parent.name != finished.entry.split or identify_file(path) == finished.identity:
            return
        entry = _read_entry(path)
        if entry.options == self._options:
            self.finished[scene_id] = FinishedScene(entry, identify_file(path), finished.is_new)
            return
        del self.finished[scene_id]
        differences = ", ".join(self._options.differences(entry.options))
        self.failures[scene_id] = SceneFailure(
            scene_id,
            ProcessedFileError.__name__,
            f"{path}: was replaced by another run with other options ({differences})",
            "let one run finish before another one with other options begins",
        )

    def _read_manifest(self) -> Manifest:
        try:
            return read_manifest(self._out_dir) or Manifest()
        except ManifestError:
            return Manifest()  # rebuilt from the files


def _read_entry(path: Path) -> SceneEntry:
    data = read_file(path)
    return SceneEntry.from_scene(parse_processed(data, path), Fingerprint.from_bytes(data))
