"""Checks a raw or a processed tree, or an export.

Every file by itself, files against each other, and the tree against the splits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.errors import UnknownSplitError, UsageError
from scannet_prep.export import is_export
from scannet_prep.progress import Progress
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.finding import CheckReport, CheckTask, Findings, look_at_scenes, sort_findings
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.verify.export import check_exported_scene, plan_export
from scannet_prep.stages.verify.processed import check_processed_scene, plan_processed
from scannet_prep.stages.verify.raw import check_raw_scene, plan_raw
from scannet_prep.tree import identify_tree


@dataclass(frozen=True, slots=True)
class TreeReport(CheckReport):
    """What a check of a raw or a processed tree found.

    Attributes:
        splits: Of each split, how many of its official scenes are `present`, and how many there are (`official`).
        compared_files: How many files were compared with those of another copy; None where no comparison was wanted.
    """

    splits: Mapping[str, Mapping[str, int]] = field(hash=False)
    compared_files: int | None


def run(
    path: Path,
    *,
    selection: Selection | None = None,
    must_be_complete: bool = False,
    against: Path | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> TreeReport:
    """Check a tree. Whatever is wrong with a file is a finding, and the check goes on.

    Args:
        path: A raw or a processed tree, or an export.
        selection: Which scenes; all by default.
        must_be_complete: Whether a scene of the official lists that is not there is an error.
        against: The `scannet.lock` of another copy of a raw tree, to compare with.
        jobs: Number of worker processes.
        progress: Told of every scene.

    Raises:
        MissingFileError: It is not such a tree.
        FileError: It cannot be looked into.
        UsageError: `against` is for raw trees.
        UnknownSceneError: The selection contradicts itself.
        UnknownSplitError: There are no scenes of the splits that were asked for.
        WorkerDiedError: Worker processes cannot be started.
    """
    selection, findings = selection or Selection(), Findings()
    kind = "export" if is_export(path) else str(identify_tree(path))
    tasks: tuple[CheckTask, ...]
    present: Mapping[SceneId, Split | None]
    look: Any = check_processed_scene
    label_map, compared_files = None, None
    if kind == ArchiveKind.RAW:
        look = check_raw_scene
        tasks, present, label_map, compared_files = plan_raw(path, selection, against, findings)
    elif against is not None:
        hint = "scannet-prep report compares processed folders"
        raise UsageError(f"{path}: is not a raw tree, and only such a tree has digests to compare", hint)
    elif kind == "export":
        look = check_exported_scene
        tasks, present = plan_export(path, selection, findings)
    else:
        tasks, present = plan_processed(path, selection, findings)
    splits = _compare_with_lists(path, selection, present, findings, must_be_complete=must_be_complete)
    if not (tasks or findings.found):
        # To check nothing and find nothing wrong would not be a check.
        raise UnknownSplitError(f"{path}: holds no scenes of the splits {', '.join(splits)}", "choose other splits")
    checked = look_at_scenes(look, tasks, label_map, findings, title="verify", jobs=jobs, progress=progress)
    return TreeReport(
        path=path,
        kind=kind,
        scenes=len(tasks),
        vertices=sum(vertex_count for vertex_count, _ in checked.values()),
        size_bytes=sum(size_bytes for _, size_bytes in checked.values()),
        splits=splits,
        compared_files=compared_files,
        findings=sort_findings(findings.found),
    )


def _compare_with_lists(
    path: Path,
    selection: Selection,
    present: Mapping[SceneId, Split | None],
    findings: Findings,
    *,
    must_be_complete: bool,
) -> dict[str, dict[str, int]]:
    """Tell what is missing of the official splits; gives their numbers."""
    told, splits = {finding.scene_id for finding in findings.found if finding.is_error}, {}
    for split in selection.splits or tuple(Split):
        official = official_scenes(split)
        missing = [name for name in official if present.get(name) is not split]
        there = len(official) - len(missing)
        splits[str(split)] = {"present": there, "official": len(official)}
        if must_be_complete:
            for name in sorted(set(missing) - told):
                findings.error(path, "no such scene", scene_id=name)
        elif selection.has_whole_splits and 0 < there < len(official):
            findings.note(path, f"holds {there:,} of the {len(official):,} {split} scenes")
    return splits
