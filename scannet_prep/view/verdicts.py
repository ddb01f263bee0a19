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
    instance_verdicts = _judge_instances(overlaps, matching, reasons)
    prediction_verdicts = _judge_predictions(overlaps, matching, reasons, instance_verdicts)

    matched = np.flatnonzero(matching.is_matched)
    numbers = overlaps.instances
    indices = overlaps.predictions
    return Judgement(
        vertices=_judge_vertices(prediction, overlaps, instance_verdicts, prediction_verdicts),
        instances=_name_verdicts(numbers, instance_verdicts),
        predictions=_name_verdicts(indices, prediction_verdicts),
        matches=dict(
            zip(indices[matching.correct].tolist(), numbers[matched].tolist(), strict=True)
        ),
        pairs=tuple(
            _list_pairs(overlaps, matching, reasons, instance_verdicts, prediction_verdicts)
        ),
    )


def find_top_masks(prediction: InstancePrediction) -> NDArray[np.int64]:
    """Find the most confident mask of each vertex, (V,); the first of equal ones, -1 for none."""
    masks = np.asarray(prediction.masks, np.bool_)
    order = np.argsort(-np.asarray(prediction.scores), kind="stable")
    top = np.full(masks.shape[1], -1, np.int64)
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

    # The prediction contains most of the instance.
    contains = (overlaps.common / overlaps.sizes > _MOST) & counts
    is_merging = contains.sum(axis=1) > 1
    merges = contains & is_merging[:, None]

    # The instance contains most of the prediction.
    is_part = (overlaps.common / overlaps.pred_sizes[:, None] > _MOST) & counts
    masks = np.asarray(prediction.masks, np.bool_)
    for instance in np.flatnonzero(is_part.any(axis=0)).tolist():
        parts = np.flatnonzero(is_part[:, instance])
        is_inside = overlaps.numbers == instance + 1
        covered = np.count_nonzero(masks[overlaps.predictions[parts]].any(axis=0) & is_inside)
        is_split = len(parts) > 1 and covered / overlaps.sizes[instance] > _MOST
        if not is_split:
            is_part[:, instance] = False
    return {Verdict.WRONG_CLASS: has_wrong_class, Verdict.MERGED: merges, Verdict.SPLIT: is_part}


def _judge_instances(
    overlaps: Overlaps, matching: Matching, reasons: dict[Verdict, NDArray[np.bool_]]
) -> NDArray[np.int64]:
    """Give a verdict on each instance, (G,); -1 on those that do not count."""
    verdicts = np.full(len(overlaps.sizes), Verdict.MISSED, np.int64)
    # Later verdicts replace earlier ones.
    for verdict in (Verdict.SPLIT, Verdict.MERGED, Verdict.WRONG_CLASS):
        verdicts[reasons[verdict].any(axis=0)] = verdict
    verdicts[matching.is_matched] = Verdict.MATCHED
    verdicts[~overlaps.is_large] = _NONE
    return verdicts


def _judge_predictions(
    overlaps: Overlaps,
    matching: Matching,
    reasons: dict[Verdict, NDArray[np.bool_]],
    instance_verdicts: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Give a verdict on each prediction, (M,); -1 on those that count neither way."""
    is_wrong = np.zeros(len(overlaps.labels), np.bool_)
    is_wrong[matching.wrong] = True
    verdicts = np.where(is_wrong, Verdict.FALSE_POSITIVE, _NONE)
    # A part is not wrong because of a split if its instance has a match nevertheless.
    is_part = reasons[Verdict.SPLIT][:, instance_verdicts == Verdict.SPLIT].any(axis=1)
    verdicts[is_wrong & is_part] = Verdict.SPLIT
    verdicts[is_wrong & reasons[Verdict.MERGED].any(axis=1)] = Verdict.MERGED
    verdicts[is_wrong & reasons[Verdict.WRONG_CLASS].any(axis=1)] = Verdict.WRONG_CLASS
    verdicts[matching.correct] = Verdict.MATCHED
    return verdicts


def _judge_vertices(
    prediction: InstancePrediction,
    overlaps: Overlaps,
    instance_verdicts: NDArray[np.int64],
    prediction_verdicts: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Give a verdict on each vertex, (V,); see `Judgement`."""
    # Number 0 is void.
    verdicts = np.append(_NONE, instance_verdicts)[overlaps.numbers]
    # A row more: the index -1, for no mask, leads to it.
    mask_verdicts = np.full(len(np.asarray(prediction.labels)) + 1, _NONE)
    mask_verdicts[overlaps.predictions] = prediction_verdicts
    is_false = mask_verdicts[find_top_masks(prediction)] == Verdict.FALSE_POSITIVE
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
    instance_verdicts: NDArray[np.int64],
    prediction_verdicts: NDArray[np.int64],
) -> list[Pair]:
    """List what explains the verdicts, sorted by verdict."""
    ious = overlaps.ious

    def pair(verdict: Verdict, row: int | None, column: int | None) -> Pair:
        is_pair = row is not None and column is not None
        return Pair(
            verdict,
            None if column is None else int(overlaps.instances[column]),
            None if row is None else int(overlaps.predictions[row]),
            float(ious[row, column]) if is_pair else 0.0,
        )

    pairs = []
    columns = np.flatnonzero(matching.is_matched).tolist()
    for row, column in zip(matching.correct, columns, strict=True):
        pairs.append(pair(Verdict.MATCHED, row, column))
    for verdict, is_reason in reasons.items():
        is_judged = (instance_verdicts == verdict) | (prediction_verdicts == verdict)[:, None]
        for row, column in np.argwhere(is_reason & is_judged).tolist():
            pairs.append(pair(verdict, row, column))
    pairs += [
        pair(Verdict.MISSED, _find_largest(ious[:, column]), column)
        for column in np.flatnonzero(instance_verdicts == Verdict.MISSED).tolist()
    ]
    pairs += [
        pair(Verdict.FALSE_POSITIVE, row, _find_largest(ious[row]))
        for row in np.flatnonzero(prediction_verdicts == Verdict.FALSE_POSITIVE).tolist()
    ]
    return sorted(pairs, key=lambda each: each.verdict)


def _find_largest(values: NDArray[np.float64]) -> int | None:
    """Return the index of the largest value; None if none is above 0."""
    if not values.any():
        return None
    return int(values.argmax())
