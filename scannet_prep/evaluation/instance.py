"""Scores of instance segmentation: average precision by the rules of the official evaluator.

one scene --find_overlaps--> what counts, and the IoU of each prediction with each instance
          --Overlaps.match--> verdicts: a prediction is correct or wrong
all verdicts --result--> precision and recall by confidence --> average precision of each class
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from scannet_prep.evaluation.overlaps import (
    InstancePrediction,
    InstanceTruth,
    find_overlaps,
)
from scannet_prep.evaluation.scores import Numbers, ScoreTable, average, list_class_groups
from scannet_prep.release.label_sets import LabelSet, parse_label_set

THRESHOLDS = (*np.arange(0.5, 0.95, 0.05).tolist(), 0.25)
"""Values that an IoU must exceed: 0.50, 0.55, ... 0.90, as in the official evaluator, then 0.25."""

# The verdict on a prediction at one threshold. A cell is a class at a threshold: train id * number
# of thresholds + index into THRESHOLDS.
_VERDICT = np.dtype(
    [
        ("cell", "i4"),
        ("is_correct", "?"),
        ("score", "f8"),
    ]
)


class InstanceScores:
    """Scores of masks with a class and a confidence.

    Picklable: each rank can collect its scenes, and one rank merges the results.

    The result has these numbers:

    - `totals`:
        - `instances` of the ground truth, and `predictions`, that count;
        - predictions that are left out because they are `small` (under 100 vertices);
        - predictions that are left out because they are of an `other` class: wall, floor, or none.
    - `classes`, without wall and floor:
        - `ap`: average precision, the mean over the IoU thresholds 0.50, 0.55, ... 0.90;
        - `ap50` and `ap25`; these three are None for a class without an instance in the ground
          truth;
        - `instances` and `predictions`, as above.
    - `means` of `ap`, `ap50` and `ap25` over the classes with instances in the ground truth.

    Args:
        label_set: The label set of the train ids: SCANNET20 or SCANNET200, or its name.
        is_class_agnostic: Whether to score masks alone: every prediction counts, whatever its
            label, and the instances of all classes but wall and floor are of one class, `object`.

    Attributes:
        label_set: The label set.
        is_class_agnostic: As given.

    Raises:
        UsageError: `label_set` is not a label set.
    """

    def __init__(self, label_set: LabelSet | str, *, is_class_agnostic: bool = False) -> None:
        self.label_set = parse_label_set(label_set)
        self.is_class_agnostic = is_class_agnostic
        self._verdicts = [np.zeros(0, _VERDICT)]
        # By class: instances of the ground truth, and predictions, that count.
        class_count = len(self.label_set)
        self._counts = np.zeros((2, class_count), np.int64)
        # Number of predictions that do not count: small ones, and those of other classes.
        self._left_out = np.zeros(2, np.int64)

    def add(self, prediction: InstancePrediction, ground_truth: InstanceTruth) -> None:
        """Add one whole scene.

        Raises:
            ContentError: Lengths or types do not match, or a confidence is not a number; or the
                ground truth has several numbers beyond the train ids, like labels of another label
                set.
        """
        overlaps = find_overlaps(
            prediction,
            ground_truth,
            self.label_set,
            is_class_agnostic=self.is_class_agnostic,
        )
        self._left_out += (overlaps.small_count, overlaps.other_count)
        class_count = len(self.label_set)
        large_classes = overlaps.classes[overlaps.is_large]
        self._counts[0] += np.bincount(large_classes, minlength=class_count)
        self._counts[1] += np.bincount(overlaps.labels, minlength=class_count)
        for index, threshold in enumerate(THRESHOLDS):
            correct, wrong, _ = overlaps.match(threshold)
            # A prediction may have several verdicts at one threshold, and both kinds of them.
            rows = correct + wrong
            verdicts = np.zeros(len(rows), _VERDICT)
            verdicts["cell"] = overlaps.labels[rows] * len(THRESHOLDS)
            verdicts["cell"] += index
            verdicts["is_correct"][: len(correct)] = True
            verdicts["score"] = overlaps.scores[rows]
            self._verdicts.append(verdicts)

    def merge(self, other: InstanceScores) -> None:
        """Add everything that another object has collected, for example on another rank."""
        self._counts += other._counts
        self._verdicts += other._verdicts
        self._left_out += other._left_out

    def result(self) -> ScoreTable:
        """Compute the scores of all that was collected."""
        precisions = self._compute_precisions()

        def average_over(train_ids: Iterable[int]) -> Numbers:
            rows = [precisions[train_id] for train_id in train_ids if train_id in precisions]
            # The first threshold is 0.5. The last one, 0.25, does not belong to `ap`.
            return {
                "ap": average(value for row in rows for value in row[:-1]),
                "ap50": average(row[0] for row in rows),
                "ap25": average(row[-1] for row in rows),
            }

        classes: dict[str, Numbers] = {}
        instances, predictions = self._counts.tolist()
        for train_id in self.label_set.things:
            classes[self.label_set.names[train_id]] = {
                **average_over([train_id]),
                "instances": instances[train_id],
                "predictions": predictions[train_id],
            }
        small_count, other_count = self._left_out.tolist()
        totals = {
            "instances": sum(instances),
            "predictions": sum(predictions),
            "small": small_count,
            "other": other_count,
        }
        groups = list_class_groups(self.label_set)
        if self.is_class_agnostic:
            # All of them have the first class.
            groups = {"all": groups["all"]}
            classes = {"object": next(iter(classes.values()))}
        means = {name: average_over(train_ids) for name, train_ids in groups.items()}
        return ScoreTable(totals, means, classes)

    def _compute_precisions(self) -> dict[int, list[float]]:
        """Compute the average precision at each threshold, by train id.

        Classes without an instance in the ground truth are left out.
        """
        verdicts = np.concatenate(self._verdicts)
        order = np.lexsort((verdicts["score"], verdicts["cell"]))
        verdicts = verdicts[order]
        # Divide them into one part for each cell; many are empty.
        threshold_count = len(THRESHOLDS)
        all_cells = np.arange(1, len(self.label_set) * threshold_count)
        bounds = np.searchsorted(verdicts["cell"], all_cells)
        parts = np.split(verdicts, bounds)
        precisions = {}
        instances = self._counts[0]
        for train_id in np.flatnonzero(instances).tolist():
            first = train_id * threshold_count
            of_class = parts[first : first + threshold_count]
            precisions[train_id] = [_integrate(part, instances[train_id]) for part in of_class]
        return precisions


def _integrate(verdicts: NDArray[np.void], instance_count: int) -> float:
    """Compute the area under the curve of precision over recall, as the official evaluator does.

    Args:
        verdicts: The verdicts on the predictions of one class at one threshold, by ascending
            confidence.
        instance_count: Number of instances of the class that count.
    """
    # Index of the first verdict of each distinct confidence, (C,). The verdicts from there on are
    # those at or above this confidence.
    _, starts = np.unique(verdicts["score"], return_index=True)
    last_first = verdicts["is_correct"][::-1]
    correct_from = np.cumsum(last_first)[::-1]
    correct_above = correct_from[starts]
    counts_above = len(verdicts) - starts

    # Precision and recall at each confidence; above the highest one, precision is 1 and recall 0.
    precision = correct_above / counts_above
    precision = np.append(precision, 1.0)
    recall = correct_above / instance_count
    recall = np.append(recall, 0.0)

    # Recall falls as confidence rises. Each precision counts for half the distance between the
    # recalls before and after it. The first recall is repeated, because nothing precedes it.
    before = np.append(recall[:1], recall[:-1])
    after = np.append(recall[1:], 0.0)
    widths = (before - after) / 2
    return float(np.dot(precision, widths))
