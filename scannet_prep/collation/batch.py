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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.collation.memory import map_bytes

_ALIGNMENT = 64


class Batch(dict[str, Any]):
    """A dict of arrays or tensors, with attributes of none: as any dict, except on its way between processes."""


def _send(batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
    """Tell multiprocessing how to send a batch; called in the worker."""
    plain: dict[str, Any] = {}
    arrays: list[tuple[str, bool, NDArray[Any]]] = []
    for key, value in batch.items():
        is_tensor, array = _find_array(value)
        plain[key] = value if array is None else None  # keeps the order
        if array is not None:
            arrays.append((key, is_tensor, array))
    try:
        return _receive, (*_write_arrays([array for *_, array in arrays]), plain, [_describe(item) for item in arrays])
    except (AttributeError, OSError):
        # Not Linux, or no descriptors or memory left. An error here, in a thread of multiprocessing's, would not reach
        # the training process: it would wait for ever.
        return _receive_plainly, (plain, arrays)


def _write_arrays(arrays: list[NDArray[Any]]) -> tuple[Any, int]:
    """Write arrays into an anonymous file.

    Returns:
        Its descriptor, ready to be sent, and its size.
    """
    descriptor = os.memfd_create("batch", os.MFD_CLOEXEC)
    try:
        start = 0
        for array in arrays:
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


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _describe(item: tuple[str, bool, NDArray[Any]]) -> tuple[str, bool, str, tuple[int, ...]]:
    key, is_tensor, array = item
    return key, is_tensor, array.dtype.str, array.shape


def _find_array(value: object) -> tuple[bool, NDArray[Any] | None]:
    """Whether it is a tensor, and the array that can be sent as bytes; None where there is none."""
    torch: Any = sys.modules.get("torch")  # where it is not loaded, nothing is a tensor
    is_tensor = torch is not None and type(value) is torch.Tensor
    if is_tensor:
        tensor: Any = value
        try:
            value = tensor.numpy()
        except (RuntimeError, TypeError):  # on a GPU, with a gradient, sparse, or of a type that NumPy does not know
            return True, None
    if type(value) is not np.ndarray or value.dtype.kind not in "biufc":
        return is_tensor, None
    return is_tensor, np.ascontiguousarray(value).reshape(value.shape)


def _receive(sent: Any, size: int, plain: dict[str, Any], layout: list[Any]) -> Batch:  # noqa: ANN401 - a DupFd
    """Make the batch again; called in the training process."""
    descriptor = sent.detach()
    try:
        memory = map_bytes(descriptor, size)
    finally:
        os.close(descriptor)
    arrays, start = [], 0
    for key, is_tensor, dtype, shape in layout:
        array: NDArray[Any] = np.ndarray(shape, np.dtype(dtype), memory.data, start)
        arrays.append((key, is_tensor, array))
        start += _padded(array.nbytes)
    return _receive_plainly(plain, arrays)


def _receive_plainly(plain: dict[str, Any], arrays: list[tuple[str, bool, NDArray[Any]]]) -> Batch:
    from scannet_prep.collation.tensors import tensor_from_array

    batch = Batch(plain)
    for key, is_tensor, array in arrays:
        batch[key] = tensor_from_array(array) if is_tensor else array
    return batch


ForkingPickler.register(Batch, _send)
