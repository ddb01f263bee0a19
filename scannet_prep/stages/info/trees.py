"""What is in a tree.

Of a processed one, what the manifest says, or the files where there is none. Of a raw one, sizes, and vertices by the
meshes' headers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.class_weights import ClassTable, make_class_tables
from scannet_prep.failures import SceneFailure
from scannet_prep.processed.folder import find_state
from scannet_prep.progress import Progress
from scannet_prep.raw.layout import RawScene, find_raw_scenes, find_strangers
from scannet_prep.raw.lock import shards_of
from scannet_prep.raw.mesh import count_elements
from scannet_prep.release import MESH
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.splits import find_official_split
from scannet_prep.stages.finding import Finding, Findings


@dataclass(frozen=True, slots=True)
class RawInfo:
    """What is in a raw tree.

    Attributes:
        path: The tree.
        kind: `raw`.
        splits: Scenes, vertices and bytes of each split, and of all.
        scene_ids: The scenes.
        left_out: Folders beside those of the scenes whose names are not scene ids.
        unreadable: What could not be read, and why.
    """

    path: Path
    kind: str
    splits: dict[str, dict[str, int]] = field(hash=False)
    scene_ids: tuple[str, ...]
    left_out: tuple[str, ...]
    unreadable: tuple[Finding, ...]


def read_raw_info(path: Path, *, progress: Progress | None = None) -> RawInfo:
    """Find out what is in a raw tree.

    Args:
        path: The tree.
        progress: Told of every scene.

    Raises:
        MissingFileError: There are no scene folders.
    """
    progress, scenes, raw_scenes = progress or Progress(), dict[str, dict[str, int]](), find_raw_scenes(path)
    unreadable = [Finding.from_exception(fault, path) for fault in shards_of(path).find_faults()]
    with progress.work("info", len(raw_scenes), "scenes"):
        for name, scene in raw_scenes.items():
            findings = Findings(name)
            if scene.problem:
                findings.error(scene.directory, scene.problem)
            elif (numbers := findings.attempt(scene.directory, _count, scene, findings)) is not None:
                scenes[name] = numbers
            unreadable += findings.found
            progress.advance()
    return RawInfo(
        path=path,
        kind="raw",
        splits=count_by_split((find_official_split(name), numbers) for name, numbers in scenes.items()),
        scene_ids=tuple(scenes),
        left_out=tuple(stranger.name for stranger in find_strangers(raw_scenes)),
        unreadable=tuple(unreadable),
    )


def _count(scene: RawScene, findings: Findings) -> dict[str, int]:
    """Count the vertices and bytes of one scene."""
    vertices, _ = findings.attempt(scene.path(MESH), count_elements, scene.path(MESH)) or (0, 0)
    size_bytes = sum(path.stat().st_size for path in scene.directory.iterdir() if path.is_file())
    return {"vertices": vertices, "size_bytes": size_bytes}


@dataclass(frozen=True, slots=True)
class ProcessedInfo:
    """What is in a processed tree.

    Attributes:
        path: The tree.
        kind: `processed`.
        has_manifest: Whether the manifest said it; else every file was read.
        is_complete: Whether all was done, so that the folder may be used; None where no manifest says so.
        splits: Scenes, vertices and bytes of each split, and of all.
        scene_ids: The scenes.
        options: How they were made (`options`, and how many `scenes` so), the most frequent first.
        program_versions: Of the program that wrote the manifest.
        failures: Scenes that could not be processed.
        warnings: What was odd about the raw files, each oddity once.
        unreadable: What could not be read, and why; and why the folder as a whole must not be used.
        label_sets: How often the classes of each label set occur in train and val; test scenes are not annotated.
    """

    path: Path
    kind: str
    has_manifest: bool
    is_complete: bool | None
    splits: dict[str, dict[str, int]] = field(hash=False)
    scene_ids: tuple[str, ...]
    options: tuple[dict[str, Any], ...]
    program_versions: tuple[str, ...]
    failures: tuple[SceneFailure, ...]
    warnings: tuple[WarningSummary, ...]
    unreadable: tuple[Finding, ...]
    label_sets: dict[str, ClassTable] = field(hash=False)


def read_processed_info(path: Path) -> ProcessedInfo:
    """Find out what is in a processed tree."""
    state = find_state(path)
    manifest = state.manifest
    entries = manifest.scenes
    counts = Counter(entry.options for entry in entries.values())
    return ProcessedInfo(
        path=path,
        kind="processed",
        has_manifest=state.has_manifest,
        is_complete=not state.faults if state.has_manifest else None,
        splits=count_by_split(
            (entry.split, {"vertices": entry.vertex_count, "size_bytes": entry.fingerprint.size_bytes})
            for entry in entries.values()
        ),
        scene_ids=tuple(entries),
        options=tuple({"options": made_with, "scenes": count} for made_with, count in counts.most_common()),
        program_versions=(manifest.program_version,) if state.has_manifest else (),
        failures=tuple(manifest.failures.values()),
        warnings=tuple(
            summarize_warnings((name, warning) for name, entry in entries.items() for warning in entry.warnings)
        ),
        unreadable=tuple(Finding.from_exception(fault, path) for fault in state.faults),
        label_sets=make_class_tables(
            [(item.nyu40_counts, item.scannet_counts) for item in entries.values() if item.split is not Split.TEST]
        ),
    )


def count_by_split(scenes: Iterable[tuple[str | None, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Add up the numbers of scenes.

    Args:
        scenes: Split and numbers of each; None for a scene of no split.

    Returns:
        By split, `none` for no split, and `all` together: number of scenes, and the sum of each number.
    """
    found: dict[str, Counter[str]] = {name: Counter() for name in (*map(str, Split), "none", "all")}
    for split, numbers in scenes:
        for name in (str(split or "none"), "all"):
            found[name].update({"scenes": 1, **numbers})
    return {name: dict(row) for name, row in found.items() if row}
