"""Processed scenes to compare: those of a folder or an archive, or only a manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from scannet_prep.base.files import Fingerprint
from scannet_prep.processed.manifest import SceneEntry
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.report.changes import (
    Change,
    ClassChanges,
    SceneChanges,
    count_class_changes,
    describe_facts,
    describe_scenes,
    describe_warnings,
)
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

    def compare_scene(self, other: ProcessedSide, scene_id: str) -> SceneChanges:
        """Compare a scene with that of another side.

        The arrays are compared only if both sides hold the scenes themselves.

        Raises:
            FileError: A scene cannot be read.
        """
        if self.scenes is None or other.scenes is None:
            return self._compare_records(other, scene_id)
        here, _ = self.scenes.load(scene_id)
        there, _ = other.scenes.load(scene_id)
        differences = compare_facts(_collect_array_facts(here), _collect_array_facts(there))
        changes: list[Change] = []
        classes: ClassChanges = {}
        if differences:
            changes = list(_describe(scene_id, differences, here, there))
            classes = count_class_changes(here, there, self.options.label_set)
        return SceneChanges(differences, tuple(changes), classes)

    def _compare_records(self, other: ProcessedSide, scene_id: str) -> SceneChanges:
        """Compare the record of a scene with that of another side."""
        here = self.find_entry(scene_id)
        there = other.find_entry(scene_id)
        differences = compare_facts(
            flatten(here) | flatten(self.options, "options"),
            flatten(there) | flatten(other.options, "options"),
        )
        facts = {name: values for name, values in differences.items() if name != "warnings"}
        changes = [
            *describe_facts(scene_id, facts),
            *describe_warnings(here.warnings, there.warnings),
        ]
        return SceneChanges(differences, tuple(changes), {})

    def compare_shared_files(self, _other: ProcessedSide) -> dict[str, Differences]:
        """Return nothing: processed scenes share no files."""
        return {}

    def find_entry(self, scene_id: str) -> SceneEntry:
        """Return the entry of a scene.

        If the scene itself is known, the entry is made from its content, so that damage shows.
        """
        if self.scenes is None:
            return self.entries[scene_id]
        return self.scenes.load(scene_id)[1]


def _describe(
    scene_id: str, differences: Differences, here: ProcessedScene, there: ProcessedScene
) -> Iterator[Change]:
    """Describe all facts that differ, those about arrays and groups in detail."""
    details = list(describe_scenes(here, there))
    facts = dict(differences)
    facts.pop("warnings", None)
    boxes = facts.pop("groups", None)
    facts = {name: values for name, values in facts.items() if not name.startswith("array ")}
    # Boxes follow from groups, points and instances. They are shown only if none of these differ.
    causes = {"groups", "points", "instances"}
    if boxes is not None and not any(change.subject in causes for change in details):
        facts["boxes of groups"] = boxes
    yield from describe_facts(scene_id, facts)
    yield from details
    yield from describe_warnings(here.meta.warnings, there.meta.warnings)


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
