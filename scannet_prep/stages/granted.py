"""What this process may use of the machine: processors and memory, by everybody who limits them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

# How many processes a launcher has started on this node; srun tells it of all nodes, such as 4,1(x2).
_ON_NODE = ("SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE")
_NO_LIMIT_BYTES = 1 << 60  # version 1 of control groups says "no limit" with a number of this size


def find_granted_cores(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, int]:
    """Tell how many processors this process may keep busy, by who says so; the smallest counts.

    Args:
        environ: The environment, where Slurm leaves its limit.
        root: Of the file system, which tells of control groups.
    """
    found = {"affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1}
    # Without --cpus-per-task, Slurm only says what all processes of the job, or of a step, have on this node.
    processes = re.findall(r"(?:^|,)([1-9]\d*)", ",".join(environ.get(name, "") for name in _ON_NODE))
    share = math.ceil(_read_number(environ, "SLURM_CPUS_ON_NODE") / max(map(int, processes), default=1))
    if slurm := [number for number in (_read_number(environ, "SLURM_CPUS_PER_TASK"), share) if number]:
        found["Slurm"] = min(slurm)
    quotas: list[int] = []
    names = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    for text in _iter_group_files("cpu", names, root):
        with suppress(ValueError):  # no limit: "max"
            quota, period = map(int, text.split())
            quotas += [math.ceil(quota / period)] if min(quota, period) > 0 else []
    return found | ({"container": min(quotas)} if quotas else {})


def find_granted_memory(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, int]:
    """Tell how many bytes of memory this process may use, by who says so; the smallest counts.

    The arguments are those of `find_granted_cores`.
    """
    import resource

    found = {"machine": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    names = (("memory.max",), ("memory.limit_in_bytes",))
    limits = list(_iter_group_files("memory", names, root))
    if bounds := [int(text) for text in limits if text.strip().isdecimal() and int(text) < _NO_LIMIT_BYTES]:
        found["container"] = min(bounds)
    if 0 <= (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) < _NO_LIMIT_BYTES:
        found["ulimit -v"] = limit
    node, core = (_read_number(environ, f"SLURM_MEM_PER_{name}") for name in ("NODE", "CPU"))  # megabytes; 0 for all
    if slurm := node or core * max(1, _read_number(environ, "SLURM_CPUS_ON_NODE")):
        found["Slurm"] = slurm << 20
    return found


def _read_number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def _iter_group_files(controller: str, names: tuple[tuple[str, ...], ...], root: Path) -> Iterator[str]:
    """What the files of those names say, in the control group of this process and in those above; version 1 or 2."""
    lines: list[str] = []
    with suppress(OSError):  # not Linux
        lines = (root / "proc/self/cgroup").read_text(encoding="ascii", errors="replace").splitlines()
    for line in lines:
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers
        directory = top / group.lstrip("/")
        for candidate in (directory, *directory.parents):
            for parts in names:
                with suppress(OSError, ValueError):  # no such group
                    yield " ".join((candidate / name).read_text(encoding="ascii", errors="replace") for name in parts)
            if candidate == top:
                break
