"""CPU cores and memory that affinity, control groups and Slurm leave to this process."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

# The number of processes that a launcher has started on this node. srun sets it for all nodes, such as 4,1(x2).
_ON_NODE = (
    "SLURM_STEP_TASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "LOCAL_WORLD_SIZE",
)
_NO_LIMIT_BYTES = 1 << 60


def find_granted_cores(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, int]:
    """Find how many cores this process may keep busy, by the name of the limit; the smallest counts.

    Args:
        environ: The environment, in which Slurm leaves its limit.
        root: Root of the file system with `proc` and `sys`.
    """
    cores = {"affinity": os.cpu_count() or 1}
    if hasattr(os, "sched_getaffinity"):
        cores["affinity"] = len(os.sched_getaffinity(0))

    # Without --cpus-per-task, Slurm only sets the cores that all processes of the job, or of a step, share on a node.
    counts = ",".join(environ.get(name, "") for name in _ON_NODE)
    processes = [int(count) for count in re.findall(r"(?:^|,)([1-9]\d*)", counts)]
    share = math.ceil(_read_number(environ, "SLURM_CPUS_ON_NODE") / max(processes, default=1))
    slurm = [number for number in (_read_number(environ, "SLURM_CPUS_PER_TASK"), share) if number]
    if slurm:
        cores["Slurm"] = min(slurm)

    quotas = []
    for text in _iter_group_files("cpu.max", root):
        with suppress(ValueError):  # no limit: "max"
            quota, period = map(int, text.split())
            if quota > 0 and period > 0:
                quotas.append(math.ceil(quota / period))
    if quotas:
        cores["container"] = min(quotas)
    return cores


def find_granted_memory(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, int]:
    """Find how many bytes of memory this process may use, by the name of the limit; the smallest counts.

    The arguments are those of `find_granted_cores`.
    """
    import resource

    memory = {"machine": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    limits = [
        int(text) for text in _iter_group_files("memory.max", root) if text.strip().isdecimal()
    ]
    if limits:
        memory["container"] = min(limits)

    soft_limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= soft_limit < _NO_LIMIT_BYTES:
        memory["ulimit -v"] = soft_limit

    # In megabytes; 0 stands for all of the node.
    per_node = _read_number(environ, "SLURM_MEM_PER_NODE")
    per_core = _read_number(environ, "SLURM_MEM_PER_CPU")
    slurm = per_node or per_core * max(1, _read_number(environ, "SLURM_CPUS_ON_NODE"))
    if slurm:
        memory["Slurm"] = slurm << 20
    return memory


def _read_number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def _iter_group_files(name: str, root: Path) -> Iterator[str]:
    """Iterate over the files of that name in the control group of this process and in those above (version 2)."""
    lines: list[str] = []
    with suppress(OSError):  # not Linux
        lines = (
            (root / "proc/self/cgroup").read_text(encoding="ascii", errors="replace").splitlines()
        )
    top = root / "sys/fs/cgroup"
    for line in lines:
        # Lines of version 1 name controllers: `3:cpu:/box`.
        if not line.startswith("0::"):
            continue
        directory = top / line.removeprefix("0::").lstrip("/")
        for group in (directory, *directory.parents):
            with suppress(OSError, ValueError):  # no such group, or not a path
                yield (group / name).read_text(encoding="ascii", errors="replace")
            if group == top:
                break
