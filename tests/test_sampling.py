"""Samplers: plans that agree, cover every scene once, keep their limits, and can be resumed."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import LAUNCHES, Launch

from scannet_prep import EvalSampler, PointBudgetBatchSampler, WithEpoch
from scannet_prep.errors import UsageError


def make_sampler(
    lengths: Any, rank: int = 0, world_size: int = 1, **options: Any
) -> PointBudgetBatchSampler:
    return PointBudgetBatchSampler(lengths, rank=rank, world_size=world_size, **options)


class Numbers:
    """A dataset whose items are their keys."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: Any) -> Any:
        return key


def keep(samples: list[Any]) -> list[Any]:
    return samples


def make_loader(sampler: Any, **options: Any) -> Any:
    from torch.utils import data as torch_data

    return torch_data.DataLoader(Numbers(), batch_sampler=sampler, collate_fn=keep, **options)


def all_samplers(lengths: Any, world_size: int, **options: Any) -> list[PointBudgetBatchSampler]:
    return [make_sampler(lengths, rank, world_size, **options) for rank in range(world_size)]


def steps_of(samplers: list[PointBudgetBatchSampler]) -> list[list[list[int]]]:
    """List the scenes of each rank, step by step. All ranks must have equally many steps."""
    batches = [[[index for index, _ in batch] for batch in sampler] for sampler in samplers]
    return [list(step) for step in zip(*batches, strict=True)]


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    """Draw lengths, limits and ranks, with many ties, large scenes, and few scenes."""
    world_size = draw(st.integers(1, 9))
    sizes = st.one_of(st.integers(0, 100), st.sampled_from([1, 33, 34, 50, 51, 99, 100, 101, 500]))
    return {
        "lengths": draw(st.lists(sizes, min_size=world_size, max_size=60)),
        "max_points": draw(st.sampled_from([1, 50, 100, 101, 150, 1000, 10_000])),
        "max_scenes": draw(st.sampled_from([None, 1, 2, 3, 7])),
        "world_size": world_size,
        "seed": draw(st.integers(0, 3)),
        "shuffle": draw(st.booleans()),
    }


EXAMPLES = settings(max_examples=30)
EPOCHS = st.integers(0, 1000)


def batches_of(steps: list[list[list[int]]]) -> list[list[int]]:
    """The batches of all steps and ranks."""
    return [batch for step in steps for batch in step]


def scenes_of(steps: list[list[list[int]]]) -> list[int]:
    return [scene for batch in batches_of(steps) for scene in batch]


def sum_lengths(batch: Iterable[int], problem: dict[str, Any]) -> int:
    return sum(problem["lengths"][scene] for scene in batch)


def plan_epoch(
    problem: dict[str, Any], epoch: int
) -> tuple[list[PointBudgetBatchSampler], list[list[list[int]]]]:
    """The samplers of all ranks at an epoch, and their batches step by step."""
    samplers = all_samplers(**problem)
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return samplers, steps_of(samplers)


@EXAMPLES
@given(problems(), EPOCHS)
def test_all_ranks_have_equally_many_steps(problem: dict[str, Any], epoch: int) -> None:
    samplers, steps = plan_epoch(problem, epoch)

    assert len(samplers[0]) == len(steps)
    assert samplers[-1].steps_left == len(steps)
    assert samplers[0].describe().step_count == len(steps)


@EXAMPLES
@given(problems(), EPOCHS)
def test_every_scene_is_covered(problem: dict[str, Any], epoch: int) -> None:
    _, steps = plan_epoch(problem, epoch)
    assert sorted(set(scenes_of(steps))) == list(range(len(problem["lengths"])))


@EXAMPLES
@given(problems(), EPOCHS)
def test_fewer_scenes_are_repeated_than_there_are_ranks(
    problem: dict[str, Any], epoch: int
) -> None:
    samplers, steps = plan_epoch(problem, epoch)
    scenes = scenes_of(steps)
    padding = samplers[0].describe().padding

    assert padding == len(scenes) - len(set(scenes))
    assert padding < problem["world_size"]


@EXAMPLES
@given(problems(), EPOCHS)
def test_scenes_are_repeated_only_if_no_batch_can_be_split(
    problem: dict[str, Any], epoch: int
) -> None:
    samplers, steps = plan_epoch(problem, epoch)
    if samplers[0].describe().padding:
        assert all(len(batch) == 1 for batch in batches_of(steps))


@EXAMPLES
@given(problems(), EPOCHS)
def test_batches_have_at_most_max_scenes_and_each_scene_once(
    problem: dict[str, Any], epoch: int
) -> None:
    _, steps = plan_epoch(problem, epoch)
    for batch in batches_of(steps):
        assert len(batch) == len(set(batch))
        assert 1 <= len(batch) <= (problem["max_scenes"] or len(batch))


@EXAMPLES
@given(problems(), EPOCHS)
def test_only_a_single_scene_exceeds_the_budget(problem: dict[str, Any], epoch: int) -> None:
    _, steps = plan_epoch(problem, epoch)
    for batch in batches_of(steps):
        assert sum_lengths(batch, problem) <= problem["max_points"] or len(batch) == 1


@EXAMPLES
@given(problems(), EPOCHS)
def test_described_imbalance_equals_a_loop(problem: dict[str, Any], epoch: int) -> None:
    samplers, steps = plan_epoch(problem, epoch)
    imbalances = []
    for step in steps:
        loads = [sum_lengths(batch, problem) for batch in step]
        mean = (sum(loads) or 1) / len(loads)
        imbalances.append(max(max(loads) / mean, 1))

    assert samplers[0].describe().imbalance == pytest.approx(sum(imbalances) / len(imbalances))


@EXAMPLES
@given(problems(), EPOCHS)
def test_described_fill_equals_a_loop(problem: dict[str, Any], epoch: int) -> None:
    samplers, steps = plan_epoch(problem, epoch)
    loads = [sum_lengths(batch, problem) for batch in batches_of(steps)]
    fills = [min(load / problem["max_points"], 1) for load in loads]

    assert samplers[0].describe().fill == pytest.approx(sum(fills) / len(fills))


@EXAMPLES
@given(problems(), EPOCHS, st.data())
def test_states_of_all_ranks_are_equal(problem: dict[str, Any], epoch: int, data: Any) -> None:
    samplers, steps = plan_epoch(problem, epoch)
    done = data.draw(st.integers(0, len(steps)))
    states = [sampler.state_dict(steps_done=done) for sampler in samplers]

    assert all(state == states[0] for state in states)


@EXAMPLES
@given(problems(), EPOCHS, st.data())
def test_resumed_epoch_continues_after_any_step(
    problem: dict[str, Any], epoch: int, data: Any
) -> None:
    samplers, steps = plan_epoch(problem, epoch)
    done = data.draw(st.integers(0, len(steps)))
    state = json.loads(json.dumps(samplers[0].state_dict(steps_done=done)))

    resumed = all_samplers(**problem)
    for sampler in resumed:
        sampler.load_state_dict(state)
        # As at the top of a loop over epochs.
        sampler.set_epoch(sampler.epoch)

    if done == len(steps):
        assert resumed[0].epoch == epoch + 1
    else:
        assert resumed[0].epoch == epoch
        assert steps_of(resumed) == steps[done:]


@EXAMPLES
@given(problems(), EPOCHS, EPOCHS)
def test_plan_does_not_depend_on_epochs_planned_before(
    problem: dict[str, Any], first: int, second: int
) -> None:
    samplers, _ = plan_epoch(problem, first)
    for sampler in samplers:
        sampler.set_epoch(second)

    assert steps_of(samplers) == plan_epoch(problem, second)[1]


# In the second case, few scenes fit together, so that few exchanges are possible.
@pytest.mark.parametrize(
    ("lengths", "max_points"),
    [(np.random.default_rng(1).integers(10, 100, 200), 300), ([26, 26, 27, 27, 46, 48] * 10, 100)],
    ids=["many fit", "few fit"],
)
class TestSeedsAndEpochs:
    """Plans of rank 1 of 2 for several seeds and epochs."""

    def plan(self, lengths: Any, max_points: int, seed: int, epoch: int) -> list[list[int]]:
        sampler = make_sampler(lengths, 1, 2, max_points=max_points, seed=seed)
        sampler.set_epoch(epoch)
        return [[index for index, _ in batch] for batch in sampler]

    def test_plan_is_the_same_for_the_same_seed_and_epoch(
        self, lengths: Any, max_points: int
    ) -> None:
        plan = self.plan(lengths, max_points, 0, 0)
        assert self.plan(lengths, max_points, 0, 0) == plan

    def test_plans_of_other_seeds_and_epochs_differ(self, lengths: Any, max_points: int) -> None:
        seeds_and_epochs = [(1, 0), *((0, epoch) for epoch in range(8))]
        plans = [self.plan(lengths, max_points, seed, epoch) for seed, epoch in seeds_and_epochs]

        assert len({str(plan) for plan in plans}) == len(plans)

    def test_keys_of_a_batch_contain_the_epoch(self, lengths: Any, max_points: int) -> None:
        sampler = make_sampler(lengths, 1, 2, max_points=max_points)
        sampler.set_epoch(7)

        assert {epoch for batch in sampler for _, epoch in batch} == {7}


def make_lengths_like_scannet() -> Any:
    """Vertex counts like those of the train split: mean 149,000, at most 550,000."""
    sizes = np.random.default_rng(0).lognormal(0, 0.6, 1201)
    for _ in range(50):
        sizes = np.clip(sizes * 149_000 / sizes.mean(), 5_000, 550_000)
    return sizes.astype(np.int64)


@pytest.fixture(
    scope="module",
    params=[(1, 550_000), (4, 600_000), (8, 1_200_000), (1, 600_000)],
    ids=lambda param: f"{param[0]} ranks",
)
def usual_sampler(request: pytest.FixtureRequest) -> PointBudgetBatchSampler:
    world_size, max_points = request.param
    lengths = make_lengths_like_scannet()
    return make_sampler(lengths, world_size=world_size, max_points=max_points)


@pytest.mark.parametrize("epoch", range(4))
def test_usual_batches_are_full_and_even(
    usual_sampler: PointBudgetBatchSampler, epoch: int
) -> None:
    usual_sampler.set_epoch(epoch)
    summary = usual_sampler.describe()

    assert summary.fill >= 0.94
    assert 1 <= summary.imbalance <= 1.003
    assert summary.padding == 0


def list_pairs(sampler: PointBudgetBatchSampler, epoch: int) -> set[tuple[int, int]]:
    """The pairs of scenes that share a batch."""
    sampler.set_epoch(epoch)
    pairs = set()
    for batch in sampler:
        scenes = sorted(index for index, _ in batch)
        pairs |= {(a, b) for a in scenes for b in scenes if a < b}
    return pairs


def test_usual_scenes_share_batches_with_others_each_epoch(
    usual_sampler: PointBudgetBatchSampler,
) -> None:
    pairs = [list_pairs(usual_sampler, epoch) for epoch in range(4)]
    for before, after in pairwise(pairs):
        assert len(before & after) < 0.03 * len(before)


def test_scene_above_the_budget_is_a_batch_of_its_own() -> None:
    sampler = make_sampler([40, 500, 60, 30, 70], max_points=100, shuffle=False)
    assert [sorted(index for index, _ in batch) for batch in sampler] == [[1], [3, 4], [0, 2]]


def test_scene_above_the_budget_counts_as_a_full_batch() -> None:
    sampler = make_sampler([40, 500, 60, 30, 70], max_points=100, shuffle=False)

    expected = "PlanSummary(step_count=3, padding=0, fill=1.0, imbalance=1.0)"
    assert str(sampler.describe()) == expected


# Five scenes of which no two fit together, on four ranks: three scenes are repeated.
REPEATING = {"lengths": [100] * 5, "max_points": 100, "world_size": 4}


@pytest.mark.parametrize("epoch", range(12))
def test_no_scene_is_repeated_more_than_once(epoch: int) -> None:
    samplers, steps = plan_epoch(REPEATING, epoch)
    counts = Counter(scenes_of(steps))

    assert sum(counts.values()) - 5 == 3
    assert samplers[0].describe().padding == 3
    assert max(counts.values()) == 2


def test_other_scenes_are_repeated_in_each_epoch() -> None:
    repeated = set()
    for epoch in range(12):
        counts = Counter(scenes_of(plan_epoch(REPEATING, epoch)[1]))
        repeated |= {scene for scene, count in counts.items() if count > 1}

    assert repeated == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"lengths": [10, 20], "world_size": 3}, "2 scenes for 3 ranks", "at most 2 ranks"),
        (
            {"lengths": []},
            r"lengths is \[\], expected the vertices of each scene",
            "dataset.lengths",
        ),
        ({"lengths": [[1, 2]]}, r"lengths is \[\[1, 2\]\], expected", "dataset.lengths"),
        ({"lengths": [1.5, 2]}, r"lengths is \[1.5, 2\], expected", "dataset.lengths"),
        ({"lengths": [3, -1]}, "whole numbers from 0", "dataset.lengths"),
        ({"lengths": np.array([1, 2**63], np.uint64)}, "whole numbers from 0", "dataset.lengths"),
        ({"max_points": 0}, "max_points is 0", "max_points="),
        ({"max_points": 1e6}, "max_points is 1000000.0, expected a whole number", "max_points="),
        ({"max_scenes": 0}, "max_scenes is 0", "max_scenes="),
        ({"seed": -1}, "seed is -1", "seed="),
        (
            {"seed": np.array([1, 2])},
            r"seed is array\(\[1, 2\]\), expected a whole number",
            "seed=",
        ),
        ({"rank": 2}, "found rank 2 and world size 2", "world_size"),
        ({"rank": -1}, "rank is -1", "rank="),
        ({"rank": "1"}, "rank is '1', expected a whole number", "rank="),
        ({"world_size": 0}, "world_size is 0", "world_size="),
        (
            {"rank": 0, "world_size": None},
            "world size None, expected both",
            "world_size",
        ),
    ],
)
def test_invalid_argument_of_the_sampler_is_refused(
    options: dict[str, Any], message: str, hint: str
) -> None:
    valid: dict[str, Any] = {"lengths": [10, 20], "max_points": 100, "rank": 1, "world_size": 2}

    with pytest.raises(UsageError, match=message) as caught:
        PointBudgetBatchSampler(**valid | options)

    assert hint in caught.value.hint


# Rank and world size, or a part of the message if the rank is unknown.
Expected = tuple[int, int] | str

RANK_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
)


def expect(launch: Launch) -> Expected:
    """Determine the expected rank: only torchrun sets the rank of one of several processes."""
    if "torchrun" in launch.name:
        rank, _, world_size = launch.rank.partition("/")
        return int(rank), int(world_size)
    is_alone = "script" in launch.name or launch.rank in {"0/1", "names no task"}
    return (0, 1) if is_alone else "all would get the same data"


def set_environment(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def make_budget_sampler(**options: Any) -> PointBudgetBatchSampler:
    return PointBudgetBatchSampler([10] * 8, max_points=100, **options)


def make_eval_sampler(**options: Any) -> EvalSampler:
    return EvalSampler([10] * 8, **options)


BOTH_SAMPLERS = pytest.mark.parametrize("make", [make_budget_sampler, make_eval_sampler])
LAUNCHES_WITH_RANK = [launch for launch in LAUNCHES if not isinstance(expect(launch), str)]
LAUNCHES_WITHOUT_RANK = [launch for launch in LAUNCHES if isinstance(expect(launch), str)]


@BOTH_SAMPLERS
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4"}, (0, 1)),
        *(
            pytest.param(launch.environ, expect(launch), id=launch.name)
            for launch in LAUNCHES_WITH_RANK
        ),
    ],
)
def test_rank_is_found_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    environment: dict[str, str],
    expected: tuple[int, int],
) -> None:
    set_environment(monkeypatch, environment)
    sampler = make()
    rank, world_size = expected

    assert sampler.rank == rank
    assert sampler.world_size == world_size


UNKNOWN_RANKS = pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "4"}, "found rank None and world size 4, expected both"),
        ({"RANK": "1"}, "found rank 1 and world size None"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "found rank 4 and world size 4"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "found rank -1 and world size 4"),
        ({"WORLD_SIZE": "0"}, "world size 0"),
        (
            {"RANK": "abc", "WORLD_SIZE": "4"},
            "RANK is 'abc' in the environment, expected a whole number",
        ),
        *(
            pytest.param(launch.environ, expect(launch), id=launch.name)
            for launch in LAUNCHES_WITHOUT_RANK
        ),
    ],
)


@BOTH_SAMPLERS
@UNKNOWN_RANKS
def test_unknown_or_invalid_rank_is_an_error(
    monkeypatch: pytest.MonkeyPatch, make: Any, environment: dict[str, str], message: str
) -> None:
    set_environment(monkeypatch, environment)
    with pytest.raises(UsageError, match=message):
        make()


@BOTH_SAMPLERS
@UNKNOWN_RANKS
def test_rank_that_is_passed_replaces_the_environment(
    monkeypatch: pytest.MonkeyPatch, make: Any, environment: dict[str, str], message: str
) -> None:
    set_environment(monkeypatch, environment)
    sampler = make(rank=0, world_size=2)

    assert sampler.rank == 0
    assert sampler.world_size == 2


# Evaluation.


def hands_of(lengths: list[int], world_size: int) -> list[list[int]]:
    """The scenes of each rank."""
    ranks = range(world_size)
    return [list(EvalSampler(lengths, rank=rank, world_size=world_size)) for rank in ranks]


LENGTHS_AND_RANKS = given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.integers(1, 9)
)


@LENGTHS_AND_RANKS
def test_evaluation_gives_every_scene_to_one_rank(lengths: list[int], world_size: int) -> None:
    hands = hands_of(lengths, world_size)
    assert sorted(scene for hand in hands for scene in hand) == list(range(len(lengths)))


@LENGTHS_AND_RANKS
def test_evaluation_is_the_same_each_time(lengths: list[int], world_size: int) -> None:
    sampler = EvalSampler(lengths, rank=0, world_size=world_size)
    assert list(sampler) == list(sampler)


@LENGTHS_AND_RANKS
def test_ranks_of_an_evaluation_differ_by_at_most_one_scene(
    lengths: list[int], world_size: int
) -> None:
    counts = [len(hand) for hand in hands_of(lengths, world_size)]
    sampler = EvalSampler(lengths, rank=world_size - 1, world_size=world_size)

    assert len(sampler) == counts[-1]
    assert sampler.step_count == max(counts)
    assert max(counts) <= min(counts) + 1


@LENGTHS_AND_RANKS
def test_vertices_of_an_evaluation_differ_by_at_most_one_scene(
    lengths: list[int], world_size: int
) -> None:
    loads = [sum(lengths[scene] for scene in hand) for hand in hands_of(lengths, world_size)]
    assert max(loads) - min(loads) <= max(lengths)


@LENGTHS_AND_RANKS
def test_steps_of_an_evaluation_hold_scenes_of_similar_size(
    lengths: list[int], world_size: int
) -> None:
    hands = hands_of(lengths, world_size)
    descending = sorted(lengths, reverse=True)

    for step in range(len(lengths) // world_size):
        step_lengths = sorted((lengths[hand[step]] for hand in hands), reverse=True)
        assert step_lengths == descending[step * world_size : (step + 1) * world_size]


# Iterations and epochs.


def test_list_of_a_sampler_is_the_same_each_time() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    sampler.set_epoch(1)

    first = list(sampler)
    with pytest.warns(UserWarning, match="epoch 1 has already been handed out"):
        second = list(sampler)

    assert second == first


def test_iterating_does_not_change_the_state() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    sampler.set_epoch(1)
    before = sampler.state_dict()
    list(sampler)

    assert sampler.state_dict() == before


REPEATED = "epoch 0 has already been handed out: .* are repeated; call set_epoch"


@pytest.mark.extra("torch")
@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}]
)
def test_second_epoch_without_set_epoch_is_a_warning(options: dict[str, Any]) -> None:
    sampler = make_sampler([10] * 80, max_points=20)
    loader = make_loader(sampler, **options)
    first = list(loader)

    with pytest.warns(UserWarning, match=REPEATED):
        second = list(loader)

    assert second == first


@pytest.mark.extra("torch")
@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_loader_gets_the_next_epoch_after_set_epoch(options: dict[str, Any]) -> None:
    sampler = make_sampler([10] * 80, max_points=20)
    loader = make_loader(sampler, **options)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(loader))
        assert epochs[epoch] == [sampler.batch(epoch, step) for step in range(len(sampler))]

    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.extra("torch")
def test_reading_the_first_batch_does_not_use_up_the_epoch() -> None:
    loader = make_loader(make_sampler([10] * 80, max_points=20))
    first = next(iter(loader))
    whole = list(loader)

    assert whole[0] == first
    assert len(whole) == len(loader)


def test_epoch_is_repeated_without_a_warning_after_set_epoch() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    first = list(sampler)
    sampler.set_epoch(0)

    assert list(sampler) == first


def test_sampler_without_shuffling_is_repeated_without_a_warning() -> None:
    sampler = make_sampler([10] * 8, max_points=20, shuffle=False)
    assert list(sampler) == list(sampler)


@pytest.mark.parametrize("shuffle", [True, False])
def test_repeating_the_rest_of_a_resumed_epoch_is_a_warning(shuffle: bool) -> None:
    sampler = make_sampler([10] * 8, max_points=20, shuffle=shuffle)
    whole = list(sampler)
    sampler.load_state_dict(sampler.state_dict(steps_done=3))
    assert list(sampler) == whole[3:]

    with pytest.warns(UserWarning, match=REPEATED):
        repeated = list(sampler)

    assert repeated == whole[3:]


def test_state_of_an_iterator_counts_its_own_batches() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    sampler.set_epoch(2)
    batches = iter(sampler)
    next(batches)
    next(batches)
    sampler.set_epoch(3)
    list(sampler)

    state = batches.state_dict()

    assert state["epoch"] == 2
    assert state["steps_done"] == 2


def test_iterator_that_loads_a_state_continues_there_and_moves_its_sampler() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    whole = list(sampler)
    batches = iter(make_sampler([10] * 8, max_points=20))
    next(batches)
    resumed = make_sampler([10] * 8, max_points=20)
    continued = iter(resumed)

    continued.load_state_dict(json.loads(json.dumps(batches.state_dict())))

    assert resumed.steps_before == 1
    assert list(continued) == whole[1:]


def test_iterator_that_loads_a_finished_epoch_begins_the_next_one() -> None:
    finished = iter(make_sampler([10] * 8, max_points=20))
    list(finished)
    resumed = make_sampler([10] * 8, max_points=20)
    continued = iter(resumed)

    continued.load_state_dict(finished.state_dict())

    assert resumed.epoch == 1
    assert list(continued) == list(resumed)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("epoch", [3, 0])
def test_batch_of_a_step_is_the_one_that_is_handed_out(rank: int, epoch: int) -> None:
    sampler = make_sampler(range(10, 30), rank, 2, max_points=50)
    sampler.set_epoch(epoch)

    expected = list(sampler)
    assert [sampler.batch(epoch, step) for step in range(len(sampler))] == expected


def test_batch_of_a_step_does_not_change_the_position() -> None:
    sampler = make_sampler(range(10, 30), max_points=50)
    sampler.batch(3, 1)

    assert sampler.epoch == 0
    assert sampler.state_dict()["steps_done"] == 0


@pytest.mark.parametrize(("epoch", "step"), [(0, 4), (0, -1), (-1, 0), (0, 0.5)])
def test_batch_of_a_step_that_does_not_exist_is_an_error(epoch: int, step: Any) -> None:
    sampler = make_sampler([10] * 8, max_points=20)

    assert len(sampler) == 4
    with pytest.raises(UsageError, match=r"step is|epoch is"):
        sampler.batch(epoch, step)


def make_dataset(digest: str, count: int = 8) -> Any:
    return SimpleNamespace(lengths=[10] * count, digest=digest)


@pytest.fixture
def state_of_dataset() -> dict[str, Any]:
    """A state that was saved with a dataset."""
    sampler = make_sampler(make_dataset("0000aaaa"), max_points=20)
    return sampler.state_dict(steps_done=1)


def test_state_of_an_equal_dataset_is_accepted(state_of_dataset: dict[str, Any]) -> None:
    sampler = make_sampler(make_dataset("0000aaaa"), max_points=20)
    sampler.load_state_dict(state_of_dataset)

    assert sampler.steps_before == 1


@pytest.mark.parametrize("count", [8, 9])
def test_state_of_another_dataset_is_refused_with_both_digests(
    state_of_dataset: dict[str, Any], count: int
) -> None:
    sampler = make_sampler(make_dataset("0000bbbb", count), max_points=20)
    with pytest.raises(UsageError, match="digest 0000aaaa, this one has digest 0000bbbb"):
        sampler.load_state_dict(state_of_dataset)


def test_sampler_made_from_lengths_accepts_the_state_of_a_dataset(
    state_of_dataset: dict[str, Any],
) -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    sampler.load_state_dict(state_of_dataset)

    assert sampler.steps_before == 1


def test_epoch_of_an_iteration_is_the_one_at_its_beginning() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    batches = iter(sampler)
    sampler.set_epoch(1)

    assert {epoch for batch in batches for _, epoch in batch} == {0}


@pytest.fixture
def pytorch_wrappers() -> dict[str, Any]:
    from torch.utils import data as torch_data

    halves = torch_data.random_split(Numbers(), [4, 4])
    return {"Subset": halves[0], "ConcatDataset": torch_data.ConcatDataset(halves)}


WRAPPERS = pytest.mark.parametrize(
    ("kind", "remedy"),
    [("Subset", "dataset.subset(indices)"), ("ConcatDataset", "scannet_prep.ConcatDataset")],
)


@pytest.mark.extra("torch")
@WRAPPERS
def test_sampler_of_a_wrapper_of_pytorch_is_refused(
    pytorch_wrappers: dict[str, Any], kind: str, remedy: str
) -> None:
    with pytest.raises(UsageError, match="of PyTorch has no lengths") as caught:
        make_sampler(pytorch_wrappers[kind], max_points=20)
    assert remedy in caught.value.hint


@pytest.mark.extra("torch")
@WRAPPERS
def test_wrapper_of_pytorch_with_keys_of_the_sampler_is_refused(
    pytorch_wrappers: dict[str, Any], kind: str, remedy: str
) -> None:
    from torch.utils import data as torch_data

    sampler = make_sampler([10] * 8, max_points=20)
    loader = torch_data.DataLoader(pytorch_wrappers[kind], batch_sampler=sampler)

    with pytest.raises(UsageError, match="is the index of a scene and an epoch") as caught:
        next(iter(loader))

    assert remedy in caught.value.hint


@pytest.fixture
def keys() -> list[Any]:
    """The keys of a batch of epoch 2."""
    return make_sampler([10] * 8, max_points=80).batch(2, 0)


def test_keys_of_a_batch_are_sorted_as_pairs(keys: list[Any]) -> None:
    assert sorted(keys) == [(index, 2) for index in range(8)]


def test_keys_of_a_batch_are_pickled(keys: list[Any]) -> None:
    assert pickle.loads(pickle.dumps(keys)) == keys


def test_keys_of_a_batch_are_an_array_of_pairs(keys: list[Any]) -> None:
    assert np.array(keys).shape == (8, 2)


# States.


@pytest.mark.parametrize(("done", "before"), [([3], 3), ([3, 2], 5), ([3, 2, 0], 5)])
def test_steps_done_count_from_where_the_epoch_was_resumed(done: list[int], before: int) -> None:
    whole = list(make_sampler([10] * 20, max_points=20))
    sampler = make_sampler([10] * 20, max_points=20)
    for steps_done in done:
        sampler.load_state_dict(sampler.state_dict(steps_done=steps_done))

    assert sampler.steps_left == len(whole) - before
    assert list(sampler) == whole[before:]
    assert len(sampler) == len(whole)


def test_more_steps_done_than_are_left_are_an_error() -> None:
    sampler = make_sampler([10] * 20, max_points=20)
    sampler.load_state_dict(sampler.state_dict(steps_done=5))

    message = "steps_done is 6, but the rest of epoch 0 has 5 steps"
    with pytest.raises(UsageError, match=message):
        sampler.state_dict(steps_done=6)


def test_epoch_after_a_resumed_one_is_whole() -> None:
    sampler = make_sampler([10] * 20, max_points=20)
    sampler.load_state_dict(sampler.state_dict(steps_done=5))
    sampler.set_epoch(1)

    assert sampler.steps_left == len(sampler)


def test_state_without_steps_done_is_that_at_the_start_of_the_iteration() -> None:
    sampler = make_sampler([10] * 20, max_points=20)
    sampler.load_state_dict(sampler.state_dict(steps_done=3))
    next(iter(sampler))

    assert sampler.state_dict() == sampler.state_dict(steps_done=0)
    assert sampler.state_dict()["steps_done"] == 3


TWO_RANKS: dict[str, Any] = {
    "lengths": [10] * 8,
    "max_points": 20,
    "rank": 0,
    "world_size": 2,
}


@pytest.fixture
def state() -> dict[str, Any]:
    return PointBudgetBatchSampler(**TWO_RANKS).state_dict(steps_done=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 1),
        ("epoch", None),
        ("epoch", -1),
        ("epoch", 0.5),
        ("steps_done", [1]),
        ("steps_done", -1),
        ("steps_done", 1.5),
        ("steps_done", 400),
    ],
)
def test_damaged_state_is_refused(state: dict[str, Any], name: str, value: Any) -> None:
    sampler = PointBudgetBatchSampler(**TWO_RANKS)

    with pytest.raises(UsageError, match="state"):
        sampler.load_state_dict(state | {name: value})

    assert sampler.steps_left == len(sampler)


def test_empty_state_is_refused() -> None:
    sampler = PointBudgetBatchSampler(**TWO_RANKS)

    with pytest.raises(UsageError, match="state"):
        sampler.load_state_dict({})

    assert sampler.steps_left == len(sampler)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_points": 30}, "saved with max_points=20, this sampler has max_points=30"),
        ({"max_scenes": 2}, "max_scenes=None"),
        ({"seed": 5, "shuffle": False}, "seed=0"),
        ({"lengths": [10] * 9}, "scene_count=8, this sampler has scene_count=9"),
        ({"lengths": [10] * 7 + [11]}, "lengths_crc32"),
    ],
    ids=["max_points", "max_scenes", "seed", "number of scenes", "lengths"],
)
def test_state_of_another_sampler_is_refused_with_a_hint(
    state: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    sampler = PointBudgetBatchSampler(**TWO_RANKS | change)

    with pytest.raises(UsageError, match=message) as caught:
        sampler.load_state_dict(state)

    assert "set_epoch" in caught.value.hint


def test_state_of_other_ranks_begins_the_epoch_again(state: dict[str, Any]) -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    message = "saved with world_size=2, this sampler has world_size=1: epoch 0 begins again"
    with pytest.warns(UserWarning, match=message):
        sampler.load_state_dict(state)

    assert list(sampler) == list(make_sampler([10] * 8, max_points=20))


# Samplers of PyTorch.


class EpochSampler(list[int]):
    """A sampler that records the epochs that it receives."""

    def __init__(self) -> None:
        super().__init__(range(3))
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


@pytest.mark.parametrize("make", [lambda: range(3), EpochSampler], ids=["range", "sampler"])
def test_with_epoch_adds_the_epoch_to_each_index(make: Any) -> None:
    sampler = WithEpoch(make())

    assert len(sampler) == 3
    assert list(sampler) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("make", [lambda: range(3), EpochSampler], ids=["range", "sampler"])
def test_with_epoch_adds_the_epoch_that_was_set(make: Any) -> None:
    sampler = WithEpoch(make())
    list(sampler)

    sampler.set_epoch(2)

    assert list(sampler) == [(0, 2), (1, 2), (2, 2)]


def test_with_epoch_keeps_the_epoch_of_a_running_iteration() -> None:
    sampler = WithEpoch(range(3))
    iteration = iter(sampler)
    sampler.set_epoch(2)

    assert list(iteration) == [(0, 0), (1, 0), (2, 0)]


def test_with_epoch_passes_the_epoch_on() -> None:
    inner = EpochSampler()
    WithEpoch(inner).set_epoch(2)

    assert inner.epochs == [2]
