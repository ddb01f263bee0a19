"""Compare two copies of a data set, array by array."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeAlias

import numpy as np

from scannet_prep.base.findings import Finding, sort_findings
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import UsageError
from scannet_prep.processed.scene import ProcessedScene, SceneMeta
from scannet_prep.source.place import open_place
from scannet_prep.source.scenes import ProcessedScenes
from scannet_prep.source.trees import RawTree
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.verify import CheckTask

ReadablePlace: TypeAlias = ProcessedScenes | RawTree

# Facts about how a scene was made, which do not change what it is.
_NOT_COMPARED = {"program_version", "inputs"}
_UNLABELED = "unlabeled"


@dataclass(frozen=True, slots=True)
class ClassChange:
    """Vertices that have another class in the other copy.

    Attributes:
        here: The class in the first copy, or `unlabeled`.
        there: The class in the other copy.
        vertices: Their number, in all scenes.
    """

    here: str
    there: str
    vertices: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between two copies.

    Attributes:
        path: The first copy: its path or address.
        other_path: The other copy.
        same: Number of scenes that are the same in both.
        different: The other scenes that both have, sorted.
        only_here: The scenes that only the first copy has.
        only_there: The scenes that only the other copy has.
        classes: The vertices whose class differs, by both classes, most vertices first.
        findings: Every difference, and scenes that cannot be read.
    """

    path: str
    other_path: str
    same: int
    different: tuple[str, ...]
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    classes: tuple[ClassChange, ...]
    findings: tuple[Finding, ...]


def run(
    path: str | Path,
    other_path: str | Path,
    *,
    selection: Selection | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two copies. The scenes of raw trees are processed with the default options.

    Args:
        path: A processed folder or an archive of one; or a raw tree.
        other_path: The other copy, of the same kind.
        selection: The scenes to compare; all by default.
        jobs: Number of worker processes.
        progress: Advanced by each scene that both copies have.

    Raises:
        UsageError: The copies are of two kinds, or have no scene to compare.
        WorkerDiedError: Worker processes cannot be started.
        ScanNetPrepError: As `open_place`.
    """
    selection = selection or Selection()
    progress = progress or Progress()
    here, there = _open(path, other_path)
    held = []
    for place in (here, there):
        scenes = place.scenes
        held.append({name for name in scenes if selection.wants(name, scenes[name].split)})
    both = sorted(held[0] & held[1])[: selection.limit]
    if not both:
        problem = f"{here.name} and {there.name} have none of the selected scenes in common"
        raise UsageError(problem, "check --scenes and --splits")

    findings = []
    only_here = sorted(held[0] - held[1])
    only_there = sorted(held[1] - held[0])
    for place, scene_ids in ((here, only_here), (there, only_there)):
        for scene_id in scene_ids:
            message = "this scene is in this copy only"
            findings.append(Finding(message=message, subject=place.name, scene_id=scene_id))

    classes: Counter[tuple[str, str]] = Counter()
    different = []
    tasks = [CheckTask(scene_id, here.name) for scene_id in both]
    with progress.work("compare", len(tasks), "scenes"):
        for task, outcome in run_tasks(_compare_scene, tasks, (here, there), jobs):
            if isinstance(outcome, Finding):
                differences = [outcome]
            else:
                differences, class_counts = outcome
                classes += class_counts
            findings += differences
            different += [task.scene_id] * bool(differences)
            progress.advance()
    return Comparison(
        path=here.name,
        other_path=there.name,
        same=len(both) - len(different),
        different=tuple(sorted(different)),
        only_here=tuple(only_here),
        only_there=tuple(only_there),
        classes=tuple(ClassChange(*pair, count) for pair, count in classes.most_common()),
        findings=sort_findings(findings),
    )


def _open(path: str | Path, other_path: str | Path) -> tuple[ReadablePlace, ReadablePlace]:
    """Open two places that can be compared."""
    here = open_place(path)
    there = open_place(other_path)
    if isinstance(here, ProcessedScenes) and isinstance(there, ProcessedScenes):
        return here, there
    if isinstance(here, RawTree) and isinstance(there, RawTree):
        return here, there
    raise UsageError(
        f"{here.name} and {there.name} cannot be compared",
        "name two places with processed scenes, or two raw trees",
    )


def _compare_scene(
    task: CheckTask, places: tuple[ReadablePlace, ReadablePlace]
) -> tuple[list[Finding], Counter[tuple[str, str]]]:
    """Compare a scene, in a worker.

    Returns:
        The differences; and the number of vertices by class here and there, of those that differ.
    """
    here, there = (place.read(task.scene_id) for place in places)
    messages = [*_compare_arrays(here, there), *_compare_descriptions(here.meta, there.meta)]
    findings = [
        Finding(message=message, subject=task.source, scene_id=task.scene_id)
        for message in messages
    ]
    return findings, _count_classes(here, there)


def _compare_arrays(here: ProcessedScene, there: ProcessedScene) -> Iterator[str]:
    """Describe each array that differs: how many rows, and the first one in both copies."""
    others = there.arrays()
    for key, array in here.arrays().items():
        other = others.pop(key, None)
        if key == "meta":
            continue
        if other is None:
            yield f"{key}: only in the first copy"
        elif (array.dtype, array.shape) != (other.dtype, other.shape):
            yield f"{key}: {array.dtype} {array.shape}, there {other.dtype} {other.shape}"
        else:
            rows = np.unique(np.nonzero(array != other)[0])
            if len(rows):
                row = rows[0]
                yield (
                    f"{key}: {len(rows):,} of {len(array):,} rows differ, first row {row}: "
                    f"{array[row]}, there {other[row]}"
                )
    for key in others:
        yield f"{key}: only in the other copy"


def _compare_descriptions(here: SceneMeta, there: SceneMeta) -> Iterator[str]:
    """Describe each field of the descriptions that differs; of a list, its first element."""
    for field in fields(SceneMeta):
        if field.name in _NOT_COMPARED:
            continue
        value = getattr(here, field.name)
        other = getattr(there, field.name)
        if value == other:
            continue
        name = field.name.replace("_", " ")
        if isinstance(value, tuple) and len(value) == len(other):
            pairs = zip(value, other, strict=True)
            value, other = next(pair for pair in pairs if pair[0] != pair[1])
        yield f"{name}: {value!s:.200}, there {other!s:.200}"


def _count_classes(here: ProcessedScene, there: ProcessedScene) -> Counter[tuple[str, str]]:
    """Count the vertices whose class differs, by both classes."""
    label_set = here.meta.options.label_set
    counts: Counter[tuple[str, str]] = Counter()
    labels = here.stored_labels
    others = there.stored_labels
    if there.meta.options.label_set != label_set or labels.shape != others.shape:
        return counts
    names = [_UNLABELED, *label_set.names]
    is_different = labels != others
    pairs = np.stack([labels, others])[:, is_different]
    for (label, other), count in zip(*np.unique(pairs.T, axis=0, return_counts=True), strict=True):
        counts[names[label], names[other]] = int(count)
    return counts
