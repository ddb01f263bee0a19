"""Every scene once, over all ranks: for evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from scannet_prep.sampling.packing import check_lengths
from scannet_prep.sampling.ranks import RankInfo


class EvalSampler:
    """Gives each scene to exactly one rank, none twice, for `DataLoader(dataset, sampler=..., batch_size=...)`.

    Padding, which makes ranks even elsewhere, counts some scenes twice, which makes every mean wrong. Here the ranks may
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
        self._rank_info = RankInfo.find(rank, world_size)
        self.rank, self.world_size = self._rank_info.rank, self._rank_info.world_size
        self.step_count = -(-len(checked) // self.world_size)
        order = np.argsort(-checked, kind="stable")
        loads = np.zeros(self.world_size, np.int64)
        self._scenes: list[int] = []
        for start in range(0, len(order), self.world_size):
            scenes = order[start : start + self.world_size]
            ranks = np.argsort(loads, kind="stable")[: len(scenes)]  # the fewest vertices so far get the largest scene
            loads[ranks] += checked[scenes]
            self._scenes += scenes[ranks == self.rank].tolist()

    def __len__(self) -> int:
        """Scenes of this rank."""
        return len(self._scenes)

    def __iter__(self) -> Iterator[int]:
        """Give this rank's indices.

        Raises:
            UsageError: `torch.distributed` was initialized after the sampler was made, and says another rank; or
                Lightning or accelerate shards the indices again.
        """
        self._rank_info.check()
        return iter(self._scenes)
