"""A batch, and how it travels from a worker process to the training process.

PyTorch sends tensors between processes through files in /dev/shm, one a tensor. Containers have 64 MB there by default,
which a batch of large scenes exceeds: the job ends with a bus error. NumPy arrays it sends through a pipe, which takes
four times as long. A batch is sent in another way: all its arrays in one anonymous file in memory (`memfd_create`),
whose descriptor is handed over. It has no name, belongs to no file system, and is gone when the last array is.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64


class Batch(dict[str, Any]):
    """A dict of arrays or tensors, with attributes of none: as any dict, except on its way between processes."""


def _send(batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
    """Tell multiprocessing how to send a batch; called in the worker."""
    plain: dict[str, Any] = {}
    arrays: list[tuple[str, bool, NDArray[Any]]] = []
    for key, value in batch.items():
        is_tensor, array = _find_array(value)
        if array is None:
            plain[key] = value
        else:
            plain[key] = None  # keeps the order
            arrays.append((key, is_tensor, array))
    size = 0
    layout = []
    for key, is_tensor, array in arrays:
        layout.append((key, is_tensor, array.dtype.str, array.shape, size))
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    try:
        descriptor = os.memfd_create("batch", os.MFD_CLOEXEC) if size else None
    except (AttributeError, OSError):  # not Linux, or no descriptors left
        descriptor = None
    if descriptor is None:
        return _receive_plainly, (plain, [(key, is_tensor, array) for key, is_tensor, array in arrays])
    try:
        os.ftruncate(descriptor, size)
        for (*_, start), (*_, array) in zip(layout, arrays, strict=True):
            _write(descriptor, memoryview(array.reshape(-1).view(np.uint8).data), start)
        return _receive, (DupFd(descriptor), size, plain, layout)
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: memoryview, start: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, start)
        data, start = data[written:], start + written


def _find_array(value: object) -> tuple[bool, NDArray[Any] | None]:
    """Whether it is a tensor, and the array that can be sent as bytes; None where there is none."""
    torch: Any = sys.modules.get("torch")  # where it is not loaded, nothing is a tensor
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    if is_tensor:
        tensor: Any = value
        if tensor.device.type != "cpu" or tensor.requires_grad or tensor.layout is not torch.strided:
            return True, None
        value = tensor.numpy()
    if not isinstance(value, np.ndarray) or value.dtype.hasobject or value.dtype.names:
        return is_tensor, None
    return is_tensor, np.ascontiguousarray(value)


def _receive(sent: Any, size: int, plain: dict[str, Any], layout: list[Any]) -> Batch:  # noqa: ANN401 - a DupFd
    """Make the batch again; called in the training process."""
    descriptor = sent.detach()
    try:
        memory = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    arrays = [
        (key, is_tensor, np.ndarray(shape, np.dtype(dtype), memory, start))
        for key, is_tensor, dtype, shape, start in layout
    ]
    return _receive_plainly(plain, arrays)


def _receive_plainly(plain: dict[str, Any], arrays: list[tuple[str, bool, NDArray[Any]]]) -> Batch:
    from scannet_prep.collation.tensors import tensor_from_array

    batch = Batch(plain)
    for key, is_tensor, array in arrays:
        batch[key] = tensor_from_array(array) if is_tensor else array
    return batch


ForkingPickler.register(Batch, _send)
