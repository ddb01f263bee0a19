"""Checks a raw or a processed tree, an export, or archives.

Every file by itself, files against each other, and the tree against the splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.archive.layout import ArchiveKind
from scannet_prep.archive.source import Place
from scannet_prep.errors import UnknownSplitError
from scannet_prep.export import is_export
from scannet_prep.progress import Progress
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import official_scenes
from scannet_prep.stages.finding import CheckReport, CheckTask, Findings, look_at_scenes, sort_findings
from scannet_prep.stages.selection import Selection
from scannet_prep.stages.verify.archive import ArchivesReport, check_archives
from scannet_prep.stages.verify.export import check_exported_scene, plan_export
from scannet_prep.stages.verify.processed import check_processed_scene, plan_processed
from scannet_prep.stages.verify.raw import check_raw_scene, plan_raw
from scannet_prep.tree import find_folder, identify_tree


@dataclass(frozen=True, slots=True)
class TreeReport(CheckReport):
    """What a check of a raw or a processed tree found.

    Attributes:
        splits: Of each split, how many of its official scenes are `present`, and how many there are (`official`).
    """

    splits: Mapping[str, Mapping[str, int]] = field(hash=False)

    @property
    def counts(self) -> str:
        """How many of the official scenes are there, in words."""
        return ", ".join(f"{name} {row['present']:,} of {row['official']:,}" for name, row in self.splits.items())


def run(
    places: Sequence[Place],
    *,
    selection: Selection | None = None,
    must_be_complete: bool = False,
    certificates: bool | Path = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> TreeReport | ArchivesReport:
    """Check what is there. Whatever is wrong with a file is a finding, and the check goes on.

    Args:
        places: A raw or a processed tree, or an export; or archives, of which several count as the shards of one:
            paths, addresses, or objects that read the bytes.
        selection: Which scenes; all by default.
        must_be_complete: Whether a scene of the official lists that is not there is an error.
        certificates: Of addresses, whom to trust, as `RangeSource` takes it.
        jobs: Number of worker processes, or of threads for archives.
        progress: Told of every scene, or of the tar bytes of archives.

    Raises:
        MissingFileError: It is not such a tree.
        FileError: It cannot be looked into.
        UsageError: Several folders.
        UnknownSceneError: The selection contradicts itself.
        UnknownSplitError: There are no scenes of the splits that were asked for.
        WorkerDiedError: Worker processes cannot be started.
        ScanNetPrepError: Of archives, what `ArchiveSet` raises.
    """
    selection, findings = selection or Selection(), Findings()
    if (path := find_folder(places)) is None:
        return check_archives(places, selection, must_be_complete, certificates, jobs, progress or Progress())
    kind = "export" if is_export(path) else str(identify_tree(path))
    tasks: tuple[CheckTask, ...]
    present: Mapping[SceneId, Split | None]
    look: Any = check_processed_scene
    label_map = None
    if kind == ArchiveKind.RAW:
        look = check_raw_scene
        tasks, present, label_map = plan_raw(path, selection, findings)
    elif kind == "export":
        look = check_exported_scene
        tasks, present = plan_export(path, selection, findings)
    else:
        tasks, present = plan_processed(path, selection, findings)
    splits = _compare_with_lists(path, selection, present, findings, must_be_complete=must_be_complete)
    if not (tasks or findings.found):
        # To check nothing and find nothing wrong would not be a check.
        raise UnknownSplitError(f"{path}: holds no scenes of the splits {', '.join(splits)}", "choose other splits")
    checked, found = look_at_scenes(look, tasks, label_map, title="verify", jobs=jobs, progress=progress)
    return TreeReport(
        path=path,
        kind=kind,
        scenes=len(tasks),
        vertices=sum(vertex_count for vertex_count, _ in checked.values()),
        size_bytes=sum(size_bytes for _, size_bytes in checked.values()),
        splits=splits,
        findings=sort_findings([*findings.found, *found]),
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
