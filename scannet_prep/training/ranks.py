"""Rank and world size of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from scannet_prep.errors import UsageError
from scannet_prep.training.whole_numbers import check_number

_HINT_GIVE_RANK = (
    "pass both: rank=..., world_size=... "
    "(under srun, SLURM_PROCID and SLURM_STEP_NUM_TASKS); torchrun sets them"
)
# Variables of Slurm, Open MPI and MPICH with the number of processes of a job.
_PROCESS_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_HINT_LIGHTNING = (
    "Trainer(use_distributed_sampler=False), or the same option of Fabric's setup_dataloaders"
)
_HINT_ACCELERATE = (
    "do not pass this loader to accelerator.prepare: prepare the model and the optimizer only"
)
# Classes that give each rank only some of a sampler's output, and how to avoid them.
_SHARDERS = {
    "_DatasetSamplerWrapper": _HINT_LIGHTNING,
    "BatchSamplerShard": _HINT_ACCELERATE,
    "DataLoaderDispatcher": _HINT_ACCELERATE,
}


class RankedSampler:
    """Base of samplers that give each of several processes its share of the scenes.

    The rank and the world size come from the first of these that has them:

    1. the arguments;
    2. `torch.distributed`, if it has been imported and initialized;
    3. the environment variables RANK and WORLD_SIZE.

    Without any of them, the process is alone, unless the variables of a launcher indicate several
    processes.

    Raises:
        UsageError: There are several processes, and the rank of this one is unknown or invalid.
    """

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        # With both arguments, neither `torch.distributed` nor the environment is considered.
        self._is_given = rank is not None and world_size is not None
        default_rank: int | None = None
        default_size: int | None = None
        if not self._is_given:
            default_rank, default_size = _torch_rank_and_size() or _read_rank(os.environ)
        rank = default_rank if rank is None else check_number(rank, "rank", 0)
        world_size = (
            default_size if world_size is None else check_number(world_size, "world_size", 1)
        )

        if rank is None and world_size is None:
            _refuse_unknown_launcher()
        if rank is None and world_size in {None, 1}:
            rank = 0
            world_size = 1
        if rank is None or world_size is None or not 0 <= rank < world_size:
            raise UsageError(
                f"found rank {rank} and world size {world_size}, expected both, "
                "with the rank below the world size",
                _HINT_GIVE_RANK,
            )
        self.rank = rank
        self.world_size = world_size

    def _check_rank(self) -> None:
        """Check, before an iteration, that the rank is still right and nothing shards the share.

        Raises:
            UsageError: `torch.distributed` now has another rank, or a framework takes only some of
                the share of this rank.
        """
        now = None if self._is_given else _torch_rank_and_size()
        if now is not None and now != (self.rank, self.world_size):
            rank, world_size = now
            raise UsageError(
                f"this sampler was made for rank {self.rank} of {self.world_size}, "
                f"but torch.distributed now has rank {rank} of {world_size}",
                "call torch.distributed.init_process_group before you make the sampler",
            )
        if self.world_size > 1:
            self._refuse_sharders()

    def _refuse_sharders(self) -> None:
        """Raise UsageError if a framework that iterates over this sampler shards its output again.

        Half of the scenes would silently be left out. These frameworks leave no mark on the
        sampler, so the classes of the callers are the only sign.
        """
        for name in _caller_classes():
            if name in _SHARDERS:
                share = f"this is the share of rank {self.rank} of {self.world_size}"
                raise UsageError(f"{share}, and {name} takes only some of it", _SHARDERS[name])

    def _compare_ranks(self, facts: Mapping[str, object]) -> None:
        """Compare facts that must be equal on all ranks.

        All ranks wait here for the others, and all raise if a fact differs. Does nothing unless the
        rank comes from `torch.distributed`.

        Args:
            facts: The facts of this rank, by name.

        Raises:
            UsageError: A fact differs; the message names the rank.
        """
        if self._is_given or self.world_size == 1 or _torch_rank_and_size() is None:
            return
        distributed: Any = sys.modules["torch.distributed"]
        # Plain objects cannot be exchanged by a backend that only moves tensors on GPUs. None is
        # the group of all ranks.
        group = None
        if distributed.get_backend() != "gloo":
            group = distributed.new_group(backend="gloo")
        # Each entry is replaced by the facts of that rank.
        facts_by_rank: list[dict[str, object]] = [{}] * self.world_size
        distributed.all_gather_object(facts_by_rank, dict(facts), group)
        expected = facts_by_rank[0]
        for rank, rank_facts in enumerate(facts_by_rank):
            for name, value in rank_facts.items():
                if value != expected[name]:
                    raise UsageError(
                        f"rank {rank} has {name}={value!r}, rank 0 has {expected[name]!r}: "
                        "their plans would differ",
                        "give all ranks the same scenes, arguments, versions and checkpoint",
                    )


def _refuse_unknown_launcher() -> None:
    """Raise UsageError if a launcher started several processes without setting WORLD_SIZE."""
    launcher = _find_launcher(os.environ)
    if launcher is not None:
        name, count = launcher
        raise UsageError(
            f"this process is one of {count} ({name}), but WORLD_SIZE is not set: "
            "all would get the same data",
            f"{_HINT_GIVE_RANK}; for a process by itself, 0 and 1",
        )


def _find_launcher(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Find a variable of Slurm or MPI that contains a number of processes above 1.

    Returns:
        Its name and its value, the number of processes; None if this process was started alone.
    """
    for name in _PROCESS_COUNTS:
        count = environ.get(name, "")
        if count not in {"", "0", "1"}:
            return name, count
    return None


def _read_rank(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Read RANK and WORLD_SIZE; None for a variable that is not set.

    Raises:
        UsageError: A variable is not a whole number.
    """
    return _read_integer(environ, "RANK"), _read_integer(environ, "WORLD_SIZE")


def _read_integer(environ: Mapping[str, str], name: str) -> int | None:
    """Read a whole number; None if the variable is not set."""
    text = environ.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"{name} is {text!r} in the environment, expected a whole number", _HINT_GIVE_RANK
        ) from None


def _caller_classes() -> Iterator[str]:
    """Yield the names of the classes whose methods are running, from the inside out.

    Functions that are not methods yield `NoneType`.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - callers pass nothing about themselves
    while frame is not None:
        yield type(frame.f_locals.get("self")).__name__
        frame = frame.f_back


def _torch_rank_and_size() -> tuple[int, int] | None:
    """Return rank and world size of `torch.distributed`; None unless imported and initialized."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
