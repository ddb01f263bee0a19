"""Several datasets as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.sample import Dataset


class ConcatDataset(Dataset):  # type: ignore[misc]  # where PyTorch is not installed
    """Several datasets as one, the scenes of the first before those of the next.

    PyTorch's own `ConcatDataset` does not take `(index, epoch)`, which `PointBudgetBatchSampler` gives; this one does.
    The datasets must take it too, as `ScanNet` does. Give each its own `seed`; samples of one batch need the same keys
    and types.

    Args:
        datasets: With a length, `lengths` (points of each item), and items by `index` and by `(index, epoch)`.

    Attributes:
        datasets: As given.

    Raises:
        UsageError: There are none.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = tuple(datasets)
        if not self.datasets:
            raise UsageError("there are no datasets to join")
        self._items = [(dataset, index) for dataset in self.datasets for index in range(len(dataset))]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of points of each item, int64 (len,)."""
        return np.concatenate([np.asarray(dataset.lengths, np.int64) for dataset in self.datasets])

    @property
    def digest(self) -> str:
        """Of all datasets that have one."""
        return " ".join(getattr(dataset, "digest", "?") for dataset in self.datasets)

    def __len__(self) -> int:
        """Number of items."""
        return len(self._items)

    def __getitem__(self, key: int | tuple[int, int]) -> Any:  # noqa: ANN401 - whatever they give
        """One item, by its index from either end, or by `(index, epoch)`.

        Raises:
            IndexError: The index is out of range.
        """
        index, *epoch = key if isinstance(key, tuple) else (key,)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range: the datasets have {len(self)} scenes together")
        dataset, inner = self._items[index]
        return dataset[(inner, *epoch) if epoch else inner]
