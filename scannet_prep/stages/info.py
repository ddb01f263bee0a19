"""Summarize a place: its scenes by split, and what it is made of. No scene is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.release.splits import count_by_split
from scannet_prep.source.place import open_place


@dataclass(frozen=True, slots=True)
class Info:
    """The summary of a place.

    Attributes:
        path: Its path or address.
        kind: `raw`, `processed`, `archive` or `frames`.
        splits: For each split, for `none` (scenes of no known split) and for `all`: the number of
            `scenes`, and the sums of `vertices` and `size_bytes`. What is not known is left out,
            and so are splits without scenes.
        scene_ids: The scenes, sorted.
        facts: What else is known, by name; see `Place.describe`.
    """

    path: str
    kind: str
    splits: Mapping[str, Mapping[str, int]] = field(hash=False)
    scene_ids: tuple[str, ...]
    facts: Mapping[str, Any] = field(hash=False)


def run(path: str | Path) -> Info:
    """Summarize a place.

    Args:
        path: A raw tree, a processed folder, extracted frames, or an archive.

    Raises:
        ScanNetPrepError: As `open_place`, or its manifest cannot be read.
    """
    place = open_place(path)
    scenes = place.scenes
    has_vertices = any(scene.vertex_count for scene in scenes.values())
    numbers = []
    for scene in scenes.values():
        counts = {"vertices": scene.vertex_count} if has_vertices else {}
        numbers.append((scene.split, counts | {"size_bytes": scene.size_bytes}))
    return Info(
        path=place.name,
        kind=place.kind,
        splits=count_by_split(numbers),
        scene_ids=tuple(scenes),
        facts=place.describe(),
    )
