"""Tests of the verdicts on predicted instances, on a scene that is counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from scannet_prep import SCANNET20
from scannet_prep.evaluation import InstancePrediction, InstanceScores, InstanceTruth
from scannet_prep.view.verdicts import Judgement, Pair, Verdict, judge_instances

# Two chairs, a table and a wall, each of 200 vertices, by the number of the instance; then a small
# table of 50 vertices, and 100 vertices without annotation.
CHAIR = 4
TABLE = 6
LEFT, RIGHT, DESK, WALL, SMALL = 10, 11, 12, 13, 14
LABELS = np.repeat([CHAIR, CHAIR, TABLE, 0, TABLE, -1], [200, 200, 200, 200, 50, 100])
INSTANCES = np.repeat([LEFT, RIGHT, DESK, WALL, SMALL, -1], [200, 200, 200, 200, 50, 100])
TRUTH = InstanceTruth(labels=LABELS, instances=INSTANCES)

# A mask: its first and last vertex, train id and confidence.
Mask = tuple[int, int, int, float]

ON_LEFT: Mask = (0, 200, CHAIR, 0.9)
ON_RIGHT: Mask = (200, 400, CHAIR, 0.8)
ON_DESK: Mask = (400, 600, TABLE, 0.7)
ON_BOTH_CHAIRS: Mask = (0, 400, CHAIR, 0.9)


def predict(*masks: Mask) -> InstancePrediction:
    arrays = np.zeros((len(masks), len(LABELS)), bool)
    for row, (start, end, _, _) in enumerate(masks):
        arrays[row, start:end] = True
    labels = np.array([mask[2] for mask in masks], int)
    return InstancePrediction(arrays, labels, np.array([mask[3] for mask in masks], float))


def judge(*masks: Mask) -> Judgement:
    return judge_instances(predict(*masks), TRUTH, SCANNET20)


def verdict_at(judgement: Judgement, vertex: int) -> Verdict | None:
    number = int(judgement.vertices[vertex])
    return None if number < 0 else Verdict(number)


def test_instances_with_a_mask_each_are_matched() -> None:
    verdicts = judge(ON_LEFT, ON_RIGHT, ON_DESK).instances
    assert verdicts == dict.fromkeys([LEFT, RIGHT, DESK], Verdict.MATCHED)


def test_instance_without_a_mask_is_missed() -> None:
    assert judge(ON_LEFT).instances[RIGHT] == Verdict.MISSED


def test_instance_under_a_mask_of_another_class_has_the_wrong_class() -> None:
    judgement = judge((0, 200, TABLE, 0.9))

    assert judgement.instances[LEFT] == Verdict.WRONG_CLASS
    assert judgement.predictions == {0: Verdict.WRONG_CLASS}


def test_one_mask_for_two_instances_merges_them() -> None:
    """A mask per class scores 0, although the class of each vertex is right."""
    scores = InstanceScores(SCANNET20)
    scores.add(predict(ON_BOTH_CHAIRS, ON_DESK), TRUTH)
    judgement = judge(ON_BOTH_CHAIRS, ON_DESK)

    assert scores.result().classes["chair"]["ap50"] == 0
    assert judgement.instances == {
        LEFT: Verdict.MERGED,
        RIGHT: Verdict.MERGED,
        DESK: Verdict.MATCHED,
    }
    assert judgement.predictions[0] == Verdict.MERGED


def test_mask_that_merges_a_matched_instance_leaves_it_matched() -> None:
    judgement = judge((0, 310, CHAIR, 0.9))

    assert judgement.instances[LEFT] == Verdict.MATCHED
    assert judgement.instances[RIGHT] == Verdict.MERGED


def test_two_halves_of_an_instance_split_it() -> None:
    judgement = judge((0, 100, CHAIR, 0.9), (100, 200, CHAIR, 0.8))

    assert judgement.instances[LEFT] == Verdict.SPLIT
    assert judgement.predictions == {0: Verdict.SPLIT, 1: Verdict.SPLIT}


def test_same_part_of_an_instance_twice_does_not_split_it() -> None:
    judgement = judge((0, 100, CHAIR, 0.9), (0, 100, CHAIR, 0.8))

    assert judgement.instances[LEFT] == Verdict.MISSED
    assert judgement.predictions == {0: Verdict.FALSE_POSITIVE, 1: Verdict.FALSE_POSITIVE}


def test_second_mask_of_an_instance_is_a_false_positive() -> None:
    judgement = judge(ON_LEFT, (0, 200, CHAIR, 0.5))
    assert judgement.predictions == {0: Verdict.MATCHED, 1: Verdict.FALSE_POSITIVE}


def test_false_positive_on_a_matched_instance_is_shown() -> None:
    judgement = judge(ON_DESK, (400, 500, CHAIR, 0.95))

    assert verdict_at(judgement, 450) == Verdict.FALSE_POSITIVE
    assert verdict_at(judgement, 550) == Verdict.MATCHED


def test_missed_instance_is_shown_under_a_false_positive() -> None:
    assert verdict_at(judge((400, 500, CHAIR, 0.95)), 450) == Verdict.MISSED


def test_false_positive_is_shown_on_a_wall_if_it_counts() -> None:
    judgement = judge((500, 660, CHAIR, 0.9))
    assert verdict_at(judgement, 640) == Verdict.FALSE_POSITIVE


def test_mask_that_lies_mostly_on_a_wall_has_no_verdict() -> None:
    judgement = judge((560, 680, CHAIR, 0.9))

    assert judgement.predictions == {}
    assert verdict_at(judgement, 640) is None


@pytest.mark.parametrize("vertex", [650, 820, 900], ids=["wall", "small", "unannotated"])
def test_vertex_of_nothing_that_counts_has_no_verdict(vertex: int) -> None:
    assert verdict_at(judge(ON_LEFT), vertex) is None


@pytest.mark.parametrize(
    "mask", [(0, 99, TABLE, 0.9), (600, 800, 0, 0.9)], ids=["small mask", "mask of a wall"]
)
def test_mask_that_does_not_count_has_no_verdict(mask: Mask) -> None:
    assert judge(mask).predictions == {}


def test_matches_have_the_number_of_the_instance() -> None:
    assert judge(ON_DESK, ON_LEFT).matches == {0: DESK, 1: LEFT}


def test_pairs_explain_each_verdict() -> None:
    judgement = judge(ON_LEFT, (200, 300, CHAIR, 0.9), (500, 600, CHAIR, 0.9))

    assert judgement.pairs == (
        Pair(Verdict.MATCHED, LEFT, 0, 1.0),
        Pair(Verdict.MISSED, RIGHT, 1, 0.5),
        Pair(Verdict.MISSED, DESK, 2, 0.5),
        Pair(Verdict.FALSE_POSITIVE, RIGHT, 1, 0.5),
        Pair(Verdict.FALSE_POSITIVE, DESK, 2, 0.5),
    )


def test_scene_without_masks_misses_all_instances() -> None:
    judgement = judge()
    nothing = [Pair(Verdict.MISSED, number, None, 0.0) for number in (LEFT, RIGHT, DESK)]

    assert judgement.pairs == tuple(nothing)
