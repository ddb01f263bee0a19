"""Keys of samples: the index of a scene and the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from scannet_prep.errors import UsageError


class SceneKey(NamedTuple):
    """Key of a sample: `dataset[key]` reads a scene with the random numbers of an epoch.

    PyTorch's `Subset` and `ConcatDataset` use keys as numbers. A `SceneKey` raises an error there,
    which names the class to use instead.

    Attributes:
        scene_index: Index of the scene in the dataset.
        epoch: The epoch.
    """

    scene_index: int
    epoch: int

    def __index__(self) -> int:
        """Refuse to be used as a number, because the epoch would be lost."""
        raise UsageError(
            f"{tuple(self)} is the index of a scene and an epoch, as ScanNet expects it; "
            "PyTorch's Subset and random_split need plain numbers",
            "take dataset.subset(indices) for a part of the scenes, and make the sampler from it",
        )

    def __lt__(self, other: object) -> bool:
        """Compare with another key. PyTorch's `ConcatDataset` compares with 0, which is refused."""
        if isinstance(other, tuple):
            return tuple.__lt__(self, other)
        raise UsageError(
            f"{tuple(self)} is the index of a scene and an epoch; "
            "PyTorch's ConcatDataset needs plain numbers",
            "join the datasets with scannet_prep.ConcatDataset([train, val]), or train + val",
        )


class WithEpoch:
    """Sampler that adds the epoch to each index of another sampler, for transforms of `ScanNet`.

    It is meant for PyTorch's samplers, such as `RandomSampler` and `DistributedSampler`. The
    samplers of this package do not need it.

    Args:
        sampler: Iterates over indices: a sampler of PyTorch, or a collection.

    Attributes:
        sampler: As given.
        epoch: The epoch that is added to each index; `set_epoch` changes it.
    """

    def __init__(self, sampler: Any) -> None:  # noqa: ANN401 - has a length, and may have `set_epoch`
        self.sampler = sampler
        self.epoch = 0

    def __len__(self) -> int:
        """Number of indices."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[SceneKey]:
        """Iterate over pairs of an index and the epoch, which stays the same until the end."""
        # Read once, here: in the expression below, `self.epoch` would be read for each index.
        epoch = self.epoch
        return (SceneKey(index, epoch) for index in self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, also of the inner sampler if it has a method `set_epoch`."""
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
