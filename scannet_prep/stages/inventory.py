"""What is in a raw or a processed tree, or in archives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from scannet_prep.errors import UsageError
from scannet_prep.progress import Progress
from scannet_prep.stages.inventory_archive import (
    ArchiveInventory,
    ArchiveInventoryPlan,
    plan_archives,
    run_archives,
)
from scannet_prep.stages.inventory_processed import ProcessedInventory, ProcessedPlan, plan_processed, run_processed
from scannet_prep.stages.inventory_raw import RawInventory, RawPlan, plan_raw, run_raw
from scannet_prep.stages.tree import TreeKind, identify_tree, is_archive

InventoryPlan: TypeAlias = RawPlan | ProcessedPlan | ArchiveInventoryPlan
Inventory: TypeAlias = RawInventory | ProcessedInventory | ArchiveInventory


def plan(paths: Sequence[Path]) -> InventoryPlan:
    """Decide what has to be read.

    Args:
        paths: A raw or a processed tree; or an archive, or several that count as the shards of one.

    Raises:
        MissingFileError: It is neither a raw nor a processed tree, nor an archive.
        ArchiveError: An archive is truncated, damaged at its end, or was written by something else.
        FileError: It cannot be looked into.
        UsageError: Several folders.
    """
    if any(map(is_archive, paths)):
        return plan_archives(paths)
    if len(paths) != 1:
        raise UsageError("one folder can be told of at a time", "name one folder, or several archives")
    (path,) = paths
    return plan_raw(path) if identify_tree(path) is TreeKind.RAW else plan_processed(path)


def run(plan: InventoryPlan, *, jobs: int = 1, progress: Progress | None = None) -> Inventory:
    """Read it.

    Args:
        plan: From `plan`.
        jobs: Number of worker processes.
        progress: Told of every scene.

    Raises:
        WorkerDiedError: Worker processes cannot be started.
    """
    if isinstance(plan, ArchiveInventoryPlan):
        return run_archives(plan)
    if isinstance(plan, RawPlan):
        return run_raw(plan, jobs=jobs, progress=progress)
    return run_processed(plan, jobs=jobs, progress=progress)
