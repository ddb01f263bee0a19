"""What is in a raw tree: files by kind, vertices and faces by the meshes' headers, classes by the groups."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.labels import LabelMap, builtin_label_map, label_map_for
from scannet_prep.processed.manifest import count_ids
from scannet_prep.progress import Progress
from scannet_prep.raw.layout import RawScene, find_raw_scenes, find_strangers
from scannet_prep.raw.mesh import count_elements
from scannet_prep.release import MESH, SEGMENTS
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.finding import CheckTask, Finding, Findings, look_at_scenes
from scannet_prep.stages.info.class_table import ClassTable, count_by_split, make_class_tables
from scannet_prep.stages.process.make_scene import RawFiles, read_annotation


@dataclass(frozen=True, slots=True)
class FileCount:
    """How many files of one kind there are, and their bytes together."""

    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RawInfo:
    """What is in a raw tree.

    Attributes:
        path: The tree.
        kind: `raw`.
        label_map: The label map that the counts were made with.
        splits: Scenes, annotated ones, vertices, faces, and groups without exact repetitions, of each split and of all.
        scene_ids: The scenes.
        files: By what follows the scene id in their names, the largest first; `other` for other names.
        left_out: Folders beside those of the scenes whose names are not scene ids.
        unreadable: What could not be read, and why.
        label_sets: How often the classes of each label set occur in annotated scenes.
    """

    path: Path
    kind: str
    label_map: str
    splits: dict[str, dict[str, int]] = field(hash=False)
    scene_ids: tuple[str, ...]
    files: dict[str, FileCount] = field(hash=False)
    left_out: tuple[str, ...]
    unreadable: tuple[Finding, ...]
    label_sets: dict[str, ClassTable] = field(hash=False)


@dataclass(slots=True)
class _Scene:
    """What the files of one scene say: bytes by kind, numbers, and vertices by either id where it is annotated."""

    sizes: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("annotated", "vertices", "faces", "groups"), 0)
    )
    nyu40_counts: dict[int, int] = field(default_factory=dict)
    scannet_counts: dict[int, int] = field(default_factory=dict)


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
    label_map = findings.attempt(path, label_map_for, path) or builtin_label_map()
    raw_scenes = find_raw_scenes(path)
    for scene in raw_scenes.values():
        if scene.problem:
            findings.error(scene.directory, scene.problem, scene_id=scene.scene_id)
    tasks = [CheckTask(name, scene.directory) for name, scene in raw_scenes.items() if not scene.problem]
    scenes, found = look_at_scenes(_look, tasks, label_map, title="info", jobs=jobs, progress=progress)
    counts, sizes = Counter[str](), Counter[str]()
    for item in scenes.values():
        counts.update(item.sizes.keys())
        sizes.update(item.sizes)
    return RawInfo(
        path=path,
        kind="raw",
        label_map=label_map.source,
        splits=count_by_split((find_official_split(name), item.numbers) for name, item in scenes.items()),
        scene_ids=tuple(scenes),
        files={suffix: FileCount(counts[suffix], size) for suffix, size in sizes.most_common()},
        left_out=tuple(stranger.name for stranger in find_strangers(raw_scenes)),
        unreadable=(*findings.found, *found),
        label_sets=make_class_tables([item for item in scenes.values() if item.numbers["annotated"]]),
    )


def _look(task: CheckTask, label_map: LabelMap, findings: Findings) -> _Scene:
    """Read one scene, in a worker."""
    scene, found = RawScene(task.scene_id, task.path), _Scene()
    for path in task.path.iterdir():
        if path.is_file():
            is_named = path.name.startswith(scene.scene_id)
            found.sizes[path.name.removeprefix(scene.scene_id) if is_named else "other"] += path.stat().st_size
    size = findings.attempt(scene.path(MESH), count_elements, scene.path(MESH))
    if size is not None:
        found.numbers["vertices"], found.numbers["faces"] = size
        if find_official_split(scene.scene_id) is not Split.TEST:
            findings.attempt(task.path, _count_annotation, scene, label_map, found)
    return found


def _count_annotation(scene: RawScene, label_map: LabelMap, found: _Scene) -> None:
    """Count groups and ids, where the scene is annotated."""
    path = scene.find_aggregation()
    if path is None or not scene.path(SEGMENTS).exists():
        return
    files = RawFiles(scene.scene_id, Split.TRAIN, scene.path(MESH), segments=scene.path(SEGMENTS), aggregation=path)
    *_, annotation = read_annotation(files, found.numbers["vertices"], label_map)
    found.numbers |= {"annotated": 1, "groups": len(annotation.groups)}
    found.nyu40_counts, found.scannet_counts = count_ids(annotation.nyu40_ids), count_ids(annotation.scannet_ids)
