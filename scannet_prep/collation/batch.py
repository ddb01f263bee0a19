"""A batch, and how it travels from a worker process to the training process.

PyTorch sends tensors between processes through files in /dev/shm, one a tensor. Containers have 64 MB there by default,
which a batch of large scenes exceeds: the job ends with a bus error. NumPy arrays it sends through a pipe, which takes
four times as long. A batch is sent in another way: all its arrays in one anonymous file in memory (`memfd_create`),
whose descriptor is handed over. It has no name, belongs to no file system, and is gone when the last array is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.collation.memory import map_bytes

_ALIGNMENT = 64
# Key, whether it is a tensor, and the array.
_Item: TypeAlias = tuple[str, bool, NDArray[Any]]


class Batch(dict[str, Any]):
    """A dict of arrays or tensors, with attributes of none: like any dict, except on its way between processes.

    There, the arrays of one batch share one piece of memory. One that is kept keeps all of it: copy what is to
    outlive the batch (`batch["labels"].clone()`, or `.copy()` of an array).
    """


def array_from_tensor(value: object) -> Any:  # noqa: ANN401 - whatever it is
    """An array on the memory of a tensor of PyTorch; everything else as it is, and tensors that NumPy cannot hold."""
    torch: Any = sys.modules.get("torch")  # where it is not loaded, nothing is a tensor
    if torch is None or type(value) is not torch.Tensor:
        return value
    try:
        return value.numpy()  # type: ignore[attr-defined]
    except (RuntimeError, TypeError):  # on a GPU, with a gradient, sparse, or of a type that NumPy does not know
        return value


def tensor_from_array(array: NDArray[Any]) -> Any:  # noqa: ANN401 - a tensor
    """A tensor on the memory of an array."""
    import torch

    return torch.from_numpy(array)


def is_numeric(value: object) -> bool:
    """Whether it is an array of numbers, which can be a tensor, and sent as bytes."""
    return type(value) is np.ndarray and value.dtype.kind in "biufc"


def _send(batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
    """Tell multiprocessing how to send a batch; called in the worker."""
    plain: dict[str, Any] = {}
    items: list[_Item] = []
    for key, value in batch.items():
        array = array_from_tensor(value)
        plain[key] = None if is_numeric(array) else value  # keeps the order
        if is_numeric(array):
            items.append((key, array is not value, np.ascontiguousarray(array).reshape(array.shape)))
    try:
        return _receive, (*_write_arrays(items), plain, [(*item[:2], item[2].dtype, item[2].shape) for item in items])
    except (AttributeError, OSError):
        # Not Linux, or no descriptors or memory left. An error here, in a thread of multiprocessing's, would not reach
        # the training process: it would wait for ever.
        return _receive_plainly, (plain, items)


def _write_arrays(items: list[_Item]) -> tuple[Any, int]:
    """Write arrays into an anonymous file.

    Returns:
        Its descriptor, ready to be sent, and its size.
    """
    descriptor = os.memfd_create("batch", os.MFD_CLOEXEC)
    try:
        start = 0
        for *_, array in items:
            data = memoryview(array.reshape(-1).view(np.uint8).data)
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], start + written)
            start += _padded(array.nbytes)
        size = max(start, _ALIGNMENT)
        os.ftruncate(descriptor, size)
        return DupFd(descriptor), size
    finally:
        os.close(descriptor)


def _receive(sent: Any, size: int, plain: dict[str, Any], layout: list[Any]) -> Batch:  # noqa: ANN401 - a DupFd
    """Make the batch again; called in the training process."""
    descriptor = sent.detach()
    try:
        memory = map_bytes(descriptor, size)
    finally:
        os.close(descriptor)
    items: list[_Item] = []
    start = 0
    for key, is_tensor, dtype, shape in layout:
        items.append((key, is_tensor, np.ndarray(shape, dtype, memory.data, start)))
        start += _padded(items[-1][2].nbytes)
    return _receive_plainly(plain, items)


def _receive_plainly(plain: dict[str, Any], items: list[_Item]) -> Batch:
    batch = Batch(plain)
    for key, is_tensor, array in items:
        batch[key] = tensor_from_array(array) if is_tensor else array
    return batch


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


ForkingPickler.register(Batch, _send)
