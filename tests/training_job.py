"""A training job for torchrun, which notes what each rank does. Run by tests/test_distributed.py."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import torch
from sample_transforms import die_on_third_scene
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from scannet_prep import EvalSampler, PointBudgetBatchSampler, ScanNet, collate_torch
from scannet_prep.transforms import Compose, CropPoints, Flip, GridSample, Jitter, Normalize, RotateZ

MAX_POINTS = 1600
EPOCHS = 3
TRANSFORM = Compose(
    RotateZ(), Flip(), Jitter(), Normalize(), GridSample(0.05, has_inverse=False), CropPoints(400)
)  # fmt: skip


def train(folder: Path, out_dir: Path, die_in: str, die_at: tuple[int, int] | None) -> None:
    transform = die_on_third_scene if die_in == "worker" else TRANSFORM
    dataset = ScanNet(folder, split="train", transform=transform)
    sampler = PointBudgetBatchSampler(dataset.lengths, max_points=MAX_POINTS, seed=5)
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    assert (sampler.rank, sampler.world_size) == (rank, world_size)
    loader = DataLoader(
        dataset, batch_sampler=sampler, collate_fn=collate_torch, num_workers=2, persistent_workers=True
    )  # fmt: skip
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 20).double()
    checkpoint_path = out_dir / "checkpoint.pt"
    if checkpoint_path.exists():
        checkpoint = torch.load(checkpoint_path)
        model.load_state_dict(checkpoint["model"])
        sampler.load_state_dict(checkpoint["sampler"])
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (out_dir / f"rank{rank}.jsonl").open("a") as log:
        for epoch in range(sampler.epoch, EPOCHS):
            sampler.set_epoch(epoch)
            steps_done = 0
            for steps_done, batch in enumerate(loader, start=1):
                optimizer.zero_grad()
                scores = parallel(torch.cat([batch["points"], batch["colors"]], dim=1).double())
                torch.nn.functional.cross_entropy(scores, batch["labels"], ignore_index=-1).backward()
                optimizer.step()
                line = {"epoch": epoch, "scenes": batch["scene_ids"]}
                log.write(json.dumps(line) + "\n")
                log.flush()
                if rank == 0:
                    state = {"model": model.state_dict(), "sampler": sampler.state_dict(steps_done=steps_done)}
                    torch.save(state, out_dir / "new.pt")
                    (out_dir / "new.pt").replace(checkpoint_path)
                distributed.barrier()
                if die_at == (epoch, steps_done) and rank == world_size - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
            counts: list[int] = [0] * world_size
            distributed.all_gather_object(counts, steps_done)
            if len(set(counts)) > 1:
                sys.exit(f"ranks have different numbers of steps: {counts}")
    seen = [dataset.scene_ids[index] for index in EvalSampler(dataset.lengths)]
    everything: list[list[str]] = [[]] * world_size
    distributed.all_gather_object(everything, seen)
    if rank == 0:
        torch.save(model.state_dict(), out_dir / "final.pt")
        (out_dir / "evaluated.json").write_text(json.dumps(everything))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--die-in", default="", choices=["", "worker"])
    parser.add_argument("--die-at", nargs=2, type=int)
    arguments = parser.parse_args()
    distributed.init_process_group("gloo")
    die_at = tuple(arguments.die_at) if arguments.die_at else None
    train(arguments.folder, arguments.out_dir, arguments.die_in, die_at)  # type: ignore[arg-type]
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
