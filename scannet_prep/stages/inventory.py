"""What is in a raw or a processed tree."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from scannet_prep.progress import Progress
from scannet_prep.stages.inventory_processed import ProcessedInventory, ProcessedPlan, plan_processed, run_processed
from scannet_prep.stages.inventory_raw import RawInventory, RawPlan, plan_raw, run_raw
from scannet_prep.stages.tree import TreeKind, identify_tree

InventoryPlan: TypeAlias = RawPlan | ProcessedPlan
Inventory: TypeAlias = RawInventory | ProcessedInventory


def plan(path: Path) -> InventoryPlan:
    """Decide what has to be read.

    Raises:
        MissingFileError: It is neither a raw nor a processed tree.
        FileError: It cannot be looked into.
    """
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
    if isinstance(plan, RawPlan):
        return run_raw(plan, jobs=jobs, progress=progress)
    return run_processed(plan, jobs=jobs, progress=progress)
