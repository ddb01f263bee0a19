"""The scenes of a raw tree, for a reader of processed scenes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scannet_prep.base.files import Fingerprint
from scannet_prep.base.findings import Finding
from scannet_prep.errors import FileError
from scannet_prep.processed.make_scene import process_scene
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.raw.tree import RawScene, find_raw_scenes
from scannet_prep.release.label_map import LabelMap
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import find_official_split, report_without_split
from scannet_prep.source.identify import SourceKind


class RawScenes:
    """The scenes of a raw tree, each of which is processed when it is loaded.

    A member that `SceneSource` also has means the same there. Picklable.

    Args:
        raw_dir: The tree.
        label_map: The label map of the scenes.

    Attributes:
        name: The tree, for messages.
        options: The options that the scenes are processed with, which are the default ones.
        scenes: The scenes and their splits, by id, sorted.
        failures: The reason why a scene cannot be processed, by id: no official list contains it.
        entries: Empty, because no manifest records the scenes.
        faults: Empty.

    Raises:
        MissingFileError: The tree holds no scene folders.
    """

    kind = SourceKind.RAW
    options = ProcessOptions()
    faults: tuple[FileError, ...] = ()

    def __init__(self, raw_dir: Path, label_map: LabelMap) -> None:
        self.name = str(raw_dir)
        self.scenes: dict[str, tuple[RawScene, Split]] = {}
        self.failures: dict[str, Finding] = {}
        self.entries: Mapping[str, SceneEntry] = {}
        self._label_map = label_map
        for scene_id, scene in find_raw_scenes(raw_dir).items():
            split = find_official_split(scene_id)
            if split is None:
                self.failures[str(scene_id)] = report_without_split(scene_id, raw_dir)
            else:
                self.scenes[str(scene_id)] = (scene, split)

    @property
    def scene_ids(self) -> tuple[str, ...]:
        """The ids of the scenes, sorted."""
        return tuple(self.scenes)

    def load(self, scene_id: str) -> tuple[ProcessedScene, SceneEntry]:
        """Process a scene, and make its entry in a manifest.

        In the entry, the size is that of all raw files, and the CRC-32 is empty.

        Raises:
            FileError: A file of the scene cannot be read, or is damaged.
            AnnotationError: Its files contradict each other.
        """
        raw, split = self.scenes[scene_id]
        scene = process_scene(raw, split, self.options, self._label_map)
        files = [path for path in raw.directory.iterdir() if path.is_file()]
        size_bytes = sum(path.stat().st_size for path in files)
        return scene, SceneEntry.from_scene(scene, Fingerprint(size_bytes, crc32=""))
