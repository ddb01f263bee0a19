"""Raw scenes to compare: those of a raw tree, or only its `scannet.lock`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import ClassVar, TypeAlias

from scannet_prep.errors import MissingFileError
from scannet_prep.raw.layout import find_shared_files
from scannet_prep.raw.lock import LockEntry, digest_file, read_lock
from scannet_prep.release.files import INPUT_KINDS, KINDS, TASKS_DIR
from scannet_prep.release.label_map import LABEL_MAP_NAME, find_label_map
from scannet_prep.release.scene import SceneId
from scannet_prep.report.changes import SceneChanges, describe_facts
from scannet_prep.report.facts import Differences, SceneFacts, compare_facts, flatten
from scannet_prep.source.raw_scenes import RawScenes

_INPUT_SUFFIXES = {kind.suffix for kind in INPUT_KINDS}
_SUFFIXES = {kind.suffix for kind in KINDS.values()}

FilesByName: TypeAlias = Mapping[str, Path | LockEntry]
"""Files, or their records, by name."""


@dataclass(frozen=True, slots=True)
class RawSide:
    """One of two raw trees, or the `scannet.lock` of one. Picklable.

    Attributes:
        name: Its path.
        label_map: The label map by its name; empty if there is none.
        tasks: The files in `tasks/`, by path in the tree.
        tree: The scenes of a tree; None for a lock.
        locked: The files of each scene in a lock, by id.
    """

    kind: ClassVar[str] = "raw"

    name: str
    label_map: FilesByName
    tasks: FilesByName
    tree: RawScenes | None = None
    locked: Mapping[str, FilesByName] = field(default_factory=dict)

    @classmethod
    def from_tree(cls, scenes: RawScenes) -> RawSide:
        """Find the files of a raw tree that belong to no scene."""
        raw_dir = Path(scenes.name)
        tasks = {f"{TASKS_DIR}/{file.name}": file for file in find_shared_files(raw_dir).values()}
        path = find_label_map(raw_dir)
        label_map = {} if path is None else {LABEL_MAP_NAME: path}
        return cls(scenes.name, label_map, tasks, scenes)

    @classmethod
    def from_lock(cls, data: bytes, path: Path) -> RawSide:
        """Read a `scannet.lock`.

        Raises:
            FileError: It is damaged.
        """
        label_map = {}
        tasks = {}
        locked: dict[str, dict[str, LockEntry]] = {}
        for name, entry in read_lock(path, data).items():
            file = PurePosixPath(name)
            # `tasks`, or the id of a scene.
            folder = file.parent.name
            is_raw_file = file.name.removeprefix(folder) in _SUFFIXES
            if file.name == LABEL_MAP_NAME:
                label_map[LABEL_MAP_NAME] = entry
            elif folder == TASKS_DIR:
                tasks[f"{TASKS_DIR}/{file.name}"] = entry
            elif SceneId.is_of_release(folder) and is_raw_file:
                locked.setdefault(folder, {})[file.name] = entry
        return cls(str(path), label_map, tasks, locked=locked)

    @property
    def scene_ids(self) -> set[str]:
        """The ids of all scenes."""
        if self.tree is not None:
            return set(self.tree.scene_ids)
        return set(self.locked)

    def compare_scene(self, other: RawSide, scene_id: str) -> SceneChanges:
        """Compare the files of a scene with those of another side, by their digests.

        Raises:
            FileError: A file cannot be read, or the scene has none.
        """
        here = self.find_files(scene_id)
        there = other.find_files(scene_id)
        names = []
        for name in {**here, **there}:
            # Scenes are made from the inputs, so an input that only one side has is a difference.
            # Any other file is an optional download, and is compared if both sides have it.
            is_input = name.removeprefix(scene_id) in _INPUT_SUFFIXES
            is_on_both_sides = name in here and name in there
            if is_input or is_on_both_sides:
                names.append(name)
        differences = compare_facts(_collect_facts(here, names), _collect_facts(there, names))
        return SceneChanges(differences, tuple(describe_facts(scene_id, differences)), {})

    def compare_shared_files(self, other: RawSide) -> dict[str, Differences]:
        """Compare the label maps, and the files in `tasks/` that both sides have.

        Returns:
            The differences of the label maps by the key `label map`, and those of the other files
            by the key `tasks`. A key is missing if nothing differs.
        """
        tasks = sorted(self.tasks.keys() & other.tasks.keys())
        differences = {
            # Scenes are made from the label map: it also differs if only one side has it.
            "label map": _compare_digests(self.label_map, other.label_map, [LABEL_MAP_NAME]),
            "tasks": _compare_digests(self.tasks, other.tasks, tasks),
        }
        return {name: differing for name, differing in differences.items() if differing}

    def find_files(self, scene_id: str) -> FilesByName:
        """Find the files of a scene.

        Raises:
            MissingFileError: The scene has no files.
        """
        if self.tree is None:
            return self.locked[scene_id]
        raw, _ = self.tree.scenes[scene_id]
        paths = [raw.path(kind) for kind in KINDS.values()]
        files = {path.name: path for path in paths if path.exists()}
        if not files:
            command = f"scannet-prep download --types seg --scenes {raw.scene_id}"
            raise MissingFileError(raw.directory, "holds none of the scene's files", command)
        return files


def _compare_digests(here: FilesByName, there: FilesByName, names: Iterable[str]) -> Differences:
    """Compare the SHA-256 of files."""
    digests_here = {name: _digest(here[name]).sha256 for name in names if name in here}
    digests_there = {name: _digest(there[name]).sha256 for name in names if name in there}
    return compare_facts(digests_here, digests_there)


def _collect_facts(files: FilesByName, names: Iterable[str]) -> SceneFacts:
    """Return size and SHA-256 of the named files that exist."""
    return flatten({name: _digest(files[name]) for name in names if name in files})


def _digest(file: Path | LockEntry) -> LockEntry:
    """Return the record of a file, which is computed if the file itself is given."""
    if isinstance(file, LockEntry):
        return file
    return digest_file(file)
