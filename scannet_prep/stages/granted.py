"""What this process may use of the machine: processors and memory, by everybody who limits them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

CGROUP_ROOT, MEMBERSHIP_PATH = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_NO_LIMIT_BYTES = 1 << 60  # version 1 of control groups says "no limit" with a number of this size


def find_granted_cores(
    environ: Mapping[str, str], cgroup_root: Path = CGROUP_ROOT, membership_path: Path = MEMBERSHIP_PATH
) -> dict[str, int]:
    """Tell how many processors this process may keep busy, by who says so; the smallest counts.

    Args:
        environ: The environment, where Slurm leaves its limit.
        cgroup_root: Where the control groups are mounted.
        membership_path: Where the system says in which of them this process is.
    """
    found = {"affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1}
    if (slurm := environ.get("SLURM_CPUS_PER_TASK", "")).isdecimal():
        found["Slurm"] = int(slurm)
    quotas: list[int] = []
    names = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    for text in _iter_group_files("cpu", names, cgroup_root, membership_path):
        with suppress(ValueError, ZeroDivisionError):  # no limit: "max"
            quota, period = map(int, text.split())
            quotas += [math.ceil(quota / period)] if quota > 0 else []
    return found | ({"container": min(quotas)} if quotas else {})


def find_granted_memory(
    environ: Mapping[str, str], cgroup_root: Path = CGROUP_ROOT, membership_path: Path = MEMBERSHIP_PATH
) -> dict[str, int]:
    """Tell how many bytes of memory this process may use, by who says so; the smallest counts.

    The arguments are those of `find_granted_cores`.
    """
    import resource

    found = {"machine": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    names = (("memory.max",), ("memory.limit_in_bytes",))
    limits = list(_iter_group_files("memory", names, cgroup_root, membership_path))
    if bounds := [int(text) for text in limits if text.strip().isdecimal() and int(text) < _NO_LIMIT_BYTES]:
        found["container"] = min(bounds)
    if 0 <= (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) < _NO_LIMIT_BYTES:
        found["ulimit -v"] = limit
    node, core = (environ.get(f"SLURM_MEM_PER_{name}", "") for name in ("NODE", "CPU"))  # megabytes; 0 for all
    if node.isdecimal() and int(node):
        found["Slurm"] = int(node) << 20
    elif core.isdecimal() and int(core):
        cores = environ.get("SLURM_CPUS_ON_NODE", "")
        found["Slurm"] = (int(core) << 20) * (int(cores) if cores.isdecimal() else 1)
    return found


def _iter_group_files(
    controller: str, names: tuple[tuple[str, ...], ...], cgroup_root: Path, membership_path: Path
) -> Iterator[str]:
    """What the files of those names say, in the control group of this process and in those above; version 1 or 2."""
    lines: list[str] = []
    with suppress(OSError):  # not Linux
        lines = membership_path.read_text(encoding="ascii", errors="replace").splitlines()
    for line in lines:
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = cgroup_root / controllers
        directory = top / group.lstrip("/")
        for candidate in (directory, *directory.parents):
            for parts in names:
                with suppress(OSError, ValueError):  # no such group
                    yield " ".join((candidate / name).read_text(encoding="ascii", errors="replace") for name in parts)
            if candidate == top:
                break
