"""Scores of semantic segmentation: the IoU of each class, and the three means that are reported."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from scannet_prep.evaluation.scores import (
    IntArray,
    Numbers,
    ScoreTable,
    average,
    check_integers,
    check_truth,
    list_class_groups,
)
from scannet_prep.release.label_sets import LabelSet, parse_label_set

# Added to a denominator, as in OctFormer and Pointcept: the IoU of a class that occurs nowhere is
# then 0, not 0 / 0.
_EPSILON = 1e-10


class SemanticScores:
    """Scores of a class for each vertex.

    Picklable: each rank can collect its scenes, and one rank merges the results.

    The result has these numbers:

    - `totals`:
        - `vertices` that have a class in the ground truth;
        - how many of these are `missed`: predicted as none of the classes;
        - `accuracy`: the share of these vertices that is correct.
    - `classes`:
        - `iou`: TP / (TP + FP + FN); None for a class that occurs nowhere;
        - `vertices` in the ground truth;
        - `predicted` vertices, of those that have a class in the ground truth.
    - `means` of the IoUs, which are equal if every class occurs in the ground truth:
        - `over_all` classes, of TP / (TP + FP + FN + 1e-10), so that a class that occurs nowhere
          counts as 0. OctFormer and Pointcept report it.
        - `over_union`: over the classes that occur in the ground truth or in the predictions; a
          class that is only predicted counts as 0. The authors of ScanNet200 and mmdetection3d
          report it.
        - `over_ground_truth`: over the classes that occur in the ground truth.

    Args:
        label_set: The label set of the train ids: SCANNET20 or SCANNET200, or its name.

    Attributes:
        label_set: The label set.
        confusion: int64 (K, K + 1), vertices by class of the ground truth and by predicted class;
            the last column is for predictions that are none of the K classes.

    Raises:
        UsageError: `label_set` is not a label set.
    """

    def __init__(self, label_set: LabelSet | str) -> None:
        self.label_set = parse_label_set(label_set)
        class_count = len(self.label_set)
        shape = (class_count, class_count + 1)
        self.confusion: IntArray = np.zeros(shape, np.int64)

    def add(self, prediction: ArrayLike, ground_truth: ArrayLike) -> None:
        """Add one scene, or any other set of vertices.

        Args:
            prediction: Integers (V,), train ids. Other numbers, such as -1 or 255, are a miss.
            ground_truth: Integers (V,), train ids. Vertices with a negative number, or with one
                other number such as 255, do not count.

        Raises:
            ContentError: They are not integers, or differ in length; or the ground truth has
                several numbers beyond the train ids, like labels of another label set.
        """
        truth = check_integers(ground_truth, "ground truth")
        check_truth(truth, self.label_set)
        predicted = check_integers(prediction, "prediction", len(truth))
        class_count = len(self.label_set)

        # Read as unsigned, negative numbers are large ones: one comparison finds all train ids.
        is_counted = truth.view(np.uint64) < class_count
        rows = truth[is_counted]
        columns = predicted[is_counted].view(np.uint64)
        # Everything that is not a train id goes into the last column.
        columns = np.minimum(columns, class_count)

        # Count how often each pair of row and column occurs.
        width = class_count + 1
        cells = rows * width
        cells += columns.view(np.int64)
        cell_count = self.confusion.size
        counts = np.bincount(cells, minlength=cell_count)
        self.confusion += counts.reshape(self.confusion.shape)

    def merge(self, other: SemanticScores) -> None:
        """Add everything that another object has collected, for example on another rank."""
        self.confusion = self.confusion + other.confusion

    def compare_with_chance(self) -> tuple[int, float]:
        """Count the vertices that agree, and how many more these are than by chance.

        Chance is a random guess with the same shares of classes. A network that has learned nothing
        is not above it, whatever its ids mean.
        """
        truth = self.confusion.sum(axis=1)
        of_classes = self.confusion[:, :-1]
        predicted = of_classes.sum(axis=0)
        agreeing = self.confusion.trace()
        total = truth.sum() or 1
        by_chance = truth @ predicted / total
        return agreeing, agreeing - by_chance

    def result(self) -> ScoreTable:
        """Compute the scores of all that was collected."""
        # Vertices by class, int64 (K,), and IoU by class, (K,).
        correct = self.confusion.diagonal()
        truth = self.confusion.sum(axis=1)
        of_classes = self.confusion[:, :-1]
        predicted = of_classes.sum(axis=0)
        unions = truth + predicted - correct
        divisors = np.maximum(unions, 1)
        ious = correct / divisors

        def average_over(train_ids: list[int]) -> Numbers:
            group_ious = ious[train_ids]
            group_unions = unions[train_ids]
            occurs = group_unions > 0
            occurs_in_truth = truth[train_ids] > 0
            divisors = group_unions + _EPSILON
            return {
                "over_all": average(correct[train_ids] / divisors),
                "over_union": average(group_ious[occurs]),
                "over_ground_truth": average(group_ious[occurs_in_truth]),
            }

        classes: dict[str, Numbers] = {}
        for train_id, name in enumerate(self.label_set.names):
            iou = float(ious[train_id])
            classes[name] = {
                "iou": iou if unions[train_id] else None,
                "vertices": int(truth[train_id]),
                "predicted": int(predicted[train_id]),
            }
        total = int(truth.sum())
        accuracy = int(correct.sum()) / max(1, total)
        missed = self.confusion[:, -1]
        totals = {
            "vertices": total,
            "missed": int(missed.sum()),
            "accuracy": accuracy if total else None,
        }
        groups = list_class_groups(self.label_set)
        means = {name: average_over(train_ids) for name, train_ids in groups.items()}
        return ScoreTable(totals, means, classes)
