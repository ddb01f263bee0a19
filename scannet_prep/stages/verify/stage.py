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
from scannet_prep.stages.finding import (
    CheckedScene,
    CheckReport,
    CheckTask,
    Finding,
    Findings,
    look_at_scenes,
    sort_findings,
)
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
        counts: What is known before a scene is opened: `splits`, and `compared_files` where there is another copy.
        findings: What is wrong before a scene is opened.
    """

    path: Path
    kind: TreeKind
    tasks: tuple[CheckTask, ...]
    label_map: LabelMap | None
    counts: Mapping[str, Any] = field(hash=False)
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
    if against is not None and kind is not TreeKind.RAW:
        raise UsageError(f"{path}: is not a raw tree, and only such a tree has digests to compare")
    label_map, counts = None, dict[str, Any]()
    tasks: tuple[CheckTask, ...]
    if kind is TreeKind.RAW:
        raw = plan_raw(path, selection, against, findings)
        tasks, present, label_map = raw.tasks, raw.present, raw.label_map
        counts |= {} if against is None else {"compared_files": raw.compared_count}
    else:
        tasks, present = plan_processed(path, selection, findings)
    splits = [split for split in Split if not selection.splits or split in selection.splits]
    missing = {split: [name for name in official_scenes(split) if present.get(name) is not split] for split in splits}
    if must_be_complete:
        _tell_missing(path, kind, missing, findings)
    elif selection.has_whole_splits:
        for split, names in missing.items():
            count = len(official_scenes(split))
            if 0 < len(names) < count:
                findings.note(path, f"holds {count - len(names):,} of the {count:,} {split} scenes")
    if not (tasks or findings.found):
        # To check nothing and find nothing wrong would not be a check.
        hint = "leave out the splits, or choose others"
        raise UnknownSplitError(f"{path}: holds no scenes of the splits {', '.join(splits)}", hint)
    counts["splits"] = {
        str(split): {"present": len(official_scenes(split)) - len(names), "official": len(official_scenes(split))}
        for split, names in missing.items()
    }
    return VerifyPlan(path, kind, tasks, label_map, counts, tuple(findings.found))


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
    checked: dict[SceneId, CheckedScene]
    checked, found = look_at_scenes(look, plan.tasks, plan.label_map, title="verify", jobs=jobs, progress=progress)
    counts = {
        "scenes": len(plan.tasks),
        "vertices": sum(item.vertex_count for item in checked.values()),
        "size_bytes": sum(item.size_bytes for item in checked.values()),
        **plan.counts,
    }
    return CheckReport(plan.path, str(plan.kind), counts, sort_findings([*plan.findings, *found]))


def _tell_missing(path: Path, kind: TreeKind, missing: Mapping[Split, list[SceneId]], findings: Findings) -> None:
    told = {finding.scene_id for finding in findings.found if finding.is_error}
    for split, names in missing.items():
        for name in names:
            if name in told:
                continue
            if kind is TreeKind.RAW:
                findings.error(path / SPLIT_DIRS[split] / name, "no such scene", "download it", scene_id=name)
            else:
                findings.error(processed_path(path, split, name), "no such scene", "process it", scene_id=name)
