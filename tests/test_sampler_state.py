"""The state of a sampler: it goes on where it stopped, and refuses what is not its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_plans import all_samplers, make_sampler, problems, steps_of

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
        states = [sampler.state_dict(steps_done=done) for sampler in samplers]
        assert all(state == states[0] for state in states)
        resumed = all_samplers(**problem)
        for sampler in resumed:
            sampler.load_state_dict(json.loads(json.dumps(states[0])))
            sampler.set_epoch(sampler.epoch)  # as at the top of a loop over epochs
        assert resumed[0].epoch == (epoch if done < len(whole) else epoch + 1)
        if done < len(whole):
            assert steps_of(resumed) == whole[done:]


def test_with_another_number_of_ranks_the_epoch_begins_again_with_a_warning() -> None:
    state = make_sampler([10] * 8, 0, 2, max_points=20).state_dict(steps_done=1)
    sampler = make_sampler([10] * 8, max_points=20)
    with pytest.warns(
        UserWarning, match="saved with world_size=2, this sampler has world_size=1: epoch 0 begins again"
    ):
        sampler.load_state_dict(state)
    assert list(sampler) == list(make_sampler([10] * 8, max_points=20))


def test_an_epoch_is_not_given_out_twice_by_mistake() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    next(iter(sampler))  # reading only the first batch does not use up the epoch
    first = list(sampler)
    with pytest.raises(UsageError, match="epoch 0 has been given out already") as caught:
        list(sampler)
    assert "set_epoch" in caught.value.hint
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_an_iteration_that_is_under_way_keeps_its_epoch() -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    iterator = iter(sampler)
    next(iterator)
    sampler.set_epoch(1)
    assert {epoch for batch in iterator for _, epoch in batch} == {0}
    assert {epoch for batch in sampler for _, epoch in batch} == {1}


def test_the_state_of_a_resumed_epoch_counts_from_where_it_was_resumed() -> None:
    whole = list(make_sampler([10] * 20, max_points=20))
    sampler = make_sampler([10] * 20, max_points=20)
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
    sampler = make_sampler([10] * 8, max_points=20, shuffle=False)
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
        ({"lengths": [10] * 9}, "scene_count=8, this sampler has scene_count=9"),
        ({"lengths": [10] * 7 + [11]}, "lengths_crc32"),
    ],
)
def test_a_state_of_other_scenes_or_arguments_is_refused(change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"lengths": [10] * 8, "max_points": 20, "rank": 0, "world_size": 1}
    state = PointBudgetBatchSampler(**options).state_dict(steps_done=1)
    with pytest.raises(UsageError, match=message) as caught:
        PointBudgetBatchSampler(**options | change).load_state_dict(state)
    assert "set_epoch" in caught.value.hint


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 1}, {"epoch": None}, {"epoch": -1}, {"steps_done": [1]}, {"steps_done": -1}, {"steps_done": 1.5},
        {"steps_done": 400}, {"epoch": 0.5},
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused_and_changes_nothing(damage: dict[str, Any]) -> None:
    sampler = make_sampler([10] * 8, max_points=20)
    state = sampler.state_dict(steps_done=1)
    for bad in ({}, state | damage):
        with pytest.raises(UsageError, match="state"):
            sampler.load_state_dict(bad)
    assert sampler.steps_left == len(sampler)
