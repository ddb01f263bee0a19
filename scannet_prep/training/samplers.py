"""Samplers: batches within a budget of points for training, and every scene once for evaluation."""

from __future__ import annotations

import math
import os
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.version import VERSION
from scannet_prep.errors import UsageError
from scannet_prep.training.plan import Plan, make_plan, pack

# The index of a scene and the epoch: `dataset[key]` reads it with the random numbers of the epoch.
SceneKey: TypeAlias = tuple[int, int]

# Version of the plans and of the fields of a state. A state of another version is refused.
_STATE_VERSION = 5
# Variables of Slurm, Open MPI and MPICH with the number of processes of a job.
_PROCESS_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_HINT_GIVE_RANK = (
    "pass both: rank=..., world_size=... (under srun, SLURM_PROCID and SLURM_STEP_NUM_TASKS; for a "
    "process by itself, 0 and 1); torchrun sets them"
)


class PointBudgetBatchSampler:
    """Batches of scenes within a budget of vertices, for `DataLoader(dataset, batch_sampler=...)`.

    Every rank computes the same plan of the epoch from (lengths, budget, seed, epoch) and takes its
    part. All ranks need the same version of NumPy, because its random numbers may change between
    versions.

    - The number of steps is the same on all ranks and in all epochs.
    - Every scene comes exactly once per epoch, over all ranks. The one exception: if hardly any two
      scenes fit together, the number of batches may not be a multiple of the number of ranks. Then
      some scenes are repeated: fewer than there are ranks, and not the same ones in each epoch.
    - A batch never exceeds the budget, except a single scene that does so by itself.
    - The batches of one step are of similar size, so that no rank waits for another.
    - The scenes that share a batch, the order of the batches and their ranks change each epoch.

    A batch is a list of `(index, epoch)`. In this way, workers that outlive an epoch receive its
    number with each scene, and `ScanNet` derives its random numbers from it.

    Each iteration is the next epoch, unless `set_epoch` or `load_state_dict` has chosen one. After
    `load_state_dict`, the first iteration is the rest of the epoch, from the step after which the
    state was saved.

    If `torch.distributed` is initialized, the first iteration compares all ranks: their vertex
    counts, arguments, epoch, loaded state and versions. So ranks that see different folders fail at
    once.

    Args:
        lengths: The dataset, or the number of vertices of each scene, such as `dataset.lengths`. If
            a transform crops to N points, `np.minimum(dataset.lengths, N)`. The `digest` of a
            dataset is compared over the ranks and by `load_state_dict`.
        max_points: The budget of a batch, in vertices.
        max_scenes: Maximum number of scenes in a batch; None for any number.
        rank: Rank of this process. By default that of `torch.distributed` if it is initialized,
            otherwise the environment variable RANK, which torchrun sets.
        world_size: Number of ranks. By default that of `torch.distributed`, otherwise the
            environment variable WORLD_SIZE, otherwise 1.
        seed: Seed of the plans.
        shuffle: False for the same batches in each epoch, the largest first.

    Attributes:
        epoch: The epoch of the current iteration; before the first, that of the next one.
        has_begun: Whether a batch of it has been handed out.
        steps_before: Steps of that epoch that were already done when the loaded state was saved.
        rank, world_size: As given or found.

    Raises:
        UsageError: An argument is invalid; there are fewer scenes than ranks; or there are several
            processes, and the rank of this one is unknown.
    """

    def __init__(
        self,
        lengths: object,
        *,
        max_points: int,
        max_scenes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self._lengths = _check_lengths(lengths)
        # With both arguments, neither `torch.distributed` nor the environment is considered.
        self._is_rank_given = rank is not None and world_size is not None
        self.rank, self.world_size = _find_rank(rank, world_size)
        scene_count = len(self._lengths)
        max_scenes = scene_count if max_scenes is None else max_scenes
        if max_points < 1 or max_scenes < 1 or seed < 0:
            raise UsageError(
                f"max_points is {max_points}, max_scenes {max_scenes} and seed {seed}, "
                "expected at least 1, 1 and 0"
            )
        if scene_count < self.world_size:
            raise UsageError(
                f"there are {scene_count} scenes for {self.world_size} ranks: some would be idle",
                "train on fewer ranks, or with more scenes",
            )
        # Everything on which the plans depend, apart from the epoch.
        self._settings: dict[str, Any] = {
            "version": _STATE_VERSION,
            "world_size": self.world_size,
            "seed": int(seed),
            "shuffle": bool(shuffle),
            "max_points": int(max_points),
            "max_scenes": int(max_scenes),
            "scene_count": scene_count,
            "lengths_crc32": zlib.crc32(self._lengths.astype("<i8").tobytes()),
            # Empty if the vertex counts were passed instead of the dataset.
            "digest": str(getattr(lengths, "digest", "")),
        }
        self._packing = pack(
            self._lengths,
            int(max_points),
            int(max_scenes),
            self.world_size,
        )
        self._has_compared_ranks = False
        self.has_begun = False
        self.epoch = 0
        self.steps_before = 0

    @property
    def steps_left(self) -> int:
        """Steps of the iteration: a whole epoch, or the rest of a resumed one."""
        return len(self) - self.steps_before

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks and in all epochs."""
        batch_count = len(self._packing)
        return math.ceil(batch_count / self.world_size)

    def __iter__(self) -> Iterator[list[SceneKey]]:
        """Iterate over this rank's batches of the next epoch, as lists of (index, epoch).

        Raises:
            UsageError: Ranks differ; or `torch.distributed` was initialized after the sampler was
                made and has another rank.
        """
        if self.has_begun:
            self.set_epoch(self.epoch + 1)
        if not self._is_rank_given:
            _check_rank(self.rank, self.world_size)
            self._compare_ranks()
        return _Pass(self)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        If it is the epoch of the loaded state, it continues where it stopped. Every other epoch
        begins at its start.
        """
        if epoch != self.epoch:
            self.steps_before = 0
        self.epoch = epoch
        self.has_begun = False

    def state_dict(self, *, steps_done: int = 0) -> dict[str, Any]:
        """Return the position of the training for a checkpoint, the same on all ranks.

        It consists of plain values. The sampler cannot count the steps itself, because workers run
        ahead of the training.

        Args:
            steps_done: Training steps done since the epoch began or was resumed, as counted by
                `enumerate(loader, start=1)`. With 0, the steps of this iteration are repeated after
                resuming.

        Raises:
            UsageError: The iteration has fewer steps.
        """
        if not 0 <= steps_done <= self.steps_left:
            raise UsageError(
                f"steps_done is {steps_done}, "
                f"but the rest of epoch {self.epoch} has {self.steps_left} steps",
                "count since the epoch began or was resumed: enumerate(loader, start=1)",
            )
        return self.state_at(self.epoch, self.steps_before + steps_done)

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state after `step` steps of an epoch, counted from its start."""
        # After the last step, training continues with the next epoch.
        further_epochs, step = divmod(step, len(self))
        return {"epoch": epoch + further_epochs, "steps_done": step, **self._settings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called: the next iteration is the rest of that epoch.

        The batches are exactly those that the interrupted run would have received.

        Raises:
            UsageError: The state belongs to a sampler with another budget, seed, shuffle, number of
                ranks or dataset, or is none.
        """
        for name, value in self._settings.items():
            if state.get(name) != value:
                raise UsageError(
                    f"the state was saved with {name}={state.get(name)!r}, "
                    f"this sampler has {name}={value!r}",
                    "make the sampler from the same scenes, with the same arguments and ranks; or "
                    "leave the state out, and start the epoch again with set_epoch(epoch)",
                )
        self.epoch = state["epoch"]
        self.steps_before = state["steps_done"]
        self.has_begun = False

    def end_epoch(self, steps_done: int) -> None:
        """Warn if this rank did fewer steps than were planned for the current iteration.

        This happens if a framework gives each rank only some of a sampler's output, such as a
        loader that was passed to `accelerator.prepare`: then scenes are left out.

        Args:
            steps_done: As for `state_dict`.
        """
        _warn_of_missing_steps(self, steps_done, self.steps_left)

    def plan(self, epoch: int) -> Plan:
        """Return all batches of an epoch: the scenes of step 0 for each rank, of step 1, etc."""
        generator = None
        if self._settings["shuffle"]:
            seeds = np.random.SeedSequence(self._settings["seed"], spawn_key=(epoch,))
            generator = np.random.default_rng(seeds)
        return make_plan(
            self._packing,
            self._lengths,
            self._settings["max_points"],
            self.world_size,
            generator,
        )

    def _compare_ranks(self) -> None:
        """Compare, once, the facts on which the plans of all ranks of `torch.distributed` depend.

        All ranks wait here for the others, and all raise if a fact differs.

        Raises:
            UsageError: A fact differs; the message names the rank.
        """
        if self._has_compared_ranks or _find_torch_rank() is None:
            return
        self._has_compared_ranks = True
        facts = {
            **self._settings,
            "numpy": np.__version__,
            "scannet_prep": VERSION,
            "epoch": self.epoch,
            "steps done": self.steps_before,
        }
        distributed: Any = sys.modules["torch.distributed"]
        # Plain objects cannot be exchanged by a backend that only moves tensors on GPUs.
        group = distributed.new_group(backend="gloo")
        # Each entry is replaced by the facts of that rank.
        facts_by_rank: list[dict[str, object]] = [{}] * self.world_size
        distributed.all_gather_object(facts_by_rank, facts, group)
        for rank, rank_facts in enumerate(facts_by_rank):
            for name, expected in facts_by_rank[0].items():
                if rank_facts[name] != expected:
                    raise UsageError(
                        f"rank {rank} has {name}={rank_facts[name]!r}, rank 0 has {expected!r}: "
                        "their plans would differ",
                        "give all ranks the same scenes, arguments, versions and checkpoint",
                    )


class _Pass(Iterator[list[SceneKey]]):
    """One pass over the rest of an epoch.

    `StatefulDataLoader` of torchdata stores the state of this iterator with each batch.
    """

    def __init__(self, sampler: PointBudgetBatchSampler) -> None:
        self._sampler = sampler
        self._epoch = sampler.epoch
        self._step = sampler.steps_before
        plan = sampler.plan(self._epoch)
        self._batches = plan[sampler.rank :: sampler.world_size]

    def __next__(self) -> list[SceneKey]:
        """Hand out the next batch."""
        if self._step == len(self._batches):
            raise StopIteration
        # Not at the beginning of the pass: a DataLoader with workers begins its first one twice.
        self._sampler.has_begun = True
        batch = self._batches[self._step]
        self._step += 1
        return [(scene, self._epoch) for scene in batch]

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that have been handed out."""
        return self._sampler.state_at(self._epoch, self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Move the sampler to a state, and continue from there."""
        self._sampler.load_state_dict(state)
        self.__dict__ = vars(iter(self._sampler))


class EvalSampler:
    """Indices of scenes for evaluation: each scene goes to exactly one rank.

    Use it as `DataLoader(dataset, sampler=..., batch_size=...)`.

    Other samplers pad the ranks to equal length, which counts some scenes twice and makes every
    mean wrong. Here the ranks may differ by one scene: `len()` is the number of scenes of this
    rank. **A rank without work in the last step has simply finished.** With fewer scenes than
    ranks, some have none at all. So nothing in the loop may wait for the other ranks. Call the
    model without `DistributedDataParallel` around it (`model.module`), because that exchanges
    buffers in every step. Add up the results after the loop, with one `all_reduce` of the confusion
    matrix.

    The scenes of one step are of similar size, the largest first, and the ranks get about the same
    number of vertices in all. The order is the same each time and depends on the lengths alone.

    Args:
        lengths: The dataset, or the number of vertices of each scene, such as `dataset.lengths`.
        rank: As for `PointBudgetBatchSampler`.
        world_size: As for `PointBudgetBatchSampler`.

    Attributes:
        rank: As given or found.
        world_size: As given or found.

    Raises:
        UsageError: An argument is invalid, or there are several processes, and the rank of this one
            is unknown.
    """

    def __init__(
        self, lengths: object, *, rank: int | None = None, world_size: int | None = None
    ) -> None:
        order = np.argsort(-_check_lengths(lengths), kind="stable")
        self._is_rank_given = rank is not None and world_size is not None
        self.rank, self.world_size = _find_rank(rank, world_size)
        # Deal the scenes, the largest first. Ranks take turns in ascending order in even steps and
        # in descending order in odd ones, so that all get about the same number of vertices.
        period = 2 * self.world_size
        turns = (self.rank, period - 1 - self.rank)
        is_own = np.isin(np.arange(len(order)) % period, turns)
        self._scenes = order[is_own].tolist()

    def __len__(self) -> int:
        """Number of scenes of this rank."""
        return len(self._scenes)

    def __iter__(self) -> Iterator[int]:
        """Iterate over this rank's indices.

        Raises:
            UsageError: `torch.distributed` was initialized after the sampler was made.
        """
        if not self._is_rank_given:
            _check_rank(self.rank, self.world_size)
        return iter(self._scenes)

    def end_epoch(self, steps_done: int) -> None:
        """Warn if fewer scenes were evaluated than this rank has; see `PointBudgetBatchSampler`."""
        _warn_of_missing_steps(self, steps_done, len(self))


def _warn_of_missing_steps(
    sampler: PointBudgetBatchSampler | EvalSampler, steps_done: int, planned: int
) -> None:
    """Warn, at the call of `end_epoch`, if a framework has taken steps away."""
    if steps_done < planned:
        warnings.warn(
            f"rank {sampler.rank} of {sampler.world_size} did {steps_done} of the {planned} steps "
            "that were planned, so scenes were left out; keep frameworks from sharding the loader "
            "again (Lightning: use_distributed_sampler=False; accelerate: do not prepare the "
            "loader)",
            stacklevel=3,
        )


def _check_lengths(lengths: object) -> NDArray[np.int64]:
    """Check the vertex counts of the scenes, and return a copy, int64 (n,).

    Args:
        lengths: The vertex counts, or a dataset that has them as `lengths`.

    Raises:
        UsageError: They are not a list of whole numbers.
    """
    counts = getattr(lengths, "lengths", lengths)
    # NumPy would read all scenes of a dataset to make an array of it.
    is_dataset = hasattr(counts, "dataset") or hasattr(counts, "datasets")
    array = np.asarray(() if is_dataset else counts)
    is_list = array.ndim == 1 and len(array) > 0
    is_valid = is_list and array.dtype.kind in "iu"
    # Unsigned numbers that int64 cannot hold become negative.
    if not is_valid or array.astype(np.int64).min() < 0:
        raise UsageError(
            f"lengths is {lengths!r:.80}, "
            "expected the vertices of each scene, whole numbers from 0",
            "pass the dataset, or dataset.lengths; instead of PyTorch's Subset and ConcatDataset, "
            'use dataset.subset(...) and split=["train", "val"]',
        )
    return array.astype(np.int64)


def _find_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Find rank and world size of this process.

    They come from the first of these that has them: the arguments; `torch.distributed`, if it has
    been imported and initialized; the environment variables RANK and WORLD_SIZE. Without any of
    them, the process is alone, unless the variables of a launcher indicate several processes.

    Raises:
        UsageError: There are several processes, and the rank of this one is unknown or invalid.
    """
    if rank is None or world_size is None:
        found_rank, found_size = _find_torch_rank() or (
            _read_number("RANK"),
            _read_number("WORLD_SIZE"),
        )
        rank = found_rank if rank is None else rank
        world_size = found_size if world_size is None else world_size
    if rank is None and world_size is None:
        for name in _PROCESS_COUNTS:
            count = os.environ.get(name, "")
            if count not in {"", "0", "1"}:
                raise UsageError(
                    f"this process is one of {count} ({name}), but WORLD_SIZE is not set: "
                    "all would get the same data",
                    _HINT_GIVE_RANK,
                )
    if rank is None and world_size in {None, 1}:
        return 0, 1
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise UsageError(
            f"found rank {rank} and world size {world_size}, expected both, "
            "with the rank below the world size",
            _HINT_GIVE_RANK,
        )
    return rank, world_size


def _read_number(name: str) -> int | None:
    """Read a whole number from the environment; None if the variable is not set."""
    text = os.environ.get(name)
    return int(text) if text else None


def _find_torch_rank() -> tuple[int, int] | None:
    """Return rank and world size of `torch.distributed`; None unless imported and initialized."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _check_rank(rank: int, world_size: int) -> None:
    """Check that a sampler still has the rank of `torch.distributed`.

    Raises:
        UsageError: It was made too early.
    """
    now = _find_torch_rank()
    if now not in {None, (rank, world_size)}:
        raise UsageError(
            f"this sampler was made for rank {rank} of {world_size}, "
            f"but torch.distributed now has rank and world size {now}",
            "call torch.distributed.init_process_group before you make the sampler",
        )
