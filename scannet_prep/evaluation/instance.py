"""Scores of instance segmentation: average precision by the rules of the benchmark's official evaluator.

The rules, those of `evaluate_semantic_instance.py` in the ScanNet repository, are written down in docs/evaluation.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.errors import ContentError
from scannet_prep.evaluation.scores import Numbers, Scores, ScoreTable, average, check_integers, check_truth
from scannet_prep.labels import LabelSet

MIN_VERTICES = 100
"""Instances with fewer vertices do not count, neither in the ground truth nor in predictions."""
THRESHOLDS = (*np.arange(0.5, 0.95, 0.05).tolist(), 0.25)
"""An IoU must be greater. As the official evaluator computes them: the range ends before 0.95."""
NO_INSTANCES = frozenset({"wall", "floor"})
"""Classes whose instances do not count."""

# One prediction at one threshold: whether it counts as right or wrong, and with which confidence.
_VERDICT = np.dtype([("train_id", "i4"), ("threshold", "i4"), ("score", "f8"), ("is_right", "?")])


class InstancePrediction(NamedTuple):
    """The predicted instances of one scene, in an order that counts: for AP25, the first match is taken.

    Attributes:
        masks: (M, V), bool, or numbers that are all 0 or 1 (inside); masks may overlap. Scores such as those of a
            sigmoid are refused: compare them with a threshold first.
        labels: Integers (M,), train ids.
        scores: Numbers (M,), the confidence of each.
    """

    masks: ArrayLike
    labels: ArrayLike
    scores: ArrayLike


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InstanceTruth:
    """The annotated instances of one scene, as the samples of `ScanNet` have them.

    The arguments have to be named: both are integers of every vertex, and swapped they would score 0.

    Attributes:
        labels: Integers (V,), train ids, and anything else where there is no class.
        instances: Integers (V,), number of the instance, negative where there is none. An instance is what has the same
            number and the same label.
    """

    labels: ArrayLike
    instances: ArrayLike


class InstanceScores(Scores):
    """Scores of masks with a class and a confidence; see `Scores`.

    The result has these numbers:

    - `totals`: `instances` of the ground truth and `predictions` that count; predictions left out because they are
      `small` (under 100 vertices), or of an `other` class: wall, floor, or none.
    - `classes`, without wall and floor: average precision `ap`, the mean over the IoU thresholds 0.50, 0.55, ... 0.90;
      `ap50` and `ap25`; all None for a class that the ground truth has no instance of; `instances`; `predictions`.
    - `means` of `ap`, `ap50` and `ap25` over the classes that the ground truth has instances of.

    Attributes:
        label_set: As given.
    """

    def __init__(self, label_set: LabelSet | str) -> None:
        super().__init__(label_set)
        self._verdicts = [np.empty(0, _VERDICT)]
        self._missed = np.zeros((len(self.label_set), len(THRESHOLDS)), np.int64)  # instances without a match
        self._instances = np.zeros(len(self.label_set), np.int64)
        self._predictions = np.zeros(len(self.label_set), np.int64)
        self._left_out = np.zeros(2, np.int64)  # small, other

    def add(self, prediction: InstancePrediction, ground_truth: InstanceTruth) -> None:
        """Add one scene, whole.

        Raises:
            ContentError: Lengths or types do not fit, or a confidence is not a number; or the ground truth has several
                numbers beyond the train ids, as that of another label set has.
        """
        truth_labels = check_integers(ground_truth.labels, "labels of the ground truth")
        check_truth(truth_labels, self.label_set)
        numbers = check_integers(ground_truth.instances, "instances of the ground truth", len(truth_labels))
        masks, labels, scores = check_prediction(prediction, len(truth_labels))
        columns, classes, sizes = self._number_instances(truth_labels, numbers)
        pred_sizes = np.count_nonzero(masks, axis=1)
        is_known, is_large = np.isin(labels, self._class_ids()), pred_sizes >= MIN_VERTICES
        self._left_out += np.count_nonzero(is_known & ~is_large), np.count_nonzero(~is_known)
        masks, labels, scores, pred_sizes = (
            array[is_known & is_large] for array in (masks, labels, scores, pred_sizes)
        )
        rows, vertices = np.nonzero(masks)
        width = len(classes) + 1  # the first column is for void
        overlaps = np.bincount(rows * width + columns[vertices], minlength=len(masks) * width).reshape(-1, width)
        common, counts = overlaps[:, 1:] * (labels[:, None] == classes), sizes >= MIN_VERTICES
        ious = common / (sizes + pred_sizes[:, None] - overlaps[:, 1:])
        ignored = (overlaps[:, 0] + common[:, ~counts].sum(axis=1)) / pred_sizes
        class_count, verdicts = len(self.label_set), []
        self._instances += np.bincount(classes[counts], minlength=class_count)
        self._predictions += np.bincount(labels, minlength=class_count)
        for place, threshold in enumerate(THRESHOLDS):
            is_above = ious > threshold
            right, wrong, is_matched = _match(is_above[:, counts], scores)
            wrong += np.flatnonzero(~is_above.any(axis=1) & (ignored <= threshold)).tolist()
            self._missed[:, place] += np.bincount(classes[counts][~is_matched], minlength=class_count)
            for is_right, chosen in ((True, right), (False, wrong)):
                verdicts += [(labels[item], place, scores[item], is_right) for item in chosen]
        self._verdicts.append(np.array(verdicts, _VERDICT))

    def result(self) -> ScoreTable:
        """The scores of all that was collected."""
        precisions = self._compute_precisions()

        def average_over(ids: Iterable[int]) -> Numbers:
            found = [precisions[item] for item in ids if item in precisions]
            return {
                "ap": average(value for row in found for value in row[:-1]),
                "ap50": average(row[0] for row in found),
                "ap25": average(row[-1] for row in found),
            }

        small, other = self._left_out.tolist()
        return ScoreTable(
            {
                "instances": int(self._instances.sum()),
                "predictions": int(self._predictions.sum()),
                "small": small,
                "other": other,
            },
            {name: average_over(ids) for name, ids in self._groups().items()},
            {
                item.name: {
                    **average_over([item.train_id]),
                    "instances": int(self._instances[item.train_id]),
                    "predictions": int(self._predictions[item.train_id]),
                }
                for item in self.label_set.classes
                if item.name not in NO_INSTANCES
            },
        )

    def _class_ids(self) -> list[int]:
        """Train ids of the classes whose instances count."""
        return [item.train_id for item in self.label_set.classes if item.name not in NO_INSTANCES]

    def _number_instances(
        self, labels: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
        """Number instances from 1, by class and then by their number; 0 is void: no instance, wall or floor.

        Returns:
            The number of each vertex, (V,); class and size of each instance.
        """
        is_instance, base = np.isin(labels, self._class_ids()) & (numbers >= 0), int(numbers.max(initial=0)) + 1
        keys = labels[is_instance] * base + numbers[is_instance]
        keys, places, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        columns = np.zeros(len(labels), np.intp)
        columns[is_instance] = places.reshape(-1) + 1
        return columns, keys // base, sizes

    def _compute_precisions(self) -> dict[int, list[float]]:
        """Average precision at each threshold, by train id; of the classes that the ground truth has instances of."""
        verdicts = np.concatenate(self._verdicts)
        verdicts = verdicts[np.lexsort([verdicts[name] for name in ("score", "threshold", "train_id")])]
        cells = verdicts["train_id"] * len(THRESHOLDS) + verdicts["threshold"]
        parts = np.split(verdicts, np.searchsorted(cells, np.arange(1, self._missed.size)))
        return {
            train_id: [
                _integrate(parts[train_id * len(THRESHOLDS) + place], missed)
                for place, missed in enumerate(self._missed[train_id].tolist())
            ]
            for train_id in np.flatnonzero(self._instances).tolist()
        }


def check_prediction(
    prediction: InstancePrediction, vertex_count: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]:
    """Check shapes, types and values.

    Returns:
        Masks, bool (M, V); labels, int64 (M,); and scores, float64 (M,).

    Raises:
        ContentError: Shapes do not fit; masks hold other values than 0 and 1; or a confidence is not a number.
    """
    labels = check_integers(prediction.labels, "labels")
    masks: NDArray[Any] = np.asarray(prediction.masks)
    scores: NDArray[Any] = np.asarray(prediction.scores)
    if not len(labels) and not masks.size:  # nothing was predicted, in whatever shape
        masks = np.zeros((0, vertex_count), np.bool_)
    if masks.shape != (len(labels), vertex_count) or masks.dtype.kind not in "biuf":
        expected = f"({len(labels)}, {vertex_count}): a row for each label, a column for each vertex"
        raise ContentError(f"masks: found {masks.dtype} {masks.shape}, expected {expected}")
    if scores.shape != labels.shape or scores.dtype.kind not in "iuf" or not np.isfinite(scores).all():
        raise ContentError(f"scores: found {scores.dtype} {scores.shape}, expected {len(labels)} finite numbers")
    return _check_masks(masks), labels, scores.astype(np.float64)


def _check_masks(masks: NDArray[Any]) -> NDArray[np.bool_]:
    """Check that masks hold nothing but 0 and 1.

    Raises:
        ContentError: They hold other values.
    """
    is_inside = masks.astype(np.bool_, copy=False)
    if masks.dtype != np.bool_ and not np.array_equal(masks, is_inside):
        raise ContentError(
            f"masks: found {masks.dtype} from {masks.min():g} to {masks.max():g}, expected bool, or only 0 and 1",
            "compare with a threshold first: masks > 0.5 for probabilities, masks > 0 for logits",
        )
    return is_inside


def _match(is_above: NDArray[np.bool_], scores: NDArray[np.float64]) -> tuple[list[int], list[int], NDArray[np.bool_]]:
    """Give each instance the first prediction that is above the threshold and not used yet.

    Of those above the threshold that it could have taken, the one with the highest confidence counts as right and all
    others as wrong; but only the first is used up.

    Args:
        is_above: Which predictions, in their order, are above the threshold with which instances, (M, G).
        scores: Confidence of the predictions, (M,).

    Returns:
        Predictions that count as right; those that count as wrong, each time; and which instances have a match, (G,).
    """
    right, wrong, used = list[int](), list[int](), set[int]()
    is_matched = np.zeros(is_above.shape[1], np.bool_)
    for instance in np.flatnonzero(is_above.any(axis=0)).tolist():
        candidates = [item for item in np.flatnonzero(is_above[:, instance]).tolist() if item not in used]
        if candidates:
            is_matched[instance] = True
            used.add(candidates[0])
            best = max(candidates, key=scores.__getitem__)
            right.append(best)
            wrong += [item for item in candidates if item != best]
    return right, wrong, is_matched


def _integrate(verdicts: NDArray[np.void], missed: int) -> float:
    """Area under precision and recall at each confidence, of verdicts by ascending confidence."""
    _, starts = np.unique(verdicts["score"], return_index=True)
    right_before = np.append(0, np.cumsum(verdicts["is_right"]))
    right = right_before[-1] - right_before[starts]  # at this confidence or above
    precision = np.append(right / (len(verdicts) - starts), 1.0)
    recall = np.append(right / max(1, right_before[-1] + missed), 0.0)
    padded = np.concatenate([recall[:1], recall, [0.0]])
    return float(np.dot(precision, (padded[:-2] - padded[2:]) / 2))
