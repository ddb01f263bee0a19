"""Variables in which Slurm, MPI and torchrun describe a job to its processes.

No other module reads them:

    torchrun    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    Slurm       SLURM_STEP_NUM_TASKS, SLURM_STEP_TASKS_PER_NODE, SLURM_CPUS_*, SLURM_MEM_*
    Open MPI    OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE
    MPICH       PMI_SIZE, MPI_LOCALNRANKS

Each function takes the environment as a mapping.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from scannet_prep.errors import UsageError

HINT_GIVE_RANK = (
    "pass both: rank=..., world_size=... "
    "(under srun, SLURM_PROCID and SLURM_STEP_NUM_TASKS); torchrun sets them"
)
_HINT_START = (
    "start it as you start training: torchrun --nproc_per_node=2 -m scannet_prep doctor --ddp PLACE"
)
_PROCESS_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Variables with the number of processes on this node. SLURM_STEP_TASKS_PER_NODE is a list with the
# numbers of all nodes.
_PROCESS_COUNTS_ON_NODE = (
    "SLURM_STEP_TASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "LOCAL_WORLD_SIZE",
)
# A number of processes. Slurm writes 4,1(x2) for 4 on the first node and 1 on each of the next two;
# the 2 is not matched.
_PROCESS_COUNT = re.compile(r"(?:^|,)([1-9]\d*)")


@dataclass(frozen=True, slots=True)
class TorchrunJob:
    """A process of a job that torchrun started.

    Attributes:
        rank: Number of this process, from 0.
        world_size: Number of processes.
        local_rank: Number of this process on its machine; the index of its GPU.
        host: Address of the store that all processes share.
        port: Port of the store.
        has_store: Whether torchrun itself keeps the store; otherwise rank 0 has to.
    """

    rank: int
    world_size: int
    local_rank: int
    host: str
    port: int
    has_store: bool


def read_torchrun_job(environ: Mapping[str, str]) -> TorchrunJob:
    """Read the job that this process belongs to.

    Raises:
        UsageError: The process does not belong to a job.
    """
    try:
        rank = int(environ["RANK"])
        world_size = int(environ["WORLD_SIZE"])
        job = TorchrunJob(
            rank=rank,
            world_size=world_size,
            local_rank=int(environ.get("LOCAL_RANK", rank)),
            host=environ["MASTER_ADDR"],
            port=int(environ["MASTER_PORT"]),
            has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    except (KeyError, ValueError):
        raise UsageError(
            "this process is not a rank of a job: "
            "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set",
            _HINT_START,
        ) from None
    if not 0 <= rank < world_size:
        raise UsageError(
            f"RANK is {rank}, expected at least 0 and less than WORLD_SIZE, which is {world_size}",
            _HINT_START,
        )
    return job


def read_rank(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Read RANK and WORLD_SIZE; None for a variable that is not set.

    Raises:
        UsageError: A variable is not a whole number.
    """
    return _read_integer(environ, "RANK"), _read_integer(environ, "WORLD_SIZE")


def find_launcher(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Find a variable of Slurm or MPI that contains a number of processes above 1.

    Returns:
        Its name and its value, the number of processes; None if this process was started alone.
    """
    for name in _PROCESS_COUNTS:
        count = environ.get(name, "")
        if count not in {"", "0", "1"}:
            return name, count
    return None


def find_slurm_cores(environ: Mapping[str, str]) -> int | None:
    """Find how many cores Slurm leaves to this process; None without Slurm.

    Slurm may set both variables below, or one of them. The smaller limit applies.
    """
    limits = []
    cores_per_task = _read_count(environ, "SLURM_CPUS_PER_TASK")
    if cores_per_task:
        limits.append(cores_per_task)
    # The cores that all processes of the job on this node share. Slurm also sets this variable
    # without --cpus-per-task.
    cores_on_node = _read_count(environ, "SLURM_CPUS_ON_NODE")
    if cores_on_node:
        process_count = _find_process_count_on_node(environ)
        # Rounded up, so that each process has at least one core.
        limits.append(math.ceil(cores_on_node / process_count))
    return min(limits, default=None)


def find_slurm_memory(environ: Mapping[str, str]) -> int | None:
    """Find how many bytes of memory Slurm leaves to this job on its node; None without a limit."""
    # Both variables are in megabytes; 0 means all memory of the node.
    megabytes = _read_count(environ, "SLURM_MEM_PER_NODE")
    if not megabytes:
        cores_on_node = max(1, _read_count(environ, "SLURM_CPUS_ON_NODE"))
        megabytes = _read_count(environ, "SLURM_MEM_PER_CPU") * cores_on_node
    if not megabytes:
        return None
    return megabytes << 20


def _find_process_count_on_node(environ: Mapping[str, str]) -> int:
    """Find how many processes share this node, at most; 1 without a launcher.

    Launchers may be nested, for example torchrun in srun, and the list of Slurm does not show which
    number is that of this node. The largest number of all is therefore returned.
    """
    counts: list[str] = []
    for name in _PROCESS_COUNTS_ON_NODE:
        counts += _PROCESS_COUNT.findall(environ.get(name, ""))
    return max(map(int, counts), default=1)


def _read_count(environ: Mapping[str, str], name: str) -> int:
    """Read a number; 0 if the variable is not set, or not a number."""
    text = environ.get(name, "")
    if not text.isdecimal():
        return 0
    return int(text)


def _read_integer(environ: Mapping[str, str], name: str) -> int | None:
    """Read a whole number; None if the variable is not set."""
    text = environ.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"{name} is {text!r} in the environment, expected a whole number", HINT_GIVE_RANK
        ) from None
