"""Tests of the verdicts on predicted instances, on a scene that is counted by hand."""

import numpy as np
import pytest

from scannet_prep import SCANNET20
from scannet_prep.evaluation import InstancePrediction, InstanceTruth
from scannet_prep.evaluation.verdicts import Pair, Verdict, judge_instances

# Two chairs, a table and a wall, each of 200 vertices, by the number of the instance; then a small
# table of 90 vertices, and 100 vertices without annotation.
CHAIR = 4
TABLE = 6
LEFT, RIGHT, DESK, WALL, SMALL = 10, 11, 12, 13, 14
COUNTS = [200, 200, 200, 200, 90, 100]
LABELS = np.repeat([CHAIR, CHAIR, TABLE, 0, TABLE, -1], COUNTS)
INSTANCES = np.repeat([LEFT, RIGHT, DESK, WALL, SMALL, -1], COUNTS)
TRUTH = InstanceTruth(labels=LABELS, instances=INSTANCES)

MATCHED, WRONG, MISSED = Verdict.MATCHED, Verdict.WRONG_CLASS, Verdict.MISSED
FALSE, MERGED, SPLIT = Verdict.FALSE_POSITIVE, Verdict.MERGED, Verdict.SPLIT

# A mask: its first and last vertex, train id and confidence.
ON_LEFT = (0, 200, CHAIR, 0.9)
ON_RIGHT = (200, 400, CHAIR, 0.8)
ON_DESK = (400, 600, TABLE, 0.7)
ON_BOTH_CHAIRS = (0, 400, CHAIR, 0.9)
HALVES = [(0, 100, CHAIR, 0.9), (100, 200, CHAIR, 0.8)]


def judge(*masks):
    starts, ends, labels, scores = np.reshape(masks, (-1, 4)).T[..., np.newaxis]
    vertices = np.arange(len(LABELS))
    arrays = (vertices >= starts) & (vertices < ends)
    prediction = InstancePrediction(arrays, labels[:, 0].astype(int), scores[:, 0])
    return judge_instances(prediction, TRUTH, SCANNET20)


@pytest.mark.parametrize(
    ("masks", "of_instances", "of_masks"),
    [
        ([ON_LEFT, ON_RIGHT, ON_DESK], [MATCHED] * 3, [MATCHED] * 3),
        ([], [MISSED] * 3, []),
        # A mask that merges a matched instance leaves it matched.
        ([(0, 310, CHAIR, 0.9)], [MATCHED, MERGED, MISSED], [MATCHED]),
        # The mask of a wall does not count.
        ([(600, 800, 0, 0.9), *HALVES], [SPLIT, MISSED, MISSED], [None, SPLIT, SPLIT]),
        # A single part, which covers more than half, is no split.
        ([(80, 280, CHAIR, 0.9)], [MISSED] * 3, [FALSE]),
        # Parts that overlap cover exactly half.
        ([(100, 220, CHAIR, 0.9), (120, 250, CHAIR, 0.8)], [MISSED] * 3, [FALSE, FALSE]),
        # A part of a matched instance, which is all of it.
        ([ON_LEFT, (0, 200, CHAIR, 0.5)], [MATCHED, MISSED, MISSED], [MATCHED, FALSE]),
        # Of two reasons, the stronger is shown: another class, then merged, then split.
        ([(0, 200, TABLE, 0.9), ON_BOTH_CHAIRS], [WRONG, MERGED, MISSED], [WRONG, MERGED]),
        ([ON_BOTH_CHAIRS, *HALVES], [MERGED, MERGED, MISSED], [MERGED, FALSE, FALSE]),
        # A small instance explains nothing, and is not merged with another one.
        ([(790, 890, CHAIR, 0.9)], [MISSED] * 3, [FALSE]),
        ([(480, 890, CHAIR, 0.9)], [MISSED] * 3, [FALSE]),
        # These do not count: small masks, masks that lie mostly on a wall.
        ([(0, 99, TABLE, 0.9)], [MISSED] * 3, [None]),
        ([(560, 680, CHAIR, 0.9)], [MISSED] * 3, [None]),
    ],
)
def test_each_instance_and_each_mask_that_counts_has_a_verdict(masks, of_instances, of_masks):
    judgement = judge(*masks)

    assert judgement.instances == dict(zip((LEFT, RIGHT, DESK), of_instances, strict=True))
    assert [judgement.predictions.get(number) for number in range(len(masks))] == of_masks


@pytest.mark.parametrize(
    ("masks", "vertex", "verdict"),
    [
        # A false positive on a matched instance is shown, but not on a missed one.
        ([ON_DESK, (400, 500, CHAIR, 0.95)], 450, FALSE),
        ([ON_DESK, (400, 500, CHAIR, 0.95)], 550, MATCHED),
        ([(400, 500, CHAIR, 0.95)], 450, MISSED),
        ([(600, 700, 0, 0.1), (500, 660, CHAIR, 0.9)], 640, FALSE),
        ([(560, 680, CHAIR, 0.9)], 640, -1),
        # A vertex of the small table.
        ([ON_LEFT], 820, -1),
    ],
)
def test_vertices_have_the_verdict_on_their_instance_or_mask(masks, vertex, verdict):
    assert judge(*masks).vertices[vertex] == verdict


def test_pairs_explain_each_verdict():
    judgement = judge((200, 300, CHAIR, 0.9), (500, 600, CHAIR, 0.9), ON_LEFT)

    assert judgement.pairs == (
        Pair(MATCHED, LEFT, 2, 1.0),
        Pair(MISSED, RIGHT, 0, 0.5),
        Pair(MISSED, DESK, 1, 0.5),
        Pair(FALSE, RIGHT, 0, 0.5),
        Pair(FALSE, DESK, 1, 0.5),
    )
    assert judge().pairs == tuple(Pair(MISSED, number, None, 0.0) for number in (LEFT, RIGHT, DESK))
    assert judge(ON_DESK, ON_LEFT).matches == {0: DESK, 1: LEFT}
