"""Places whose scenes are many files: a raw tree, an archive of one, and extracted frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scannet_prep.archive.writing import FileGroup
from scannet_prep.base.files import Fingerprint
from scannet_prep.base.findings import Finding, note
from scannet_prep.errors import FileError, ScanNetPrepError
from scannet_prep.frames.folder import RECORD_NAME, SceneFrames, find_scenes
from scannet_prep.processed.make_scene import process_scene
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.raw.files import read_raw_file
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, read_tree_lock
from scannet_prep.raw.tree import RawListing, RawScene
from scannet_prep.release import files as release
from scannet_prep.release.irregularities import WarningKind
from scannet_prep.release.label_map import (
    HINT_LABEL_MAP,
    LabelMap,
    builtin_label_map,
    describe_differences,
    label_map_at,
)
from scannet_prep.release.scenes import official_splits
from scannet_prep.source.scenes import Place, PlaceScene, ReadablePlace

_HINT_DOWNLOAD = "download the files of the scene again"
_HINT_LIST = "to put it into a split, process it with --scenes ID --splits train"
_HINT_AGAIN = "remove it, then repeat the command that made it"
# The kinds of files that only a tree for segmentation has.
_OF_SEGMENTATION = {*release.SEGMENTATION_KINDS} - {release.INFO}
# Files that every scene of the release has, and own scenes need not have.
_MISSING = {WarningKind.NO_INFO, WarningKind.NO_AGGREGATION}


class RawTree(ReadablePlace):
    """A raw tree. A scene is read by processing it with the default options.

    Args:
        folder: The tree.
        listing: What it holds.

    Raises:
        FileError: `scannet.lock` is damaged.
    """

    kind = "raw"

    def __init__(self, folder: Path, listing: RawListing) -> None:
        self.folder = folder
        self._listing = listing
        self._raw_scenes = listing.scenes
        # A tree may hold other files on purpose, for example only sensor streams.
        self._is_for_segmentation = any(
            _OF_SEGMENTATION.intersection(scene.files) for scene in self._raw_scenes.values()
        )
        scenes = {}
        failures = {}
        for scene_id, scene in self._raw_scenes.items():
            paths = map(scene.path, scene.files)
            size_bytes = sum(path.stat().st_size for path in paths if path.exists())
            scenes[scene_id] = PlaceScene(scene.split or "", 0, size_bytes)
            for failure in _attempt(scene_id, _check_usable, scene):
                failures[scene_id] = failure
        self.name = str(folder)
        self.scenes = scenes
        self.failures = failures
        # The files that `scannet.lock` records, by folder.
        self._records = defaultdict[Path, list[tuple[Path, LockEntry]]](list)
        for name, entry in read_tree_lock(folder).items():
            path = folder / name
            self._records[path.parent].append((path, entry))

    @cached_property
    def _label_map(self) -> LabelMap:
        return label_map_at(self._listing.label_map)

    def read(self, scene_id: str) -> ProcessedScene:
        """Process a scene with the default options.

        Raises:
            FileError: A file of the scene cannot be read, is damaged, or contradicts the others.
        """
        return _process(self._raw_scenes[scene_id], ProcessOptions(), self._label_map)

    def iter_groups(self) -> Iterator[FileGroup]:
        """Iterate over the files of all scenes that can be used: a group for each."""
        for scene_id in sorted(self.scenes.keys() - self.failures):
            scene = self._raw_scenes[scene_id]
            paths = map(scene.path, scene.files)
            names = {path.relative_to(self.folder).as_posix(): path for path in paths}
            yield FileGroup(scene_id, names)

    def verify(self, scene_id: str) -> list[Finding]:
        """Check the files of a scene: those for segmentation together, the others alone."""
        scene = self._raw_scenes[scene_id]
        files = {kind: scene.path(kind) for kind in scene.files}
        findings = self._compare_with_records(scene.directory, scene_id)
        if self._is_for_segmentation:
            has_labels = release.LABELS_MESH in files
            options = ProcessOptions(labels_from="ply" if has_labels else "aggregation")
            label_map = builtin_label_map()
            with suppress(FileError):  # which `verify_rest` reports
                label_map = self._label_map
            try:
                processed = _process(scene, options, label_map)
            except ScanNetPrepError as error:
                findings.append(Finding.from_error(error, scene.directory, scene_id))
            else:
                findings += _judge(scene, processed)
                used = processed.meta.inputs
                files = {kind: path for kind, path in files.items() if path.name not in used}
        else:
            _check_usable(scene)
        for kind, path in files.items():
            findings += _attempt(scene_id, read_raw_file, kind, path)
        return findings

    def _compare_with_records(self, folder: Path, scene_id: str = "") -> list[Finding]:
        """Compare the files of a folder with their records in `scannet.lock`."""
        findings = []
        for path, expected in self._records.get(folder, []):
            findings += _attempt(scene_id, _check_record, path, expected, digest_file)
        return findings

    def verify_rest(self) -> list[Finding]:
        """Check the label map and the files in tasks/, and find what is not used."""
        findings = list(self._listing.findings)
        findings += _attempt("", self._check_label_map)
        folders = {self.folder, self.folder / release.TASKS_DIR}
        for folder in folders:
            findings += self._compare_with_records(folder)
        folders.update(scene.directory for scene in self._raw_scenes.values())
        absent = self._records.keys() - folders
        if absent:
            message = (
                f"{LOCK_NAME} records absent scenes: {len(absent):,}, such as {min(absent).name}"
            )
            findings.append(note(message, self.name))
        for kind, path in self._listing.shared.items():
            findings += _attempt("", read_raw_file, kind, path)
        if self._raw_scenes and not self._is_for_segmentation:
            message = "no scene has a mesh or an annotation: only the existing files are checked"
            findings.append(note(message, self.name))
        return findings

    def _check_label_map(self) -> None:
        """Compare the label map of the tree with that of the release.

        Raises:
            FileError: It is damaged, or differs.
        """
        difference = describe_differences(self._label_map)
        # Own scenes may have categories of their own.
        has_own_alone = self._raw_scenes and self._raw_scenes.keys().isdisjoint(official_splits())
        if difference and not has_own_alone:
            raise FileError(self._label_map.source, difference, HINT_LABEL_MAP)

    def describe(self) -> dict[str, Any]:
        """Name the label map and the files that belong to no scene."""
        return {
            "label_map": str(self._listing.label_map or "built in"),
            "files_of_no_scene": [path.name for path in self._listing.shared.values()],
        }


class Frames(Place):
    """Frames that `scannet-prep frames` extracted. A scene without a usable record has no split.

    Args:
        folder: The folder.
    """

    kind = "frames"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._frame_count = 0
        self._options = set[str]()
        scenes = {}
        self._scene_folders = find_scenes(folder)
        for scene_id, path in self._scene_folders.items():
            scenes[scene_id] = PlaceScene("", 0, 0)
            with suppress(FileError):  # which `verify` reports
                record = SceneFrames(path).record
                sizes = [(path / RECORD_NAME).stat().st_size]
                sizes += [file.size_bytes for file in record.files.values()]
                scenes[scene_id] = PlaceScene(record.split, 0, sum(sizes), len(sizes))
                self._frame_count += len(record.frames)
                self._options.add(record.options.text)
        # Scenes of the release that lack a record, and lie beside scenes that have one.
        failures = {}
        others = official_splits().keys() - scenes.keys()
        for parent in {path.parent for path in self._scene_folders.values()}:
            for path in parent.glob("scene*"):
                if path.name in others:
                    for failure in _attempt(path.name, SceneFrames, path):
                        failures[path.name] = failure
        self.name = str(folder)
        self.scenes = scenes
        self.failures = failures

    def iter_groups(self) -> Iterator[FileGroup]:
        """Iterate over the files, a group for each; the record of a scene comes first."""
        for scene_id, scene_folder in self._scene_folders.items():
            record = (scene_folder / RECORD_NAME, None)
            for path, fingerprint in (record, *_list_files(scene_folder)):
                name = path.relative_to(self.folder).as_posix()
                yield FileGroup(scene_id, {name: path}, fingerprint)

    def verify(self, scene_id: str) -> list[Finding]:
        """Compare the files of a scene with its record."""
        findings = []
        for path, expected in _list_files(self._scene_folders[scene_id]):
            findings += _attempt(scene_id, _check_record, path, expected, Fingerprint.from_file)
        return findings

    def describe(self) -> dict[str, Any]:
        """Count the frames, and return their options."""
        return {"frames": self._frame_count, "options": "; ".join(sorted(self._options))}


def _list_files(scene_folder: Path) -> Iterator[tuple[Path, Fingerprint]]:
    """List the files of extracted frames, with their fingerprints.

    Raises:
        FileError: Their record is damaged.
    """
    for name, fingerprint in SceneFrames(scene_folder).record.files.items():
        yield scene_folder / name, fingerprint


def _check_usable(scene: RawScene) -> None:
    """Check that a scene has files, and can be used.

    Raises:
        FileError: It has none, or cannot be used, for example because it lies in two folders.
    """
    scene.check()
    if not scene.files:
        raise FileError(scene.directory, "holds no file of the release", _HINT_DOWNLOAD)


def _process(scene: RawScene, options: ProcessOptions, label_map: LabelMap) -> ProcessedScene:
    """Process a raw scene; errors are those of `RawTree.read`."""
    if scene.split is None:
        raise FileError(scene.directory, "is in none of the official split lists", _HINT_LIST)
    return process_scene(scene, scene.split, options, label_map)


def _judge(scene: RawScene, processed: ProcessedScene) -> Iterator[Finding]:
    """Report the oddities of a scene that was processed from its files."""
    folder = str(scene.directory)
    scene_id = scene.scene_id
    meta = processed.meta
    is_of_release = scene_id in official_splits()
    faults = []
    for warning in meta.warnings:
        kind = warning.kind
        is_missing = kind in _MISSING or kind.is_damage
        # An unknown category is a matter of the label map.
        is_doubt = kind.is_doubt and kind is not WarningKind.UNKNOWN_CATEGORY
        # For `process`, all of these are warnings.
        if is_doubt or (is_missing and is_of_release):
            faults.append(warning.fault)
        else:
            yield note(warning.text, folder, scene_id)
    # If the labels are from labels.ply: each of them comes from a group.
    count = np.count_nonzero((processed.nyu40_ids > 0) & (processed.instances < 0))
    if meta.groups and count:
        faults.append(f"labels.ply labels {count:,} vertices that belong to no group")
    hint = _HINT_DOWNLOAD if is_of_release else ""
    for fault in faults:
        yield Finding(message=fault, subject=folder, scene_id=scene_id, hint=hint)


def _check_record(path: Path, expected: object, identify: Callable[[Path], object]) -> None:
    """Compare a file with its record.

    Raises:
        FileError: It is missing, or another file.
    """
    actual = identify(path)
    if actual != expected:
        problem = f"is not the file that was recorded: {actual}, expected {expected}"
        raise FileError(path, problem, _HINT_AGAIN)


def _attempt(scene_id: str, check: Callable[..., object], *arguments: object) -> list[Finding]:
    """Call a check; an error becomes a finding about a scene."""
    try:
        check(*arguments)
    except ScanNetPrepError as error:
        return [Finding.from_error(error, scene_id=scene_id)]
    return []
