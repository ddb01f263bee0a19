"""Files of scenes, kept in memory that the processes of one job on a machine share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.files import Buffer

# Room for each scene. Only what is written takes memory; a file that is larger, as with faces, is not kept.
_BYTES_PER_VERTEX, _MORE_BYTES = 64, 1 << 20
_SIZE_BYTES = 8


class SceneCache:
    """Keeps each file from the first time that it is read, for this process and those that it starts.

    The memory is anonymous, belongs to no folder, and is gone with the last process. Processes may write the same file
    at once: they write the same bytes, and its size last. Pickled for anything but a new process, it is empty.
    """

    def __init__(self, scene_ids: Iterable[str], lengths: NDArray[Any]) -> None:
        ends = np.cumsum(lengths * _BYTES_PER_VERTEX + _MORE_BYTES).tolist()
        self._places = dict(zip(scene_ids, zip([0, *ends], ends, strict=False), strict=True))
        self._size = sum(ends[-1:])
        self._descriptor = _make_memory(self._size)

    def read(self, scene_id: str, read: Callable[[], Buffer]) -> Buffer:
        """The file of a scene, from memory or, the first time, from where `read` gets it."""
        start, end = self._places[scene_id]
        if size := int.from_bytes(os.pread(self._descriptor, _SIZE_BYTES, start), "little"):
            kept = np.empty(size, np.uint8).data  # unlike a bytearray, not cleared first
            os.preadv(self._descriptor, [kept], start + _SIZE_BYTES)
            return kept
        data = read()
        has_room = len(data) <= end - start - _SIZE_BYTES
        if has_room and os.pwrite(self._descriptor, data, start + _SIZE_BYTES) == len(data):
            os.pwrite(self._descriptor, len(data).to_bytes(_SIZE_BYTES, "little"), start)
        return data

    def __getstate__(self) -> dict[str, Any]:
        """With the memory, where it goes to a process that is being started."""
        shared = reduction.DupFd(self._descriptor) if get_spawning_popen() else None
        return {"_places": self._places, "_size": self._size, "shared": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Use the same memory again."""
        shared = state.pop("shared")
        self.__dict__.update(state)
        self._descriptor = shared.detach() if shared else _make_memory(self._size)

    def __del__(self) -> None:
        """Give the memory back."""
        os.close(self._descriptor)


def _make_memory(size: int) -> int:
    """A file without a name, of nothing but holes, in memory where the system can do that."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("scenes", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor
