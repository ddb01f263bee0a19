"""Maps memory that another process has filled, without keeping its descriptor open."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Mapping:
    """Mapped memory, which is unmapped with the last array on it.

    `mmap.mmap` keeps a descriptor for as long as it lives (before Python 3.13 it cannot do without). A program that
    keeps an array of each of a thousand batches, such as the labels for a mean at the end, would run out of them.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        system = ctypes.CDLL(None, use_errno=True)
        address, length, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        system.mmap.argtypes = [address, length, number, number, number, ctypes.c_long]
        system.mmap.restype = address
        system.munmap.argtypes = [address, length]
        self._munmap = system.munmap  # still needed when modules are gone
        self._size = size
        self._address = system.mmap(
            None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0
        )  # fmt: skip
        if self._address == ctypes.c_void_p(-1).value:
            self._address = None
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self._size,), "typestr": "|u1", "data": (self._address, False)}

    def __del__(self) -> None:
        if getattr(self, "_address", None) is not None:
            self._munmap(self._address, self._size)


def map_bytes(descriptor: int, size: int) -> NDArray[np.uint8]:
    """Map a file of memory, writable; the descriptor may be closed afterwards.

    Args:
        descriptor: Of the file.
        size: Bytes, above 0.

    Raises:
        OSError: The system refuses.
    """
    return np.asarray(_Mapping(descriptor, size))
