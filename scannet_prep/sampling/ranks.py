"""Which rank this process is, and of how many."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from scannet_prep.errors import UsageError
from scannet_prep.number_lists import check_number

_GIVE = "pass both: rank=..., world_size=... (srun tells SLURM_PROCID, SLURM_STEP_NUM_TASKS); torchrun sets them"
# Launchers that tell their processes in other words how many there are: Slurm, Open MPI, MPICH.
_LAUNCHERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# What gives each rank only some of what a sampler gives, which is one rank's share already: class, and how to avoid it.
_SHARDERS = {
    "_DatasetSamplerWrapper": "Trainer(use_distributed_sampler=False), or the same of Fabric's setup_dataloaders",
    "BatchSamplerShard": "do not pass this loader to accelerator.prepare: prepare the model and the optimizer only",
    "DataLoaderDispatcher": "do not pass this loader to accelerator.prepare: prepare the model and the optimizer only",
}


class RankedSampler:
    """A sampler that gives one process its share of what several work on together.

    What the caller says of the rank counts; else what `torch.distributed` says where it is initialized (it is not
    imported for that); else the environment variables RANK and WORLD_SIZE. A process is alone only if nothing says
    otherwise.
    Anything else is a UsageError: there are several processes, and it cannot be known which one this is.
    """

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        self._is_given = rank is not None and world_size is not None
        said = (None, None) if self._is_given else _ask_torch()
        found = said or (_read_variable("RANK"), _read_variable("WORLD_SIZE"))
        rank = found[0] if rank is None else check_number(rank, "rank", 0)
        world_size = found[1] if world_size is None else check_number(world_size, "world_size", 1)
        for name in _LAUNCHERS if rank is None and world_size is None else ():
            if os.environ.get(name, "1") not in {"", "0", "1"}:
                message = f"this process is one of {os.environ[name]} ({name}), but WORLD_SIZE is not set"
                raise UsageError(f"{message}: all would get the same data", f"{_GIVE}; for one by itself, 0 and 1")
        if rank is None and world_size in {None, 1}:
            rank, world_size = 0, 1
        if rank is None or world_size is None or not 0 <= rank < world_size:
            message = f"the rank is {rank}, the number of ranks is {world_size}: both must be known, the first less"
            raise UsageError(message, _GIVE)
        self.rank, self.world_size = rank, world_size

    def _check_rank(self) -> None:
        """Check, where an iteration begins, that the rank is still right, and that nothing shards its share again."""
        joined = None if self._is_given else _ask_torch()
        if joined is not None and joined != (self.rank, self.world_size):
            made = f"this sampler was made for rank {self.rank} of {self.world_size}"
            hint = "call torch.distributed.init_process_group before you make the sampler"
            raise UsageError(f"{made}, but now torch.distributed says rank {joined[0]} of {joined[1]}", hint)
        frame = sys._getframe() if self.world_size > 1 else None  # noqa: SLF001 - there is no other way to know
        while frame is not None:
            name = type(frame.f_locals.get("self")).__name__
            if name in _SHARDERS:
                share = f"this is the share of rank {self.rank} of {self.world_size}"
                raise UsageError(f"{share}, and {name} takes only some of it", _SHARDERS[name])
            frame = frame.f_back

    def _compare_ranks(self, facts: Mapping[str, object]) -> None:
        """Compare what all ranks must agree on, by name, where torch told the rank; all wait here, and all raise."""
        if self._is_given or self.world_size == 1 or _ask_torch() is None:
            return
        distributed: Any = sys.modules["torch.distributed"]
        # Whatever moves the gradients, this is about plain objects on the CPU.
        group = None if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")
        found: list[dict[str, object]] = [{}] * self.world_size
        distributed.all_gather_object(found, dict(facts), group)
        for rank, (name, value) in ((rank, item) for rank, others in enumerate(found) for item in others.items()):
            if value != found[0][name]:
                message = f"rank {rank} has {name}={value!r}, rank 0 has {found[0][name]!r}: their plans would differ"
                raise UsageError(message, "give all ranks the same scenes, arguments, versions and checkpoint")


def _read_variable(name: str) -> int | None:
    """A number of the environment; None where it says nothing."""
    text = os.environ.get(name, "")
    try:
        return int(text) if text else None
    except ValueError:
        raise UsageError(f"{name} is {text!r} in the environment, expected a whole number", _GIVE) from None


def _ask_torch() -> tuple[int, int] | None:
    """Rank and number of ranks of `torch.distributed`, where it has been imported and initialized."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
