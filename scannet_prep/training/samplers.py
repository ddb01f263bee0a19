"""Samplers: batches within a budget of points for training, and every scene once for evaluation."""

from __future__ import annotations

import math
import os
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, TypeAlias

import numpy as np

from scannet_prep.base.text import count_of
from scannet_prep.base.version import VERSION
from scannet_prep.errors import UsageError
from scannet_prep.training.plan import Plan, make_plan, pack

# The index of a scene and the epoch: `dataset[key]` reads it with the random numbers of the epoch.
SceneKey: TypeAlias = tuple[int, int]

# Version of the plans and of the fields of a state. A state of another version is refused.
_STATE_VERSION = 8
# Variables of torchrun, Slurm, Open MPI and MPICH with the number of processes of a job.
_PROCESS_COUNTS = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_HINT_RANK = (
    "call torch.distributed.init_process_group before making samplers; or pass both, rank and "
    "world_size (under srun, SLURM_PROCID and SLURM_STEP_NUM_TASKS; for a single process, 0 and 1)"
)


class _RankSampler(Sized):
    """Base of both samplers: vertex counts, ranks, and the check at the end of an epoch."""

    # Steps of the epoch that were already done when the loaded state was saved.
    steps_before = 0

    def __init__(
        self,
        lengths: Any,  # noqa: ANN401 - a dataset or numbers
        rank: int | None,
        world_size: int | None,
    ) -> None:
        counts = getattr(lengths, "lengths", lengths)
        # NumPy would read all scenes of a dataset to make an array of it.
        if not isinstance(counts, Sequence | np.ndarray):
            raise UsageError(
                f"lengths is a {type(counts).__name__}, expected the vertices of each scene",
                "pass the dataset, or dataset.lengths; instead of PyTorch's Subset and "
                'ConcatDataset, use scenes=[...] and split=["train", "val"]',
            )
        self._lengths = np.array(counts, np.int64)
        # If so, neither `torch.distributed` nor the environment is considered.
        self._is_rank_given = rank is not None
        self.rank, self.world_size = _find_rank(rank, world_size)

    @property
    def steps_left(self) -> int:
        """Steps of the iteration: a whole epoch, or the rest of a resumed one."""
        return len(self) - self.steps_before

    def end_epoch(self, steps_done: int) -> None:
        """Warn if this rank did fewer steps than were planned for the current iteration.

        This happens if a framework gives each rank only some of a sampler's output, such as a
        loader that was passed to `accelerator.prepare`: then scenes are left out.

        Args:
            steps_done: Steps since the epoch began or was resumed. For `EvalSampler`, the number of
                scenes, since a step may have several (`batch_size`).
        """
        if steps_done < self.steps_left:
            warnings.warn(
                f"rank {self.rank} of {self.world_size} did {steps_done} of the {self.steps_left} "
                "steps that were planned, so scenes were left out; keep frameworks from sharding "
                "the loader again (Lightning: use_distributed_sampler=False; accelerate: do not "
                "prepare the loader)",
                stacklevel=2,
            )

    def _has_other_ranks(self) -> bool:
        """Whether `torch.distributed` has to be considered.

        Raises:
            UsageError: It was initialized after the sampler was made, and has another rank.
        """
        now = _find_torch_rank()
        if self._is_rank_given or now is None:
            return False
        if now != (self.rank, self.world_size):
            raise UsageError(
                f"this sampler was made for rank {self.rank} of {self.world_size}, "
                f"but torch.distributed now has rank and world size {now}",
                _HINT_RANK,
            )
        return True


class PointBudgetBatchSampler(_RankSampler):
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
        rank: Rank of this process; only with `world_size`. By default, both are those of
            `torch.distributed` if it is initialized, otherwise 0 and 1.
        world_size: Number of ranks.
        seed: Seed of the plans.

    Attributes:
        epoch: The epoch of the current iteration; before the first, that of the next one.
        steps_before: Steps of that epoch that were already done when the loaded state was saved.
        rank, world_size: As given or found.

    Raises:
        UsageError: `lengths` is something else; `max_points` is below 1; there are fewer scenes
            than ranks; or there are several processes, and the rank of this one is unknown.
    """

    def __init__(
        self,
        lengths: object,
        *,
        max_points: int,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(lengths, rank, world_size)
        scene_count = len(self._lengths)
        if scene_count < self.world_size:
            raise UsageError(
                f"{count_of(scene_count, 'scene')} for {self.world_size} ranks: some would be idle",
                "train on fewer ranks, or with more scenes",
            )
        if max_points < 1:
            raise UsageError(f"max_points is {max_points}, expected at least 1")
        # Everything on which the plans depend, apart from the epoch.
        self._settings: dict[str, Any] = {
            "version": _STATE_VERSION,
            "world_size": self.world_size,
            "seed": int(seed),
            "max_points": int(max_points),
            "scene_count": scene_count,
            "lengths_crc32": zlib.crc32(self._lengths.astype("<i8").tobytes()),
            # Empty if the vertex counts were passed instead of the dataset.
            "digest": str(getattr(lengths, "digest", "")),
        }
        self._packing = pack(self._lengths, max_points, self.world_size)
        self._has_compared_ranks = False
        # Whether a batch of the current iteration has been handed out.
        self._has_begun = False
        self.epoch = 0

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks and in all epochs."""
        return math.ceil(len(self._packing) / self.world_size)

    def __iter__(self) -> Iterator[list[SceneKey]]:
        """Iterate over this rank's batches of the next epoch, as lists of (index, epoch).

        Raises:
            UsageError: Ranks differ; or `torch.distributed` was initialized after the sampler was
                made and has another rank.
        """
        if self._has_begun:
            self.set_epoch(self.epoch + 1)
        if self._has_other_ranks() and not self._has_compared_ranks:
            self._has_compared_ranks = True
            self._compare_ranks()
        epoch = self.epoch
        own = self.plan(epoch)[self.rank :: self.world_size]
        for batch in own[self.steps_before :]:
            self._has_begun = True
            yield [(scene, epoch) for scene in batch]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        If it is the epoch of the loaded state, it continues where it stopped. Every other epoch
        begins at its start.
        """
        if epoch != self.epoch:
            self.steps_before = 0
        self.epoch = epoch
        self._has_begun = False

    def state_dict(self, *, steps_done: int) -> dict[str, Any]:
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
        # After the last step, training continues with the next epoch.
        further_epochs, step = divmod(self.steps_before + steps_done, len(self))
        return {"epoch": self.epoch + further_epochs, "steps_done": step, **self._settings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called: the next iteration is the rest of that epoch.

        The batches are exactly those that the interrupted run would have received.

        Raises:
            UsageError: The state belongs to a sampler with another budget, seed, number of ranks or
                dataset, or is not a state.
        """
        _compare("the saved state", state, "this sampler", self._settings)
        self.epoch = state["epoch"]
        self.steps_before = state["steps_done"]
        self._has_begun = False

    def plan(self, epoch: int) -> Plan:
        """Return all batches of an epoch: the scenes of step 0 for each rank, of step 1, etc."""
        seeds = np.random.SeedSequence(self._settings["seed"], spawn_key=(epoch,))
        generator = np.random.default_rng(seeds)
        max_points = self._settings["max_points"]
        return make_plan(self._packing, self._lengths, max_points, self.world_size, generator)

    def _compare_ranks(self) -> None:
        """Compare the facts on which the plans of all ranks of `torch.distributed` depend.

        All ranks wait here for the others, and all raise if a fact differs.

        Raises:
            UsageError: A fact differs; the message names the rank.
        """
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
        facts_by_rank: list[Any] = [None] * self.world_size
        distributed.all_gather_object(facts_by_rank, facts, group)
        for rank, rank_facts in enumerate(facts_by_rank):
            _compare(f"rank {rank}", rank_facts, "rank 0", facts_by_rank[0])


class EvalSampler(_RankSampler):
    """Indices of scenes for evaluation: each scene goes to exactly one rank.

    Use it as `DataLoader(dataset, sampler=..., batch_size=...)`.

    Other samplers pad the ranks to equal length, which counts some scenes twice and makes every
    mean wrong. Here the ranks may differ by one scene: `len()` is the number of scenes of this
    rank. **A rank without work in the last step has simply finished.** With fewer scenes than
    ranks, some have none at all. So nothing in the loop may wait for the other ranks. Call the
    model without `DistributedDataParallel` around it (`model.module`), because that exchanges
    buffers in every step. Add up the results after the loop, with one `all_reduce` of the confusion
    matrix.

    The scenes of one step are of similar size, the largest first. The order is the same each time
    and depends on the lengths alone.

    Args:
        lengths: The dataset, or the number of vertices of each scene, such as `dataset.lengths`.
        rank: As for `PointBudgetBatchSampler`.
        world_size: As for `PointBudgetBatchSampler`.

    Attributes:
        rank: As given or found.
        world_size: As given or found.

    Raises:
        UsageError: `lengths` is something else, or there are several processes, and the rank of
            this one is unknown.
    """

    def __init__(
        self,
        lengths: object,
        *,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__(lengths, rank, world_size)
        order = np.argsort(-self._lengths, kind="stable")
        self._scenes = order[self.rank :: self.world_size].tolist()

    def __len__(self) -> int:
        """Number of scenes of this rank."""
        return len(self._scenes)

    def __iter__(self) -> Iterator[int]:
        """Iterate over this rank's indices.

        Raises:
            UsageError: `torch.distributed` was initialized after the sampler was made.
        """
        self._has_other_ranks()
        return iter(self._scenes)


def _compare(
    name: str,
    facts: Mapping[str, object],
    expected_name: str,
    expected: Mapping[str, object],
) -> None:
    """Check that facts are the expected ones.

    Raises:
        UsageError: One of them is not; the message names it.
    """
    for key, value in expected.items():
        if facts.get(key) != value:
            raise UsageError(
                f"{name} has {key}={facts.get(key)!r}, {expected_name} {value!r}: "
                "their plans would differ",
                "the same scenes, arguments, ranks, versions and checkpoint are needed; without "
                "a loaded state, set_epoch(epoch) starts an epoch again",
            )


def _find_rank(
    rank: int | None,
    world_size: int | None,
) -> tuple[int, int]:
    """Find rank and world size of this process.

    They are the arguments, or those of `torch.distributed`, if it has been imported and
    initialized. Without them, the process is alone.

    Raises:
        UsageError: A launcher has started several processes, but the rank of this one is unknown;
            or the rank is invalid.
    """
    if rank is None and world_size is None:
        rank, world_size = _find_torch_rank() or (0, 1)
        for name in _PROCESS_COUNTS:
            count = os.environ.get(name, "")
            if world_size == 1 and count not in {"", "0", "1"}:
                raise UsageError(
                    f"this process is one of {count} ({name}), but its rank is not known: "
                    "all would get the same data",
                    _HINT_RANK,
                )
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise UsageError(
            f"found rank {rank} and world size {world_size}, expected both, "
            "with the rank below the world size",
            _HINT_RANK,
        )
    return rank, world_size


def _find_torch_rank() -> tuple[int, int] | None:
    """Return rank and world size of `torch.distributed`; None unless imported and initialized."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
