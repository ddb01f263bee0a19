"""The cores and the memory of this process, as affinity, control groups and Slurm limit them."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

# Parameters of `mallopt`, from malloc.h of the GNU C library.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest value that `mallopt` accepts on 64-bit systems.
_MAX_MMAP_THRESHOLD_BYTES = 32 << 20


def find_core_limits(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, int]:
    """Find how many cores this process may keep busy, by the name of each limit that applies.

    The smallest number counts, but at least one core may be used. There is always a limit.

    Args:
        environ: The environment; Slurm describes its limits there.
        root: Root of the file system with `proc` and `sys`.
    """
    limits = {"affinity": os.cpu_count() or 1}
    if hasattr(os, "sched_getaffinity"):
        limits["affinity"] = len(os.sched_getaffinity(0))

    # Slurm may set either variable, or both.
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        text = environ.get(name, "")
        if text.isdecimal():
            limits[name] = int(text)
    for text in _iter_group_files("cpu.max", root):
        with suppress(ValueError, ZeroDivisionError):  # without a limit, the text is "max"
            quota, period = map(int, text.split())
            cores = math.ceil(quota / period)
            limits["container"] = min(cores, limits.get("container", cores))
    return limits


def find_memory_limits(root: Path = Path("/")) -> dict[str, int]:
    """Find how many bytes of memory this process may use, by the name of each limit that applies.

    The smallest number counts. Empty on Windows, which does not show it to the standard library.

    Args:
        root: As for `find_core_limits`.
    """
    if not hasattr(os, "sysconf"):  # Windows
        return {}
    limits = {"machine": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    for text in _iter_group_files("memory.max", root):
        with suppress(ValueError):  # without a limit, the text is "max"
            size_bytes = int(text)
            limits["container"] = min(size_bytes, limits.get("container", size_bytes))
    return limits


def _iter_group_files(name: str, root: Path) -> Iterator[str]:
    """Yield the text of a file in the control group of this process and in all groups above it.

    Limits of the groups above apply, too. Only control groups of version 2 are read.
    """
    text = ""
    with suppress(OSError):  # not Linux
        text = (root / "proc/self/cgroup").read_text(encoding="ascii", errors="replace")
    # Lines of version 1 name controllers: `3:cpu:/box`.
    line = text.partition("0::")[2].partition("\n")[0]
    directory = root / "sys/fs/cgroup" / line.lstrip("/")
    for group in (directory, *directory.parents):
        with suppress(OSError, ValueError):  # no group, or not a path
            yield (group / name).read_text(encoding="ascii", errors="replace")


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
