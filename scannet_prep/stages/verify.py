"""Check a place: each scene in a worker process, and what concerns the place as a whole.

open_place --> Place.verify for each scene, Place.verify_rest --> findings
           --> the official lists                             --> findings
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.base.findings import Finding, sort_findings
from scannet_prep.base.progress import Progress
from scannet_prep.base.workers import run_tasks
from scannet_prep.errors import UsageError
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.source.place import open_place
from scannet_prep.source.scenes import Place
from scannet_prep.stages.selection import Selection


@dataclass(frozen=True, slots=True)
class CheckTask:
    """A scene to check, or with an empty id what `Place.verify_rest` checks.

    Attributes:
        scene_id: The scene.
        source: Its place, for messages.
    """

    scene_id: str
    source: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a check.

    Attributes:
        path: The place: its path or address.
        kind: `raw`, `processed`, `frames` or `archive`.
        scenes: Number of scenes that were checked.
        size_bytes: Size of their files.
        splits: For each split, how many of its official scenes are `present`, and how many there
            are (`official`).
        damaged_scenes: The scenes with errors, sorted.
        findings: Errors first, then by scene and file.
    """

    path: str
    kind: str
    scenes: int
    size_bytes: int
    splits: Mapping[str, Mapping[str, int]] = field(hash=False)
    damaged_scenes: tuple[str, ...]
    findings: tuple[Finding, ...]


def run(
    path: str | Path,
    *,
    selection: Selection | None = None,
    must_be_complete: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check a place. A fault in a file becomes a finding and does not stop the check.

    Args:
        path: A raw tree, a processed folder, extracted frames, or an archive.
        selection: The scenes to check. By default all, and the files that belong to no scene.
        must_be_complete: Whether a missing scene of the official lists is an error.
        jobs: Number of worker processes.
        progress: Advanced by each scene.

    Raises:
        UsageError: `must_be_complete` is combined with a selection of single scenes, or there is
            nothing to check.
        WorkerDiedError: Worker processes cannot be started.
        ScanNetPrepError: As `open_place`.
    """
    selection = selection or Selection()
    progress = progress or Progress()
    are_single = selection.scene_ids is not None or selection.limit is not None
    if must_be_complete and are_single:
        raise UsageError(
            "a selection of single scenes cannot be complete",
            "leave out --complete, or leave out --scenes and --limit",
        )
    place = open_place(path)
    splits = place.splits
    selected = selection.select(splits)
    checked = sorted(selected)[: selection.limit]
    tasks = [CheckTask(scene_id, place.name) for scene_id in checked]
    if selection.has_all:
        tasks.insert(0, CheckTask("", place.name))

    failed = {name for name in place.failures if selection.selects_id(name)}
    absent = set(selection.scene_ids or ()) - selected - failed
    counts = {}
    for split in selection.splits or Split:
        official = official_scenes(split)
        missing = {name for name in official if splits.get(name) != split}
        counts[str(split)] = {"present": len(official) - len(missing), "official": len(official)}
        if must_be_complete:
            absent |= missing - failed
    findings = []
    for scene_id in failed:
        message = f"this scene failed: {place.failures[scene_id]}"
        findings.append(Finding(message=message, subject=place.name, scene_id=scene_id))
    for scene_id in absent:
        message = "no such scene, or not in the selected splits"
        findings.append(Finding(message=message, subject=place.name, scene_id=str(scene_id)))
    if not tasks and not findings:
        raise UsageError(f"{place.name}: holds no scenes of {', '.join(counts)}", "check --splits")
    with progress.work("verify", len(tasks), "scenes"):
        for _, outcome in run_tasks(_verify, tasks, place, jobs):
            findings += [outcome] if isinstance(outcome, Finding) else outcome
            progress.advance()
    damaged = {finding.scene_id for finding in findings if finding.is_error}
    return VerifyReport(
        path=place.name,
        kind=place.kind,
        scenes=len(checked),
        size_bytes=sum(place.scenes[scene_id].size_bytes for scene_id in checked),
        splits=counts,
        damaged_scenes=tuple(sorted(damaged - {""})),
        findings=sort_findings(findings),
    )


def _verify(task: CheckTask, place: Place) -> list[Finding]:
    """Check one scene, or the rest, in a worker."""
    if task.scene_id:
        return place.verify(task.scene_id)
    return place.verify_rest()
