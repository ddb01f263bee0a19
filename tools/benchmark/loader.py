"""Part `loader`: vertices per second through PyTorch's loader, and balance of batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, DistributedSampler
from usage import run_ours

from benchmark.process import load_npz
from benchmark.scenes import make_processed
from benchmark.timing import time_alternately
from scannet_prep import PointBudgetBatchSampler, ScanNet, collate_torch
from scannet_prep.transforms import (
    ColorJitter,
    Compose,
    CropPoints,
    Flip,
    GridSample,
    Normalize,
    Rotate,
)

_MAX_POINTS = 600_000
_WORKERS = 2
_STEPS = [
    Rotate(),
    Flip(),
    ColorJitter(),
    Normalize(),
    GridSample(0.02, has_inverse=False),
    CropPoints(100_000),
]
# The train split: number of scenes, and their numbers of vertices, which are about log-normal.
_SCENES = 1201
_MEAN_VERTICES = 149_000
_MAX_VERTICES = 550_000
_EPOCHS = 100
_FIXED_BATCH = 4


def measure(
    folder: Path, scene_count: int, vertex_count: int, repeat: int
) -> Iterator[tuple[str, str]]:
    """Measure everything."""
    scene_ids = make_processed(folder, 2 * scene_count, vertex_count)
    paths = [folder / f"processed/train/{scene_id}.npz" for scene_id in scene_ids]
    archive = folder / "scannet.tar.zst"
    run_ours("pack", folder / "processed", "-o", archive)
    epochs = {"a plain loop over np.load": lambda: [load_npz(path) for path in paths]}
    for title, place in (("folder", folder / "processed"), ("archive", archive)):
        epochs[title] = _make_epoch(place)
        epochs[f"{title}, with transforms"] = _make_epoch(place, Compose(*_STEPS))
    for title, seconds in time_alternately(epochs, repeat, of_cpu=False).items():
        rate = len(paths) * vertex_count / seconds / 1e6
        yield title, f"{rate:.1f} million vertices per second"

    for ranks in (4, 8):
        lengths = _draw_lengths()
        ours = [list(_plan(lengths, rank, ranks)) for rank in range(ranks)]
        fixed = [list(_plan_fixed(lengths, rank, ranks)) for rank in range(ranks)]
        yield f"imbalance, {ranks} ranks", f"{_find_imbalance(ours):.4f}"
        yield f"imbalance of DistributedSampler, {ranks} ranks", f"{_find_imbalance(fixed):.2f}"


def _make_epoch(place: Path, transform: Any = None) -> Any:  # noqa: ANN401 - a function
    """Make a function that loads all scenes once, in batches of tensors."""
    dataset = ScanNet(place, split="train", transform=transform)
    sampler = PointBudgetBatchSampler(dataset, max_points=_MAX_POINTS, rank=0, world_size=1)
    loader: Any = DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=collate_torch,
        num_workers=_WORKERS,
        persistent_workers=True,
    )
    epochs = iter(range(1_000_000))

    def load() -> None:
        sampler.set_epoch(next(epochs))
        for _ in loader:
            pass

    return load


def _draw_lengths() -> NDArray[np.int64]:
    """Draw numbers of vertices with the mean and the maximum of the train split."""
    sizes = np.random.default_rng(0).lognormal(0, 0.6, _SCENES)
    # Clipping changes the mean, so scale and clip until both fit.
    for _ in range(50):
        sizes = np.clip(sizes * _MEAN_VERTICES / sizes.mean(), 5_000, _MAX_VERTICES)
    return sizes.astype(np.int64)


def _plan(lengths: NDArray[np.int64], rank: int, ranks: int) -> Iterator[int]:
    """Yield the number of vertices in each batch of a rank."""
    dataset: Any = SimpleNamespace(lengths=lengths)
    sampler = PointBudgetBatchSampler(dataset, max_points=_MAX_POINTS, rank=rank, world_size=ranks)
    for epoch in range(_EPOCHS):
        sampler.set_epoch(epoch)
        for batch in sampler:
            yield int(lengths[[index for index, _ in batch]].sum())


def _plan_fixed(lengths: NDArray[np.int64], rank: int, ranks: int) -> Iterator[int]:
    """Yield the number of vertices in each batch of a rank, all with the same number of scenes."""
    sampler: Any = DistributedSampler(lengths, num_replicas=ranks, rank=rank)
    for epoch in range(_EPOCHS):
        sampler.set_epoch(epoch)
        scenes = list(sampler)
        for start in range(0, len(scenes), _FIXED_BATCH):
            yield int(lengths[scenes[start : start + _FIXED_BATCH]].sum())


def _find_imbalance(loads_by_rank: list[list[int]]) -> float:
    """Return the largest batch of a step relative to the mean over its ranks, on average."""
    loads = np.array(loads_by_rank)
    return float((loads.max(axis=0) / loads.mean(axis=0)).mean())
