"""Samplers: batches by a budget of points for training, and every scene once for evaluation."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.number_lists import check_number
from scannet_prep.sampling.plan import Plan, flatten, make_plan, pack, sum_loads
from scannet_prep.sampling.ranks import RankedSampler
from scannet_prep.version import VERSION

_STATE_VERSION = 3
_FRESH = "to start the epoch again, leave the state out and call set_epoch(epoch)"


class PlanSummary(NamedTuple):
    """What the plan of an epoch is like.

    Attributes:
        step_count: Steps of each rank.
        padding: Scenes that come twice, because there are fewer scenes than the division by ranks needs.
        fill: Mean share of the budget that a batch uses, 0..1; a scene above the budget counts as 1.
        imbalance: How much longer a step is than with equal work: the mean over the steps of the largest batch beside
            the mean batch; 1 is ideal.
    """

    step_count: int
    padding: int
    fill: float
    imbalance: float


class PointBudgetBatchSampler(RankedSampler):
    """Batches of scenes whose vertices add up to a budget, for `DataLoader(dataset, batch_sampler=...)`.

    Every rank computes the same plan of the epoch from (lengths, budget, seed, epoch) and takes its part (all need the
    same version of NumPy, whose random numbers may change between versions):

    - The number of steps is the same on all ranks and in all epochs.
    - Every scene comes exactly once in an epoch, over all ranks. Only where the number of scenes does not allow equal
      numbers of batches, because hardly any two scenes fit together, do some come twice: fewer than there are ranks,
      `describe().padding` of them, other ones each epoch.
    - A batch never exceeds the budget, except a scene that does so by itself: it is a batch of its own.
    - The batches of one step are of similar size, so that no rank waits for another.
    - Which scenes share a batch, the order of the batches, and the rank that gets them change from epoch to epoch.

    Where `torch.distributed` is initialized, the first iteration compares what the plan depends on over all ranks
    (vertex counts, arguments, epoch and loaded state, versions), so that ranks that see different folders fail at once.

    It gives lists of `(index, epoch)`, so that workers that outlive an epoch know it too; `ScanNet` takes its random
    numbers from them. Call `set_epoch` before each epoch: an epoch that has been given out whole is not given out again
    by mistake, with the same batches and the same random numbers.

    Args:
        lengths: The dataset, or the vertices of each scene, such as `dataset.lengths`; where a transform crops to N
            points, `np.minimum(dataset.lengths, N)`. Of a dataset, ranks compare the bytes of the scenes too.
        max_points: The budget of a batch, in vertices.
        max_scenes: Most scenes in a batch; None for any number.
        rank: Of this process. If it is not given, what `torch.distributed` says where it is initialized, else the
            environment variable RANK, which torchrun sets.
        world_size: Number of ranks; by default in the same way, from WORLD_SIZE; 1 where nothing says otherwise.
        seed: Another seed gives other plans.
        shuffle: False for the same batches each epoch, the largest first; they may be iterated over again and again.

    Attributes:
        epoch: The epoch that comes next, or that is being given out.
        steps_before: Steps of it that were done before this iteration, according to the state that was loaded.
        rank, world_size: As given or found.

    Raises:
        UsageError: An argument makes no sense; there are fewer scenes than ranks; or there are several processes, and
            it cannot be known which rank this one is.
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
        self._digest = getattr(lengths, "digest", "") if self.world_size > 1 else ""
        self._settings: dict[str, Any] = {  # what plans depend on, beside the epoch
            "version": _STATE_VERSION,
            "world_size": self.world_size,
            "seed": check_number(seed, "seed", 0),
            "shuffle": bool(shuffle),
            "max_points": check_number(max_points, "max_points", 1),
            "max_scenes": None if max_scenes is None else check_number(max_scenes, "max_scenes", 1),
            "scene_count": len(self._lengths),
            "lengths_crc32": zlib.crc32(self._lengths.astype("<i8").tobytes()),
        }
        if len(self._lengths) < self.world_size:
            message = f"there are {len(self._lengths)} scenes for {self.world_size} ranks: some would be idle"
            raise UsageError(message, f"train on at most {len(self._lengths)} ranks, or with more scenes")
        self._packing = pack(self._lengths, max_points, max_scenes or len(self._lengths), self.world_size)
        self._is_compared = False
        self._planned: tuple[int, Plan] = -1, []
        self._iteration = 0  # number of the one that counts: set_epoch and another one end it
        self._go_to(0, 0)

    @property
    def sampler(self) -> PointBudgetBatchSampler:
        """The sampler itself: where Lightning looks for `set_epoch`."""
        return self

    @property
    def steps_left(self) -> int:
        """Steps that the next iteration has: all of an epoch, or after `load_state_dict` what is left of it."""
        return len(self) - self.steps_before

    @property
    def digest(self) -> str:
        """Of the batches that the next iteration gives to all ranks together: the same on each of them."""
        return f"{zlib.crc32(np.concatenate(flatten(self._plan())).astype('<i8').tobytes()):08x}"

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks and in all epochs."""
        return (len(self._packing) + self.world_size - 1) // self.world_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """Give this rank's batches of the epoch, as lists of (index, epoch).

        Raises:
            UsageError: The epoch has been given out whole already and `set_epoch` was not called since; ranks differ;
                `torch.distributed` was initialized after the sampler was made, and says another rank; or Lightning or
                accelerate shards the batches again.
        """
        self._check_rank()
        if self._steps_given and self._steps_given == self.steps_left:
            if self._settings["shuffle"]:
                raise UsageError(f"epoch {self.epoch} has been given out already", "call set_epoch before each epoch")
            self.steps_before = 0  # all of it, also where the last time was only the rest of it
        if not self._is_compared:  # once: what has been planned together stays together
            self._is_compared = True
            versions = {"numpy": np.__version__, "scannet_prep": VERSION}
            position = {"epoch": self.epoch, "steps done": self.steps_before}
            self._compare_ranks(self._settings | {"digest of the scenes": self._digest} | versions | position)
        self._go_to(self.epoch, self.steps_before)
        return self._give_batches(self._plan(), self.epoch, self._iteration)

    def _give_batches(self, plan: Plan, epoch: int, iteration: int) -> Iterator[list[tuple[int, int]]]:
        for step in range(len(plan) // self.world_size):
            if iteration == self._iteration:
                self._steps_given = step + 1
            yield [(scene, epoch) for scene in plan[step * self.world_size + self.rank]]
        self._plan_epoch(epoch + 1)  # while workers make the last batches, and not while they wait

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration give an epoch.

        After `load_state_dict`, the epoch of the state goes on where it stopped; every other one begins at its start.
        """
        epoch = check_number(epoch, "epoch", 0)
        self._go_to(epoch, self.steps_before if epoch == self.epoch else 0)

    def state_dict(self, *, steps_done: int | None = None) -> dict[str, Any]:
        """Tell how far training has come, as plain values for a checkpoint; the same on all ranks.

        Args:
            steps_done: Steps really done in this iteration, that is, since the epoch began or, where `load_state_dict`
                made it go on, since then: what `enumerate(loader, start=1)` counts. None for all that have been given
                out: right in torchdata's `StatefulDataLoader`, which asks in step with the batches; too many in a
                `DataLoader` with workers, which run ahead.

        Raises:
            UsageError: The iteration has fewer steps.
        """
        steps_done = self._steps_given if steps_done is None else check_number(steps_done, "steps_done", 0)
        if steps_done > self.steps_left:
            message = f"steps_done is {steps_done}, but what is left of epoch {self.epoch} has {self.steps_left} steps"
            raise UsageError(message, "count since the epoch began, or load_state_dict: enumerate(loader, start=1)")
        epoch, done = divmod(self.epoch * len(self) + self.steps_before + steps_done, len(self))
        return {"epoch": epoch, "steps_done": done, **self._settings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called: the next iteration gives the rest of that epoch.

        It is exactly what the interrupted run would have got. With another number of ranks, plans are
        others: the epoch begins again, with a warning.

        Raises:
            UsageError: It is not such a state, or it is of a sampler with other scenes, budget, seed or shuffle.
        """
        expected = self._settings
        try:
            epoch, done = (check_number(state[name], name, 0) for name in ("epoch", "steps_done"))
            changed = [name for name, value in expected.items() if state[name] != value]
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"this is not a state of a PointBudgetBatchSampler: {state!r:.200}", _FRESH) from None
        for name in changed:
            message = f"the state was saved with {name}={state[name]!r}, this sampler has {name}={expected[name]!r}"
            if changed != ["world_size"]:
                raise UsageError(message, f"make the sampler from the same scenes, with the same arguments; {_FRESH}")
            warnings.warn(f"{message}: epoch {epoch} begins again", stacklevel=2)
            done = 0
        if done >= len(self):
            raise UsageError(f"the state tells of {done} steps, where an epoch has {len(self)}", _FRESH)
        self._go_to(epoch, done)

    def describe(self) -> PlanSummary:
        """Tell steps, fill and imbalance of the epoch, or of what is left of it."""
        plan = self._plan()
        loads, budget = sum_loads(plan, self._lengths), self._settings["max_points"]
        steps = loads.reshape(-1, self.world_size)
        means = np.maximum(steps.mean(axis=1), 1e-9)  # a step of empty scenes takes as long on all ranks
        return PlanSummary(
            step_count=len(steps),
            padding=sum(map(len, plan)) - len(set().union(*plan)),
            fill=float((np.minimum(loads, budget) / budget).mean()),
            imbalance=float(np.maximum(steps.max(axis=1) / means, 1).mean()),
        )

    def _go_to(self, epoch: int, steps_before: int) -> None:
        self.epoch, self.steps_before = epoch, steps_before
        self._iteration += 1
        self._steps_given = 0  # by that one

    def _plan(self) -> Plan:
        """The batches of the next iteration, for all ranks."""
        return self._plan_epoch(self.epoch)[self.steps_before * self.world_size :]

    def _plan_epoch(self, epoch: int) -> Plan:
        """All batches of an epoch; the last plan is kept."""
        if self._planned[0] != epoch:
            seeds = np.random.SeedSequence(self._settings["seed"], spawn_key=(epoch, 0))
            generator = np.random.default_rng(seeds) if self._settings["shuffle"] else None
            plan = make_plan(self._packing, self._lengths, self._settings["max_points"], self.world_size, generator)
            self._planned = epoch, plan
        return self._planned[1]


class WithEpoch:
    """Gives `(index, epoch)` for each index of another sampler, so that transforms of `ScanNet` know the epoch.

    For samplers of PyTorch, such as `RandomSampler` and `DistributedSampler`; ours know it by themselves.

    Args:
        sampler: Gives indices: a sampler of PyTorch, or a collection.

    Attributes:
        sampler: As given.
        epoch: What is given with each index; `set_epoch` changes it.
    """

    def __init__(self, sampler: Any) -> None:  # noqa: ANN401 - has a length, and may have `set_epoch`
        self.sampler = sampler
        self.epoch = 0

    def __len__(self) -> int:
        """Number of indices."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Indices, each with the epoch."""
        return ((index, self.epoch) for index in self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, to the other sampler too if it wants to know."""
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)


class EvalSampler(RankedSampler):
    """Gives each scene to exactly one rank, none twice, for `DataLoader(dataset, sampler=..., batch_size=...)`.

    Padding, which makes ranks even elsewhere, counts some scenes twice, and every mean is wrong. Here the ranks may
    differ by one scene: `len()` is this rank's number, `step_count` that of the longest. **A rank without work in the
    last step has simply finished**; with fewer scenes than ranks, some get none at all. So nothing in the loop may wait
    for the other ranks: call the model without `DistributedDataParallel` around it (`model.module`), which otherwise
    exchanges buffers in every step, and add up the results after the loop (one `all_reduce` of the confusion matrix).

    The scenes of one step are of similar size, largest first, and the ranks get about the same number of vertices in
    all. The order is the same each time, and depends on the lengths alone.

    Args:
        lengths: The dataset, or the vertices of each scene, such as `dataset.lengths`.
        rank, world_size: As with `PointBudgetBatchSampler`.

    Attributes:
        rank, world_size: As given or found.
        step_count: Scenes of the ranks that have most.

    Raises:
        UsageError: An argument makes no sense, or there are several processes, and it cannot be known which rank this
            one is.
    """

    def __init__(self, lengths: object, *, rank: int | None = None, world_size: int | None = None) -> None:
        checked = _check_lengths(lengths)
        super().__init__(rank, world_size)
        self.step_count = -(-len(checked) // self.world_size)
        order = np.argsort(-checked, kind="stable").tolist()
        self._scenes: list[int] = []
        for step in range(self.step_count):  # dealt forwards and backwards in turn
            place = step * self.world_size + (self.rank, self.world_size - 1 - self.rank)[step % 2]
            self._scenes += order[place : place + 1]

    def __len__(self) -> int:
        """Scenes of this rank."""
        return len(self._scenes)

    def __iter__(self) -> Iterator[int]:
        """Give this rank's indices.

        Raises:
            UsageError: The rank is another one now, or the indices are sharded again, as `PointBudgetBatchSampler`.
        """
        self._check_rank()
        return iter(self._scenes)


def _check_lengths(lengths: object) -> NDArray[np.int64]:
    """Check the vertex counts of the scenes, and copy them, int64 (n,)."""
    array = np.asarray(getattr(lengths, "lengths", lengths))
    is_valid = array.ndim == 1 and len(array) and np.issubdtype(array.dtype, np.integer)
    if not is_valid or array.astype(np.int64).min() < 0:
        message = f"lengths is {lengths!r:.80}, expected the vertices of each scene, whole numbers from 0"
        raise UsageError(message, "pass the dataset, or dataset.lengths")
    return array.astype(np.int64)
