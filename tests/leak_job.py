"""Goes through a loader for some epochs and notes what the processes hold. Run by tests/test_loader.py."""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from scannet_prep import PointBudgetBatchSampler, ScanNet, collate_torch
from scannet_prep.transforms import Compose, Flip, GridSample, RotateZ

EPOCHS = 4


def measure(pid: int | str) -> dict[str, Any]:
    """Descriptors, mapped files in /dev/shm, and private memory in MB of a process."""
    process_dir = Path(f"/proc/{pid}")
    rollup = (process_dir / "smaps_rollup").read_text().splitlines()
    private_kb = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))
    maps = [line.split(maxsplit=5)[-1] for line in (process_dir / "maps").read_text().splitlines()]
    return {
        "descriptors": len(list((process_dir / "fd").iterdir())),
        "shared": sorted({name for name in maps if name.startswith(("/dev/shm/", "/memfd:"))}),
        "private_mb": private_kb / 1024,
    }


def run(folder: str, persistent: bool, epochs: int = EPOCHS) -> dict[str, Any]:
    with ScanNet(folder, split="train", transform=Compose(RotateZ(), Flip(), GridSample(0.01))) as dataset:
        sampler = PointBudgetBatchSampler(dataset.lengths, max_points=int(dataset.lengths.max()))
        loader = DataLoader(
            dataset, batch_sampler=sampler, collate_fn=collate_torch, num_workers=2, persistent_workers=persistent
        )  # fmt: skip
        ours, theirs, running = [], [], []
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in loader:
                assert batch["points"].sum() != 0
                if epoch in {0, EPOCHS - 1}:
                    running += measure("self")["shared"]
            del batch
            gc.collect()
            ours.append(measure("self"))
            theirs.append([measure(child.pid or 0) for child in multiprocessing.active_children()])
        del loader
        gc.collect()
    return {"epochs": ours, "workers": theirs, "after": measure("self"), "running": sorted(set(running))}


def main() -> None:
    found = {}
    for workers in ("persistent", "fresh"):
        run(sys.argv[1], workers == "persistent", epochs=1)  # whatever is made once is made here
        before = measure("self")
        found[workers] = {"before": before, **run(sys.argv[1], workers == "persistent")}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
