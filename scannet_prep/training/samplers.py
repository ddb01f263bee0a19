"""Samplers: batches within a budget of points for training, and every scene once for evaluation."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.version import VERSION
from scannet_prep.errors import UsageError
from scannet_prep.training.keys import SceneKey
from scannet_prep.training.plan import Plan, flatten, make_plan, pack, sum_loads
from scannet_prep.training.ranks import RankedSampler
from scannet_prep.training.sample import refuse_wrapper
from scannet_prep.training.whole_numbers import check_number

# Version of the fields of a state. A state of another version is refused.
_STATE_VERSION = 4
_HINT_FRESH_EPOCH = "to start the epoch again, leave the state out and call set_epoch(epoch)"


class PlanSummary(NamedTuple):
    """Figures of the plan of an epoch.

    Attributes:
        step_count: Steps of each rank.
        padding: Scenes that are repeated because there are fewer batches than the ranks need.
        fill: Mean share of the budget that a batch uses, 0..1; 1 for a scene above the budget.
        imbalance: Mean over the steps of the largest batch relative to the mean batch. 1 is ideal.
    """

    step_count: int
    padding: int
    fill: float
    imbalance: float


class BatchIterator(Iterator[list[SceneKey]]):
    """One pass over the batches of an epoch, which counts the batches that it has handed out.

    It keeps its epoch when `set_epoch` is called during the pass. It has `state_dict` and
    `load_state_dict` because `StatefulDataLoader` of torchdata stores the state of the iterator
    that it holds.

    Args:
        sampler: The sampler, at the position where the pass begins.

    Attributes:
        epoch: The epoch of the batches.
        step: The step of the next batch within the whole epoch, from 0.
    """

    def __init__(self, sampler: PointBudgetBatchSampler) -> None:
        self._sampler = sampler
        self.epoch = sampler.epoch
        self.step = sampler.steps_before

    def __next__(self) -> list[SceneKey]:
        """Hand out the next batch."""
        if self.is_at_end:
            raise StopIteration
        batch = self._sampler.batch(self.epoch, self.step)
        self.step += 1
        return batch

    @property
    def is_at_end(self) -> bool:
        """Whether the last batch of the epoch has been handed out."""
        return self.step == len(self._sampler)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batches that have been handed out."""
        return self._sampler.state_at(self.epoch, self.step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, and move the sampler there.

        Raises:
            UsageError: As `PointBudgetBatchSampler.load_state_dict`.
        """
        self._sampler.load_state_dict(state)
        self.epoch = self._sampler.epoch
        self.step = self._sampler.steps_before


class PointBudgetBatchSampler(RankedSampler):
    """Batches of scenes within a budget of vertices, for `DataLoader(dataset, batch_sampler=...)`.

    Every rank computes the same plan of the epoch from (lengths, budget, seed, epoch) and takes its
    part. All ranks need the same version of NumPy, because its random numbers may change between
    versions.

    - The number of steps is the same on all ranks and in all epochs.
    - Every scene comes exactly once per epoch, over all ranks. The one exception: if hardly any two
      scenes fit together, the number of batches may not be a multiple of the number of ranks. Then
      `describe().padding` scenes are repeated: fewer than there are ranks, and not the same ones in
      each epoch.
    - A batch never exceeds the budget, except a single scene that does so by itself.
    - The batches of one step are of similar size, so that no rank waits for another.
    - The scenes that share a batch, the order of the batches and their ranks change each epoch.

    A batch is a list of `(index, epoch)`. In this way, workers that outlive an epoch receive its
    number with each scene, and `ScanNet` derives its random numbers from it.

    An iteration begins at the current position: at the start of `epoch` or, after
    `load_state_dict`, at the step after which the state was saved. Only `set_epoch` and
    `load_state_dict` change the position, so `list(sampler)` is the same each time. If all batches
    of an epoch have been handed out, iterating over it again without `set_epoch` is a
    `UserWarning`, because the batches and the random numbers are repeated.

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
        shuffle: False for the same batches in each epoch, the largest first. They may be repeated
            without `set_epoch`.

    Attributes:
        epoch: The epoch of the next iteration.
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
        super().__init__(rank, world_size)
        scene_count = len(self._lengths)
        if max_scenes is not None:
            max_scenes = check_number(max_scenes, "max_scenes", 1)
        # Everything on which the plans depend, apart from the epoch.
        self._settings: dict[str, Any] = {
            "version": _STATE_VERSION,
            "world_size": self.world_size,
            "seed": check_number(seed, "seed", 0),
            "shuffle": bool(shuffle),
            "max_points": check_number(max_points, "max_points", 1),
            "max_scenes": max_scenes,
            "scene_count": scene_count,
            "lengths_crc32": zlib.crc32(self._lengths.astype("<i8").tobytes()),
        }
        if scene_count < self.world_size:
            raise UsageError(
                f"there are {scene_count} scenes for {self.world_size} ranks: some would be idle",
                f"train on at most {scene_count} ranks, or with more scenes",
            )
        # Empty if the vertex counts were passed instead of the dataset.
        self._digest = str(getattr(lengths, "digest", ""))
        self._packing = pack(
            self._lengths,
            self._settings["max_points"],
            scene_count if max_scenes is None else max_scenes,
            self.world_size,
        )
        # The plan that was made last, and its epoch; None before the first.
        self._planned_epoch: int | None = None
        self._planned_batches: Plan = []
        self._has_compared_ranks = False
        self._newest_iterator: BatchIterator | None = None
        self.epoch = 0
        self.steps_before = 0

    @property
    def sampler(self) -> PointBudgetBatchSampler:
        """The sampler itself, because Lightning looks for `set_epoch` here."""
        return self

    @property
    def steps_left(self) -> int:
        """Steps of the next iteration: a whole epoch, or the rest of a resumed one."""
        return len(self) - self.steps_before

    @property
    def digest(self) -> str:
        """Digest of the next iteration's batches on all ranks; the same on each of them."""
        scenes_and_ends = np.concatenate(flatten(self._remaining_plan()))
        return f"{zlib.crc32(scenes_and_ends.astype('<i8').tobytes()):08x}"

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks and in all epochs."""
        return math.ceil(len(self._packing) / self.world_size)

    def __iter__(self) -> BatchIterator:
        """Iterate over this rank's batches from the current position, as lists of (index, epoch).

        Raises:
            UsageError: Ranks differ; `torch.distributed` was initialized after the sampler was made
                and has another rank; or Lightning or accelerate shards the batches again.
        """
        self._check_rank()
        self._compare_plans()
        self._warn_if_repeated()
        self._newest_iterator = BatchIterator(self)
        return self._newest_iterator

    def batch(self, epoch: int, step: int) -> list[SceneKey]:
        """Return the keys of the samples of one batch of this rank.

        `[dataset[key] for key in sampler.batch(3, 17)]` reads the scenes of the batch again.

        Args:
            epoch: The epoch, from 0.
            step: The step within the whole epoch, from 0. In an epoch that was resumed, it is
                `steps_before` more than the number of steps since then.

        Raises:
            UsageError: An epoch has no such step.
        """
        if check_number(step, "step", 0) >= len(self):
            raise UsageError(
                f"step is {step}, but an epoch has {len(self)} steps", "steps are counted from 0"
            )
        plan = self._plan_epoch(check_number(epoch, "epoch", 0))
        scenes = plan[step * self.world_size + self.rank]
        return [SceneKey(scene, epoch) for scene in scenes]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration.

        If it is the epoch of the loaded state, it continues where it stopped. Every other epoch
        begins at its start.
        """
        epoch = check_number(epoch, "epoch", 0)
        is_same_epoch = epoch == self.epoch
        self._go_to(epoch, self.steps_before if is_same_epoch else 0)

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
        if check_number(steps_done, "steps_done", 0) > self.steps_left:
            raise UsageError(
                f"steps_done is {steps_done}, "
                f"but the rest of epoch {self.epoch} has {self.steps_left} steps",
                "count since the epoch began or was resumed: enumerate(loader, start=1)",
            )
        return self.state_at(self.epoch, self.steps_before + steps_done)

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state after `step` steps of an epoch, counted from its start."""
        if step == len(self):
            # After the last step, training continues with the next epoch.
            epoch += 1
            step = 0
        return {"epoch": epoch, "steps_done": step, **self._settings, "digest": self._digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called: the next iteration is the rest of that epoch.

        The batches are exactly those that the interrupted run would have received. With another
        number of ranks the plans differ, so the epoch begins again, with a warning.

        Raises:
            UsageError: It is not such a state, or it belongs to a sampler with another budget,
                seed, shuffle or dataset. Datasets are compared by their `digest`, if both samplers
                were made from a dataset.
        """
        try:
            epoch = check_number(state["epoch"], "epoch", 0)
            step = check_number(state["steps_done"], "steps_done", 0)
            digest = str(state["digest"])
            changed = [name for name, value in self._settings.items() if state[name] != value]
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                f"this is not a state of a PointBudgetBatchSampler: {state!r:.200}",
                _HINT_FRESH_EPOCH,
            ) from None

        # The digest in a state of another version may have been computed in another way.
        if "version" not in changed:
            self._check_digest(digest)
        if changed:
            name = changed[0]
            difference = (
                f"the state was saved with {name}={state[name]!r}, "
                f"this sampler has {name}={self._settings[name]!r}"
            )
            if changed != ["world_size"]:
                raise UsageError(
                    difference,
                    "make the sampler from the same scenes, with the same arguments; "
                    + _HINT_FRESH_EPOCH,
                )
            warnings.warn(f"{difference}: epoch {epoch} begins again", stacklevel=2)
            step = 0
        if step >= len(self):
            raise UsageError(
                f"the state was saved after {step} steps, but an epoch has {len(self)}",
                _HINT_FRESH_EPOCH,
            )
        self._go_to(epoch, step)

    def describe(self) -> PlanSummary:
        """Return steps, padding, fill and imbalance of the next iteration."""
        plan = self._remaining_plan()
        budget = self._settings["max_points"]
        # Vertices of each batch (K,), and of each step and rank (K / world_size, world_size).
        loads = sum_loads(plan, self._lengths)
        steps = loads.reshape(-1, self.world_size)
        # A step of empty scenes has the mean 0, and takes equally long on all ranks: its imbalance
        # becomes 1 below.
        step_means = np.maximum(steps.mean(axis=1), 1e-9)
        return PlanSummary(
            step_count=len(steps),
            padding=sum(map(len, plan)) - len(set().union(*plan)),
            fill=float((np.minimum(loads, budget) / budget).mean()),
            imbalance=float(np.maximum(steps.max(axis=1) / step_means, 1).mean()),
        )

    def _go_to(self, epoch: int, steps_before: int) -> None:
        """Set the position of the next iteration, which then is not a repeated one."""
        self.epoch = epoch
        self.steps_before = steps_before
        self._newest_iterator = None

    def _check_digest(self, digest: str) -> None:
        """Check that a state was saved with the same dataset, unless a digest is empty.

        Raises:
            UsageError: The state was saved with another dataset.
        """
        if digest and self._digest and digest != self._digest:
            raise UsageError(
                f"the state was saved with a dataset of digest {digest}, "
                f"this one has digest {self._digest}",
                "pass the same scenes, processed with the same options, and the same labels; "
                + _HINT_FRESH_EPOCH,
            )

    def _compare_plans(self) -> None:
        """Compare on all ranks, before the first iteration, the facts on which the plans depend."""
        if self._has_compared_ranks:
            return
        self._has_compared_ranks = True
        self._compare_ranks(
            {
                **self._settings,
                "digest of the scenes": self._digest,
                "numpy": np.__version__,
                "scannet_prep": VERSION,
                "epoch": self.epoch,
                "steps done": self.steps_before,
            }
        )

    def _warn_if_repeated(self) -> None:
        """Warn if the previous iteration handed out all its batches and would be repeated."""
        is_repeated = self._newest_iterator is not None and self._newest_iterator.is_at_end
        # Without shuffling, all epochs are the same, so a whole one may be repeated. The rest of a
        # resumed epoch may not.
        is_intended = not self._settings["shuffle"] and self.steps_before == 0
        if is_repeated and not is_intended:
            warnings.warn(
                f"epoch {self.epoch} has already been handed out: its batches and random numbers "
                "are repeated; call set_epoch(epoch) before each epoch",
                # The caller of `__iter__`, which calls this method.
                stacklevel=3,
            )

    def _remaining_plan(self) -> Plan:
        """Return the batches of the next iteration, for all ranks."""
        return self._plan_epoch(self.epoch)[self.steps_before * self.world_size :]

    def _plan_epoch(self, epoch: int) -> Plan:
        """Return all batches of an epoch for all ranks, and keep them until another is planned."""
        if self._planned_epoch == epoch:
            return self._planned_batches
        generator = None
        if self._settings["shuffle"]:
            # The 0 has no meaning. It is kept because all plans would change without it.
            seeds = np.random.SeedSequence(self._settings["seed"], spawn_key=(epoch, 0))
            generator = np.random.default_rng(seeds)
        self._planned_batches = make_plan(
            self._packing,
            self._lengths,
            self._settings["max_points"],
            self.world_size,
            generator,
        )
        self._planned_epoch = epoch
        return self._planned_batches


class EvalSampler(RankedSampler):
    """Indices of scenes for evaluation: each scene goes to exactly one rank.

    Use it as `DataLoader(dataset, sampler=..., batch_size=...)`.

    Other samplers pad the ranks to equal length, which counts some scenes twice and makes every
    mean wrong. Here the ranks may differ by one scene: `len()` is the number of scenes of this
    rank, `step_count` that of the longest. **A rank without work in the last step has simply
    finished.** With fewer scenes than ranks, some have none at all. So nothing in the loop may wait
    for the other ranks. Call the model without `DistributedDataParallel` around it
    (`model.module`), because that exchanges buffers in every step. Add up the results after the
    loop, with one `all_reduce` of the confusion matrix.

    The scenes of one step are of similar size, the largest first, and the ranks get about the same
    number of vertices in all. The order is the same each time and depends on the lengths alone.

    Args:
        lengths: The dataset, or the number of vertices of each scene, such as `dataset.lengths`.
        rank: As for `PointBudgetBatchSampler`.
        world_size: As for `PointBudgetBatchSampler`.

    Attributes:
        rank: As given or found.
        world_size: As given or found.
        step_count: Number of scenes of the ranks that have the most.

    Raises:
        UsageError: An argument is invalid, or there are several processes, and the rank of this one
            is unknown.
    """

    def __init__(
        self, lengths: object, *, rank: int | None = None, world_size: int | None = None
    ) -> None:
        checked = _check_lengths(lengths)
        super().__init__(rank, world_size)
        self.step_count = math.ceil(len(checked) / self.world_size)
        order = np.argsort(-checked, kind="stable").tolist()
        self._scenes: list[int] = []
        # Deal the scenes, the largest first. Ranks take turns in ascending order in even steps and
        # in descending order in odd ones, so that all get about the same number of vertices.
        for step in range(self.step_count):
            is_forward = step % 2 == 0
            turn = self.rank if is_forward else self.world_size - 1 - self.rank
            position = step * self.world_size + turn
            if position < len(order):
                self._scenes.append(order[position])

    def __len__(self) -> int:
        """Number of scenes of this rank."""
        return len(self._scenes)

    def __iter__(self) -> Iterator[int]:
        """Iterate over this rank's indices.

        Raises:
            UsageError: The rank has changed, or the indices are sharded again, as for
                `PointBudgetBatchSampler`.
        """
        self._check_rank()
        return iter(self._scenes)


def _check_lengths(lengths: object) -> NDArray[np.int64]:
    """Check the vertex counts of the scenes, and return a copy, int64 (n,).

    Args:
        lengths: The vertex counts, or a dataset that has them as `lengths`.

    Raises:
        UsageError: They are not a list of whole numbers, or the dataset is a wrapper of PyTorch.
    """
    # To make an array of a wrapper, NumPy would read all scenes.
    refuse_wrapper(lengths)
    array = np.asarray(getattr(lengths, "lengths", lengths))
    is_valid = array.ndim == 1 and len(array) > 0 and np.issubdtype(array.dtype, np.integer)
    # Unsigned numbers that int64 cannot hold become negative.
    if not is_valid or array.astype(np.int64).min() < 0:
        raise UsageError(
            f"lengths is {lengths!r:.80}, "
            "expected the vertices of each scene, whole numbers from 0",
            "pass the dataset, or dataset.lengths",
        )
    return array.astype(np.int64)
