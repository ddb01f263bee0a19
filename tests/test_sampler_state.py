"""The state of a sampler: it goes on where it stopped, and refuses what is not its own."""

from __future__ import annotations

import copy
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_plans import all_samplers, count_scenes, problems, steps_of

from scannet_prep import PointBudgetBatchSampler
from scannet_prep.errors import UsageError


@settings(max_examples=30)
@given(problems(), st.data())
def test_resuming_at_any_step_gives_the_rest_of_the_uninterrupted_order(problem: dict[str, Any], data: Any) -> None:
    samplers = all_samplers(**problem)
    epoch = data.draw(st.integers(0, 5))
    for sampler in samplers:
        sampler.set_epoch(epoch)
    whole = steps_of(samplers)
    for done in range(len(whole) + 1):
        states = [copy.deepcopy(sampler.state_dict(steps_done=done)) for sampler in samplers]
        assert all(state == states[0] for state in states)
        resumed = all_samplers(**problem)
        for sampler in resumed:
            sampler.load_state_dict(json.loads(json.dumps(states[0])))
            sampler.set_epoch(sampler.epoch)  # as at the top of a loop over epochs
        assert resumed[0].epoch == (epoch if done < len(whole) else epoch + 1)
        if done < len(whole):
            assert steps_of(resumed) == whole[done:]


@settings(max_examples=30)
@given(problems(), st.data())
def test_changes_of_the_number_of_ranks_lose_no_scene_and_repeat_none_but_padding(
    problem: dict[str, Any], data: Any
) -> None:
    lengths, epoch = problem["lengths"], 3
    world_size = problem.pop("world_size")
    state, seen, padding_allowed = None, Counter[int](), 0
    while state is None or state["epoch"] == epoch:
        samplers = all_samplers(**problem, world_size=world_size)
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
            sampler.set_epoch(epoch)
        padding_allowed += world_size - 1
        steps = steps_of(samplers)
        assert steps
        for batch in (batch for step in steps for batch in step):
            assert sum(lengths[scene] for scene in batch) <= problem["max_points"] or len(batch) == 1
            assert len(batch) <= (problem["max_scenes"] or len(lengths))
        if max(count_scenes(steps).values()) > 1:  # nothing could be split any more
            assert all(len(batch) == 1 for step in steps for batch in step)
        done = data.draw(st.integers(0, len(steps)))
        if state is not None and not done:
            done = len(steps)
        state = samplers[0].state_dict(steps_done=done)
        seen += count_scenes(steps[:done])
        world_size = data.draw(st.integers(1, min(9, len(lengths))))
    assert set(seen) == set(range(len(lengths)))
    assert sum(seen.values()) - len(lengths) <= padding_allowed


def test_with_scenes_to_split_another_number_of_ranks_repeats_nothing() -> None:
    lengths = np.random.default_rng(0).integers(10, 100, 300)
    for before, after in ((4, 3), (3, 8), (8, 1), (1, 7)):
        old = all_samplers(lengths, before, max_points=500)
        done = len(old[0]) // 2
        steps = steps_of(old)[:done]
        new = all_samplers(lengths, after, max_points=500)
        for sampler in new:
            sampler.load_state_dict(old[0].state_dict(steps_done=done))
        rest = steps_of(new)
        assert max(count_scenes(steps + rest).values()) == 1
        assert len(count_scenes(steps + rest)) == 300
        assert len(rest) == -(-(len(old[0]) - done) * before // after)


def test_an_epoch_is_not_given_out_twice_by_mistake() -> None:
    sampler = PointBudgetBatchSampler([10] * 8, max_points=20, rank=0, world_size=1)
    next(iter(sampler))  # a look at the first batch does not count
    first = list(sampler)
    with pytest.raises(UsageError, match="epoch 0 has been given out already") as caught:
        list(sampler)
    assert "set_epoch" in caught.value.hint
    sampler.set_epoch(0)
    assert list(sampler) == first
    fixed = PointBudgetBatchSampler([10] * 8, max_points=20, rank=0, world_size=1, shuffle=False)
    assert list(fixed) == list(fixed)


def test_an_iteration_that_is_under_way_keeps_its_epoch() -> None:
    sampler = PointBudgetBatchSampler([10] * 8, max_points=20, rank=0, world_size=1)
    iterator = iter(sampler)
    next(iterator)
    sampler.set_epoch(1)
    assert {epoch for batch in iterator for _, epoch in batch} == {0}
    assert {epoch for batch in sampler for _, epoch in batch} == {1}


def test_the_state_of_a_resumed_epoch_counts_from_where_it_was_resumed() -> None:
    whole = list(PointBudgetBatchSampler([10] * 20, max_points=20, rank=0, world_size=1))
    sampler = PointBudgetBatchSampler([10] * 20, max_points=20, rank=0, world_size=1)
    for done, left in ((3, whole[3:]), (2, whole[5:]), (0, whole[5:])):
        sampler.load_state_dict(sampler.state_dict(steps_done=done))
        assert sampler.steps_left == len(left)
        assert list(sampler) == left
    assert len(sampler) == len(whole)
    with pytest.raises(UsageError, match=f"steps_done is {len(left) + 1}, but this iteration over epoch 0 has"):
        sampler.state_dict(steps_done=len(left) + 1)
    sampler.set_epoch(1)
    assert sampler.steps_left == len(whole)


def test_without_shuffling_all_of_the_epoch_comes_again_after_the_rest_of_it() -> None:
    sampler = PointBudgetBatchSampler([10] * 8, max_points=20, rank=0, world_size=1, shuffle=False)
    whole = list(sampler)
    sampler.load_state_dict(sampler.state_dict(steps_done=3))
    assert list(sampler) == whole[3:]
    assert list(sampler) == whole == list(sampler)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_points": 30}, "saved with max_points=20, this sampler has max_points=30"),
        ({"max_scenes": 2}, "max_scenes=None"),
        ({"seed": 5}, "seed=0"),
        ({"shuffle": False}, "shuffle=True"),
        ({"lengths": [10] * 9}, "8 scenes then, 9 now"),
        ({"lengths": [10] * 7 + [11]}, "as many, but of other lengths"),
    ],
)
def test_a_state_of_other_settings_is_refused(change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"lengths": [10] * 8, "max_points": 20, "rank": 0, "world_size": 1}
    state = PointBudgetBatchSampler(**options).state_dict(steps_done=1)
    with pytest.raises(UsageError, match=message) as caught:
        PointBudgetBatchSampler(**options | change).load_state_dict(state)
    assert "set_epoch" in caught.value.hint


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2}, {"epoch": None}, {"epoch": -1}, {"stretches": [[1]]}, {"stretches": [[0, 1]]},
        {"stretches": 3}, {"stretches": [[1, 400]]}, {"stretches": [[99, 1]]},
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    sampler = PointBudgetBatchSampler([10] * 8, max_points=20, rank=0, world_size=1)
    state = sampler.state_dict(steps_done=1)
    for bad in ({}, state | damage):
        with pytest.raises(UsageError, match="state"):
            sampler.load_state_dict(bad)
    assert sampler.steps_left == len(sampler)
