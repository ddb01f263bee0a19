"""Every scene once, over all ranks: for evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.sampling.lengths import check_lengths
from scannet_prep.sampling.ranks import find_place


class EvalSampler:
    """Gives each scene to exactly one rank, none twice, for `DataLoader(dataset, sampler=..., batch_size=...)`.

    Padding, which makes ranks even elsewhere, counts some scenes twice and so falsifies every mean. Here the ranks may
    differ by one scene: `len()` is this rank's number, `step_count` that of the longest. **A rank without work in the
    last step has simply finished**; with fewer scenes than ranks, some get none at all. So nothing in the loop may wait
    for the other ranks: call the model without `DistributedDataParallel` around it (`model.module`), which else
    exchanges buffers in every step, and add up the results after the loop (one `all_reduce` of the confusion matrix).

    The scenes of one step are of similar size, largest first, and the ranks get about the same number of vertices in
    all. The order is the same each time, and depends on the lengths alone.

    Args:
        lengths: Vertices of each scene, such as `dataset.lengths`.
        rank: As with `PointBudgetBatchSampler`.
        world_size: As with `PointBudgetBatchSampler`.

    Attributes:
        rank: As given or found.
        world_size: As given or found.
        step_count: Scenes of the ranks that have most.

    Raises:
        UsageError: An argument makes no sense, or there are several processes, and it cannot be known which rank this
            one is.
    """

    def __init__(self, lengths: ArrayLike, *, rank: int | None = None, world_size: int | None = None) -> None:
        checked = check_lengths(lengths)
        self._place = find_place(rank, world_size)
        self.rank, self.world_size = self._place.rank, self._place.world_size
        self.step_count = -(-len(checked) // self.world_size)
        self._scenes = _deal(checked, self.world_size)[self.rank]

    def __len__(self) -> int:
        """Scenes of this rank."""
        return len(self._scenes)

    def __iter__(self) -> Iterator[int]:
        """Give this rank's indices.

        Raises:
            UsageError: `torch.distributed` was initialized after the sampler was made, and says another rank.
        """
        self._place.check()
        yield from self._scenes.tolist()


def _deal(lengths: NDArray[np.int64], world_size: int) -> list[NDArray[np.int64]]:
    """Deal the scenes by size: in each round, the rank with the fewest vertices so far gets the largest."""
    order = np.argsort(-lengths, kind="stable")
    loads = np.zeros(world_size, np.int64)
    hands: list[list[int]] = [[] for _ in range(world_size)]
    for start in range(0, len(order), world_size):
        scenes = order[start : start + world_size]
        ranks = np.argsort(loads, kind="stable")[: len(scenes)]
        loads[ranks] += lengths[scenes]
        for rank, scene in zip(ranks.tolist(), scenes.tolist(), strict=True):
            hands[rank].append(scene)
    return [np.array(hand, np.int64) for hand in hands]
