"""What is in a processed tree: from the manifest, or from the files where there is none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, read_file
from scannet_prep.processed.folder import find_processed_scenes
from scannet_prep.processed.manifest import Manifest, SceneEntry
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import parse_processed
from scannet_prep.processed.state import find_state
from scannet_prep.progress import Progress
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.stages.finding import CheckTask, Finding, Findings, look_at_scenes
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
        program_versions: Of the programs that wrote manifest or scenes.
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


def read_processed_info(path: Path, *, jobs: int = 1, progress: Progress | None = None) -> ProcessedInfo:
    """Find out what is in a processed tree.

    Args:
        path: The tree.
        jobs: Number of worker processes, where files have to be read.
        progress: Told of every file.

    Raises:
        WorkerDiedError: Worker processes cannot be started.
    """
    state = find_state(path)
    faults = [] if state.fault is None else [Finding.from_exception(state.fault, path, "")]
    manifest, versions = state.manifest, {"" if state.manifest is None else state.manifest.program_version}
    if manifest is None:
        tasks = [CheckTask(scene_id, file) for scene_id, (_, file) in find_processed_scenes(path).items()]
        scenes, found = look_at_scenes(_look, tasks, None, title="info", jobs=jobs, progress=progress)
        manifest = Manifest({scene_id: entry for scene_id, (entry, _) in scenes.items()})
        versions = {version for _, version in scenes.values()}
        told = {finding.place for finding in found}
        faults = [*(fault for fault in faults if fault.place not in told), *found]
    entries = manifest.scenes
    return ProcessedInfo(
        path=path,
        kind="processed",
        has_manifest=state.manifest is not None,
        is_complete=None if state.manifest is None else state.fault is None,
        splits=count_by_split(
            (entry.split, {"vertices": entry.vertex_count, "size_bytes": entry.fingerprint.size_bytes})
            for entry in entries.values()
        ),
        scene_ids=tuple(entries),
        options=tuple(MadeWith(*item) for item in Counter(entry.options for entry in entries.values()).most_common()),
        program_versions=tuple(sorted(versions)),
        failures=tuple(manifest.failures.values()),
        warnings=tuple(
            summarize_warnings((name, warning) for name, entry in entries.items() for warning in entry.warnings)
        ),
        unreadable=tuple(faults),
        label_sets=make_class_tables([entry for entry in entries.values() if entry.split is not Split.TEST]),
    )


def _look(task: CheckTask, context: None, findings: Findings) -> tuple[SceneEntry, str]:  # noqa: ARG001
    """What the file of a scene says, as the manifest would; and the program that made it."""
    data = read_file(task.path)
    scene = parse_processed(data, task.path)
    return SceneEntry.from_scene(scene, Fingerprint.from_bytes(data)), scene.meta.program_version
