"""Samplers: plans that agree, cover every scene once, keep their limits, and can be resumed."""

import json
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import LAUNCHES

from scannet_prep import EvalSampler, PointBudgetBatchSampler
from scannet_prep.errors import UsageError
from scannet_prep.training.plan import sum_loads


def make_samplers(lengths, world_size=1, **options):
    """Make the samplers of all ranks."""
    return [
        PointBudgetBatchSampler(lengths, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def list_steps(samplers):
    """List the keys of each rank, step by step. All ranks must have equally many steps."""
    return list(zip(*map(list, samplers), strict=True))


def list_batches(steps):
    return [[index for index, _ in batch] for step in steps for batch in step]


@st.composite
def problems(draw):
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


@settings(max_examples=60)
@given(problems(), st.integers(0, 1000))
def test_ranks_take_equal_steps_and_see_every_scene_within_the_limits(problem, epoch):
    samplers = make_samplers(**problem)
    for sampler in samplers:
        sampler.set_epoch(epoch)
    steps = list_steps(samplers)
    batches = list_batches(steps)
    counts = Counter(scene for batch in batches for scene in batch)
    padding = counts.total() - len(problem["lengths"])

    assert len(samplers[0]) == samplers[0].steps_left == len(steps)
    assert {key_epoch for step in steps for batch in step for _, key_epoch in batch} == {epoch}
    assert sorted(counts) == list(range(len(problem["lengths"])))
    assert 0 <= padding < problem["world_size"]
    if padding:
        assert all(len(batch) == 1 for batch in batches)
    for batch in batches:
        load = sum(problem["lengths"][scene] for scene in batch)
        assert len(batch) == len(set(batch))
        assert 1 <= len(batch) <= (problem["max_scenes"] or len(batch))
        assert load <= problem["max_points"] or len(batch) == 1


@settings(max_examples=60)
@given(problems(), st.integers(0, 1000), st.data())
def test_resumed_ranks_do_the_remaining_steps_of_this_and_the_next_epoch(problem, epoch, data):
    samplers = make_samplers(**problem)
    for sampler in samplers:
        sampler.set_epoch(epoch)
    steps = list_steps(samplers)
    done = data.draw(st.integers(0, len(steps)))
    states = [sampler.state_dict(steps_done=done) for sampler in samplers]
    next_steps = list_steps(samplers)

    resumed = make_samplers(**problem)
    for sampler in resumed:
        sampler.load_state_dict(json.loads(json.dumps(states[0])))
        # As at the top of a loop over epochs.
        sampler.set_epoch(sampler.epoch)

    assert all(state == states[0] for state in states)
    if done < len(steps):
        assert resumed[0].steps_left == len(steps) - done
        assert list_steps(resumed) == steps[done:]
    assert list_steps(resumed) == next_steps
    assert resumed[0].epoch == epoch + 1


# In the second case, few scenes fit together, so that few exchanges are possible.
@pytest.mark.parametrize(
    ("lengths", "max_points"),
    [(np.random.default_rng(1).integers(10, 100, 200), 300), ([26, 26, 27, 27, 46, 48] * 10, 100)],
    ids=["many fit", "few fit"],
)
def test_plan_depends_on_seed_and_epoch_alone(lengths, max_points):
    def plan(seed, epoch):
        (sampler, _) = make_samplers(lengths, 2, max_points=max_points, seed=seed)
        return [[scene for scene, _ in batch] for batch in sampler_at(sampler, epoch)]

    plans = [plan(0, epoch) for epoch in range(8)]
    (sampler, _) = make_samplers(lengths, 2, max_points=max_points)
    in_turn = [[[scene for scene, _ in batch] for batch in sampler] for _ in range(8)]

    assert in_turn == plans
    assert len({str(one) for one in [*plans, plan(1, 0)]}) == 9


def sampler_at(sampler, epoch):
    sampler.set_epoch(epoch)
    return sampler


@pytest.mark.parametrize(
    ("world_size", "max_points"),
    [(1, 550_000), (4, 600_000), (8, 1_200_000), (1, 600_000)],
)
def test_batches_of_scannet_are_full_and_even_and_new_in_each_epoch(world_size, max_points):
    # Like those of the train split: mean 149,000, at most 550,000.
    sizes = np.random.default_rng(0).lognormal(0, 0.6, 1201)
    for _ in range(50):
        sizes = np.clip(sizes * 149_000 / sizes.mean(), 5_000, 550_000)
    lengths = sizes.astype(np.int64)
    sampler = make_samplers(lengths, world_size, max_points=max_points)[0]

    pairs = []
    for epoch in range(4):
        plan = sampler.plan(epoch)
        steps = sum_loads(plan, lengths).reshape(-1, world_size)
        assert steps.mean() / max_points >= 0.94
        assert (steps.max(axis=1) / steps.mean(axis=1)).mean() <= 1.003
        assert sum(map(len, plan)) == len(lengths)
        pairs.append({(a, b) for batch in plan for a in batch for b in batch if a < b})

    for before, after in pairwise(pairs):
        assert len(before & after) < 0.03 * len(before)


def test_batches_without_shuffling_are_the_largest_first():
    (sampler,) = make_samplers([40, 500, 60, 30, 70], max_points=100, shuffle=False)
    expected = [[1], [3, 4], [0, 2]]
    for epoch in range(2):
        batches = list(sampler)
        assert [sorted(scene for scene, _ in batch) for batch in batches] == expected
        assert batches[0] == [(1, epoch)]


def test_scenes_that_are_repeated_are_others_in_each_epoch():
    # Five scenes of which no two fit together, on four ranks: three scenes are repeated.
    samplers = make_samplers([100] * 5, 4, max_points=100)
    repeated = set()
    for _ in range(12):
        counts = Counter(scene for (scene,) in list_batches(list_steps(samplers)))
        assert sorted(counts.values()) == [1, 1, 2, 2, 2]
        repeated |= {scene for scene, count in counts.items() if count > 1}

    assert repeated == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [10, 20], "world_size": 3}, "2 scenes for 3 ranks"),
        ({"lengths": []}, r"lengths is \[\], expected the vertices of each scene"),
        ({"lengths": [[1, 2]]}, r"lengths is \[\[1, 2\]\], expected"),
        ({"lengths": [1.5, 2]}, r"lengths is \[1.5, 2\], expected"),
        ({"lengths": [3, -1]}, "whole numbers from 0"),
        ({"lengths": np.array([1, 2**63], np.uint64)}, "whole numbers from 0"),
        ({"lengths": SimpleNamespace(dataset=[[1]], indices=[0])}, r"use dataset\.subset"),
        ({"max_points": 0}, "max_points is 0"),
        ({"max_scenes": 0}, "max_scenes 0"),
        ({"seed": -1}, "seed -1"),
        ({"rank": 2}, "found rank 2 and world size 2"),
        ({"rank": -1}, "found rank -1"),
        ({"world_size": 0}, "world size 0"),
        ({"rank": 0, "world_size": None}, "world size None, expected both"),
    ],
)
def test_invalid_argument_of_the_sampler_is_refused(monkeypatch, options, message):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    valid = {"lengths": [10, 20], "max_points": 100, "rank": 1, "world_size": 2}
    with pytest.raises(UsageError, match=message):
        PointBudgetBatchSampler(**valid | options)


LAUNCHED = [(launch.environ, launch.rank, launch.name) for launch in LAUNCHES]


@pytest.mark.parametrize(
    ("environ", "rank", "name"),
    [
        ({}, "0/1", "torchrun"),
        ({"RANK": "2", "WORLD_SIZE": "4"}, "2/4", "torchrun"),
        ({"WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4"}, "0/1", "torchrun"),
        ({"PMI_SIZE": "6", "PMI_RANK": "5"}, "5/6", "mpiexec of MPICH without Slurm"),
        *LAUNCHED,
    ],
)
def test_rank_is_that_of_torchrun_and_unknown_in_other_jobs(monkeypatch, environ, rank, name):
    for variable in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "PMI_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    is_alone = "script" in name or rank in {"0/1", "names no task"}

    for make in (
        lambda **options: PointBudgetBatchSampler([10] * 8, max_points=100, **options),
        lambda **options: EvalSampler([10] * 8, **options),
    ):
        given_rank = make(rank=1, world_size=2)
        assert (given_rank.rank, given_rank.world_size) == (1, 2)
        if "torchrun" in name or is_alone:
            sampler = make()
            expected = rank if "torchrun" in name else "0/1"
            assert f"{sampler.rank}/{sampler.world_size}" == expected
        else:
            with pytest.raises(UsageError, match="all would get the same data"):
                make()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"WORLD_SIZE": "4"}, "found rank None and world size 4, expected both"),
        ({"RANK": "1"}, "found rank 1 and world size None"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "found rank 4 and world size 4"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "found rank -1 and world size 4"),
        ({"WORLD_SIZE": "0"}, "world size 0"),
    ],
)
def test_invalid_rank_in_the_environment_is_an_error(monkeypatch, environ, message):
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=message):
        PointBudgetBatchSampler([10] * 8, max_points=100)
    with pytest.raises(UsageError, match=message):
        EvalSampler([10] * 8)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.integers(1, 9))
def test_evaluation_gives_every_scene_to_one_rank_evenly(lengths, world_size):
    samplers = [
        EvalSampler(lengths, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    hands = [list(sampler) for sampler in samplers]
    counts = [len(sampler) for sampler in samplers]
    loads = [sum(lengths[scene] for scene in hand) for hand in hands]
    descending = sorted(lengths, reverse=True)

    assert hands == [list(sampler) for sampler in samplers]
    assert counts == list(map(len, hands))
    assert sorted(scene for hand in hands for scene in hand) == list(range(len(lengths)))
    assert max(counts) <= min(counts) + 1
    assert max(loads) - min(loads) <= max(lengths)
    for step in range(len(lengths) // world_size):
        step_lengths = sorted((lengths[hand[step]] for hand in hands), reverse=True)
        assert step_lengths == descending[step * world_size : (step + 1) * world_size]


def test_evaluation_deals_large_scenes_in_turns_so_that_ranks_get_equal_numbers_of_points():
    hands = [
        list(EvalSampler([8, 7, 6, 5, 4, 3, 2, 1], rank=rank, world_size=2)) for rank in (0, 1)
    ]
    assert hands == [[0, 3, 4, 7], [1, 2, 5, 6]]


@pytest.mark.extra("torch")
@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}]
)
def test_each_pass_of_a_loader_is_the_next_epoch(options):
    from torch.utils.data import DataLoader

    (sampler,) = make_samplers([10] * 80, max_points=20)
    (other,) = make_samplers([10] * 80, max_points=20)
    loader = DataLoader(Keys(), batch_sampler=sampler, collate_fn=list, **options)

    for epoch in (0, 1):
        assert list(loader) == list(sampler_at(other, epoch))
        assert sampler.epoch == epoch
    sampler.set_epoch(5)
    next(iter(loader))
    assert list(loader) == list(sampler_at(other, 6))


class Keys:
    """A dataset whose items are their keys."""

    def __len__(self):
        return 80

    def __getitem__(self, key):
        return key


STATE = {"max_points": 20, "seed": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_points": 30}, "max_points=20, this sampler has max_points=30"),
        ({"seed": 2}, "seed=1, this sampler has seed=2"),
        ({"shuffle": False}, "shuffle=True, this sampler has shuffle=False"),
        ({"max_scenes": 1}, "max_scenes=8, this sampler has max_scenes=1"),
        ({"world_size": 2}, "world_size=1, this sampler has world_size=2"),
        ({"lengths": [10] * 7 + [11]}, "lengths_crc32="),
        (
            {"lengths": SimpleNamespace(lengths=[10] * 8, digest="b")},
            "digest='', this .* digest='b'",
        ),
    ],
)
def test_state_of_another_sampler_is_refused_naming_the_difference(change, message):
    (saved,) = make_samplers([10] * 8, **STATE)
    sampler = make_samplers(**{"lengths": [10] * 8, **STATE, **change})[0]
    with pytest.raises(UsageError, match=message):
        sampler.load_state_dict(saved.state_dict(steps_done=1))
    with pytest.raises(UsageError, match="version=None"):
        sampler.load_state_dict({"epoch": 3})


def test_number_of_steps_done_is_compared_with_the_plan():
    (sampler,) = make_samplers([10] * 8, max_points=20)
    sampler.load_state_dict(sampler.state_dict(steps_done=1))

    sampler.end_epoch(3)
    with pytest.warns(UserWarning, match="rank 0 of 1 did 2 of the 3 steps .*left out"):
        sampler.end_epoch(2)
    for steps_done in (4, -1):
        with pytest.raises(UsageError, match=f"steps_done is {steps_done}.* 3 steps"):
            sampler.state_dict(steps_done=steps_done)
