"""What is in a raw tree: files by kind, vertices and faces by the meshes' headers, classes by the groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.annotate import annotate, count_unknown_segments
from scannet_prep.errors import AnnotationError
from scannet_prep.labels import LabelMap, builtin_label_map, find_label_map, read_label_map
from scannet_prep.processed.manifest import count_ids
from scannet_prep.progress import Progress
from scannet_prep.raw.aggregation import read_aggregation
from scannet_prep.raw.layout import RawScene, find_raw_scenes
from scannet_prep.raw.mesh import count_elements
from scannet_prep.raw.segments import read_segments
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.finding import CheckTask, Finding, Findings, look_at_scenes
from scannet_prep.stages.info.class_table import ClassTable, make_class_tables
from scannet_prep.stages.info.split_table import NO_SPLIT, SplitTable, make_split_table


@dataclass(frozen=True, slots=True)
class RawSceneInfo:
    """What the files of one scene say.

    Attributes:
        file_sizes: Bytes by suffix; under `other` what does not begin with the scene's id.
        numbers: `annotated` (0 or 1), `vertices`, `faces` and `groups`.
        nyu40_counts: Vertices by nyu40 id; empty where it is not annotated.
        scannet_counts: Vertices by ScanNet id; empty where it is not annotated.
    """

    file_sizes: Mapping[str, int] = field(hash=False)
    numbers: Mapping[str, int] = field(hash=False)
    nyu40_counts: Mapping[int, int] = field(default_factory=dict, hash=False)
    scannet_counts: Mapping[int, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class RawInfo:
    """What is in a raw tree.

    Attributes:
        path: The tree.
        label_map_source: The label map that the counts were made with.
        scenes: What the files of each scene say.
        unreadable: What could not be read, and why.
    """

    path: Path
    label_map_source: str
    scenes: Mapping[SceneId, RawSceneInfo] = field(hash=False)
    unreadable: tuple[Finding, ...]

    @property
    def scene_ids(self) -> tuple[str, ...]:
        """The scenes that are there."""
        return tuple(self.scenes)

    @property
    def splits(self) -> SplitTable:
        """Scenes, annotated ones, vertices, faces, and groups without exact repetitions, of each split."""
        return make_split_table(
            (str(find_official_split(scene_id) or NO_SPLIT), scene.numbers) for scene_id, scene in self.scenes.items()
        )

    @property
    def files(self) -> dict[str, tuple[int, int]]:
        """Number and bytes of the files by suffix, the largest first."""
        counts, sizes = Counter[str](), Counter[str]()
        for scene in self.scenes.values():
            counts.update(scene.file_sizes.keys())
            sizes.update(scene.file_sizes)
        return {suffix: (counts[suffix], size) for suffix, size in sizes.most_common()}

    @property
    def class_tables(self) -> tuple[ClassTable, ...]:
        """One for each label set; over annotated scenes."""
        return make_class_tables([scene for scene in self.scenes.values() if scene.numbers["annotated"]])

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "path": str(self.path),
            "kind": "raw",
            "label_map": self.label_map_source,
            **self.splits.to_json(),
            "files": {suffix: {"files": count, "size_bytes": size} for suffix, (count, size) in self.files.items()},
            "unreadable": [finding.to_json() for finding in self.unreadable],
            "label_sets": {table.label_set.name: table.to_json() for table in self.class_tables},
            "scene_ids": list(self.scene_ids),
        }


def read_raw_info(path: Path, *, jobs: int = 1, progress: Progress | None = None) -> RawInfo:
    """Find out what is in a raw tree.

    Args:
        path: The tree.
        jobs: Number of worker processes.
        progress: Told of every scene.

    Raises:
        MissingFileError: There are no scene folders.
        WorkerDiedError: Worker processes cannot be started.
    """
    findings = Findings()
    label_map_path = find_label_map(path)
    label_map = None if label_map_path is None else findings.attempt(label_map_path, read_label_map, label_map_path)
    label_map = label_map or builtin_label_map()
    raw_scenes = find_raw_scenes(path)
    for scene in raw_scenes.values():
        if scene.problem:
            findings.error(scene.directory, scene.problem, scene_id=scene.scene_id)
    tasks = [CheckTask(name, scene.directory) for name, scene in raw_scenes.items() if not scene.problem]
    scenes, found = look_at_scenes(_look, tasks, label_map, title="info", jobs=jobs, progress=progress)
    return RawInfo(path, label_map.source, scenes, (*findings.found, *found))


def _look(task: CheckTask, label_map: LabelMap, findings: Findings) -> RawSceneInfo:
    """Read one scene, in a worker."""
    scene, sizes = RawScene(task.scene_id, task.path), Counter[str]()
    for path in task.path.iterdir():
        if path.is_file():
            suffix = path.name.removeprefix(scene.scene_id)
            sizes[suffix if suffix != path.name else "other"] += path.stat().st_size
    numbers = {"annotated": 0, "vertices": 0, "faces": 0, "groups": 0}
    size = findings.attempt(scene.mesh_path, count_elements, scene.mesh_path)
    if size is None:
        return RawSceneInfo(sizes, numbers)
    numbers["vertices"], numbers["faces"] = size
    if find_official_split(scene.scene_id) is Split.TEST:
        return RawSceneInfo(sizes, numbers)
    annotated = findings.attempt(task.path, _read_annotation, scene, numbers["vertices"], label_map)
    if annotated is None:
        return RawSceneInfo(sizes, numbers)
    group_count, nyu40_counts, scannet_counts = annotated
    return RawSceneInfo(sizes, numbers | {"annotated": 1, "groups": group_count}, nyu40_counts, scannet_counts)


def _read_annotation(
    scene: RawScene, vertex_count: int, label_map: LabelMap
) -> tuple[int, dict[int, int], dict[int, int]] | None:
    """Number of groups, and vertices by nyu40 and by ScanNet id; None where the scene is not annotated."""
    path = scene.find_aggregation()
    if path is None or not scene.segments_path.exists():
        return None
    segmentation, aggregation = read_segments(scene.segments_path), read_aggregation(path)
    if len(segmentation.indices) != vertex_count:
        problem = f"is for {len(segmentation.indices):,} vertices, but {scene.mesh_path.name} has {vertex_count:,}"
        raise AnnotationError(f"{scene.segments_path}: {problem}")
    unknown_count = count_unknown_segments(segmentation, aggregation)
    if unknown_count and path == scene.high_resolution_aggregation_path:
        problem = f"is for the high-resolution mesh: {unknown_count:,} of its segment ids occur at no vertex"
        raise AnnotationError(f"{path}: {problem}", f"download {scene.aggregation_path.name}")
    found = annotate(segmentation, aggregation, label_map)
    return len(found.groups), count_ids(found.nyu40_ids), count_ids(found.scannet_ids)
