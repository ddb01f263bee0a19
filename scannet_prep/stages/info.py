"""Summarize a place: its scenes by split, and its options. No scene is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.release.scenes import Split
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
        facts: What else is known, by name: the `failures`, and what `Place.describe` returns.
    """

    path: str
    kind: str
    splits: Mapping[str, Mapping[str, int]]
    scene_ids: tuple[str, ...]
    facts: Mapping[str, Any]


def run(path: str | Path) -> Info:
    """Summarize a place.

    Args:
        path: A raw tree, a processed folder, extracted frames, or an archive.

    Raises:
        ScanNetPrepError: As `open_place`, or its manifest cannot be read.
    """
    place = open_place(path)
    totals = {name: Counter[str]() for name in (*map(str, Split), "none", "all")}
    for scene in place.scenes.values():
        numbers = {"scenes": 1}
        if scene.vertex_count:
            numbers["vertices"] = scene.vertex_count
        numbers["size_bytes"] = scene.size_bytes
        for name in (scene.split or "none", "all"):
            # An archive of another program may have other splits.
            totals.setdefault(name, Counter()).update(numbers)
    return Info(
        path=place.name,
        kind=place.kind,
        # A row without scenes is empty.
        splits={name: dict(row) for name, row in totals.items() if row},
        scene_ids=tuple(place.scenes),
        facts={"failures": [*place.failures.values()], **place.describe()},
    )
