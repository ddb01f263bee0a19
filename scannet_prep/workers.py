"""Workers of PyTorch's `DataLoader`: the memory in which they make batches, and hand them to the training process.

PyTorch sends tensors between processes through files in /dev/shm, one a tensor. Containers have 64 MB there by default,
which a batch of large scenes exceeds: the job ends with a bus error. NumPy arrays it sends through a pipe, which takes
four times as long. Here, all arrays of a batch lie in one anonymous file in memory (`memfd_create`), whose descriptor
is handed over. It has no name, belongs to no file system, and is gone with the processes.

To get memory from the system, page by page, takes longer than all other work on a batch. So a worker uses what it has
again, once neither it nor the training process has an array on it: the file begins with two bytes that tell.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from functools import cache
from multiprocessing import reduction
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = dict[str, NDArray[Any]]
Shape: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
Layout: TypeAlias = dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]

_MAKER, _RECEIVER = 0, 1  # who may hold a memory
_FREE, _HELD, _LOST = 0, 1, 2
_ALIGNMENT = 64
_MOST_HELD, _MOST_FREE = 32, 4  # that a worker remembers; by default, two of its batches are under way
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


class _Memory:
    """An anonymous file, mapped writable until the last array on it is gone; it does not need the descriptor for that.

    `mmap.mmap` keeps a descriptor for as long as it lives (before Python 3.13 it cannot do without). A program that
    keeps an array of each of a thousand batches, such as the labels for a mean at the end, would run out of them.
    """

    forks = 0  # how often this process was forked, or forked another

    def __init__(self, file: IO[bytes], size: int) -> None:
        system = ctypes.CDLL(None, use_errno=True)
        system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        system.mmap.restype = ctypes.c_void_p
        system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.address = system.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file.fileno(), 0)
        if self.address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        weakref.finalize(self, system.munmap, self.address, size).atexit = False  # arrays may outlive it
        self.file, self.size = file, size
        self.is_held = (ctypes.c_ubyte * 2).from_address(self.address)

    def place(self, layout: Layout, holder: int) -> Arrays:
        """Arrays at their places. Until the last of them is gone, the memory is held."""
        self.is_held[holder] = _HELD
        buffer: Any = (ctypes.c_char * self.size).from_address(self.address)
        weakref.finalize(buffer, self._release, holder, self.forks).atexit = False
        return {key: np.ndarray(shape, dtype, buffer, start) for key, (dtype, shape, start) in layout.items()}

    def _release(self, holder: int, forks: int) -> None:
        # After a fork, another process has the arrays, too, and who knows for how long.
        self.is_held[holder] = _FREE if forks == _Memory.forks else _LOST

    def find(self, arrays: Arrays) -> Layout | None:
        """Where arrays lie in it; None where not all of them do, or it has been handed over."""
        layout: Layout = {}
        for key, array in arrays.items():
            start = array.__array_interface__["data"][0] - self.address
            is_inside = start > 0 and start + array.nbytes <= self.size and array.flags.c_contiguous
            if not is_inside or self.is_held[_RECEIVER]:
                return None
            layout[key] = array.dtype, array.shape, start
        return layout


_memories: list[_Memory] = []  # of this worker
_lock = threading.Lock()


def _count_fork() -> None:
    _Memory.forks += 1


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_count_fork, after_in_child=_memories.clear)


def find_worker() -> Any:  # noqa: ANN401 - PyTorch's WorkerInfo
    """What PyTorch tells about the worker that this process is; None in all others. PyTorch is never imported."""
    torch_data: Any = sys.modules.get("torch.utils.data")
    return torch_data and torch_data.get_worker_info()


def find_asked(dataset: Any) -> Any:  # noqa: ANN401 - anything with items
    """The dataset that PyTorch's fetcher has, for the `__getitems__` that it calls.

    It may be one around this one, which passes on all of its attributes, and yet has items of its own.
    """
    fetcher = sys._getframe(2).f_locals.get("self")  # noqa: SLF001
    asked = getattr(fetcher, "dataset", dataset)
    return asked if getattr(asked, "__getitems__", None) == dataset.__getitems__ else dataset


@cache
def keep_freed_memory(most_bytes: int = 1 << 30) -> None:
    """Use memory again that was freed, up to a size, instead of giving it back to the system, which has to clear it.

    For arrays of some megabytes, that takes longer than to compute them. Only glibc needs to be told.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, most_bytes)
        mallopt(_M_MMAP_THRESHOLD, 1 << 25)  # the largest that it takes: larger arrays are given back at once


def allocate(shapes: Mapping[str, Shape]) -> Arrays:
    """Arrays of some types and shapes, to be filled: in a worker on memory that `hand_over` does not need to copy."""
    if find_worker() is not None:
        keep_freed_memory(1 << 28)
        try:
            memory, layout = _take(shapes)
            return memory.place(layout, _MAKER)
        except (AttributeError, OSError):  # not Linux, or no descriptors or memory left
            pass
    return {key: np.empty(shape, dtype) for key, (dtype, shape) in shapes.items()}


def hand_over(arrays: Arrays) -> tuple[Any, int, Layout]:
    """Make ready what another process needs for `receive`, to be pickled once.

    Raises:
        AttributeError, OSError: This is not Linux, or there are no descriptors or memory left.
    """
    for memory in _memories.copy():  # another thread makes batches meanwhile
        if layout := memory.find(arrays):
            break
    else:
        memory, layout = _take({key: (array.dtype, array.shape) for key, array in arrays.items()})
        copies = memory.place(layout, _MAKER)  # they hold it until the receiver does
        for key, array in copies.items():
            array[...] = arrays[key]
    shared = reduction.DupFd(memory.file.fileno())  # which Windows lacks
    memory.is_held[_RECEIVER] = _HELD
    return shared, memory.size, layout


def receive(shared: Any, size: int, layout: Layout) -> Arrays:  # noqa: ANN401 - of `hand_over`
    """The arrays of another process, writable."""
    with os.fdopen(shared.detach(), "rb") as file:
        return _Memory(file, size).place(layout, _RECEIVER)


def _take(shapes: Mapping[str, Shape]) -> tuple[_Memory, Layout]:
    """Memory that nobody holds, and places in it."""
    layout: Layout = {}
    size = _ALIGNMENT
    for key, (dtype, shape) in shapes.items():
        layout[key] = dtype, shape, size
        size += -(-dtype.itemsize * int(np.prod(shape, dtype=np.int64)) // _ALIGNMENT) * _ALIGNMENT
    if find_worker() is None:
        return _make(size), layout
    with _lock:
        free = [memory for memory in _memories if memory.size >= size and not any(memory.is_held)]
        free = free or [_make(1 << size.bit_length())]  # what is not written takes no memory
        held = [memory for memory in _memories if any(memory.is_held) and _LOST not in memory.is_held]
        _memories[:] = held[-_MOST_HELD:] + free[:_MOST_FREE]
        free[0].is_held[_MAKER] = _HELD
    return free[0], layout


def _make(size: int) -> _Memory:
    file = os.fdopen(os.memfd_create("batch", os.MFD_CLOEXEC), "wb")
    file.truncate(size)
    memory = _Memory(file, size)
    weakref.finalize(memory, file.close).atexit = False
    return memory
