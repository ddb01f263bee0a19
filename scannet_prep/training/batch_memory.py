"""Memory through which a worker of a DataLoader sends batches to the training process.

    worker: arrays --written--> anonymous file --read--> arrays of their own: training process

`/dev/shm`, which PyTorch uses, has 64 MB in a container; anonymous files have no such limit. A pipe
takes several times as long.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing import reduction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.memory import keep_freed_memory

Arrays: TypeAlias = dict[str, NDArray[Any]]
# Type and shape of each array.
Layout: TypeAlias = dict[str, tuple[Any, tuple[int, ...]]]

# Values of the first byte of a file.
_FREE = 0
_SENT = 1
# The descriptor and the memory of each file of this process. New memory takes longer than the
# copies, so a worker writes to a file again as soon as the training process has read it.
_files: list[tuple[int, NDArray[np.uint8]]] = []


def hand_over(arrays: Arrays) -> tuple[Any, Layout]:
    """Write arrays to an anonymous file.

    Returns:
        The arguments of `receive`, to be pickled by multiprocessing.

    Raises:
        OSError: There are no descriptors or memory left.
    """
    size = 1 + sum(array.nbytes for array in arrays.values())
    descriptor, memory = _find_file(size)
    memory[0] = _SENT
    layout = {}
    start = 1
    for key, array in arrays.items():
        layout[key] = (array.dtype, array.shape)
        end = start + array.nbytes
        memory[start:end] = _bytes_of(np.ascontiguousarray(array))
        start = end
    return reduction.DupFd(descriptor), layout


def receive(shared: Any, layout: Layout) -> Arrays:  # noqa: ANN401 - of `hand_over`
    """Read the arrays that another process has handed over.

    Raises:
        OSError: An array could not be read as a whole.
    """
    keep_freed_memory()
    arrays = {}
    descriptor = shared.detach()
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        file.seek(1)
        for key, (dtype, shape) in layout.items():
            arrays[key] = np.empty(shape, dtype)
            size = file.readinto(_bytes_of(arrays[key]))
            # One call reads 2 GB at most.
            if size != arrays[key].nbytes:
                raise OSError(f"{key}: only {size:,} of {arrays[key].nbytes:,} bytes were read")
        file.seek(0)
        file.write(bytes([_FREE]))
    return arrays


def _find_file(size: int) -> tuple[int, NDArray[np.uint8]]:
    """Find a file that has been read, or make one; return its descriptor and its memory."""
    for descriptor, memory in _files:
        if memory[0] == _FREE and len(memory) >= size:
            return descriptor, memory
    new = os.memfd_create("batch", os.MFD_CLOEXEC)
    # A power of two, so that later batches fit. Pages that are not written take no memory.
    capacity = 1 << size.bit_length()
    os.truncate(new, capacity)
    mapped = np.frombuffer(mmap.mmap(new, capacity), np.uint8)
    _files.append((new, mapped))
    return new, mapped


def _bytes_of(array: NDArray[Any]) -> Any:  # noqa: ANN401 - a buffer
    """Return the memory of an array, which may be empty, as bytes."""
    return array.reshape(-1).view(np.uint8)


if hasattr(os, "register_at_fork"):  # not on Windows
    # The files remain with the parent.
    os.register_at_fork(after_in_child=_files.clear)
