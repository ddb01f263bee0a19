"""Checks a raw or a processed tree: every file by itself, files against each other, and the tree against the splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.errors import UnknownSplitError, UsageError
from scannet_prep.labels import LabelMap
from scannet_prep.processed.folder import processed_path
from scannet_prep.progress import Progress
from scannet_prep.release import SPLIT_DIRS
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.finding import CheckReport, CheckTask, Finding, Findings, look_at_scenes, sort_findings
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.tree import TreeKind, identify_tree
from scannet_prep.stages.verify.processed import check_processed_scene, plan_processed
from scannet_prep.stages.verify.raw import plan_raw
from scannet_prep.stages.verify.raw_scene import check_raw_scene


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """What `run` is going to check; making it opens no scene.

    Attributes:
        path: The tree.
        kind: What it is.
        tasks: Scenes to check.
        label_map: Of a raw tree; None for a processed one.
        missing: The official scenes of each split that are not there.
        compared_files: How many files are going to be compared with another copy; None where there is none.
        findings: What is wrong before a scene is opened.
    """

    path: Path
    kind: TreeKind
    tasks: tuple[CheckTask, ...]
    label_map: LabelMap | None
    missing: dict[Split, list[SceneId]] = field(hash=False)
    compared_files: int | None
    findings: tuple[Finding, ...]


def plan(
    path: Path, *, selection: Selection | None = None, must_be_complete: bool = False, against: Path | None = None
) -> VerifyPlan:
    """Decide what to check.

    Args:
        path: A raw or a processed tree.
        selection: Which scenes; all by default.
        must_be_complete: Whether a scene of the official lists that is not there is an error.
        against: The `scannet.lock` of another copy of a raw tree, to compare with.

    Raises:
        MissingFileError: It is no such tree.
        FileError: It cannot be looked into.
        UsageError: Only some scenes, and yet complete.
        UnknownSceneError: The selection contradicts itself.
        UnknownSplitError: There are no scenes of the splits that were asked for.
    """
    selection, findings = selection or Selection(), Findings()
    if must_be_complete and not selection.has_whole_splits:
        raise UsageError("a part of the scenes cannot be complete", "leave out --complete, or --scenes and --limit")
    kind = identify_tree(path)
    tasks: tuple[CheckTask, ...]
    present: Mapping[SceneId, Split | None]
    label_map: LabelMap | None = None
    compared_files: int | None = None
    if kind is TreeKind.RAW:
        tasks, present, label_map, compared_files = plan_raw(path, selection, against, findings)
    elif against is not None:
        raise UsageError(f"{path}: is not a raw tree, and only such a tree has digests to compare")
    else:
        tasks, present = plan_processed(path, selection, findings)
    missing = {
        split: [name for name in official_scenes(split) if present.get(name) is not split]
        for split in Split
        if not selection.splits or split in selection.splits
    }
    for split, names in missing.items() if selection.has_whole_splits else ():
        if must_be_complete:
            _tell_missing(path, kind, split, names, findings)
        elif 0 < len(names) < len(official_scenes(split)):
            total = len(official_scenes(split))
            findings.note(path, f"holds {total - len(names):,} of the {total:,} {split} scenes")
    if not (tasks or findings.found):
        # To check nothing and find nothing wrong would not be a check.
        raise UnknownSplitError(f"{path}: holds no scenes of the splits {', '.join(missing)}", "choose other splits")
    return VerifyPlan(path, kind, tasks, label_map, missing, compared_files, tuple(findings.found))


def run(plan: VerifyPlan, *, jobs: int = 1, progress: Progress | None = None) -> CheckReport:
    """Check the scenes of a plan. Whatever is wrong with a file is a finding, and the check goes on.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Told of every scene.

    Raises:
        WorkerDiedError: Worker processes cannot be started.
    """
    look: Any = check_raw_scene if plan.kind is TreeKind.RAW else check_processed_scene
    checked, found = look_at_scenes(look, plan.tasks, plan.label_map, title="verify", jobs=jobs, progress=progress)
    totals = {split: len(official_scenes(split)) for split in plan.missing}
    return CheckReport(
        path=plan.path,
        kind=str(plan.kind),
        scenes=len(plan.tasks),
        vertices=sum(vertex_count for vertex_count, _ in checked.values()),
        size_bytes=sum(size_bytes for _, size_bytes in checked.values()),
        splits={
            str(split): {"present": totals[split] - len(names), "official": totals[split]}
            for split, names in plan.missing.items()
        },
        compared_files=plan.compared_files,
        findings=sort_findings([*plan.findings, *found]),
    )


def _tell_missing(path: Path, kind: TreeKind, split: Split, names: list[SceneId], findings: Findings) -> None:
    told = {finding.scene_id for finding in findings.found if finding.is_error}
    for name in names:
        if name not in told and kind is TreeKind.RAW:
            findings.error(path / SPLIT_DIRS[split] / name, "no such scene", "download it", scene_id=name)
        elif name not in told:
            findings.error(processed_path(path, split, name), "no such scene", "process it", scene_id=name)
