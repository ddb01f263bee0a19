"""Places whose scenes are many files: a raw tree, an archive of one, and extracted frames."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from scannet_prep.base.files import Fingerprint
from scannet_prep.base.findings import Finding
from scannet_prep.base.text import format_bytes
from scannet_prep.errors import FileError, ScanNetPrepError
from scannet_prep.frames.record import RECORD_NAME, iter_scene_folders, read_record
from scannet_prep.processed.make_scene import process_scene
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.raw.check import check_file
from scannet_prep.raw.lock import LOCK_NAME, LockEntry, digest_file, read_tree_lock
from scannet_prep.raw.tree import (
    RawScene,
    find_raw_scenes,
    find_shared_files,
    find_strangers,
    has_segmentation_files,
)
from scannet_prep.release import files as release
from scannet_prep.release.irregularities import WarningKind
from scannet_prep.release.label_map import (
    LABEL_MAP_HINT,
    LABEL_MAP_NAME,
    LabelMap,
    builtin_label_map,
    describe_differences,
    find_label_map,
    label_map_for,
)
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.source.scenes import Place, PlaceScene, list_scenes

if TYPE_CHECKING:
    from scannet_prep.archive.format import Archive

Arguments = ParamSpec("Arguments")

_HINT_DOWNLOAD = "download the file again"
_HINT_DOWNLOAD_SCENE = "download the files of the scene again"
_HINT_LIST = "to put it into a split, name both: --scenes ID --splits train"
_HINT_FRAMES = "remove the folder of the scene, then run the same scannet-prep frames command again"
# For `process`, every oddity is a warning. Here these are errors, and so is damage.
_ERRORS = {
    WarningKind.UNKNOWN_SEGMENTS,
    WarningKind.NOT_RIGID,
    WarningKind.OTHER_SCENE,
    WarningKind.LABELS_CONTRADICT_GROUPS,
}
# Missing files are reported as such, and the label map once for the whole tree.
_REPORTED_ELSEWHERE = {
    WarningKind.NO_INFO,
    WarningKind.NO_AGGREGATION,
    WarningKind.HIGH_RESOLUTION_AGGREGATION,
    WarningKind.LABEL_MAP_DIFFERS,
}


class RawTree(Place):
    """A raw tree. A scene is read by processing it with the default options.

    Args:
        folder: The tree.

    Raises:
        FileError: A folder cannot be read.
    """

    kind = "raw"
    folder: Path

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._raw_scenes = find_raw_scenes(folder, may_be_empty=True)
        # A tree may hold other files on purpose, for example only sensor streams.
        self._is_for_segmentation = has_segmentation_files(self._raw_scenes.values())
        scenes = {}
        for scene_id, scene in self._raw_scenes.items():
            sizes = [path.stat().st_size for path in _find_files(scene).values() if path.exists()]
            scenes[str(scene_id)] = PlaceScene(scene.split or "", 0, sum(sizes))
        super().__init__(str(folder), scenes, failures={})

    @cached_property
    def _records(self) -> Mapping[Path, list[tuple[Path, LockEntry]]]:
        """The files that `scannet.lock` records, by folder; none if it is damaged."""
        records = defaultdict(list)
        with suppress(FileError):
            for name, entry in read_tree_lock(self.folder).items():
                path = self.folder / name
                records[path.parent].append((path, entry))
        return records

    @cached_property
    def _label_map(self) -> LabelMap:
        return label_map_for(self.folder)

    def read(self, scene_id: str) -> ProcessedScene:
        """Process a scene with the default options.

        Raises:
            FileError: A file of the scene cannot be read, or is damaged.
            AnnotationError: Its files contradict each other.
        """
        scene = self._raw_scenes[SceneId(scene_id)]
        return process_scene(scene, _find_split(scene), ProcessOptions(), self._label_map)

    def verify(self, scene_id: str) -> list[Finding]:
        """Check the files of a scene: those for segmentation together, the others alone."""
        scene = self._raw_scenes[SceneId(scene_id)]
        split = _find_split(scene)
        files = _find_files(scene)
        if not self._is_for_segmentation:
            if not files:
                raise FileError(scene.directory, "holds no file of the release", _HINT_DOWNLOAD)
            return self._check_alone(scene, files)

        findings = list(_find_missing(scene, split, files))
        try:
            processed = self._process(scene, split, has_labels=release.LABELS_MESH in files)
        except ScanNetPrepError as error:
            findings += self._check_alone(scene, files)
            # If each file is intact, they contradict each other.
            if not any(finding.is_error for finding in findings):
                findings.append(Finding.from_error(error, scene.directory, scene_id))
            return findings
        findings += _judge(scene, processed)
        used_names = processed.meta.inputs
        others = {kind: path for kind, path in files.items() if path.name not in used_names}
        return findings + self._check_alone(scene, others)

    def _process(self, scene: RawScene, split: Split, *, has_labels: bool) -> ProcessedScene:
        """Process a scene, with the labels of labels.ply if it has them."""
        try:
            label_map = self._label_map
        except FileError:  # which `verify_rest` reports
            label_map = builtin_label_map()
        options = ProcessOptions(labels_from="ply" if has_labels else "aggregation")
        return process_scene(scene, split, options, label_map)

    def _check_alone(
        self, scene: RawScene, files: Mapping[release.FileKind, Path]
    ) -> list[Finding]:
        """Check files of a scene each alone, and all that are recorded with their records."""
        scene_id = str(scene.scene_id)
        findings = []
        for kind, path in files.items():
            findings += _attempt(scene_id, check_file, kind, path, scene_id)
        return findings + self._compare_with_records(scene.directory, scene_id)

    def _compare_with_records(self, folder: Path, scene_id: str = "") -> list[Finding]:
        """Compare the files of a folder with their records in `scannet.lock`."""
        findings = []
        for path, expected in self._records[folder]:
            findings += _attempt(scene_id, _check_record, path, expected)
        return findings

    def verify_rest(self) -> list[Finding]:
        """Check the label map, scannet.lock and the files in tasks/."""
        findings = _attempt("", read_tree_lock, self.folder)
        findings += find_strangers(self.folder)
        findings += self._check_label_map()
        findings += self._compare_with_records(self.folder)
        findings += self._compare_with_records(self.folder / release.TASKS_DIR)
        for kind, path in find_shared_files(self.folder).items():
            findings += _attempt("", check_file, kind, path)

        if self._raw_scenes and not self._is_for_segmentation:
            message = "no scene has a mesh or an annotation: only the existing files are checked"
            findings.append(_note(self.folder, message))
        return findings

    def _check_label_map(self) -> list[Finding]:
        """Compare the label map with that of the release."""
        path = find_label_map(self.folder)
        if path is None:
            message = "no such file: the built-in label map is used"
            return [_note(self.folder / LABEL_MAP_NAME, message)]
        try:
            difference = describe_differences(self._label_map)
        except FileError as error:
            return [Finding.from_error(error)]
        if not difference:
            return []
        return [Finding(message=difference, subject=str(path), hint=LABEL_MAP_HINT)]

    def describe(self) -> dict[str, Any]:
        """List the files of no scene, and folders that are not scenes."""
        shared = {}
        for path in find_shared_files(self.folder).values():
            shared[path.name] = format_bytes(path.stat().st_size)
        return {
            "label_map": str(find_label_map(self.folder) or "built in"),
            "files_of_no_scene": shared,
        }


class RawArchive(Place):
    """An archive of raw scenes, which has to be unpacked to process them.

    Args:
        archive: The archive.
    """

    kind = "archive"

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        super().__init__(archive.name, list_scenes(archive), archive.index.failures)

    def verify(self, scene_id: str) -> list[Finding]:
        """Read the files of a scene, whose checksums must match."""
        self._archive.read(scene_id)
        return []

    def verify_rest(self) -> list[Finding]:
        """Read the files of no scene, whose checksums must match."""
        self._archive.read()
        return []

    def describe(self) -> dict[str, Any]:
        """Return the scenes that are missing."""
        return {"content": "raw scenes", "failures": self.failures}


class Frames(Place):
    """Frames that `scannet-prep frames` extracted. A scene without a usable record has no split.

    Args:
        folder: The folder.
    """

    kind = "frames"
    folder: Path

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._frame_count = 0
        self._options: set[str] = set()
        scenes = {}
        for scene_id, path in iter_scene_folders(folder):
            scenes[str(scene_id)] = PlaceScene("", 0, 0)
            with suppress(FileError):  # which `verify` reports
                record = read_record(path / RECORD_NAME)
                scenes[str(scene_id)] = PlaceScene(record.split, 0, record.size_bytes)
                self._frame_count += len(record.frames)
                self._options.add(record.options.flags)
        super().__init__(str(folder), scenes, failures={})

    def verify(self, scene_id: str) -> list[Finding]:
        """Compare the files of a scene with its record."""
        folder = self.folder / scene_id
        findings = []
        for name, expected in read_record(folder / RECORD_NAME).files.items():
            findings += _attempt(scene_id, _check_fingerprint, folder / name, expected)
        return findings

    def verify_rest(self) -> list[Finding]:
        """Check that all scenes have the same options."""
        if len(self._options) < 2:
            return []
        message = f"holds frames with different options: {'; '.join(sorted(self._options))}"
        return [Finding(message=message, subject=self.name, hint=_HINT_FRAMES)]

    def describe(self) -> dict[str, Any]:
        """Count the frames, and return their options."""
        return {"frames": self._frame_count, "options": "; ".join(sorted(self._options))}


def _find_split(scene: RawScene) -> Split:
    """Return the split of a raw scene.

    Raises:
        FileError: The scene cannot be used, or is in no split.
    """
    if scene.problem:
        raise FileError(scene.directory, scene.problem)
    if scene.split is None:
        raise FileError(scene.directory, "is in none of the official split lists", _HINT_LIST)
    return scene.split


def _find_files(scene: RawScene) -> dict[release.FileKind, Path]:
    """Find the files of the release that a scene has, also links that lead nowhere."""
    paths = {kind: scene.path(kind) for kind in release.KINDS.values()}
    return {kind: path for kind, path in paths.items() if os.path.lexists(path)}


def _find_missing(
    scene: RawScene, split: Split, files: Container[release.FileKind]
) -> Iterator[Finding]:
    """Report the files that segmentation needs and that a scene of the release does not have."""
    if scene.is_own:
        return
    for kind in release.SEGMENTATION_KINDS:
        # labels.ply is needed only to take the labels from it.
        if kind in files or split not in kind.splits or kind is release.LABELS_MESH:
            continue
        path = scene.path(kind)
        scenes = "test scene" if split is Split.TEST else "train and val scene"
        yield Finding(
            message="no such file",
            subject=str(path),
            scene_id=str(scene.scene_id),
            hint=f"download it: every {scenes} has one",
        )


def _judge(scene: RawScene, processed: ProcessedScene) -> Iterator[Finding]:
    """Report the oddities of a scene that was processed from its files."""
    scene_id = str(scene.scene_id)
    for warning in processed.meta.warnings:
        is_damage = warning.kind.is_damage and processed.meta.split is not Split.TEST
        if warning.kind in _ERRORS or is_damage:
            yield Finding(
                message=warning.fault,
                subject=str(scene.directory),
                scene_id=scene_id,
                hint=_HINT_DOWNLOAD_SCENE,
            )
        elif warning.kind not in _REPORTED_ELSEWHERE:
            yield _note(scene.directory, warning.text, scene_id)

    # With the labels of labels.ply: each label comes from a group.
    is_without_group = (processed.nyu40_ids > 0) & (processed.instances < 0)
    count = int(np.count_nonzero(is_without_group))
    if processed.meta.groups and count:
        vertex = int(np.argmax(is_without_group))
        yield Finding(
            message=f"labels {count:,} vertices that belong to no group, for example vertex "
            f"{vertex} as nyu40 id {processed.nyu40_ids[vertex]}",
            subject=str(scene.path(release.LABELS_MESH)),
            scene_id=scene_id,
            hint=_HINT_DOWNLOAD_SCENE,
        )


def _check_record(path: Path, expected: LockEntry) -> None:
    """Compare a file with its record in `scannet.lock`.

    Raises:
        FileError: It is missing, or another file.
    """
    actual = digest_file(path)
    if actual != expected:
        problem = (
            f"is not the file that {LOCK_NAME} records: "
            f"{actual.size_bytes:,} bytes, sha256 {actual.sha256[:12]}, "
            f"expected {expected.size_bytes:,}, {expected.sha256[:12]}"
        )
        raise FileError(path, problem, _HINT_DOWNLOAD)


def _check_fingerprint(path: Path, expected: Fingerprint) -> None:
    """Compare a file with its recorded fingerprint.

    Raises:
        FileError: It is missing, or another file.
    """
    actual = Fingerprint.from_file(path)
    if actual != expected:
        problem = (
            f"has {actual.size_bytes:,} bytes and CRC-32 {actual.crc32}, "
            f"expected {expected.size_bytes:,} and {expected.crc32} as recorded"
        )
        raise FileError(path, problem, _HINT_FRAMES)


def _attempt(
    scene_id: str,
    check: Callable[Arguments, object],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> list[Finding]:
    """Call a check; an error becomes a finding about a scene."""
    try:
        check(*args, **kwargs)
    except ScanNetPrepError as error:
        return [Finding.from_error(error, scene_id=scene_id)]
    return []


def _note(subject: Path, message: str, scene_id: str = "") -> Finding:
    return Finding(message=message, subject=str(subject), scene_id=scene_id, severity="note")
