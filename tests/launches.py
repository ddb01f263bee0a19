"""Environments of processes, recorded from Slurm 22.05, Open MPI 4.1, MPICH 4.0, torchrun 2.13."""

import re
from typing import NamedTuple


class Launch(NamedTuple):
    """A process that a launcher started.

    Attributes:
        name: How it was started.
        rank: Its rank and the number of processes, `1/2`; or why the variables do not determine
            them.
        environ: The variables of Slurm, MPI and torchrun in its environment.
    """

    name: str
    rank: str
    environ: dict[str, str]


# A line with name and rank, then the variables, those of Slurm without the prefix SLURM_.
_RECORDED = """\
the script of a task of --array=1-3:2 --ntasks=4 | 1/2
    JOB_ID=7 PROCID=0 NTASKS=4 TASKS_PER_NODE=4 CPUS_ON_NODE=4 ARRAY_TASK_ID=3 ARRAY_TASK_COUNT=2
    ARRAY_TASK_MIN=1 ARRAY_TASK_MAX=3 ARRAY_TASK_STEP=2
the script of a task of --array=3,7 | do not follow each other
    JOB_ID=7 PROCID=0 TASKS_PER_NODE=1 CPUS_ON_NODE=1 ARRAY_TASK_ID=3 ARRAY_TASK_COUNT=2
    ARRAY_TASK_MIN=3 ARRAY_TASK_MAX=7 ARRAY_TASK_STEP=1
srun in a task of an array | contradicts itself
    JOB_ID=7 STEP_ID=0 PROCID=2 NTASKS=4 STEP_NUM_TASKS=4 TASKS_PER_NODE=4 STEP_TASKS_PER_NODE=4
    CPUS_ON_NODE=4 ARRAY_TASK_ID=3 ARRAY_TASK_COUNT=2 ARRAY_TASK_MIN=1 ARRAY_TASK_MAX=3
    ARRAY_TASK_STEP=2
sbatch --ntasks=4 | names no task
    JOB_ID=7 PROCID=0 NTASKS=4 TASKS_PER_NODE=4 CPUS_ON_NODE=4
sbatch --ntasks=4, srun | 2/4
    JOB_ID=7 STEP_ID=0 PROCID=2 NTASKS=4 STEP_NUM_TASKS=4 TASKS_PER_NODE=4 STEP_TASKS_PER_NODE=4
    CPUS_ON_NODE=4
sbatch --cpus-per-task=2, srun | 0/1
    JOB_ID=7 STEP_ID=0 PROCID=0 NTASKS=1 STEP_NUM_TASKS=1 TASKS_PER_NODE=1 STEP_TASKS_PER_NODE=1
    CPUS_ON_NODE=2 CPUS_PER_TASK=2
srun --ntasks=2 --cpus-per-task=2 | 1/2
    JOB_ID=7 STEP_ID=0 PROCID=1 NTASKS=2 STEP_NUM_TASKS=2 TASKS_PER_NODE=2 STEP_TASKS_PER_NODE=2
    CPUS_ON_NODE=4 CPUS_PER_TASK=2
srun --mpi=pmi2 on three nodes | 5/6
    JOB_ID=7 STEP_ID=1 PROCID=5 NTASKS=6 STEP_NUM_TASKS=6 TASKS_PER_NODE=4,1(x2)
    STEP_TASKS_PER_NODE=4,1(x2) CPUS_ON_NODE=1 PMI_RANK=5 PMI_SIZE=6
srun of a heterogeneous job | 2/3
    JOB_ID=7 STEP_ID=0 PROCID=2 NTASKS=3 STEP_NUM_TASKS=3 TASKS_PER_NODE=2,1
    STEP_TASKS_PER_NODE=2,1 CPUS_ON_NODE=1
salloc --ntasks=3 | names no task
    JOB_ID=7 NTASKS=3 TASKS_PER_NODE=3
salloc --ntasks=3, interactive step | 0/1
    JOB_ID=7 STEP_ID=4294967290 PROCID=0 NTASKS=3 STEP_NUM_TASKS=1 TASKS_PER_NODE=3
    STEP_TASKS_PER_NODE=1 CPUS_ON_NODE=3
sbatch --ntasks=4, mpirun of Open MPI | 3/4
    JOB_ID=7 PROCID=0 NTASKS=4 TASKS_PER_NODE=4 CPUS_ON_NODE=4 OMPI_COMM_WORLD_RANK=3
    OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4
sbatch on three nodes, mpirun of Open MPI | 5/6
    JOB_ID=7 STEP_ID=0 PROCID=1 NTASKS=2 STEP_NUM_TASKS=2 TASKS_PER_NODE=1(x2)
    STEP_TASKS_PER_NODE=1(x2) CPUS_ON_NODE=1 OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=6
    OMPI_COMM_WORLD_LOCAL_SIZE=1
sbatch on three nodes, mpiexec of MPICH | 1/6
    JOB_ID=7 STEP_ID=1 PROCID=0 NTASKS=6 STEP_NUM_TASKS=3 TASKS_PER_NODE=1(x3)
    STEP_TASKS_PER_NODE=1(x3) CPUS_ON_NODE=4 PMI_RANK=1 PMI_SIZE=6 MPI_LOCALNRANKS=4
sbatch --ntasks=4, torchrun | 1/2
    JOB_ID=7 PROCID=0 NTASKS=4 TASKS_PER_NODE=4 CPUS_ON_NODE=4 RANK=1 WORLD_SIZE=2
    LOCAL_WORLD_SIZE=2
srun torchrun on three nodes | 4/6
    JOB_ID=7 STEP_ID=0 PROCID=2 NTASKS=3 STEP_NUM_TASKS=3 TASKS_PER_NODE=1(x3)
    STEP_TASKS_PER_NODE=1(x3) CPUS_ON_NODE=1 RANK=4 WORLD_SIZE=6 LOCAL_WORLD_SIZE=2
mpirun of Open MPI | 2/4
    OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4
mpiexec of MPICH | 1/2
    PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=2
torchrun | 1/2
    RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
"""


_PREFIXES_OF_OTHERS = ("OMPI_", "PMI_", "MPI_", "RANK", "WORLD_", "LOCAL_")


def _parse_launches():
    launches = []
    for head, body in re.findall(r"^(\S.*)\n((?:    .*\n)+)", _RECORDED, re.MULTILINE):
        name, rank = head.split(" | ")
        environ = {}
        for word in body.split():
            key, value = word.split("=", 1)
            if not key.startswith(_PREFIXES_OF_OTHERS):
                key = f"SLURM_{key}"
            environ[key] = value
        launches.append(Launch(name, rank, environ))
    return launches


LAUNCHES = _parse_launches()
