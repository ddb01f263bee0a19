"""Verdicts on predicted instances: what is right, and in which way the rest is wrong.

The matching is that of the scores, `evaluation.instance`, at an IoU above 0.5. What the scores only
count as missed or wrong is explained by overlaps:

    instance    has a match                                      --> matched
                IoU above 0.5 with a mask of another class       --> wrong class
                more than half of it in a mask that contains
                more than half of another instance, too          --> merged
                more than half of it covered by several masks,
                each with more than half of its vertices in it   --> split
                otherwise                                        --> missed
    prediction  matches                                          --> matched
                counts as wrong: wrong class, merged or split,
                as above, otherwise                              --> false positive

Whatever does not count in the scores has no verdict: walls, floors, instances and masks of fewer
than 100 vertices, and masks that lie in such or in unannotated places.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.evaluation.instance import (
    InstancePrediction,
    InstanceTruth,
    Matching,
    Overlaps,
    find_overlaps,
)
from scannet_prep.release.label_sets import LabelSet

IOU_THRESHOLD = 0.5
# More than half.
_MOST = 0.5
_NONE = -1


class Verdict(IntEnum):
    """A verdict on an instance or a prediction."""

    MATCHED = 0
    WRONG_CLASS = 1
    MISSED = 2
    FALSE_POSITIVE = 3
    MERGED = 4
    SPLIT = 5

    def __str__(self) -> str:
        """Return its name, for people."""
        return self.name.lower().replace("_", " ")


# From the weakest to the strongest.
_PRECEDENCE = (Verdict.SPLIT, Verdict.MERGED, Verdict.WRONG_CLASS)


class Pair(NamedTuple):
    """An instance and a prediction, and the verdict that is due to them.

    Attributes:
        verdict: The verdict on one of them, or on both.
        instance: Number of the instance in the ground truth; None if no instance overlaps.
        prediction: Index of the prediction; None if no prediction overlaps.
        iou: Their IoU; 0 if one of them is None.
    """

    verdict: Verdict
    instance: int | None
    prediction: int | None
    iou: float


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """The verdicts on the predictions of one scene.

    Attributes:
        vertices: int64 (V,), a `Verdict` for each vertex, -1 for none: that on its instance; where
            this is matched or there is none, `FALSE_POSITIVE` if the shown mask is one.
        instances: The verdict on each instance that counts, by its number in the ground truth.
        predictions: The verdict on each prediction that counts, by its index.
        matches: The number of the matched instance, by the index of the prediction.
        pairs: What explains the verdicts, sorted by verdict.
    """

    vertices: NDArray[np.int64]
    instances: dict[int, Verdict]
    predictions: dict[int, Verdict]
    matches: dict[int, int]
    pairs: tuple[Pair, ...]


def judge_instances(
    prediction: InstancePrediction, ground_truth: InstanceTruth, label_set: LabelSet
) -> Judgement:
    """Give verdicts on the predicted instances of one scene.

    Args:
        prediction: Masks, train ids and confidences.
        ground_truth: The annotation of the same vertices.
        label_set: The label set of both.

    Raises:
        ContentError: See `InstanceScores.add`.
    """
    overlaps = find_overlaps(prediction, ground_truth, label_set)
    matching = overlaps.match(IOU_THRESHOLD)
    reasons = _find_reasons(overlaps, prediction)
    columns = _judge_instances(overlaps, matching, reasons)
    rows = _judge_predictions(overlaps, matching, reasons, columns)

    matched = overlaps.instances[matching.is_matched].tolist()
    correct = overlaps.predictions[matching.correct].tolist()
    return Judgement(
        vertices=_judge_vertices(prediction, overlaps, columns, rows),
        instances=_name_verdicts(overlaps.instances, columns),
        predictions=_name_verdicts(overlaps.predictions, rows),
        matches=dict(zip(correct, matched, strict=True)),
        pairs=_list_pairs(overlaps, matching, reasons, columns, rows),
    )


def find_top_masks(prediction: InstancePrediction) -> NDArray[np.int64]:
    """Find the most confident mask of each vertex, (V,); the first of equal ones, -1 for none."""
    masks = np.asarray(prediction.masks, np.bool_)
    order = np.argsort(-np.asarray(prediction.scores), kind="stable")
    top = np.full(masks.shape[1], _NONE, np.int64)
    # The most confident mask comes last, and overwrites all others.
    for number in order[::-1].tolist():
        top[masks[number]] = number
    return top


def _find_reasons(
    overlaps: Overlaps, prediction: InstancePrediction
) -> dict[Verdict, NDArray[np.bool_]]:
    """Find the pairs of a prediction and an instance that explain a verdict, bool (M, G) each."""
    counts = overlaps.is_large
    has_wrong_class = (overlaps.ious > IOU_THRESHOLD) & ~overlaps.has_class & counts

    # The prediction contains most of the instance, and most of another one.
    merges = (overlaps.common / overlaps.sizes > _MOST) & counts
    merges[merges.sum(axis=1) < 2] = False

    # The instance contains most of the prediction, and is mostly covered by such parts.
    is_part = (overlaps.common / overlaps.pred_sizes[:, np.newaxis] > _MOST) & counts
    masks = np.asarray(prediction.masks, np.bool_)[overlaps.predictions]
    for instance in range(len(overlaps.sizes)):
        parts = is_part[:, instance]
        is_covered = masks[parts].any(axis=0) & (overlaps.numbers == instance + 1)
        share = np.count_nonzero(is_covered) / overlaps.sizes[instance]
        if np.count_nonzero(parts) < 2 or share <= _MOST:
            is_part[:, instance] = False
    return {Verdict.WRONG_CLASS: has_wrong_class, Verdict.MERGED: merges, Verdict.SPLIT: is_part}


def _judge_instances(
    overlaps: Overlaps, matching: Matching, reasons: dict[Verdict, NDArray[np.bool_]]
) -> NDArray[np.int64]:
    """Give a verdict on each instance, (G,); -1 on those that do not count."""
    verdicts = np.full(len(overlaps.sizes), Verdict.MISSED, np.int64)
    # Later verdicts replace earlier ones.
    for verdict in _PRECEDENCE:
        verdicts[reasons[verdict].any(axis=0)] = verdict
    verdicts[matching.is_matched] = Verdict.MATCHED
    verdicts[~overlaps.is_large] = _NONE
    return verdicts


def _judge_predictions(
    overlaps: Overlaps,
    matching: Matching,
    reasons: dict[Verdict, NDArray[np.bool_]],
    of_instances: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Give a verdict on each prediction, (M,); -1 on those that count neither way."""
    is_wrong = np.zeros(len(overlaps.labels), np.bool_)
    is_wrong[matching.wrong] = True
    verdicts = np.where(is_wrong, Verdict.FALSE_POSITIVE, _NONE)
    for verdict in _PRECEDENCE:
        explains = reasons[verdict]
        if verdict is Verdict.SPLIT:
            # A part is not wrong because of a split if its instance has a match nevertheless.
            explains = explains & (of_instances == Verdict.SPLIT)
        verdicts[is_wrong & explains.any(axis=1)] = verdict
    verdicts[matching.correct] = Verdict.MATCHED
    return verdicts


def _judge_vertices(
    prediction: InstancePrediction,
    overlaps: Overlaps,
    of_instances: NDArray[np.int64],
    of_predictions: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Give a verdict on each vertex, (V,); see `Judgement`."""
    # Number 0 is void.
    verdicts = np.append(_NONE, of_instances)[overlaps.numbers]
    # A row more: the index -1, for no mask, leads to it.
    of_masks = np.full(len(np.asarray(prediction.labels)) + 1, _NONE)
    of_masks[overlaps.predictions] = of_predictions
    is_false = of_masks[find_top_masks(prediction)] == Verdict.FALSE_POSITIVE
    has_no_fault = (verdicts == _NONE) | (verdicts == Verdict.MATCHED)
    return np.where(is_false & has_no_fault, Verdict.FALSE_POSITIVE, verdicts)


def _name_verdicts(numbers: NDArray[np.integer], verdicts: NDArray[np.int64]) -> dict[int, Verdict]:
    """Return the verdicts by number, without those that are none."""
    pairs = zip(numbers.tolist(), verdicts.tolist(), strict=True)
    return {number: Verdict(verdict) for number, verdict in pairs if verdict != _NONE}


def _list_pairs(
    overlaps: Overlaps,
    matching: Matching,
    reasons: dict[Verdict, NDArray[np.bool_]],
    of_instances: NDArray[np.int64],
    of_predictions: NDArray[np.int64],
) -> tuple[Pair, ...]:
    """List what explains the verdicts, sorted by verdict."""
    ious = overlaps.ious
    pairs = []

    def add(verdict: Verdict, row: int | None, column: int | None) -> None:
        instance = None if column is None else int(overlaps.instances[column])
        mask = None if row is None else int(overlaps.predictions[row])
        iou = 0.0 if row is None or column is None else float(ious[row, column])
        pairs.append(Pair(verdict, instance, mask, iou))

    matched = np.flatnonzero(matching.is_matched).tolist()
    for row, column in zip(matching.correct, matched, strict=True):
        add(Verdict.MATCHED, row, column)
    for verdict, explains in reasons.items():
        is_judged = (of_instances == verdict) | (of_predictions == verdict)[:, np.newaxis]
        for row, column in np.argwhere(explains & is_judged).tolist():
            add(verdict, row, column)
    for column in np.flatnonzero(of_instances == Verdict.MISSED).tolist():
        add(Verdict.MISSED, _find_largest(ious[:, column]), column)
    for row in np.flatnonzero(of_predictions == Verdict.FALSE_POSITIVE).tolist():
        add(Verdict.FALSE_POSITIVE, row, _find_largest(ious[row]))
    return tuple(sorted(pairs, key=lambda pair: pair.verdict))


def _find_largest(values: NDArray[np.float64]) -> int | None:
    """Return the index of the largest value; None if none is above 0."""
    if not values.any():
        return None
    return int(values.argmax())
