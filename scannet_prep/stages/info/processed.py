"""What is in a processed tree: from the manifest, or from the files where there is none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.files import Fingerprint, read_file
from scannet_prep.processed.folder import find_processed_scenes
from scannet_prep.processed.manifest import Manifest, SceneEntry
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import FORMAT_VERSION, parse_processed
from scannet_prep.processed.state import find_state
from scannet_prep.progress import Progress
from scannet_prep.scene import Split
from scannet_prep.scene_warnings import WarningSummary, summarize_warnings
from scannet_prep.stages.finding import CheckTask, Finding, Findings, look_at_scenes
from scannet_prep.stages.info.class_table import ClassTable, make_class_tables
from scannet_prep.stages.info.split_table import SplitTable, make_split_table


@dataclass(frozen=True, slots=True)
class ProcessedInfo:
    """What is in a processed tree.

    Attributes:
        path: The tree.
        manifest: What its manifest says; without one, what the files say.
        has_manifest: Whether the manifest said it.
        program_versions: Of the programs that wrote manifest or scenes.
        unreadable: What could not be read, and why; and why the folder as a whole must not be used.
    """

    path: Path
    manifest: Manifest
    has_manifest: bool
    program_versions: tuple[str, ...]
    unreadable: tuple[Finding, ...]

    @property
    def scene_ids(self) -> tuple[str, ...]:
        """The scenes that are there."""
        return tuple(self.manifest.scenes)

    @property
    def is_complete(self) -> bool | None:
        """Whether all was done, so that the folder may be used; None where there is no manifest that says so."""
        return not self.unreadable if self.has_manifest else None

    @property
    def splits(self) -> SplitTable:
        """Scenes, vertices and bytes of each split."""
        return make_split_table(
            (str(entry.split), {"vertices": entry.vertex_count, "size_bytes": entry.fingerprint.size_bytes})
            for entry in self.manifest.scenes.values()
        )

    @property
    def options(self) -> list[tuple[ProcessOptions, int]]:
        """How many scenes were made with which options, the most frequent first."""
        return Counter(entry.options for entry in self.manifest.scenes.values()).most_common()

    @property
    def warnings(self) -> list[WarningSummary]:
        """What was odd about the raw files, each oddity once."""
        return summarize_warnings(
            (name, warning) for name, entry in self.manifest.scenes.items() for warning in entry.warnings
        )

    @property
    def class_tables(self) -> tuple[ClassTable, ...]:
        """One for each label set; over train and val, as test scenes are not annotated."""
        return make_class_tables([entry for entry in self.manifest.scenes.values() if entry.split is not Split.TEST])

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        sums = self.splits.sums
        return {
            "path": str(self.path),
            "kind": "processed",
            "source": "manifest" if self.has_manifest else "files",
            "complete": self.is_complete,
            **self.splits.to_json(),
            "bytes_per_vertex": sums["size_bytes"] / sums["vertices"] if sums.get("vertices") else None,
            "options": [{**options.to_json(), "scenes": count} for options, count in self.options],
            "program_versions": list(self.program_versions),
            "format_version": FORMAT_VERSION,
            "failures": [failure.to_json() for failure in self.manifest.failures.values()],
            "unreadable": [finding.to_json() for finding in self.unreadable],
            "warnings": [
                {"kind": str(item.warning.kind), "text": item.warning.text, "scenes": list(item.scene_ids)}
                for item in self.warnings
            ],
            "label_sets": {table.label_set.name: table.to_json() for table in self.class_tables},
            "scene_ids": list(self.scene_ids),
        }


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
    faults: tuple[Finding, ...] = () if state.fault is None else (Finding.from_exception(state.fault, path, ""),)
    if state.manifest is not None:
        return ProcessedInfo(path, state.manifest, True, (state.manifest.program_version,), faults)
    tasks = [CheckTask(scene_id, file) for scene_id, (_, file) in find_processed_scenes(path).items()]
    scenes, found = look_at_scenes(_look, tasks, None, title="info", jobs=jobs, progress=progress)
    versions = tuple(sorted({version for _, version in scenes.values()}))
    manifest = Manifest({scene_id: entry for scene_id, (entry, _) in scenes.items()}, is_complete=False)
    told = {finding.place for finding in found}
    faults = tuple(fault for fault in faults if fault.place not in told)
    return ProcessedInfo(path, manifest, False, versions, (*faults, *found))


def _look(task: CheckTask, context: None, findings: Findings) -> tuple[SceneEntry, str]:  # noqa: ARG001
    """What the file of a scene says, as the manifest would; and the program that made it."""
    data = read_file(task.path)
    scene = parse_processed(data, task.path)
    return SceneEntry.from_scene(scene, Fingerprint.from_bytes(data)), scene.meta.program_version
