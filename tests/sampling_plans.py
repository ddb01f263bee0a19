"""Samplers of all ranks together, lengths like ScanNet's, and problems for hypothesis."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import strategies as st

from scannet_prep import PointBudgetBatchSampler

Step = list[list[int]]  # the batch of each rank


def make_sampler(lengths: Any, rank: int = 0, world_size: int = 1, **options: Any) -> PointBudgetBatchSampler:
    return PointBudgetBatchSampler(lengths, rank=rank, world_size=world_size, **options)


def all_samplers(lengths: Any, world_size: int, **options: Any) -> list[PointBudgetBatchSampler]:
    return [make_sampler(lengths, rank, world_size, **options) for rank in range(world_size)]


def steps_of(samplers: list[PointBudgetBatchSampler]) -> list[Step]:
    """What all ranks get, step by step; fails where one has more steps than another."""
    batches = [[[index for index, _ in batch] for batch in sampler] for sampler in samplers]
    return [list(step) for step in zip(*batches, strict=True)]


def count_scenes(steps: list[Step]) -> Counter[int]:
    return Counter(scene for step in steps for batch in step for scene in batch)


def check_batches(steps: list[Step], lengths: Any, max_points: int, max_scenes: int | None = None) -> None:
    for step in steps:
        for batch in step:
            assert batch
            assert len(set(batch)) == len(batch)
            assert sum(lengths[scene] for scene in batch) <= max_points or len(batch) == 1
            assert max_scenes is None or len(batch) <= max_scenes


def realistic_lengths(seed: int = 0, count: int = 1201) -> Any:
    """Log-normal, mean 149,000, at most 550,000, as in the train split."""
    sizes = np.random.default_rng(seed).lognormal(0, 0.6, count)
    for _ in range(50):
        sizes = np.clip(sizes * 149_000 / sizes.mean(), 5_000, 550_000)
    return sizes.astype(np.int64)


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    """Lengths, limits and ranks, with many ties, scenes above the budget, and just enough scenes."""
    world_size = draw(st.integers(1, 9))
    sizes = st.one_of(st.integers(0, 100), st.sampled_from([1, 33, 34, 50, 51, 99, 100, 101, 500]))
    return {
        "lengths": draw(st.lists(sizes, min_size=world_size, max_size=60)),
        "max_points": draw(st.sampled_from([1, 50, 100, 101, 150, 1000, 10_000])),
        "max_scenes": draw(st.sampled_from([None, 1, 2, 3, 7])),
        "world_size": world_size,
        "seed": draw(st.integers(0, 3)),
        "shuffle": draw(st.booleans()),
    }
