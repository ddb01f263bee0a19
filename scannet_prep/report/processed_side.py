"""Processed scenes to compare: those of a folder or an archive, or only a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from scannet_prep.base.files import Fingerprint
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.report.facts import Differences, SceneFacts, compare_facts, flatten
from scannet_prep.source import SceneSource


@dataclass(frozen=True, slots=True)
class ProcessedSide:
    """One of two places with processed scenes, or the manifest of one. Picklable.

    Attributes:
        name: Path or address.
        entries: The entries of the manifest, by scene id.
        options: The options that the scenes were processed with.
        scenes: The scenes themselves; None if only the manifest is known.
    """

    kind: ClassVar[str] = "processed"

    name: str
    entries: Mapping[str, SceneEntry]
    options: ProcessOptions
    scenes: SceneSource | None = None

    @property
    def scene_ids(self) -> set[str]:
        """The ids of all scenes."""
        return set(self.entries)

    def compare_scene(self, other: ProcessedSide, scene_id: str) -> Differences:
        """Compare a scene with that of another side.

        The arrays are compared only if both sides hold the scenes themselves.

        Raises:
            FileError: A scene cannot be read.
        """
        compares_arrays = self.scenes is not None and other.scenes is not None
        return compare_facts(
            self.collect_facts(scene_id, compares_arrays=compares_arrays),
            other.collect_facts(scene_id, compares_arrays=compares_arrays),
        )

    def compare_shared_files(self, _other: ProcessedSide) -> dict[str, Differences]:
        """Return nothing: processed scenes share no files."""
        return {}

    def collect_facts(self, scene_id: str, *, compares_arrays: bool) -> SceneFacts:
        """Collect the facts of a scene: those of its arrays, or those of its entry."""
        if self.scenes is None:
            entry = self.entries[scene_id]
        else:
            # Damage to the file is detected even if only the entries are compared, because this
            # entry is made from the content of the scene.
            scene, entry = self.scenes.load(scene_id)
            if compares_arrays:
                return _collect_array_facts(scene)
        return flatten(entry) | flatten(self.options, "options")


def _collect_array_facts(scene: ProcessedScene) -> SceneFacts:
    """Return the metadata of a scene, and type, shape and CRC-32 of each array."""
    # Scenes made by different versions of the program count as the same if their content is.
    facts = flatten(replace(scene.meta, program_version=""))
    for key, array in scene.arrays().items():
        if key == "meta":
            continue
        array_bytes = array.reshape(-1).view(np.uint8)
        crc32 = Fingerprint.from_bytes(array_bytes.data).crc32
        facts[f"array {key}"] = f"{array.dtype} {array.shape}, CRC-32 {crc32}"
    return facts
