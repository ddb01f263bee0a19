"""What is in a processed tree: from the manifest, or from the files where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.errors import ManifestError, WorkerDiedError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, read_file
from scannet_prep.labels import SCANNET20, SCANNET200
from scannet_prep.processed.folder import find_processed_scenes
from scannet_prep.processed.manifest import Manifest, SceneEntry, read_manifest
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import FORMAT_VERSION, parse_processed
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.stages.finding import Finding
from scannet_prep.stages.info.class_table import ClassTable, make_class_table
from scannet_prep.stages.pool import run_in_workers


@dataclass(frozen=True, slots=True)
class ProcessedSplit:
    """What a split of a processed tree holds."""

    split: Split
    scene_count: int
    vertex_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessedTreeInfo:
    """What is in a processed tree.

    Attributes:
        path: The tree.
        has_manifest: Whether the manifest said it; else every file was read.
        is_complete: Whether the last run came to its end; None where no manifest says so.
        splits: Those that hold scenes.
        options: How many scenes were made with which options, the most frequent first.
        program_versions: Of the program that wrote manifest or scenes.
        format_version: Of the scenes.
        failures: Scenes that could not be processed.
        unreadable: What could not be read now, and why.
        warnings: What was odd about the raw files, each oddity once.
        class_tables: One for each label set; over train and val, as test scenes are not annotated.
    """

    path: Path
    has_manifest: bool
    is_complete: bool | None
    splits: tuple[ProcessedSplit, ...]
    options: tuple[tuple[ProcessOptions, int], ...]
    program_versions: tuple[str, ...]
    format_version: int
    failures: tuple[SceneFailure, ...]
    unreadable: tuple[Finding, ...]
    warnings: tuple[WarningSummary, ...]
    class_tables: tuple[ClassTable, ...]

    @property
    def vertex_count(self) -> int:
        """Vertices of all scenes."""
        return sum(item.vertex_count for item in self.splits)

    @property
    def size_bytes(self) -> int:
        """Size of all scenes."""
        return sum(item.size_bytes for item in self.splits)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "path": str(self.path),
            "kind": "processed",
            "source": "manifest" if self.has_manifest else "files",
            "complete": self.is_complete,
            "splits": {
                str(item.split): {
                    "scenes": item.scene_count,
                    "vertices": item.vertex_count,
                    "size_bytes": item.size_bytes,
                }
                for item in self.splits
            },
            "scenes": sum(item.scene_count for item in self.splits),
            "vertices": self.vertex_count,
            "size_bytes": self.size_bytes,
            "bytes_per_vertex": self.size_bytes / self.vertex_count if self.vertex_count else None,
            "options": [{**options.to_json(), "scenes": count} for options, count in self.options],
            "program_versions": list(self.program_versions),
            "format_version": self.format_version,
            "failures": [
                {"scene_id": item.scene_id, "error": item.error, "message": item.message, "hint": item.hint}
                for item in self.failures
            ],
            "unreadable": [finding.to_json() for finding in self.unreadable],
            "warnings": [
                {"kind": str(item.warning.kind), "text": item.warning.text, "scenes": list(item.scene_ids)}
                for item in self.warnings
            ],
            "label_sets": {table.label_set.name: table.to_json() for table in self.class_tables},
        }


@dataclass(frozen=True, slots=True)
class ProcessedPlan:
    """How the info is made.

    Attributes:
        path: The tree.
        manifest: Says everything; None where it is missing or damaged.
        fault: Why it is of no use; None where it is just missing.
        tasks: Scenes whose files have to be read for want of it.
    """

    path: Path
    manifest: Manifest | None
    fault: Finding | None
    tasks: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _ReadScene:
    """What one scene's file says."""

    entry: SceneEntry = field(hash=False)
    program_version: str


def plan_processed(path: Path) -> ProcessedPlan:
    """Look for the manifest; without it, find the files."""
    fault = None
    try:
        manifest = read_manifest(path)
    except ManifestError as error:
        manifest, fault = None, Finding.from_exception(error, path, "")
    tasks = () if manifest is not None else tuple(file for _, file in find_processed_scenes(path).values())
    return ProcessedPlan(path, manifest, fault, tasks)


def run_processed(plan: ProcessedPlan, *, jobs: int = 1, progress: Progress | None = None) -> ProcessedTreeInfo:
    """Make the info.

    Args:
        plan: From `plan_processed`.
        jobs: Number of worker processes, where files have to be read.
        progress: Told of every file.

    Raises:
        WorkerDiedError: Worker processes cannot be started.
    """
    if plan.manifest is not None:
        manifest = plan.manifest
        return _summarize(plan.path, manifest.scenes, manifest, {manifest.program_version}, ())
    progress = progress or NoProgress()
    unreadable = [] if plan.fault is None else [plan.fault]
    scenes: dict[str, _ReadScene] = {}
    progress.start("info", len(plan.tasks), "scenes")
    try:
        for path, outcome in run_in_workers(_read_scene, plan.tasks, None, jobs=jobs):
            if isinstance(outcome, WorkerDiedError):
                outcome = Finding.from_exception(outcome, path, path.stem)
            if isinstance(outcome, Finding):
                unreadable.append(outcome)
            else:
                scenes[path.stem] = outcome
            progress.advance()
    finally:
        progress.finish()
    entries = {name: scenes[name].entry for name in sorted(scenes)}
    versions = {item.program_version for item in scenes.values()}
    unreadable.sort(key=lambda finding: finding.path)
    return _summarize(plan.path, entries, None, versions, tuple(unreadable))


def _read_scene(path: Path, context: None) -> _ReadScene | Finding:  # noqa: ARG001 - no task needs one
    try:
        data = read_file(path)
        scene = parse_processed(data, path)
        return _ReadScene(SceneEntry.from_scene(scene, Fingerprint.from_bytes(data)), scene.meta.program_version)
    except Exception as error:  # noqa: BLE001 - a bug must not stop the other scenes; its traceback is kept
        return Finding.from_exception(error, path, path.stem)


def _summarize(
    path: Path,
    entries: Mapping[str, SceneEntry],
    manifest: Manifest | None,
    versions: set[str],
    unreadable: tuple[Finding, ...],
) -> ProcessedTreeInfo:
    annotated = [entry for entry in entries.values() if entry.split is not Split.TEST]
    warnings = ((name, warning) for name, entry in entries.items() for warning in entry.warnings)
    return ProcessedTreeInfo(
        path=path,
        has_manifest=manifest is not None,
        is_complete=None if manifest is None else manifest.is_complete,
        splits=tuple(_summarize_split(split, entries) for split in Split if _scenes_of(split, entries)),
        options=tuple(Counter(entry.options for entry in entries.values()).most_common()),
        program_versions=tuple(sorted(versions)),
        format_version=FORMAT_VERSION,
        failures=() if manifest is None else tuple(manifest.failures.values()),
        unreadable=unreadable,
        warnings=tuple(summarize_warnings(warnings)),
        class_tables=(
            make_class_table(SCANNET20, [entry.nyu40_counts for entry in annotated]),
            make_class_table(SCANNET200, [entry.scannet_counts for entry in annotated]),
        ),
    )


def _scenes_of(split: Split, entries: Mapping[str, SceneEntry]) -> list[SceneEntry]:
    return [entry for entry in entries.values() if entry.split is split]


def _summarize_split(split: Split, entries: Mapping[str, SceneEntry]) -> ProcessedSplit:
    scenes = _scenes_of(split, entries)
    return ProcessedSplit(
        split=split,
        scene_count=len(scenes),
        vertex_count=sum(entry.vertex_count for entry in scenes),
        size_bytes=sum(entry.fingerprint.size_bytes for entry in scenes),
    )
