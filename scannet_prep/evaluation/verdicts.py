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

from scannet_prep.evaluation.overlaps import (
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
# Stands for a prediction and an instance that explain no verdict; larger than any verdict.
_NO_REASON = 9


class Verdict(IntEnum):
    """A verdict on an instance or a prediction; of several reasons, the first one counts."""

    MATCHED = 0
    WRONG_CLASS = 1
    MERGED = 2
    SPLIT = 3
    MISSED = 4
    FALSE_POSITIVE = 5

    def __str__(self) -> str:
        """Return its name, for people."""
        return self.name.lower().replace("_", " ")


class Pair(NamedTuple):
    """An instance and a prediction, and their verdict.

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
        vertices: int64 (V,), a `Verdict` for each vertex, -1 for none: the verdict on its instance.
            Outside of instances and on matched ones, it is `FALSE_POSITIVE` if the shown mask is.
        instances: The verdict on each instance that counts, by its number in the ground truth.
        predictions: The verdict on each prediction that counts, by its index.
        matches: The number of the matched instance, by the index of the prediction.
        pairs: The pairs that explain the verdicts, sorted by verdict.
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
    masks = np.asarray(prediction.masks, np.bool_)
    reasons = _find_reasons(overlaps, matching, masks[overlaps.predictions])

    of_instances = reasons.min(axis=0, initial=Verdict.MISSED)
    # A part is not wrong because of a split if its instance has a stronger verdict.
    is_split = of_instances == Verdict.SPLIT
    is_part = reasons == Verdict.SPLIT
    reasons[is_part & ~is_split] = _NO_REASON
    of_instances[~overlaps.is_large] = _NONE
    of_predictions = np.full(len(overlaps.labels), _NONE)
    judged = matching.correct + matching.wrong
    strongest = reasons.min(axis=1, initial=Verdict.FALSE_POSITIVE)
    of_predictions[judged] = strongest[judged]

    matched = overlaps.instances[matching.is_matched].tolist()
    correct = overlaps.predictions[matching.correct].tolist()
    return Judgement(
        vertices=_judge_vertices(prediction, overlaps, of_instances, of_predictions),
        instances=_name_verdicts(overlaps.instances, of_instances),
        predictions=_name_verdicts(overlaps.predictions, of_predictions),
        matches=dict(zip(correct, matched, strict=True)),
        pairs=_list_pairs(overlaps, reasons, of_instances, of_predictions),
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


def _find_reasons(overlaps: Overlaps, matching: Matching, masks: BoolArray) -> IntArray:
    """Find the first verdict that each prediction and each instance explain together, (M, G).

    Args:
        overlaps: The overlaps.
        matching: The matches.
        masks: The predictions that count, bool (M, V).
    """
    reasons = np.full(overlaps.common.shape, _NO_REASON)
    # The instance contains most of the prediction, and is mostly covered by such parts.
    pred_sizes = overlaps.pred_sizes[:, np.newaxis]
    is_part = overlaps.common / pred_sizes > _MOST
    for instance, size in enumerate(overlaps.sizes.tolist()):
        parts = masks[is_part[:, instance]]
        is_inside = overlaps.numbers == instance + 1
        is_covered = parts.any(axis=0) & is_inside
        covered = np.count_nonzero(is_covered)
        if len(parts) > 1 and covered > _MOST * size:
            reasons[is_part[:, instance], instance] = Verdict.SPLIT

    # The prediction contains most of the instance, and most of another one.
    merges = overlaps.common / overlaps.sizes > _MOST
    merges &= overlaps.is_large
    merged_counts = merges.sum(axis=1)
    merges[merged_counts < 2] = False
    reasons[merges] = Verdict.MERGED

    is_above = overlaps.ious > IOU_THRESHOLD
    reasons[is_above & ~overlaps.has_class] = Verdict.WRONG_CLASS
    reasons[:, ~overlaps.is_large] = _NO_REASON
    matched = np.flatnonzero(matching.is_matched)
    reasons[matching.correct, matched] = Verdict.MATCHED
    return reasons


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
    """Return the verdicts by number; numbers without a verdict are omitted."""
    named = {}
    for number, verdict in zip(numbers.tolist(), verdicts.tolist(), strict=True):
        if verdict != _NONE:
            named[number] = Verdict(verdict)
    return named


def _list_pairs(
    overlaps: Overlaps, reasons: IntArray, of_instances: IntArray, of_predictions: IntArray
) -> tuple[Pair, ...]:
    """List the pairs that explain the verdicts, sorted by verdict."""
    # A row and a column more: the index -1, for none, leads to them.
    ious = np.pad(overlaps.ious, (0, 1))
    instances = [*overlaps.instances.tolist(), None]
    predictions = [*overlaps.predictions.tolist(), None]
    pairs = []

    def add(verdict: int, row: int, column: int) -> None:
        iou = float(ious[row, column])
        pair = Pair(
            Verdict(verdict),
            instances[column],
            predictions[row],
            iou,
        )
        pairs.append(pair)

    explains = reasons == of_instances
    explains |= reasons == of_predictions[:, np.newaxis]
    for row, column in np.argwhere(explains).tolist():
        add(reasons[row, column], row, column)
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
