"""Memory that a process frees and keeps for its next arrays."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

# Parameters of `mallopt`, from malloc.h of the GNU C library.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest value that `mallopt` accepts on 64-bit systems.
_MAX_MMAP_THRESHOLD_BYTES = 32 << 20


@cache
def keep_freed_memory(most_bytes: int = 1 << 30) -> None:
    """Keep freed memory for the next arrays, up to a size, instead of returning it to the system.

    The system would have to clear it again, which for arrays of some megabytes takes longer than
    computing them. C libraries without `mallopt` are left as they are. Repeated calls do nothing.
    """
    with suppress(AttributeError, TypeError):  # another C library, or Windows
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, most_bytes)
        mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD_BYTES)
