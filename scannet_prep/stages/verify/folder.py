"""Checks a raw or a processed tree: every file by itself, files against each other, and the tree against the splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.errors import UnknownSplitError, UsageError, WorkerDiedError
from scannet_prep.processed.folder import processed_path
from scannet_prep.progress import NoProgress, Progress
from scannet_prep.release import SPLIT_DIRS
from scannet_prep.scene import Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.finding import CheckedScene, Finding, Findings, SceneTask
from scannet_prep.stages.pool import run_in_workers
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.tree import TreeKind, identify_tree
from scannet_prep.stages.verify.processed import ProcessedTree, find_mixture, plan_processed
from scannet_prep.stages.verify.processed_scene import check_processed_scene
from scannet_prep.stages.verify.raw import RawTree, plan_raw
from scannet_prep.stages.verify.raw_scene import check_raw_scene


@dataclass(frozen=True, slots=True)
class SplitCount:
    """How much of a split is there.

    Attributes:
        split: The split.
        present: Number of its official scenes in the tree.
        official: Number of scenes in the official list.
    """

    split: Split
    present: int
    official: int

    @property
    def text(self) -> str:
        """In words: `train 3 of 1,201`."""
        return f"{self.split} {self.present:,} of {self.official:,}"


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """What `run` is going to check; making it opens no scene.

    Attributes:
        path: The tree.
        tree: What is in it.
        splits: How much of each split is there.
        findings: What is known before a scene is opened.
    """

    path: Path
    tree: RawTree | ProcessedTree
    splits: tuple[SplitCount, ...]
    findings: tuple[Finding, ...]

    @property
    def kind(self) -> TreeKind:
        """What the tree is."""
        return TreeKind.RAW if isinstance(self.tree, RawTree) else TreeKind.PROCESSED


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `run` found.

    Attributes:
        path: The tree.
        kind: What it is.
        scene_count: Scenes that were checked.
        vertex_count: Their vertices.
        size_bytes: Size of the files that were read.
        splits: How much of each split is there.
        findings: Errors first, then by scene and file.
    """

    path: Path
    kind: TreeKind
    scene_count: int
    vertex_count: int
    size_bytes: int
    splits: tuple[SplitCount, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are wrong, not just worth knowing."""
        return tuple(finding for finding in self.findings if finding.is_error)

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return {
            "path": str(self.path),
            "kind": str(self.kind),
            "scenes": self.scene_count,
            "vertices": self.vertex_count,
            "size_bytes": self.size_bytes,
            "splits": {str(item.split): {"present": item.present, "official": item.official} for item in self.splits},
            "errors": len(self.errors),
            "notes": len(self.findings) - len(self.errors),
            "findings": [finding.to_json() for finding in self.findings],
        }


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
        UsageError: Some scenes only, and yet complete.
        UnknownSceneError: The selection contradicts itself.
        UnknownSplitError: There are no scenes of the splits that were asked for.
    """
    selection = selection or Selection()
    has_all_scenes = selection.scene_ids is None and selection.limit is None
    if must_be_complete and not has_all_scenes:
        raise UsageError("a part of the scenes cannot be complete", "leave out --complete, or --scenes and --limit")
    is_raw = identify_tree(path) is TreeKind.RAW
    if against is not None and not is_raw:
        raise UsageError(f"{path}: is no raw tree, and only such a tree has digests to compare", "leave out --against")
    tree: RawTree | ProcessedTree = plan_raw(path, selection, against) if is_raw else plan_processed(path, selection)
    splits = [split for split in Split if not selection.splits or split in selection.splits]
    findings = Findings()
    for split in splits if has_all_scenes else ():
        _check_completeness(path, tree, split, findings, must_be_complete=must_be_complete)
    if not (tree.tasks or tree.findings or findings.found):
        # To check nothing and find nothing wrong would be no check.
        hint = "leave out --splits, or choose others"
        raise UnknownSplitError(f"{path}: holds no scenes of the splits {', '.join(splits)}", hint)
    counts = tuple(
        SplitCount(split, len(tree.present[split].intersection(official_scenes(split))), len(official_scenes(split)))
        for split in splits
    )
    return VerifyPlan(path, tree, counts, (*tree.findings, *findings.found))


def run(plan: VerifyPlan, *, jobs: int = 1, progress: Progress | None = None) -> VerifyReport:
    """Check the scenes of a plan. Whatever is wrong with a file is a finding, and the check goes on.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Told of every scene.

    Raises:
        WorkerDiedError: Worker processes cannot be started.
    """
    progress = progress or NoProgress()
    findings = list(plan.findings)
    checked: list[CheckedScene] = []
    progress.start("verify", len(plan.tree.tasks), "scenes")
    try:
        for task, outcome in _check_scenes(plan.tree, jobs):
            if isinstance(outcome, WorkerDiedError):
                outcome = CheckedScene((Finding.from_exception(outcome, task.path, task.scene_id),))
            checked.append(outcome)
            findings += outcome.findings
            progress.advance()
    finally:
        progress.finish()
    mixture = find_mixture(plan.path, [item.options for item in checked if item.options is not None])
    if mixture is not None:
        findings.append(mixture)
    return VerifyReport(
        path=plan.path,
        kind=plan.kind,
        scene_count=len(checked),
        vertex_count=sum(item.vertex_count for item in checked),
        size_bytes=sum(item.size_bytes for item in checked),
        splits=plan.splits,
        findings=tuple(sorted(findings, key=lambda item: (item.severity, item.scene_id, item.path))),
    )


def _check_scenes(
    tree: RawTree | ProcessedTree, jobs: int
) -> Iterator[tuple[SceneTask, CheckedScene | WorkerDiedError]]:
    if isinstance(tree, RawTree):
        return run_in_workers(check_raw_scene, tree.tasks, tree.label_map, jobs=jobs)
    return run_in_workers(check_processed_scene, tree.tasks, None, jobs=jobs)


def _check_completeness(
    path: Path, tree: RawTree | ProcessedTree, split: Split, findings: Findings, *, must_be_complete: bool
) -> None:
    official = official_scenes(split)
    missing = [scene_id for scene_id in official if scene_id not in tree.present[split]]
    if not must_be_complete:
        present = len(official) - len(missing)
        if missing and present:
            findings.note(path, f"holds {present:,} of the {len(official):,} {split} scenes")
        return
    told = {finding.scene_id for finding in tree.findings if finding.is_error}
    for scene_id in missing:
        if scene_id in told:
            continue
        if isinstance(tree, RawTree):
            findings.error(path / SPLIT_DIRS[split] / scene_id, "no such scene", "download it", scene_id=scene_id)
        else:
            hint = "process it: scannet-prep process"
            findings.error(processed_path(path, split, scene_id), "no such scene", hint, scene_id=scene_id)
