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

What does not count in the scores has no verdict: walls, floors, instances and masks of fewer than
100 vertices, and masks that lie on these or on unannotated vertices.
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
from scannet_prep.evaluation.scores import BoolArray, FloatArray, IntArray
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

    vertices: IntArray
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


def find_top_masks(prediction: InstancePrediction) -> IntArray:
    """Find the most confident mask of each vertex, (V,); the first of equal ones, -1 for none."""
    masks = np.asarray(prediction.masks, np.bool_)
    scores = np.asarray(prediction.scores)
    order = np.argsort(-scores, kind="stable")
    least_first = order[::-1]
    top = np.full(masks.shape[1], _NONE, np.int64)
    # The most confident mask comes last, and overwrites all others.
    for number in least_first.tolist():
        top[masks[number]] = number
    return top


def _find_reasons(overlaps: Overlaps, prediction: InstancePrediction) -> dict[Verdict, BoolArray]:
    """Find the pairs of a prediction and an instance that explain a verdict, bool (M, G) each."""
    counts = overlaps.is_large
    sizes = overlaps.sizes
    is_above = overlaps.ious > IOU_THRESHOLD
    has_wrong_class = is_above & ~overlaps.has_class
    has_wrong_class &= counts

    # The prediction contains most of the instance, and most of another one.
    merges = overlaps.common / sizes > _MOST
    merges &= counts
    merged_counts = merges.sum(axis=1)
    merges[merged_counts < 2] = False

    # The instance contains most of the prediction, and is mostly covered by such parts.
    pred_sizes = overlaps.pred_sizes[:, np.newaxis]
    is_part = overlaps.common / pred_sizes > _MOST
    is_part &= counts
    masks = np.asarray(prediction.masks, np.bool_)
    masks = masks[overlaps.predictions]
    for instance, size in enumerate(sizes.tolist()):
        parts = masks[is_part[:, instance]]
        is_inside = overlaps.numbers == instance + 1
        is_covered = parts.any(axis=0) & is_inside
        covered = np.count_nonzero(is_covered)
        if len(parts) < 2 or covered <= _MOST * size:
            is_part[:, instance] = False
    return {Verdict.WRONG_CLASS: has_wrong_class, Verdict.MERGED: merges, Verdict.SPLIT: is_part}


def _judge_instances(
    overlaps: Overlaps, matching: Matching, reasons: dict[Verdict, BoolArray]
) -> IntArray:
    """Give a verdict on each instance, (G,); -1 on those that do not count."""
    count = len(overlaps.sizes)
    verdicts = np.full(count, Verdict.MISSED, np.int64)
    # Later verdicts replace earlier ones.
    for verdict in _PRECEDENCE:
        is_explained = reasons[verdict].any(axis=0)
        verdicts[is_explained] = verdict
    verdicts[matching.is_matched] = Verdict.MATCHED
    verdicts[~overlaps.is_large] = _NONE
    return verdicts


def _judge_predictions(
    overlaps: Overlaps,
    matching: Matching,
    reasons: dict[Verdict, BoolArray],
    of_instances: IntArray,
) -> IntArray:
    """Give a verdict on each prediction, (M,); -1 on those that count neither way."""
    is_wrong = np.zeros(len(overlaps.labels), np.bool_)
    is_wrong[matching.wrong] = True
    verdicts = np.where(is_wrong, Verdict.FALSE_POSITIVE, _NONE)
    for verdict in _PRECEDENCE:
        explains = reasons[verdict]
        if verdict is Verdict.SPLIT:
            # A part is not wrong because of a split if its instance has a match nevertheless.
            explains = explains & (of_instances == Verdict.SPLIT)
        is_explained = explains.any(axis=1)
        verdicts[is_wrong & is_explained] = verdict
    verdicts[matching.correct] = Verdict.MATCHED
    return verdicts


def _judge_vertices(
    prediction: InstancePrediction,
    overlaps: Overlaps,
    of_instances: IntArray,
    of_predictions: IntArray,
) -> IntArray:
    """Give a verdict on each vertex, (V,); see `Judgement`."""
    # Number 0 is void.
    verdicts = np.append(_NONE, of_instances)[overlaps.numbers]
    # A row more: the index -1, for no mask, leads to it.
    mask_count = len(np.asarray(prediction.labels))
    of_masks = np.full(mask_count + 1, _NONE)
    of_masks[overlaps.predictions] = of_predictions
    of_top_masks = of_masks[find_top_masks(prediction)]
    is_false = of_top_masks == Verdict.FALSE_POSITIVE
    has_no_fault = np.isin(verdicts, [_NONE, Verdict.MATCHED])
    return np.where(is_false & has_no_fault, Verdict.FALSE_POSITIVE, verdicts)


def _name_verdicts(numbers: NDArray[np.integer], verdicts: IntArray) -> dict[int, Verdict]:
    """Return the verdicts by number, without those that are none."""
    named = {}
    for number, verdict in zip(numbers.tolist(), verdicts.tolist(), strict=True):
        if verdict != _NONE:
            named[number] = Verdict(verdict)
    return named


def _list_pairs(
    overlaps: Overlaps,
    matching: Matching,
    reasons: dict[Verdict, BoolArray],
    of_instances: IntArray,
    of_predictions: IntArray,
) -> tuple[Pair, ...]:
    """List what explains the verdicts, sorted by verdict."""
    # A row and a column more: the index -1, for none, leads to them.
    ious = np.pad(overlaps.ious, (0, 1))
    instances = [*overlaps.instances.tolist(), None]
    predictions = [*overlaps.predictions.tolist(), None]
    pairs = []

    def add(verdict: Verdict, row: int, column: int) -> None:
        iou = float(ious[row, column])
        pairs.append(Pair(verdict, instances[column], predictions[row], iou))

    matched = np.flatnonzero(matching.is_matched)
    for row, column in zip(matching.correct, matched.tolist(), strict=True):
        add(Verdict.MATCHED, row, column)
    for verdict, explains in reasons.items():
        is_of_instance = of_instances == verdict
        is_of_prediction = of_predictions == verdict
        is_judged = is_of_prediction[:, np.newaxis] | is_of_instance
        cells = np.argwhere(explains & is_judged)
        for row, column in cells.tolist():
            add(verdict, row, column)
    missed = np.flatnonzero(of_instances == Verdict.MISSED)
    for column in missed.tolist():
        nearest = _find_largest(ious[:, column])
        add(Verdict.MISSED, nearest, column)
    false = np.flatnonzero(of_predictions == Verdict.FALSE_POSITIVE)
    for row in false.tolist():
        nearest = _find_largest(ious[row])
        add(Verdict.FALSE_POSITIVE, row, nearest)
    pairs.sort(key=lambda pair: pair.verdict)
    return tuple(pairs)


def _find_largest(values: FloatArray) -> int:
    """Return the index of the largest value; -1 if none is above 0."""
    if not values.any():
        return _NONE
    return int(values.argmax())
