"""What is in a raw tree: files by kind, vertices and faces by the meshes' headers, classes by the groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.annotate import annotate, count_unknown_segments
from scannet_prep.errors import AnnotationError, LabelMapError, WorkerDiedError
from scannet_prep.labels import SCANNET20, SCANNET200, LabelMap, builtin_label_map, find_label_map, read_label_map
from scannet_prep.processed.manifest import count_ids
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.raw.aggregation import read_aggregation
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.raw.mesh import count_elements
from scannet_prep.raw.segments import read_segments
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.finding import Finding
from scannet_prep.stages.info.class_table import ClassTable, make_class_table
from scannet_prep.stages.pool import run_in_workers


@dataclass(frozen=True, slots=True)
class RawSplit:
    """What a split of a raw tree holds.

    Attributes:
        name: `train`, `val`, `test`, or `none` for scenes that are in no official list.
        scene_count: Scenes.
        annotated_count: Those with groups.
        vertex_count: By the headers of their meshes.
        face_count: By the headers of their meshes.
        group_count: Annotated groups, exact repetitions left out.
    """

    name: str
    scene_count: int
    annotated_count: int
    vertex_count: int
    face_count: int
    group_count: int


@dataclass(frozen=True, slots=True)
class FileKind:
    """All files of one kind.

    Attributes:
        suffix: What follows the scene id in their names; `other` for what does not begin with one.
        file_count: How many.
        size_bytes: Together.
    """

    suffix: str
    file_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RawTreeInfo:
    """What is in a raw tree.

    Attributes:
        path: The tree.
        label_map_source: The label map that the counts were made with.
        splits: Those that hold scenes.
        kinds: Files by kind, the largest first.
        unreadable: What could not be read, and why.
        class_tables: One for each label set; over annotated scenes.
    """

    path: Path
    label_map_source: str
    splits: tuple[RawSplit, ...]
    kinds: tuple[FileKind, ...]
    unreadable: tuple[Finding, ...]
    class_tables: tuple[ClassTable, ...]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "path": str(self.path),
            "kind": "raw",
            "label_map": self.label_map_source,
            "splits": {
                item.name: {
                    "scenes": item.scene_count,
                    "annotated": item.annotated_count,
                    "vertices": item.vertex_count,
                    "faces": item.face_count,
                    "groups": item.group_count,
                }
                for item in self.splits
            },
            "scenes": sum(item.scene_count for item in self.splits),
            "vertices": sum(item.vertex_count for item in self.splits),
            "faces": sum(item.face_count for item in self.splits),
            "groups": sum(item.group_count for item in self.splits),
            "files": {item.suffix: {"files": item.file_count, "size_bytes": item.size_bytes} for item in self.kinds},
            "unreadable": [finding.to_json() for finding in self.unreadable],
            "label_sets": {table.label_set.name: table.to_json() for table in self.class_tables},
        }


@dataclass(frozen=True, slots=True)
class RawPlan:
    """How the info is made.

    Attributes:
        path: The tree.
        tasks: Its scenes.
        label_map: The one beside the scenes; the built-in one where that is missing or damaged.
        fault: Why the label map beside the scenes is of no use; None where nothing is wrong.
    """

    path: Path
    tasks: tuple[RawScene, ...]
    label_map: LabelMap
    fault: Finding | None


@dataclass(frozen=True, slots=True)
class _ReadScene:
    """What the files of one scene say.

    Attributes:
        files: Sizes by suffix.
        vertex_count: V; 0 where the mesh cannot be read.
        face_count: F; 0 where the mesh cannot be read.
        group_count: Groups; None where the scene has no annotation, or none that can be read.
        nyu40_counts: Vertices by nyu40 id.
        scannet_counts: Vertices by ScanNet id.
        findings: What could not be read.
    """

    files: Mapping[str, int] = field(hash=False)
    vertex_count: int = 0
    face_count: int = 0
    group_count: int | None = None
    nyu40_counts: Mapping[int, int] = field(default_factory=dict, hash=False)
    scannet_counts: Mapping[int, int] = field(default_factory=dict, hash=False)
    findings: tuple[Finding, ...] = ()


def plan_raw(path: Path) -> RawPlan:
    """Find scenes and label map.

    Raises:
        MissingFileError: There are no scene folders.
    """
    scenes = find_raw_scenes(path)
    label_map_path, label_map, fault = find_label_map(path), builtin_label_map(), None
    if label_map_path is not None:
        try:
            label_map = read_label_map(label_map_path)
        except LabelMapError as error:
            fault = Finding.from_exception(error, label_map_path, "")
    return RawPlan(path, tuple(scenes.values()), label_map, fault)


def run_raw(plan: RawPlan, *, jobs: int = 1, progress: Progress | None = None) -> RawTreeInfo:
    """Make the info.

    Args:
        plan: From `plan_raw`.
        jobs: Number of worker processes.
        progress: Told of every scene.

    Raises:
        WorkerDiedError: Worker processes cannot be started.
    """
    progress = progress or NoProgress()
    scenes: dict[str, _ReadScene] = {}
    progress.start("info", len(plan.tasks), "scenes")
    try:
        for task, outcome in run_in_workers(_read_scene, plan.tasks, plan.label_map, jobs=jobs):
            if isinstance(outcome, WorkerDiedError):
                outcome = _ReadScene({}, findings=(Finding.from_exception(outcome, task.directory, task.scene_id),))
            scenes[task.scene_id] = outcome
            progress.advance()
    finally:
        progress.finish()
    return _summarize(plan, dict(sorted(scenes.items())))


def _read_scene(scene: RawScene, label_map: LabelMap) -> _ReadScene:
    """Read one scene, in a worker. Errors are returned: the worker lives on."""
    files: Mapping[str, int] = {}
    vertex_count = face_count = 0
    try:
        files = _measure_files(scene)
        vertex_count, face_count = count_elements(scene.mesh_path)
        if find_official_split(scene.scene_id) is Split.TEST or not scene.segments_path.exists():
            return _ReadScene(files, vertex_count, face_count)
        return _read_annotation(scene, label_map, files, vertex_count, face_count)
    except Exception as error:  # noqa: BLE001 - a bug must not stop the other scenes; its traceback is kept
        finding = Finding.from_exception(error, scene.directory, scene.scene_id)
        return _ReadScene(files, vertex_count, face_count, findings=(finding,))


def _measure_files(scene: RawScene) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for path in scene.directory.iterdir():
        if path.is_file():
            suffix = path.name.removeprefix(scene.scene_id)
            sizes[suffix if suffix != path.name else "other"] += path.stat().st_size
    return dict(sizes)


def _read_annotation(
    scene: RawScene, label_map: LabelMap, files: Mapping[str, int], vertex_count: int, face_count: int
) -> _ReadScene:
    """Count what the groups give."""
    path = scene.find_aggregation()
    if path is None:
        return _ReadScene(files, vertex_count, face_count)
    segmentation, aggregation = read_segments(scene.segments_path), read_aggregation(path)
    if len(segmentation.indices) != vertex_count:
        problem = f"is for {len(segmentation.indices):,} vertices, but {scene.mesh_path.name} has {vertex_count:,}"
        raise AnnotationError(f"{scene.segments_path}: {problem}")
    unknown_count = count_unknown_segments(segmentation, aggregation)
    if unknown_count and path == scene.high_resolution_aggregation_path:
        problem = f"is for the high-resolution mesh: {unknown_count:,} of its segment ids occur at no vertex"
        raise AnnotationError(f"{path}: {problem}", f"download {scene.aggregation_path.name}")
    annotation = annotate(segmentation, aggregation, label_map)
    return _ReadScene(
        files=files,
        vertex_count=vertex_count,
        face_count=face_count,
        group_count=len(annotation.groups),
        nyu40_counts=count_ids(annotation.nyu40_ids),
        scannet_counts=count_ids(annotation.scannet_ids),
    )


def _summarize(plan: RawPlan, scenes: Mapping[str, _ReadScene]) -> RawTreeInfo:
    by_split: dict[str, list[_ReadScene]] = {name: [] for name in (*Split, "none")}
    file_counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for scene_id, scene in scenes.items():
        by_split[find_official_split(scene_id) or "none"].append(scene)
        file_counts.update(scene.files.keys())
        sizes.update(scene.files)
    annotated = [scene for scene in scenes.values() if scene.group_count is not None]
    findings = [finding for scene in scenes.values() for finding in scene.findings]
    return RawTreeInfo(
        path=plan.path,
        label_map_source=plan.label_map.source,
        splits=tuple(_summarize_split(str(name), members) for name, members in by_split.items() if members),
        kinds=tuple(FileKind(suffix, file_counts[suffix], size) for suffix, size in sizes.most_common()),
        unreadable=(*([] if plan.fault is None else [plan.fault]), *findings),
        class_tables=(
            make_class_table(SCANNET20, [scene.nyu40_counts for scene in annotated]),
            make_class_table(SCANNET200, [scene.scannet_counts for scene in annotated]),
        ),
    )


def _summarize_split(name: str, scenes: list[_ReadScene]) -> RawSplit:
    return RawSplit(
        name=name,
        scene_count=len(scenes),
        annotated_count=sum(scene.group_count is not None for scene in scenes),
        vertex_count=sum(scene.vertex_count for scene in scenes),
        face_count=sum(scene.face_count for scene in scenes),
        group_count=sum(scene.group_count or 0 for scene in scenes),
    )
