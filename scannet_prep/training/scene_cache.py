"""A cache that keeps the files of scenes in memory that processes share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Buffer

# Bytes that are reserved for a scene. Only those that are written take memory. A file that needs
# more, such as one with faces, is not kept.
_BYTES_PER_VERTEX = 64
_MORE_BYTES = 1 << 20
# Each file begins with its size, or with 0 while it is missing.
_SIZE_BYTES = 8


def make_cache(scene_ids: Iterable[str], lengths: NDArray[Any]) -> SceneCache | OwnCache:
    """Make a cache, which processes share except on Windows; see `SceneCache` for the arguments."""
    if hasattr(os, "pread"):
        return SceneCache(scene_ids, lengths)
    return OwnCache()


class OwnCache:
    """A cache for this process alone, on Windows. The copy for a new process is empty."""

    def __init__(self) -> None:
        self._files: dict[str, Buffer] = {}

    def read(self, scene_id: str, read: Callable[[], Buffer]) -> Buffer:
        """Return the file of a scene: from memory or, the first time, from `read`."""
        if scene_id not in self._files:
            self._files[scene_id] = read()
        return self._files[scene_id]

    def __reduce__(self) -> tuple[type[OwnCache], tuple[()]]:
        """Pass on no files."""
        return OwnCache, ()


class SceneCache:
    """A cache that keeps each file after its first read, for this process and those it starts.

    The memory is anonymous, belongs to no folder, and is freed with the last process. Several
    processes may store the same file at once: they write the same bytes, and the size last. A copy
    that is pickled for anything but a new process is empty.

    Args:
        scene_ids: The scenes.
        lengths: V of each scene, int64 (scenes,).
    """

    def __init__(self, scene_ids: Iterable[str], lengths: NDArray[Any]) -> None:
        # The address range of each scene. `starts` is longer by one if there is no scene at all.
        ends = np.cumsum(lengths * _BYTES_PER_VERTEX + _MORE_BYTES).tolist()
        starts = [0, *ends[:-1]]
        self._spans = dict(zip(scene_ids, zip(starts, ends, strict=False), strict=True))
        self._size_bytes = ends[-1] if ends else 0
        self._descriptor = _make_memory(self._size_bytes)

    def read(self, scene_id: str, read: Callable[[], Buffer]) -> Buffer:
        """Return the file of a scene: from memory or, the first time, from `read`."""
        start, end = self._spans[scene_id]
        size_bytes = int.from_bytes(os.pread(self._descriptor, _SIZE_BYTES, start), "little")
        if size_bytes:
            # Unlike a bytearray, this memory is not cleared first.
            kept = np.empty(size_bytes, np.uint8).data
            os.preadv(self._descriptor, [kept], start + _SIZE_BYTES)
            return kept

        data = read()
        # The content first, then the size, which shows other processes that it is complete.
        has_room = len(data) <= end - start - _SIZE_BYTES
        if has_room and os.pwrite(self._descriptor, data, start + _SIZE_BYTES) == len(data):
            os.pwrite(self._descriptor, len(data).to_bytes(_SIZE_BYTES, "little"), start)
        return data

    def __getstate__(self) -> dict[str, Any]:
        """Pass the memory on to a process that is being started, and to nothing else."""
        shared = reduction.DupFd(self._descriptor) if get_spawning_popen() else None
        return {"_spans": self._spans, "_size_bytes": self._size_bytes, "shared": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Use the same memory again, or new memory if none was passed on."""
        shared = state.pop("shared")
        self.__dict__.update(state)
        self._descriptor = shared.detach() if shared else _make_memory(self._size_bytes)

    def __del__(self) -> None:
        """Free the memory."""
        os.close(self._descriptor)


def _make_memory(size_bytes: int) -> int:
    """Make a file without a name or content, in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("scenes", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size_bytes)
    return descriptor
