"""Blocks of memory in which a worker of a DataLoader makes batches for the training process.

    worker: arrays in a block --descriptor of its anonymous file--> the same block: training process

`/dev/shm`, which PyTorch uses, has 64 MB in a container; anonymous files have no such limit. A pipe
takes several times as long.

New memory takes longer than all other work on a batch. So the worker uses a block again as soon as
neither process has an array in it. In the worker, a weak reference shows this. The training process
holds a lock (`flock`) on the file for as long as it maps the file, and so does a process that it
forks. Only daemons use blocks, such as the workers of a DataLoader: they cannot start processes,
which would inherit arrays without a lock.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import reduction
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Block:
    """An anonymous file and its memory in the worker.

    Attributes:
        file: The descriptor.
        memory: The memory, bytes.
    """

    def __init__(self, size: int) -> None:
        # Not `os.memfd_create`, which many builds of Python lack, such as those of conda-forge.
        self.file = ctypes.pythonapi.memfd_create(b"batch", 0)
        # Raises OSError if there is no file (-1).
        os.set_inheritable(self.file, False)
        # Close the descriptor even if the rest fails. The memory has a descriptor of its own.
        weakref.finalize(self, os.close, self.file)
        os.truncate(self.file, size)
        self.memory = np.frombuffer(mmap.mmap(self.file, size), np.uint8)

    def use(self) -> NDArray[np.uint8]:
        """Return the memory as a buffer for arrays, which keep the buffer alive."""
        buffer = np.frombuffer(self.memory.data, np.uint8)
        self._buffer = weakref.ref(buffer)
        return buffer

    def is_free(self) -> bool:
        """Whether no process has an array in the block."""
        import fcntl

        if self._buffer() is not None:
            return False
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self.file, fcntl.LOCK_UN)
        return True


# The blocks of this worker. If it needs more, the oldest is left to the processes that use it.
_blocks: deque[_Block] = deque(maxlen=8)
_lock = Lock()


def allocate(size: int) -> NDArray[np.uint8]:
    """Return memory for arrays; in a worker, in a block."""
    if multiprocessing.current_process().daemon:
        # Not every system has blocks (AttributeError); descriptors or memory may run out (OSError).
        with suppress(AttributeError, OSError), _lock:
            for block in _blocks:
                if len(block.memory) >= size and block.is_free():
                    break
            else:
                # A power of two, so that later batches fit. Only written pages take memory.
                block = _Block(1 << size.bit_length())
                _blocks.append(block)
            return block.use()
    return np.empty(size, np.uint8)


def hand_over(values: dict[str, Any]) -> tuple[Any, ...]:
    """Pickle the values of a batch; the arrays that share a block with `offset` stay there.

    Returns:
        The arguments of `receive`, to be pickled by multiprocessing.
    """
    for block in tuple(_blocks):
        if np.may_share_memory(block.memory, values.get("offset")):
            with suppress(OSError):
                return _share(values, block)
    return pickle.dumps(values), (), None


def _share(values: dict[str, Any], block: _Block) -> tuple[Any, ...]:
    """Pickle values without the arrays in a block, and share the block.

    Raises:
        OSError: There are no descriptors left.
    """
    import fcntl

    # The first and the last byte of each array in the block.
    spans = []

    def is_elsewhere(data: pickle.PickleBuffer) -> bool:
        array = np.frombuffer(data.raw(), np.uint8)
        if not np.may_share_memory(block.memory, array):
            return True
        start = array.ctypes.data - block.memory.ctypes.data
        spans.append(slice(start, start + len(array)))
        return False

    content = pickle.dumps(values, protocol=5, buffer_callback=is_elsewhere)
    # The file is opened again, because a lock belongs to the open file description.
    with Path(f"/proc/self/fd/{block.file}").open("r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        return content, spans, reduction.DupFd(file.fileno())


def receive(
    content: bytes,
    spans: Sequence[slice],
    shared: Any,  # noqa: ANN401 - a descriptor of multiprocessing
) -> dict[str, Any]:
    """Return the values that a worker has handed over."""
    buffers = []
    if shared:
        with os.fdopen(shared.detach(), "r+b", buffering=0) as file:
            # The mapping has a descriptor of its own.
            memory = memoryview(mmap.mmap(file.fileno(), 0))
        buffers = [memory[span] for span in spans]
    values: dict[str, Any] = pickle.loads(content, buffers=buffers)  # noqa: S301 - from a worker
    return values
