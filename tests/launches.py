"""What launchers tell their processes: recorded from Slurm 22.05, Open MPI 4.1, MPICH 4.0 and torchrun 2.13."""

from __future__ import annotations

from typing import NamedTuple


class Launch(NamedTuple):
    """A process, and what is to be known from its environment.

    Attributes:
        name: How it was started.
        text: The variables that may matter.
        shard: Which shard it is, or a part of the message why that cannot be known.
        cores: How many processors Slurm grants it.
    """

    name: str
    text: str
    shard: str
    cores: int | None

    @property
    def environ(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self.text.split())


LAUNCHES = (
    Launch(
        "the script of an array task",
        """
        SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_TASKS_PER_NODE=1 SLURM_CPUS_ON_NODE=1 SLURM_ARRAY_TASK_ID=1
        SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=1 SLURM_ARRAY_TASK_STEP=1
        """,
        "1/2",
        1,
    ),
    Launch(
        "the script of a task of --array=1-3:2 --ntasks=4",
        """
        SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4
        SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=3
        SLURM_ARRAY_TASK_STEP=2
        """,
        "1/2",
        4,
    ),
    Launch(
        "the script of a task of --array=3,7",
        """
        SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_TASKS_PER_NODE=1 SLURM_CPUS_ON_NODE=1 SLURM_ARRAY_TASK_ID=3
        SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=3 SLURM_ARRAY_TASK_MAX=7 SLURM_ARRAY_TASK_STEP=1
        """,
        "do not follow each other",
        1,
    ),
    Launch(
        "srun in a task of an array",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4
        SLURM_TASKS_PER_NODE=4 SLURM_STEP_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4 SLURM_ARRAY_TASK_ID=3
        SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=3 SLURM_ARRAY_TASK_STEP=2
        """,
        "contradicts itself",
        1,
    ),
    Launch(
        "sbatch --ntasks=4",
        """
        SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4
        """,
        "names no task",
        4,
    ),
    Launch(
        "sbatch --ntasks=4, srun",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4
        SLURM_TASKS_PER_NODE=4 SLURM_STEP_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4
        """,
        "2/4",
        1,
    ),
    Launch(
        "sbatch --cpus-per-task=2, srun",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1
        SLURM_TASKS_PER_NODE=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_CPUS_ON_NODE=2 SLURM_CPUS_PER_TASK=2
        """,
        "0/1",
        2,
    ),
    Launch(
        "srun --ntasks=2 --cpus-per-task=2",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2
        SLURM_TASKS_PER_NODE=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_CPUS_ON_NODE=4 SLURM_CPUS_PER_TASK=2
        """,
        "1/2",
        2,
    ),
    Launch(
        "srun on three nodes",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_STEP_NUM_TASKS=6
        SLURM_TASKS_PER_NODE=4,1(x2) SLURM_STEP_TASKS_PER_NODE=4,1(x2) SLURM_CPUS_ON_NODE=1
        """,
        "5/6",
        1,
    ),
    Launch(
        "srun --mpi=pmi2 on three nodes",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_STEP_NUM_TASKS=6
        SLURM_TASKS_PER_NODE=4,1(x2) SLURM_STEP_TASKS_PER_NODE=4,1(x2) SLURM_CPUS_ON_NODE=1 PMI_RANK=5
        PMI_SIZE=6
        """,
        "5/6",
        1,
    ),
    Launch(
        "srun of a heterogeneous job",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3
        SLURM_TASKS_PER_NODE=2,1 SLURM_STEP_TASKS_PER_NODE=2,1 SLURM_CPUS_ON_NODE=1
        """,
        "2/3",
        1,
    ),
    Launch(
        "salloc --ntasks=3",
        """
        SLURM_JOB_ID=7 SLURM_NTASKS=3 SLURM_TASKS_PER_NODE=3
        """,
        "names no task",
        None,
    ),
    Launch(
        "salloc --ntasks=3, interactive step",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=1
        SLURM_TASKS_PER_NODE=3 SLURM_STEP_TASKS_PER_NODE=1 SLURM_CPUS_ON_NODE=3
        """,
        "0/1",
        3,
    ),
    Launch(
        "sbatch --ntasks=3 within srun",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=1
        SLURM_TASKS_PER_NODE=3 SLURM_STEP_TASKS_PER_NODE=1 SLURM_CPUS_ON_NODE=3
        """,
        "0/1",
        3,
    ),
    Launch(
        "sbatch --ntasks=4, mpirun of Open MPI",
        """
        SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4
        OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4
        """,
        "3/4",
        1,
    ),
    Launch(
        "sbatch on three nodes, mpirun of Open MPI",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2
        SLURM_TASKS_PER_NODE=1(x2) SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_CPUS_ON_NODE=1 OMPI_COMM_WORLD_RANK=5
        OMPI_COMM_WORLD_SIZE=6 OMPI_COMM_WORLD_LOCAL_SIZE=1
        """,
        "5/6",
        1,
    ),
    Launch(
        "sbatch on three nodes, mpiexec of MPICH",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_NTASKS=6 SLURM_STEP_NUM_TASKS=3
        SLURM_TASKS_PER_NODE=1(x3) SLURM_STEP_TASKS_PER_NODE=1(x3) SLURM_CPUS_ON_NODE=4 PMI_RANK=1 PMI_SIZE=6
        MPI_LOCALNRANKS=4
        """,
        "1/6",
        1,
    ),
    Launch(
        "sbatch --ntasks=4, torchrun",
        """
        SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_TASKS_PER_NODE=4 SLURM_CPUS_ON_NODE=4 RANK=1
        WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
        """,
        "1/2",
        2,
    ),
    Launch(
        "srun torchrun on three nodes",
        """
        SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3
        SLURM_TASKS_PER_NODE=1(x3) SLURM_STEP_TASKS_PER_NODE=1(x3) SLURM_CPUS_ON_NODE=1 RANK=4 WORLD_SIZE=6
        LOCAL_WORLD_SIZE=2
        """,
        "4/6",
        1,
    ),
    Launch(
        "mpirun of Open MPI",
        """
        OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4
        """,
        "2/4",
        None,
    ),
    Launch(
        "torchrun",
        """
        RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
        """,
        "1/2",
        None,
    ),
)
