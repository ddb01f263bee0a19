"""Check a place, or compare it with another copy, scene by scene.

open_place --> Place.verify for each scene, Place.verify_rest --> findings
           --> Place.read for each scene, here and there      --> findings, changed classes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scannet_prep.base.findings import Finding
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import UsageError
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.scenes import Split, official_scenes, official_splits
from scannet_prep.source.place import open_place
from scannet_prep.source.scenes import PlaceScene, ReadablePlace
from scannet_prep.stages.selection import Selection

# Checking this much takes as long as starting a worker process.
_SMALL_BYTES = 100_000_000
_HINT_SELECTION = "check --scenes and --splits"
_HINT_COMPARED = "name two places with processed scenes, or raw trees"
# Facts about how a scene was made, which do not change what it is.
_NOT_COMPARED = {"program_version", "inputs"}


class CheckTask(NamedTuple):
    """A scene to check, or with an empty id what `Place.verify_rest` checks.

    Attributes:
        scene_id: The scene.
        source: Its place, for messages.
    """

    scene_id: str
    source: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a check or a comparison.

    Attributes:
        path: The place: its path or address.
        kind: `raw`, `processed`, `frames` or `archive`.
        scenes: Number of scenes that were checked, or compared.
        size_bytes: Size of their files.
        splits: For each split, how many of its official scenes are `present`, and how many there
            are (`official`).
        damaged_scenes: The scenes with errors, sorted: they are damaged, or differ in the copies.
        classes: Numbers of vertices whose class differs in the copies, by both classes, such as
            `wall -> floor`; most vertices first.
        findings: Errors first, then by scene and file.
    """

    path: str
    kind: str
    scenes: int
    size_bytes: int
    splits: Mapping[str, Mapping[str, int]]
    damaged_scenes: tuple[str, ...]
    classes: Mapping[str, int]
    findings: tuple[Finding, ...]


def run(
    path: str | Path,
    *,
    against: str | Path | None = None,
    selection: Selection = Selection(),
    jobs: int = 1,
    progress: Progress = Progress(),
) -> VerifyReport:
    """Check a place, or compare it with another copy.

    A fault in a file becomes a finding and does not stop the check. For a comparison, the scenes of
    a raw tree are processed with the default options.

    Args:
        path: A raw tree, a processed folder, extracted frames, or an archive.
        against: The other copy, to compare with it; None to check.
        selection: The scenes to check. By default all, and the files that belong to no scene.
        jobs: Number of worker processes; of threads for archives and for small places.
        progress: Advanced by each scene.

    Raises:
        UsageError: There is nothing to check, or the copies cannot be compared.
        WorkerDiedError: Worker processes cannot be started.
        OutageError: The server of an archive has served nothing for too long.
        ScanNetPrepError: As `open_place`.
    """
    place = open_place(path)
    selected = selection.select(place.scenes)
    absent = {*(selection.scene_ids or ())} - selected
    messages = dict.fromkeys(absent, "no such scene, or not in the selected splits")
    other = None
    if against is None:
        for scene_id in place.failures.keys() - selected:
            if selection.wants(scene_id, official_splits().get(scene_id)):
                messages[scene_id] = f"this scene failed: {place.failures[scene_id]}"
    else:
        other = open_place(against)
        for compared in (place, other):
            if not isinstance(compared, ReadablePlace):
                raise UsageError(f"{compared.name}: cannot be compared", _HINT_COMPARED)
        held_there = selection.select(other.scenes)
        messages |= dict.fromkeys(selected - held_there, f"this scene is in {place.name} only")
        messages |= dict.fromkeys(held_there - selected, f"this scene is in {other.name} only")
        selected &= held_there
    if not selected and not messages and not selection.has_all:
        raise UsageError(f"{place.name}: has none of the selected scenes", _HINT_SELECTION)

    checked = sorted(selected)[: selection.limit]
    size_bytes = sum(place.scenes[scene_id].size_bytes for scene_id in checked)
    tasks = [CheckTask(scene_id, place.name) for scene_id in checked]
    if other is None and selection.has_all:
        tasks.insert(0, CheckTask("", place.name))
    findings = [
        Finding(message=message, subject=place.name, scene_id=scene_id)
        for scene_id, message in messages.items()
    ]
    changes = Counter[str]()
    # Reading an archive keeps a thread as busy as a process.
    has_threads = place.kind == "archive" or size_bytes < _SMALL_BYTES
    executor = ThreadPoolExecutor(jobs) if has_threads else None
    with progress.work("verify", len(checked), "scenes"):
        for task, outcome in run_tasks(_check, tasks, (place, other), jobs, executor):
            if isinstance(outcome, Finding):
                findings.append(outcome)
            else:
                findings += outcome[0]
                changes += outcome[1]
            progress.advance(bool(task.scene_id))
    damaged = {finding.scene_id for finding in findings if finding.is_error}
    return VerifyReport(
        path=place.name,
        kind=place.kind,
        scenes=len(checked),
        size_bytes=size_bytes,
        splits=_count_official(place.scenes, selection),
        damaged_scenes=tuple(sorted(damaged - {""})),
        classes=dict(changes.most_common()),
        findings=tuple(sorted(dict.fromkeys(findings))),
    )


def _check(task: CheckTask, places: tuple[Any, Any]) -> tuple[list[Finding], Counter[str]]:
    """Check or compare one scene, or check the rest, in a worker."""
    place, other = places
    scene_id, source = task
    if other is None:
        findings = place.verify(scene_id) if scene_id else place.verify_rest()
        return findings, Counter()
    here = place.read(scene_id)
    there = other.read(scene_id)
    findings = [
        Finding(message=message, subject=source, scene_id=scene_id)
        for message in _iter_differences(here, there)
    ]
    return findings, _count_changes(here, there)


def _iter_differences(here: ProcessedScene, there: ProcessedScene) -> Iterator[str]:
    """Describe each array that differs, by its first different row in both copies; then `meta`."""
    arrays = here.arrays()
    others = there.arrays()
    del arrays["meta"], others["meta"]
    for key in arrays | others:
        array = arrays.get(key)
        other = others.get(key)
        if array is None or other is None:
            yield f"{key}: only {'there' if array is None else 'here'}"
            continue
        if (array.dtype, array.shape) != (other.dtype, other.shape):
            yield f"{key}: {array.dtype} {array.shape}, there {other.dtype} {other.shape}"
            continue
        rows = np.nonzero(array != other)[0]
        # Each row once. They are sorted, which np.unique does not use: it takes 20 times as long.
        rows = rows[np.diff(rows, prepend=-1) > 0]
        if len(rows):
            first = rows[0]
            counts = f"{len(rows):,} of {len(array):,} rows differ"
            values = f"{array[first]}, there {other[first]}"
            yield f"{key}: {counts}, first row {first}: {values}"
    meta = here.meta.to_json()
    other_meta = there.meta.to_json()
    # A key that is left out has its default value.
    keys = {key for key in meta | other_meta if meta.get(key) != other_meta.get(key)}
    keys -= _NOT_COMPARED
    if keys:
        yield f"meta: other {', '.join(sorted(keys))}"


def _count_changes(here: ProcessedScene, there: ProcessedScene) -> Counter[str]:
    """Count the vertices whose class differs, by both classes, such as `wall -> floor`."""
    label_set = here.meta.options.label_set
    labels = here.stored_labels
    others = there.stored_labels
    if there.meta.options.label_set != label_set or labels.shape != others.shape:
        return Counter()
    names = np.array(["unlabeled", *label_set.names])
    pairs = np.stack([labels, others], axis=1)[labels != others]
    return Counter(map(" -> ".join, names[pairs]))


def _count_official(
    scenes: Mapping[str, PlaceScene], selection: Selection
) -> dict[str, dict[str, int]]:
    """Count the scenes of the official lists, and how many of them a place has, by split."""
    counts = {}
    for split in selection.splits or Split:
        official = official_scenes(split)
        present = scenes.keys() & official
        counts[str(split)] = {"present": len(present), "official": len(official)}
    return counts
