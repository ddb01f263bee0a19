"""What is in a processed tree: from the manifest, or from the files where there is none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.failures import SceneFailure
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.state import find_state
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.stages.finding import Finding
from scannet_prep.stages.info.class_table import ClassTable, count_by_split, make_class_tables


@dataclass(frozen=True, slots=True)
class MadeWith:
    """How many scenes were made with the same options."""

    options: ProcessOptions
    scenes: int


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
        options: How they were made, the most frequent first.
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
    options: tuple[MadeWith, ...]
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
        options=tuple(MadeWith(*item) for item in Counter(entry.options for entry in entries.values()).most_common()),
        program_versions=(manifest.program_version,) if state.has_manifest else (),
        failures=tuple(manifest.failures.values()),
        warnings=tuple(
            summarize_warnings((name, warning) for name, entry in entries.items() for warning in entry.warnings)
        ),
        unreadable=tuple(Finding.from_exception(fault, path) for fault in state.faults),
        label_sets=make_class_tables([entry for entry in entries.values() if entry.split is not Split.TEST]),
    )
