"""Trains and evaluates under Lightning or accelerate on two ranks, and notes what each rank saw.

Run by tests/test_frameworks.py, with torchrun.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from scannet_prep import EvalSampler, PointBudgetBatchSampler, ScanNet, collate_torch

FOLDER, OUT = sys.argv[2:4]


def train_loader() -> Any:
    dataset = ScanNet(FOLDER, split="train")
    sampler = PointBudgetBatchSampler(dataset.lengths, max_points=1600)
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate_torch)


def evaluation_loader() -> Any:
    dataset = ScanNet(FOLDER, split="train")
    return DataLoader(dataset, sampler=EvalSampler(dataset.lengths), collate_fn=collate_torch)


def lightning(**options: Any) -> None:
    import lightning

    seen: list[Any] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 20)

        def note(self, kind: str, batch: Any) -> torch.Tensor:
            seen.append((kind, self.current_epoch, batch["scene_ids"]))
            return torch.nn.functional.cross_entropy(self.layer(batch["points"]), batch["labels"], ignore_index=-1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.note("train", batch)

        def validation_step(self, batch: Any, _: int) -> None:
            self.note("validate", batch)

        def predict_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.note("predict", batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, num_sanity_val_steps=0, **options,
    )  # fmt: skip
    module = Module()
    if not options:
        trainer.validate(module, evaluation_loader())
    trainer.fit(module, train_loader(), evaluation_loader())
    trainer.predict(module, evaluation_loader())
    Path(OUT, f"rank{trainer.global_rank}.json").write_text(json.dumps(seen))


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    for make in (train_loader, evaluation_loader):
        try:
            list(accelerator.prepare(make()))
        except ValueError as error:
            print(f"rank {accelerator.process_index}: {error}\nhint: {error.hint}", flush=True)  # type: ignore[attr-defined]


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    kind = sys.argv[1]
    if kind == "accelerate":
        accelerate()
    else:
        lightning(**({"use_distributed_sampler": False} if kind == "lightning" else {}))
