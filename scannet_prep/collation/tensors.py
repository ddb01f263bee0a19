"""Joins samples to a batch of PyTorch tensors. The only module that imports torch, and only when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.collation.arrays import collate
from scannet_prep.collation.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


def collate_torch(samples: Sequence[dict[str, Any]]) -> Batch:
    """Join samples to tensors, for `DataLoader(..., collate_fn=collate_torch)`.

    What `collate` gives, with a tensor of the same type in place of each array, without copying. In the training
    process, `{key: value.to(device) for ...}` or the loader's `pin_memory=True` go on from there.

    Args:
        samples: As for `collate`.

    Raises:
        UsageError: As `collate`.
    """
    batch = collate(samples)
    for key, value in batch.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            batch[key] = tensor_from_array(value)
    return batch


def tensor_from_array(array: NDArray[Any]) -> Tensor:
    """A tensor on the same memory."""
    import torch

    return torch.from_numpy(array)
