"""Batches by a budget of points: plans that agree, cover every scene once, keep their limits, and can be resumed."""

import json
import pickle
from collections import Counter
from functools import partial
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import LAUNCHES, Launch

from scannet_prep import EvalSampler, PointBudgetBatchSampler, WithEpoch
from scannet_prep.base.errors import UsageError


def make_sampler(
    lengths: Any, rank: int = 0, world_size: int = 1, **options: Any
) -> PointBudgetBatchSampler:
    return PointBudgetBatchSampler(lengths, rank=rank, world_size=world_size, **options)


class Numbers:
    """Gives back what it is asked for."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: Any) -> Any:
        return key


def keep(samples: list[Any]) -> list[Any]:
    return samples


def make_loader(sampler: Any, **options: Any) -> Any:
    torch_data = pytest.importorskip("torch.utils.data")
    return torch_data.DataLoader(Numbers(), batch_sampler=sampler, collate_fn=keep, **options)


def all_samplers(lengths: Any, world_size: int, **options: Any) -> list[PointBudgetBatchSampler]:
    return [make_sampler(lengths, rank, world_size, **options) for rank in range(world_size)]


def steps_of(samplers: list[PointBudgetBatchSampler]) -> list[list[list[int]]]:
    """The batches of all ranks, step by step; fails where one has more steps than another."""
    batches = [[[index for index, _ in batch] for batch in sampler] for sampler in samplers]
    return [list(step) for step in zip(*batches, strict=True)]


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    """Lengths, limits and ranks, with many ties, scenes above the budget, and just enough scenes."""
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


@settings(max_examples=30)
@given(problems(), st.lists(st.integers(0, 1000), min_size=1, max_size=2, unique=True), st.data())
def test_all_ranks_have_equal_steps_that_cover_every_scene_within_the_limits_and_can_be_resumed_at_any(
    problem: dict[str, Any], epochs: list[int], data: Any
) -> None:
    samplers = all_samplers(**problem)
    for epoch in epochs:
        for sampler in samplers:
            sampler.set_epoch(epoch)
        summary, steps = samplers[0].describe(), steps_of(samplers)
        loads = [
            [sum(problem["lengths"][scene] for scene in batch) for batch in step] for step in steps
        ]
        ideal = [max(max(step) * len(step) / (sum(step) or 1), 1) for step in loads]
        assert summary.imbalance == pytest.approx(sum(ideal) / len(ideal))
        fill = [min(load / problem["max_points"], 1) for load in chain(*loads)]
        assert summary.fill == pytest.approx(sum(fill) / len(fill))
        assert len(steps) == len(samplers[0]) == samplers[-1].steps_left == summary.step_count
        for batch, load in zip(chain(*steps), chain(*loads), strict=True):
            assert 1 <= len(batch) == len(set(batch)) <= (problem["max_scenes"] or len(batch))
            assert load <= problem["max_points"] or len(batch) == 1
        counts = Counter(chain(*chain(*steps)))
        assert sorted(counts) == list(range(len(problem["lengths"])))
        assert sum(counts.values()) - len(counts) == summary.padding < problem["world_size"]
        if summary.padding:
            assert all(len(batch) == 1 for batch in chain(*steps)), "there was something to split"
    done = data.draw(st.integers(0, len(steps)))
    states = [sampler.state_dict(steps_done=done) for sampler in samplers]
    assert all(state == states[0] for state in states)
    resumed = all_samplers(**problem)
    for sampler in resumed:
        sampler.load_state_dict(json.loads(json.dumps(states[0])))
        sampler.set_epoch(sampler.epoch)  # as at the top of a loop over epochs
    assert resumed[0].epoch == (epoch if done < len(steps) else epoch + 1)
    assert done == len(steps) or steps_of(resumed) == steps[done:]


def test_seed_and_epoch_change_the_plan_and_nothing_else_does() -> None:
    hardly_fit = [
        26,
        26,
        27,
        27,
        46,
        48,
    ] * 10  # batches are mixed also where few changes are possible
    for lengths, max_points in (
        (np.random.default_rng(1).integers(10, 100, 200), 300),
        (hardly_fit, 100),
    ):
        plans = []
        for seed, epoch in [(0, 0), (0, 0), (1, 0), *((0, epoch) for epoch in range(1, 8))]:
            sampler = make_sampler(lengths, 1, 2, max_points=max_points, seed=seed)
            sampler.set_epoch(epoch)
            batches = list(sampler)
            assert {number for batch in batches for _, number in batch} == {epoch}
            plans.append(str([[index for index, _ in batch] for batch in batches]))
        assert plans[0] == plans[1]
        assert len(set(plans)) == len(plans) - 1


@pytest.mark.parametrize(
    ("world_size", "max_points"), [(1, 550_000), (4, 600_000), (8, 1_200_000), (1, 600_000)]
)
def test_on_lengths_like_scannets_batches_are_full_steps_even_and_mixed_anew(
    world_size: int, max_points: int
) -> None:
    sizes = np.random.default_rng(0).lognormal(0, 0.6, 1201)
    for _ in range(50):  # mean 149,000, at most 550,000, as in the train split
        sizes = np.clip(sizes * 149_000 / sizes.mean(), 5_000, 550_000)
    sampler = make_sampler(sizes.astype(np.int64), world_size=world_size, max_points=max_points)
    pairs: list[set[tuple[int, int]]] = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        summary = sampler.describe()
        assert summary.fill >= 0.94
        assert 1 <= summary.imbalance <= 1.003
        assert summary.padding == 0
        batches = [sorted(index for index, _ in batch) for batch in sampler]
        pairs.append({(a, b) for batch in batches for a in batch for b in batch if a < b})
    for before, after in pairwise(pairs):
        assert len(before & after) < 0.03 * len(before)


def test_scenes_above_the_budget_and_scenes_that_come_twice_are_told_and_differ_between_epochs() -> (
    None
):
    sampler = make_sampler([40, 500, 60, 30, 70], max_points=100, shuffle=False)
    assert [sorted(index for index, _ in batch) for batch in sampler] == [[1], [3, 4], [0, 2]]
    assert (
        str(sampler.describe()) == "PlanSummary(step_count=3, padding=0, fill=1.0, imbalance=1.0)"
    )
    samplers = all_samplers([100] * 5, 4, max_points=100)
    repeated = set()
    for epoch in range(12):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        counts = Counter(chain(*chain(*steps_of(samplers))))
        assert samplers[0].describe().padding == sum(counts.values()) - 5 == 3
        assert max(counts.values()) == 2
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
        ({"rank": 2}, "the rank is 2, the number of ranks is 2", "world_size"),
        ({"rank": -1}, "rank is -1", "rank="),
        ({"rank": "1"}, "rank is '1', expected a whole number", "rank="),
        ({"world_size": 0}, "world_size is 0", "world_size="),
        (
            {"rank": 0, "world_size": None},
            "number of ranks is None: both must be known",
            "world_size",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    options: dict[str, Any], message: str, hint: str
) -> None:
    valid: dict[str, Any] = {"lengths": [10, 20], "max_points": 100, "rank": 1, "world_size": 2}
    with pytest.raises(UsageError, match=message) as caught:
        PointBudgetBatchSampler(**valid | options)
    assert hint in caught.value.hint


def expect(launch: Launch) -> Any:
    """Rank and number of ranks, or a part of the message: a process is alone only where its launcher started one."""
    if "torchrun" in launch.name:
        return tuple(map(int, launch.shard.split("/")))
    is_alone = "script" in launch.name or launch.shard in {"0/1", "names no task"}
    return (0, 1) if is_alone else "all would get the same data"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4"}, (0, 1)),
        ({"WORLD_SIZE": "4"}, "the rank is None, the number of ranks is 4: both must be known"),
        ({"RANK": "1"}, "the rank is 1, the number of ranks is None"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "the rank is 4, the number of ranks is 4"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "the rank is -1, the number of ranks is 4"),
        ({"WORLD_SIZE": "0"}, "number of ranks is 0"),
        (
            {"RANK": "abc", "WORLD_SIZE": "4"},
            "RANK is 'abc' in the environment, expected a whole number",
        ),
        *(pytest.param(launch.environ, expect(launch), id=launch.name) for launch in LAUNCHES),
    ],
)
def test_the_rank_is_found_in_the_environment_or_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: Any
) -> None:
    for name in (
        "RANK",
        "WORLD_SIZE",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_SIZE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for kind in (partial(PointBudgetBatchSampler, max_points=100), EvalSampler):
        options, found = {}, expected
        if isinstance(expected, str):
            with pytest.raises(UsageError, match=expected):
                kind([10] * 8)
            options, found = {"rank": 0, "world_size": 2}, (0, 2)
        sampler = kind([10] * 8, **options)
        assert (sampler.rank, sampler.world_size) == found


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.integers(1, 9))
def test_evaluation_gives_every_scene_to_one_rank_once_and_deals_by_size(
    lengths: list[int], world_size: int
) -> None:
    samplers = [
        EvalSampler(lengths, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    hands = [list(sampler) for sampler in samplers]
    assert sorted(scene for hand in hands for scene in hand) == list(range(len(lengths)))
    assert [len(sampler) for sampler in samplers] == [len(hand) for hand in hands]
    assert max(map(len, hands)) == samplers[0].step_count <= min(map(len, hands)) + 1
    assert hands == [list(sampler) for sampler in samplers]
    loads = [sum(lengths[scene] for scene in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(lengths)
    order = sorted(lengths, reverse=True)
    for step in range(len(lengths) // world_size):
        found = sorted((lengths[hand[step]] for hand in hands), reverse=True)
        assert found == order[step * world_size : (step + 1) * world_size]


def test_list_of_a_sampler_is_the_same_each_time_and_changes_no_state() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    sampler.set_epoch(1)
    before = sampler.state_dict()

    first = list(sampler)
    with pytest.warns(UserWarning, match="epoch 1 has already been handed out"):
        second = list(sampler)

    assert second == first
    assert sampler.state_dict() == before


REPEATED = "epoch 0 has already been handed out: .* are repeated; call set_epoch"


@pytest.mark.torch
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


@pytest.mark.torch
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


@pytest.mark.torch
def test_reading_the_first_batch_does_not_use_up_the_epoch() -> None:
    loader = make_loader(make_sampler([10] * 80, max_points=20))
    first = next(iter(loader))
    whole = list(loader)
    assert whole[0] == first
    assert len(whole) == len(loader)


def test_set_epoch_of_the_same_epoch_allows_to_repeat_it() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    first = list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_samplers_without_shuffling_are_repeated_without_a_warning() -> None:
    sampler = make_sampler([10] * 8, max_points=20, shuffle=False)
    assert list(sampler) == list(sampler)


@pytest.mark.parametrize("shuffle", [True, False])
def test_repeating_the_rest_of_a_resumed_epoch_is_a_warning(shuffle: bool) -> None:
    sampler = make_sampler([10] * 8, max_points=20, shuffle=shuffle)
    whole = list(sampler)
    sampler.load_state_dict(sampler.state_dict(steps_done=3))
    assert list(sampler) == whole[3:]

    with pytest.warns(UserWarning, match=REPEATED):
        assert list(sampler) == whole[3:]


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


@pytest.mark.parametrize("world_size", [1, 2])
def test_batch_of_an_epoch_and_step_is_the_one_that_was_given_out(world_size: int) -> None:
    for sampler in all_samplers([*range(10, 30)], world_size, max_points=50):
        for epoch in (3, 0):
            sampler.set_epoch(epoch)
            expected = list(sampler)
            assert [sampler.batch(epoch, step) for step in range(len(sampler))] == expected
        assert (sampler.epoch, sampler.state_dict()["steps_done"]) == (0, 0)


def test_batch_of_a_step_that_an_epoch_does_not_have_is_an_error() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    for epoch, step in ((0, len(sampler)), (0, -1), (-1, 0), (0, 0.5)):
        with pytest.raises(UsageError, match=r"step is|epoch is"):
            sampler.batch(epoch, step)  # type: ignore[arg-type]


def test_state_of_another_dataset_is_refused_with_both_digests() -> None:
    first, second = (
        SimpleNamespace(lengths=[10] * 8, digest=digest) for digest in ("0000aaaa", "0000bbbb")
    )
    state = make_sampler(first, max_points=20).state_dict(steps_done=1)
    make_sampler(first, max_points=20).load_state_dict(state)
    with pytest.raises(UsageError, match="digest 0000aaaa, this one has digest 0000bbbb"):
        make_sampler(second, max_points=20).load_state_dict(state)
    second.lengths = [10] * 9
    with pytest.raises(UsageError, match="digest 0000aaaa, this one has digest 0000bbbb"):
        make_sampler(second, max_points=20).load_state_dict(state)
    make_sampler([10] * 8, max_points=20).load_state_dict(
        state
    )  # made of lengths alone: nothing to compare


def test_epoch_of_an_iteration_is_the_one_at_its_beginning() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    batches = iter(sampler)
    sampler.set_epoch(1)
    assert {epoch for batch in batches for _, epoch in batch} == {0}


@pytest.mark.torch
def test_wrappers_of_pytorch_are_refused_with_what_to_use_instead() -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    halves = torch_data.random_split(Numbers(), [4, 4])
    joined = torch_data.ConcatDataset(halves)
    sampler = make_sampler([10] * 8, max_points=20)
    for wrapper, remedy in (
        (halves[0], "dataset.subset(indices)"),
        (joined, "scannet_prep.ConcatDataset"),
    ):
        with pytest.raises(UsageError, match="of PyTorch has no lengths") as caught:
            make_sampler(wrapper, max_points=20)
        assert remedy in caught.value.hint
        with pytest.raises(UsageError, match="is the index of a scene and an epoch") as caught:
            next(iter(torch_data.DataLoader(wrapper, batch_sampler=sampler)))
        assert remedy in caught.value.hint


def test_keys_of_a_batch_are_tuples_that_sort_pickle_and_unpack() -> None:
    batch = make_sampler([10] * 8, max_points=80).batch(2, 0)
    assert sorted(batch) == [(index, 2) for index in range(8)]
    assert pickle.loads(pickle.dumps(batch)) == batch
    assert np.array(batch).shape == (8, 2)


def test_state_of_a_resumed_epoch_counts_from_where_it_was_resumed() -> None:
    whole = list(make_sampler([10] * 20, max_points=20))
    sampler = make_sampler([10] * 20, max_points=20)
    for done, left in ((3, whole[3:]), (2, whole[5:]), (0, whole[5:])):
        sampler.load_state_dict(sampler.state_dict(steps_done=done))
        assert sampler.steps_left == len(left)
        assert list(sampler) == left
    assert len(sampler) == len(whole)

    with pytest.raises(
        UsageError, match="steps_done is 6, but the rest of epoch 0 has 5 steps"
    ):
        sampler.state_dict(steps_done=6)
    sampler.set_epoch(1)
    assert sampler.steps_left == len(whole)


def test_state_without_steps_done_is_that_of_the_beginning_of_the_iteration() -> None:
    sampler = make_sampler([10] * 20, max_points=20)
    sampler.load_state_dict(sampler.state_dict(steps_done=3))
    next(iter(sampler))
    assert sampler.state_dict() == sampler.state_dict(steps_done=0)
    assert sampler.state_dict()["steps_done"] == 3


def test_a_state_that_is_damaged_or_of_other_scenes_is_refused_and_that_of_other_ranks_begins_the_epoch_again() -> (
    None
):
    options: dict[str, Any] = {"lengths": [10] * 8, "max_points": 20, "rank": 0, "world_size": 2}
    sampler = PointBudgetBatchSampler(**options)
    state = sampler.state_dict(steps_done=1)
    for name, value in (
        ("version", 1), ("epoch", None), ("epoch", -1), ("epoch", 0.5), ("steps_done", [1]), ("steps_done", -1),
        ("steps_done", 1.5), ("steps_done", 400), ("", None),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="state"):
            sampler.load_state_dict(state | {name: value} if name else {})
        assert sampler.steps_left == len(sampler)
    for change, message in (
        ({"max_points": 30}, "saved with max_points=20, this sampler has max_points=30"),
        ({"max_scenes": 2}, "max_scenes=None"),
        ({"seed": 5, "shuffle": False}, "seed=0"),
        ({"lengths": [10] * 9}, "scene_count=8, this sampler has scene_count=9"),
        ({"lengths": [10] * 7 + [11]}, "lengths_crc32"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            PointBudgetBatchSampler(**options | change).load_state_dict(state)
        assert "set_epoch" in caught.value.hint
    alone = make_sampler([10] * 8, max_points=20)
    told = "saved with world_size=2, this sampler has world_size=1: epoch 0 begins again"
    with pytest.warns(UserWarning, match=told):
        alone.load_state_dict(state)
    assert list(alone) == list(make_sampler([10] * 8, max_points=20))


def test_a_sampler_of_pytorch_tells_the_epoch() -> None:
    told = []
    other: Any = type("Sampler", (list,), {"set_epoch": lambda _, epoch: told.append(epoch)})(
        range(3)
    )
    for sampler in (range(3), other):
        wrapped = WithEpoch(sampler)
        assert (len(wrapped), list(wrapped)) == (3, [(0, 0), (1, 0), (2, 0)])
        wrapped.set_epoch(2)
        assert list(wrapped) == [(0, 2), (1, 2), (2, 2)]
    assert told == [2]
