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

# Facts about how a scene was made, which do not change what it is, and the options, which are
# compared once for all scenes.
_NOT_COMPARED = {"program_version", "inputs", "options"}
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


@dataclass(slots=True)
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
    different: list[str]
    only_here: list[str]
    only_there: list[str]
    classes: list[ClassChange]
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
    here = open_place(path)
    there = open_place(other_path)
    kind = RawTree if isinstance(here, RawTree) else ProcessedScenes
    if not isinstance(here, kind) or not isinstance(there, kind):
        problem = f"{here.name} and {there.name} cannot be compared"
        raise UsageError(problem, "name two places with processed scenes, or two raw trees")
    held_here = selection.select(here.splits)
    held_there = selection.select(there.splits)
    both = sorted(held_here & held_there)[: selection.limit]
    if not both:
        problem = f"{here.name} and {there.name} have none of the selected scenes in common"
        raise UsageError(problem, "check --scenes and --splits")

    findings = _compare_options(here, there)
    tasks = [CheckTask(scene_id, here.name) for scene_id in both]
    changes: Counter[tuple[str, str]] = Counter()
    with progress.work("compare", len(tasks), "scenes"):
        for _, outcome in run_tasks(_compare_scene, tasks, (here, there), jobs):
            if isinstance(outcome, Finding):
                findings.append(outcome)
            else:
                findings += outcome[0]
                changes += outcome[1]
            progress.advance()
    different = {finding.scene_id for finding in findings if finding.scene_id}
    classes = []
    for (class_here, class_there), count in changes.most_common():
        classes.append(ClassChange(class_here, class_there, count))
    only_here = held_here - held_there
    only_there = held_there - held_here
    for scene_id in only_here | only_there:
        name = here.name if scene_id in only_here else there.name
        message = "this scene is in this copy only"
        findings.append(Finding(message=message, subject=name, scene_id=scene_id))
    return Comparison(
        path=here.name,
        other_path=there.name,
        same=len(both) - len(different),
        different=sorted(different),
        only_here=sorted(only_here),
        only_there=sorted(only_there),
        classes=classes,
        findings=sort_findings(findings),
    )


def _compare_options(here: ReadablePlace, there: ReadablePlace) -> list[Finding]:
    """Compare the options that the scenes of two copies were made with."""
    if isinstance(here, RawTree) or isinstance(there, RawTree) or here.options == there.options:
        return []
    message = f"was made with {here.options.flags}, {there.name} with {there.options.flags}"
    return [Finding(message=message, subject=here.name)]


def _compare_scene(
    task: CheckTask, places: tuple[ReadablePlace, ReadablePlace]
) -> tuple[list[Finding], Counter[tuple[str, str]]]:
    """Compare a scene, in a worker.

    Returns:
        The differences; and the number of vertices by class here and there, of those that differ.
    """
    here = places[0].read(task.scene_id)
    there = places[1].read(task.scene_id)
    messages = list(_compare_arrays(here, there))
    messages += _compare_descriptions(here.meta, there.meta)
    findings = [
        Finding(message=message, subject=task.source, scene_id=task.scene_id)
        for message in messages
    ]
    return findings, _count_classes(here, there)


def _compare_arrays(here: ProcessedScene, there: ProcessedScene) -> Iterator[str]:
    """Describe each array that differs: how many rows, and the first one in both copies."""
    arrays = here.arrays()
    others = there.arrays()
    del arrays["meta"], others["meta"]
    for key, array in arrays.items():
        other = others.pop(key, None)
        if other is None:
            yield f"{key}: only in the first copy"
        elif (array.dtype, array.shape) != (other.dtype, other.shape):
            form = f"{array.dtype} {array.shape}"
            yield f"{key}: {form}, there {other.dtype} {other.shape}"
        elif not np.array_equal(array, other):
            different = np.nonzero(array != other)
            rows = np.unique(different[0])
            first = rows[0]
            counts = f"{len(rows):,} of {len(array):,} rows differ"
            values = f"{array[first]}, there {other[first]}"
            yield f"{key}: {counts}, first row {first}: {values}"
    for key in others:
        yield f"{key}: only in the other copy"


def _compare_descriptions(here: SceneMeta, there: SceneMeta) -> Iterator[str]:
    """Describe each field of the descriptions that differs; of a list, its first element."""
    for field in fields(SceneMeta):
        value = getattr(here, field.name)
        other = getattr(there, field.name)
        if value == other or field.name in _NOT_COMPARED:
            continue
        is_list = isinstance(value, tuple)
        if is_list and len(value) == len(other):
            pairs = zip(value, other, strict=True)
            different = [pair for pair in pairs if pair[0] != pair[1]]
            value, other = different[0]
        name = field.name.replace("_", " ")
        yield f"{name}: {value!s:.200}, there {other!s:.200}"


def _count_classes(here: ProcessedScene, there: ProcessedScene) -> Counter[tuple[str, str]]:
    """Count the vertices whose class differs, by both classes."""
    label_set = here.meta.options.label_set
    labels = here.stored_labels
    others = there.stored_labels
    is_comparable = there.meta.options.label_set == label_set
    if not is_comparable or labels.shape != others.shape:
        return Counter()
    is_different = labels != others
    names = [_UNLABELED, *label_set.names]
    counts: Counter[tuple[str, str]] = Counter()
    pairs = zip(labels[is_different], others[is_different], strict=True)
    for label, other in pairs:
        change = (names[label], names[other])
        counts[change] += 1
    return counts
