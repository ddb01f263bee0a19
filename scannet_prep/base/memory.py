"""Memory for batches that workers of a PyTorch `DataLoader` hand to the training process.

PyTorch sends tensors between processes through files in /dev/shm, one per tensor. Containers have
64 MB there by default, which a batch of large scenes exceeds: the job ends with a bus error. NumPy
arrays go through a pipe, which takes four times as long. Here, all arrays of a batch lie in one
anonymous file in memory (`memfd_create`), whose descriptor is handed over. The file has no name,
belongs to no file system, and disappears with the processes.

    worker:   allocate -> arrays of a batch in a _Memory -> hand_over -> descriptor, size, layout
    training: receive  -> the same memory, mapped again -> arrays

Getting memory from the system, page by page, takes longer than all other work on a batch. A worker
therefore uses a memory again as soon as neither it nor the training process has an array in it. The
first two bytes of the file record this, one byte for each of the two processes.
"""

from __future__ import annotations

import ctypes
import math
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
# Type, shape and first byte of each array in a memory.
Layout: TypeAlias = dict[str, tuple[np.dtype[Any], tuple[int, ...], int]]

# Index of the byte of each process that may hold a memory.
_MAKER = 0
_RECEIVER = 1
# Values of these bytes. A lost memory may be held by a forked process, and is not used again.
_FREE = 0
_HELD = 1
_LOST = 2
_ALIGNMENT_BYTES = 64
# A worker keeps memories to use them again: at most this many that are held, and at most this many
# that are free. By default, a DataLoader requests two batches of each worker in advance.
_MAX_HELD = 32
_MAX_FREE = 4
# Parameters of mallopt, from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest value that glibc accepts; larger arrays are returned to the system at once.
_MAX_MMAP_THRESHOLD_BYTES = 1 << 25
# Freed memory that each DataLoader worker keeps.
_KEPT_BYTES = 1 << 28


class _Memory:
    """An anonymous file that is mapped, writable, until the last array in it is gone.

    The mapping needs no file descriptor. `mmap.mmap` would keep one open for each batch (this can
    be turned off only since Python 3.13). A program that keeps an array of each of a thousand
    batches, such as the labels for a mean at the end, would run out of descriptors.

    Args:
        file: The anonymous file, open for reading and writing. The worker that made it keeps it
            open, to hand it over. The training process closes it after mapping it.
        size: Its length in bytes.
    """

    # Number of forks that this process and its ancestors have made.
    forks = 0

    def __init__(self, file: IO[bytes], size: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        # Address, length, protection, flags, descriptor, offset.
        libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]
        libc.mmap.restype = ctypes.c_void_p
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        self.address = libc.mmap(None, size, protection, mmap.MAP_SHARED, file.fileno(), 0)
        if self.address == ctypes.c_void_p(-1).value:  # MAP_FAILED
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        unmapping = weakref.finalize(self, libc.munmap, self.address, size)
        # At exit, arrays may still be used after this object is gone.
        unmapping.atexit = False
        self.file = file
        self.size = size
        # The bytes of the maker and of the receiver, in the file itself.
        self.holders = (ctypes.c_ubyte * 2).from_address(self.address)

    @property
    def is_held(self) -> bool:
        """Whether a process has arrays in this memory, or may have."""
        return any(self.holders)

    def make_arrays(self, layout: Layout, holder: int) -> Arrays:
        """Make arrays in this memory, which is held until the last of them is gone.

        Args:
            layout: The arrays.
            holder: The side of this process, `_MAKER` or `_RECEIVER`.
        """
        self.holders[holder] = _HELD
        # The arrays keep the buffer alive. When the last of them is gone, `_release` is called.
        # Until then, the bound method keeps this object alive, and so the mapping.
        buffer: Any = (ctypes.c_char * self.size).from_address(self.address)
        release = weakref.finalize(buffer, self._release, holder, self.forks)
        release.atexit = False
        return {
            key: np.ndarray(shape, dtype, buffer, start)
            for key, (dtype, shape, start) in layout.items()
        }

    def _release(self, holder: int, earlier_forks: int) -> None:
        """Record that the last array in this process is gone.

        Args:
            holder: The side of this process.
            earlier_forks: The number of forks when the arrays were made.
        """
        # A process that was forked since then has the arrays too, for an unknown time.
        has_forked = _Memory.forks > earlier_forks
        self.holders[holder] = _LOST if has_forked else _FREE

    def find(self, arrays: Arrays) -> Layout | None:
        """Find where arrays lie in this memory.

        Returns:
            The layout; None if an array lies elsewhere, or if the memory has been handed over.
        """
        # There is one byte for the receiver, so a memory can be handed over only once at a time.
        if self.holders[_RECEIVER]:
            return None
        layout: Layout = {}
        for key, array in arrays.items():
            array_address, _ = array.__array_interface__["data"]
            start = array_address - self.address
            # The bytes of the holders come first, so no array starts at 0.
            is_inside = start > 0 and start + array.nbytes <= self.size
            if not is_inside or not array.flags.c_contiguous:
                return None
            layout[key] = (array.dtype, array.shape, start)
        return layout


# The memories of this worker.
_memories: list[_Memory] = []
_lock = threading.Lock()


def _count_fork() -> None:
    """Count a fork that is about to be made."""
    _Memory.forks += 1


if hasattr(os, "register_at_fork"):  # not on Windows
    # The count is raised before the fork, so that parent and child both see it. The memories remain
    # with the parent: the child must not reuse them.
    os.register_at_fork(before=_count_fork, after_in_child=_memories.clear)


def find_worker() -> Any:  # noqa: ANN401 - PyTorch's WorkerInfo
    """Return PyTorch's WorkerInfo without importing PyTorch; None outside a DataLoader worker."""
    torch_data: Any = sys.modules.get("torch.utils.data")
    if torch_data is None:
        return None
    return torch_data.get_worker_info()


@cache
def keep_freed_memory(most_bytes: int = 1 << 30) -> None:
    """Keep freed memory for the next arrays, up to a size, instead of returning it to the system.

    The system would have to clear it again, which for arrays of some megabytes takes longer than
    computing them. C libraries without `mallopt` are left as they are. Repeated calls do nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, most_bytes)
        mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD_BYTES)


def allocate(shapes: Mapping[str, Shape]) -> Arrays:
    """Allocate arrays of given types and shapes.

    In a DataLoader worker, the arrays lie in memory that `hand_over` need not copy.
    """
    if find_worker() is not None:
        keep_freed_memory(_KEPT_BYTES)
        try:
            memory, layout = _reserve(shapes)
            return memory.make_arrays(layout, _MAKER)
        except (AttributeError, OSError):  # not Linux, or no descriptors or memory left
            pass
    return {key: np.empty(shape, dtype) for key, (dtype, shape) in shapes.items()}


def hand_over(arrays: Arrays) -> tuple[Any, int, Layout]:
    """Hand arrays over to the training process, with a copy only if they lie elsewhere.

    Returns:
        The arguments of `receive`, to be pickled once: the descriptor, size and layout of the
        memory.

    Raises:
        AttributeError, OSError: This is not Linux, or there are no descriptors or memory left.
    """
    location = _find_memory(arrays)
    if location is not None:
        memory, layout = location
    else:
        memory, layout = _reserve(
            {key: (array.dtype, array.shape) for key, array in arrays.items()}
        )
        # When this function ends, the copies are gone, and `_release` clears the maker's byte. The
        # receiver's byte, which is set below, then holds the memory.
        copies = memory.make_arrays(layout, _MAKER)
        for key, copied in copies.items():
            copied[...] = arrays[key]
    # AttributeError on Windows, which has no DupFd.
    shared = reduction.DupFd(memory.file.fileno())
    # Set for the receiver, so that the memory is not used again before the receiver maps it.
    memory.holders[_RECEIVER] = _HELD
    return shared, memory.size, layout


def receive(shared: Any, size: int, layout: Layout) -> Arrays:  # noqa: ANN401 - of `hand_over`
    """Return the arrays that another process has handed over, writable."""
    # The descriptor stays writable, whatever the mode of the file object. The mapping remains after
    # the file is closed.
    with os.fdopen(shared.detach(), "rb") as file:
        return _Memory(file, size).make_arrays(layout, _RECEIVER)


def _find_memory(arrays: Arrays) -> tuple[_Memory, Layout] | None:
    """Find the memory of this worker in which all arrays lie."""
    # A copy, because another thread may make batches meanwhile.
    for memory in _memories.copy():
        layout = memory.find(arrays)
        if layout:  # empty for a batch without arrays, which lies nowhere
            return memory, layout
    return None


def _reserve(shapes: Mapping[str, Shape]) -> tuple[_Memory, Layout]:
    """Find or make a memory that nobody holds, and lay out arrays in it."""
    layout: Layout = {}
    # The first aligned block is for the two bytes of the holders.
    size = _ALIGNMENT_BYTES
    for key, (dtype, shape) in shapes.items():
        layout[key] = (dtype, shape, size)
        array_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        block_count = math.ceil(array_bytes / _ALIGNMENT_BYTES)
        size += block_count * _ALIGNMENT_BYTES
    # Only workers keep their memories.
    if find_worker() is None:
        return _make_memory(size), layout
    with _lock:
        # Lost memories are in neither list, and neither are free ones that are too small.
        held = [memory for memory in _memories if memory.is_held and _LOST not in memory.holders]
        free = [memory for memory in _memories if memory.size >= size and not memory.is_held]
        if not free:
            # A power of two, so that later batches fit. Pages that are not written take no memory.
            free = [_make_memory(1 << size.bit_length())]
        # All others are not used again, and are unmapped when their last array is gone.
        _memories[:] = held[-_MAX_HELD:] + free[:_MAX_FREE]
        reserved = free[0]
        reserved.holders[_MAKER] = _HELD
    return reserved, layout


def _make_memory(size: int) -> _Memory:
    """Make a memory of zeros, which is free."""
    file = os.fdopen(os.memfd_create("batch", os.MFD_CLOEXEC), "wb")
    file.truncate(size)
    memory = _Memory(file, size)
    closing = weakref.finalize(memory, file.close)
    closing.atexit = False
    return memory
