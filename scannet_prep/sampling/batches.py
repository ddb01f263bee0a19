"""Batches by a budget of points, the same number on every rank."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scannet_prep.errors import UsageError
from scannet_prep.sampling.lengths import check_lengths
from scannet_prep.sampling.packing import Limits, pack
from scannet_prep.sampling.plan import Plan, deal_again, make_plan
from scannet_prep.sampling.ranks import find_place
from scannet_prep.sampling.state import Progress, Settings, progress_from_json, state_to_json
from scannet_prep.sampling.summary import PlanSummary, summarize


class PointBudgetBatchSampler:
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

    It gives lists of `(index, epoch)`, so that workers that outlive an epoch know it too; `ScanNet` takes its random
    numbers from them. Call `set_epoch` before each epoch: an epoch that has been given out whole is not given out again
    by mistake, with the same batches and the same random numbers.

    Args:
        lengths: Vertices of each scene, such as `dataset.lengths`; where a transform crops to N points,
            `np.minimum(dataset.lengths, N)`.
        max_points: The budget of a batch, in vertices.
        max_scenes: Most scenes in a batch; None for any number.
        rank: Of this process. If it is not given, what `torch.distributed` says where it is initialized, else the
            environment variable RANK, which torchrun sets.
        world_size: Number of ranks; by default in the same way, from WORLD_SIZE; 1 where nothing says otherwise.
        seed: Another seed gives other plans.
        shuffle: False for the same batches each epoch, the largest first; they may be iterated over again and again.

    Attributes:
        epoch: The epoch that comes next, or that is being given out.
        rank: As given or found.
        world_size: As given or found.

    Raises:
        UsageError: An argument makes no sense; there are fewer scenes than ranks; or there are several processes, and
            it cannot be known which rank this one is.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        max_points: int,
        max_scenes: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self._lengths = check_lengths(lengths)
        self._place = find_place(rank, world_size)
        self.rank, self.world_size = self._place.rank, self._place.world_size
        self._shuffle = bool(shuffle)
        seed, max_points = _check(seed, "seed", 0), _check(max_points, "max_points", 1)
        max_scenes = None if max_scenes is None else _check(max_scenes, "max_scenes", 1)
        self._settings = Settings.from_lengths(
            self._lengths, seed=seed, shuffle=self._shuffle, max_points=max_points, max_scenes=max_scenes
        )
        self._limits = Limits(max_points, len(self._lengths) if max_scenes is None else max_scenes)
        if len(self._lengths) < self.world_size:
            raise UsageError(
                f"there are {len(self._lengths)} scenes for {self.world_size} ranks: some would have nothing to do",
                f"train on at most {len(self._lengths)} ranks (torchrun --nproc_per_node), or with more scenes",
            )
        self._base = pack(self._lengths, self._limits, self.world_size)
        self._progress = Progress()
        self._is_given_out = False
        self._known: tuple[Progress, Plan] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that comes next, or that is being given out."""
        return self._progress.epoch

    @property
    def steps_left(self) -> int:
        """Steps that the next iteration has: all of an epoch, or after `load_state_dict` what is left of it."""
        return self._plan().step_count

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks and in all epochs."""
        return (len(self._base.regular) + len(self._base.oversize) + self._base.padding) // self.world_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """Give this rank's batches of the epoch, as lists of (index, epoch).

        Raises:
            UsageError: The epoch has been given out whole already and `set_epoch` was not called since; or
                `torch.distributed` was initialized after the sampler was made, and says another rank.
        """
        self._place.check()
        if self._is_given_out:
            if self._shuffle:
                raise UsageError(
                    f"epoch {self.epoch} has been given out already: its batches and random numbers would come again",
                    "call sampler.set_epoch(epoch) before each epoch",
                )
            self._progress = Progress(self.epoch)  # all of it, also where the last time was only the rest of it
        progress, plan = self._progress, self._plan()
        for step in range(plan.step_count):
            if step + 1 == plan.step_count and progress is self._progress:
                self._is_given_out = True
            yield [(scene, progress.epoch) for scene in plan.batch(step, self.rank)]

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration give an epoch.

        After `load_state_dict`, the epoch of the state goes on where it stopped; every other one begins at its start.
        """
        epoch = _check(epoch, "epoch", 0)
        # A new object even for the same epoch: an iteration that is still under way no longer counts.
        stretches = self._progress.stretches if epoch == self.epoch else ()
        self._progress = Progress(epoch, stretches)
        self._is_given_out = False

    def state_dict(self, *, steps_done: int) -> dict[str, Any]:
        """Tell how far training has come, as plain values for a checkpoint; the same on all ranks.

        Args:
            steps_done: Steps really done in this iteration, that is, since the epoch began or, where `load_state_dict`
                made it go on, since then: what `enumerate(loader, start=1)` counts. The sampler cannot know it: a
                loader's workers run ahead.

        Raises:
            UsageError: The iteration has fewer steps.
        """
        steps_done = _check(steps_done, "steps_done", 0)
        if steps_done > self.steps_left:
            raise UsageError(
                f"steps_done is {steps_done}, but this iteration over epoch {self.epoch} has {self.steps_left} steps",
                "count from where the epoch began, or since load_state_dict: enumerate(loader, start=1)",
            )
        progress = self._progress.add(self.world_size, steps_done)
        if steps_done == self.steps_left:
            progress = Progress(self.epoch + 1)
        return state_to_json(self._settings, progress)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called: the next iteration gives the rest of that epoch.

        With as many ranks as then, it is exactly what the interrupted run would have got. With another number, what is
        left is dealt again: no scene is lost, and none that has been used in this epoch comes again. As few batches as
        possible are split in two to make the ranks even; where none can be split, scenes are repeated, fewer than there
        are ranks (`describe().padding`).

        Raises:
            UsageError: It is no such state, or of a sampler with other scenes, budget, seed or shuffle.
        """
        progress = progress_from_json(state, self._settings)
        self._known = (progress, self._replay(progress))
        self._progress = progress
        self._is_given_out = False

    def describe(self) -> PlanSummary:
        """Tell steps, fill and imbalance of the epoch, or of what is left of it; `print` shows them as text."""
        return summarize(self._plan(), self.epoch, self._lengths, self._limits)

    def _plan(self) -> Plan:
        """The plan of the next iteration."""
        if self._known is None or self._known[0] != self._progress:
            self._known = (self._progress, self._replay(self._progress))
        return self._known[1]

    def _replay(self, progress: Progress) -> Plan:
        """Find out what is left, by going through all that was done in this epoch, on however many ranks."""
        stretches = progress.stretches
        world_size = stretches[0][0] if stretches else self.world_size
        if world_size > len(self._lengths):
            raise UsageError(f"the sampler's state tells of {world_size} ranks for {len(self._lengths)} scenes")
        base = self._base if world_size == self.world_size else pack(self._lengths, self._limits, world_size)
        plan = make_plan(base, self._lengths, self._limits, world_size, self._make_generator(progress.epoch, 0))
        for number, (world_size, steps) in enumerate((*stretches, (self.world_size, 0))):
            if world_size != plan.world_size:
                plan = deal_again(plan, self._lengths, world_size, self._make_generator(progress.epoch, number))
            if steps >= plan.step_count:
                raise UsageError(f"the sampler's state tells of {steps} steps, where there are {plan.step_count}")
            plan = plan.after(steps)
        return plan

    def _make_generator(self, epoch: int, number: int) -> np.random.Generator | None:
        if not self._shuffle:
            return None
        return np.random.default_rng(np.random.SeedSequence(self._settings.seed, spawn_key=(epoch, number)))


def _check(value: int, name: str, smallest: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = smallest - 1
    if isinstance(value, bool) or number < smallest:
        suggested = max(smallest, int(value)) if isinstance(value, float) and np.isfinite(value) else smallest
        raise UsageError(f"{name} is {value!r}, expected a whole number, at least {smallest}", f"{name}={suggested}")
    return number
