"""Scores of instance segmentation: average precision by the rules of the official evaluator.

The rules are those of `evaluate_semantic_instance.py` in the ScanNet repository, which
docs/evaluation.md explains.

    one scene --find_overlaps--> what counts, and the IoU of each prediction with each instance
              --Overlaps.match--> verdicts: a prediction counts as correct or wrong at a threshold
    all verdicts --result--> precision and recall by confidence --> average precision of each class
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.errors import ContentError
from scannet_prep.evaluation.scores import (
    Numbers,
    Scores,
    ScoreTable,
    average,
    check_integers,
    check_truth,
    to_array,
)
from scannet_prep.release.label_sets import LabelSet

MIN_VERTICES = 100
"""Instances with fewer vertices count neither in the ground truth nor in predictions."""
THRESHOLDS = (*np.arange(0.5, 0.95, 0.05).tolist(), 0.25)
"""Values that an IoU must exceed: 0.50, 0.55, ... 0.90, as in the official evaluator, then 0.25."""
NO_INSTANCES = frozenset({"wall", "floor"})
"""Names of the classes whose instances do not count."""

# Whether a prediction is correct at one threshold, which is an index into THRESHOLDS.
_VERDICT = np.dtype([("train_id", "i4"), ("threshold", "i4"), ("score", "f8"), ("is_correct", "?")])


class InstancePrediction(NamedTuple):
    """The predicted instances of one scene.

    Their order matters: an instance of the ground truth takes the first prediction that matches.

    Attributes:
        masks: (M, V): bool, or numbers that are all 0 (outside) or 1 (inside). Masks may overlap.
            Scores such as those of a sigmoid are refused: compare them with a threshold first.
        labels: Integers (M,), train ids.
        scores: Numbers (M,), the confidence of each prediction.
    """

    masks: ArrayLike
    labels: ArrayLike
    scores: ArrayLike


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class InstanceTruth:
    """The annotated instances of one scene, as in the samples of `ScanNet`.

    The arguments must be named: both are one integer per vertex, and swapped ones would score 0.

    Attributes:
        labels: Integers (V,), train ids; anything else for vertices without a class.
        instances: Integers (V,), number of the instance; negative for vertices without one.
            Vertices with the same number and the same label are one instance.
    """

    labels: ArrayLike
    instances: ArrayLike


class Matching(NamedTuple):
    """The verdicts on the predictions of one scene at one threshold.

    Attributes:
        correct: Indices of the predictions that count as correct, one for each matched instance, in
            the order of the instances.
        wrong: Indices of the predictions that count as wrong. A prediction that counts several
            times is repeated, and may also be among the correct ones.
        is_matched: bool (G,), whether each instance has a match; instances that are too small to
            count have none.
    """

    correct: list[int]
    wrong: list[int]
    is_matched: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Overlaps:
    """The instances of one scene, the predictions that count, and their overlaps.

    Attributes:
        numbers: Integers (V,), the instance of each vertex as index + 1; 0 is void: the vertices
            without an instance, and those of walls and floors.
        classes: int64 (G,), train id of each instance.
        instances: int64 (G,), number of each instance in the ground truth.
        sizes: int64 (G,), vertices of each instance.
        predictions: int64 (M,), index of each prediction that counts among all of the scene.
        labels: int64 (M,), its train id.
        scores: float64 (M,), its confidence.
        pred_sizes: int64 (M,), its vertices.
        void: int64 (M,), its vertices in void.
        common: int64 (M, G), its vertices in each instance, whatever their classes are.
        small_count: Number of predictions that do not count because they are small.
        other_count: Number of predictions that do not count because of their class.
    """

    numbers: NDArray[np.intp]
    classes: NDArray[np.int64]
    instances: NDArray[np.int64]
    sizes: NDArray[np.int64]
    predictions: NDArray[np.intp]
    labels: NDArray[np.int64]
    scores: NDArray[np.float64]
    pred_sizes: NDArray[np.intp]
    void: NDArray[np.intp]
    common: NDArray[np.intp]
    small_count: int
    other_count: int

    @property
    def is_large(self) -> NDArray[np.bool_]:
        """Whether each instance has enough vertices to count, (G,)."""
        return self.sizes >= MIN_VERTICES

    @property
    def has_class(self) -> NDArray[np.bool_]:
        """Whether each prediction has the class of each instance, (M, G)."""
        is_equal: NDArray[np.bool_] = self.labels[:, None] == self.classes
        return is_equal

    @property
    def ious(self) -> NDArray[np.float64]:
        """IoU of each prediction with each instance, whatever their classes are, (M, G)."""
        # This never divides by 0: every instance has a vertex, and so does every union.
        return self.common / (self.sizes + self.pred_sizes[:, None] - self.common)

    def match(self, threshold: float) -> Matching:
        """Match the instances that count with the predictions of their class.

        A prediction that overlaps with no instance of its class by more than the threshold, not
        even with a small one, is wrong. It is ignored instead if its share of vertices that do not
        count exceeds the threshold: those in void, and those in small instances of its class.

        Args:
            threshold: The value that an IoU must exceed.
        """
        is_above = (self.ious > threshold) & self.has_class
        is_small = ~self.is_large
        small_common = (self.common * self.has_class)[:, is_small].sum(axis=1)
        ignored = (self.void + small_common) / self.pred_sizes

        is_candidate = is_above & self.is_large
        correct, wrong, is_matched = _match(is_candidate, self.scores)
        is_wrong = ~is_above.any(axis=1) & (ignored <= threshold)
        wrong += np.flatnonzero(is_wrong).tolist()
        return Matching(correct, wrong, is_matched)


def find_overlaps(
    prediction: InstancePrediction, ground_truth: InstanceTruth, label_set: LabelSet
) -> Overlaps:
    """Find the predictions of one scene that count, and their overlaps with the instances.

    Args:
        prediction: The predictions.
        ground_truth: The annotation of the same vertices.
        label_set: The label set of both.

    Raises:
        ContentError: See `InstanceScores.add`.
    """
    truth_labels = check_integers(ground_truth.labels, "labels of the ground truth")
    check_truth(truth_labels, label_set)
    truth_instances = check_integers(
        ground_truth.instances, "instances of the ground truth", len(truth_labels)
    )
    numbers, classes, instances, sizes = _number_instances(truth_labels, truth_instances, label_set)

    masks, labels, scores = check_prediction(prediction, len(truth_labels))
    pred_sizes = np.count_nonzero(masks, axis=1)
    is_known = np.isin(labels, counted_classes(label_set))
    is_large = pred_sizes >= MIN_VERTICES
    predictions = np.flatnonzero(is_known & is_large)
    masks = masks[predictions]

    # Vertices of each prediction (M rows) in void (column 0) and in each instance (columns 1..G):
    # count how often each pair of row and column occurs.
    rows, vertices = np.nonzero(masks)
    width = len(classes) + 1
    cells = rows * width + numbers[vertices]
    common = np.bincount(cells, minlength=len(masks) * width).reshape(-1, width)
    return Overlaps(
        numbers=numbers,
        classes=classes,
        instances=instances,
        sizes=sizes,
        predictions=predictions,
        labels=labels[predictions],
        scores=scores[predictions],
        pred_sizes=pred_sizes[predictions],
        void=common[:, 0],
        common=common[:, 1:],
        small_count=int(np.count_nonzero(is_known & ~is_large)),
        other_count=int(np.count_nonzero(~is_known)),
    )


def counted_classes(label_set: LabelSet) -> list[int]:
    """Return the train ids of the classes whose instances count."""
    return [
        label_class.train_id for label_class in label_set if label_class.name not in NO_INSTANCES
    ]


class InstanceScores(Scores):
    """Scores of masks with a class and a confidence; see `Scores`.

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
        label_set: The label set of the train ids.
        is_class_agnostic: Whether to score masks alone: every prediction counts, whatever its
            label, and the instances of all classes but wall and floor are of one class, `object`.

    Attributes:
        label_set: As given.
        is_class_agnostic: As given.
    """

    def __init__(self, label_set: LabelSet | str, *, is_class_agnostic: bool = False) -> None:
        super().__init__(label_set)
        self.is_class_agnostic = is_class_agnostic
        class_count = len(self.label_set)
        self._verdicts = [np.empty(0, _VERDICT)]
        # By class: instances of the ground truth, and predictions, that count.
        self._instances = np.zeros(class_count, np.int64)
        self._predictions = np.zeros(class_count, np.int64)
        # By class and threshold: large instances without a match.
        self._missed = np.zeros((class_count, len(THRESHOLDS)), np.int64)
        # Number of predictions that do not count: small ones, and those of other classes.
        self._left_out = np.zeros(2, np.int64)

    def add(self, prediction: InstancePrediction, ground_truth: InstanceTruth) -> None:
        """Add one whole scene.

        Raises:
            ContentError: Lengths or types do not match, or a confidence is not a number; or the
                ground truth has several numbers beyond the train ids, as that of another label set
                has.
        """
        if self.is_class_agnostic:
            prediction, ground_truth = self._merge_classes(prediction, ground_truth)
        overlaps = find_overlaps(prediction, ground_truth, self.label_set)
        self._left_out += np.array([overlaps.small_count, overlaps.other_count])
        large_classes = overlaps.classes[overlaps.is_large]
        class_count = len(self.label_set)
        self._instances += np.bincount(large_classes, minlength=class_count)
        self._predictions += np.bincount(overlaps.labels, minlength=class_count)

        labels = overlaps.labels
        scores = overlaps.scores
        verdicts = []
        for threshold_index, threshold in enumerate(THRESHOLDS):
            correct, wrong, is_matched = overlaps.match(threshold)
            missed_classes = overlaps.classes[overlaps.is_large & ~is_matched]
            self._missed[:, threshold_index] += np.bincount(missed_classes, minlength=class_count)
            # A prediction may have several verdicts at one threshold, and both kinds of them.
            verdicts += [(labels[row], threshold_index, scores[row], True) for row in correct]
            verdicts += [(labels[row], threshold_index, scores[row], False) for row in wrong]
        self._verdicts.append(np.array(verdicts, _VERDICT))

    def merge(self, other: InstanceScores) -> None:
        """Add everything that another object has collected; see `Scores.merge`."""
        self._check_like(other)
        self._verdicts = self._verdicts + other._verdicts
        self._instances = self._instances + other._instances
        self._predictions = self._predictions + other._predictions
        self._missed = self._missed + other._missed
        self._left_out = self._left_out + other._left_out

    def _merge_classes(
        self, prediction: InstancePrediction, ground_truth: InstanceTruth
    ) -> tuple[InstancePrediction, InstanceTruth]:
        """Give all predictions and all instances the first of the classes that count."""
        counted = counted_classes(self.label_set)
        truth_labels = check_integers(ground_truth.labels, "labels of the ground truth")
        check_truth(truth_labels, self.label_set)
        merged_labels = np.where(np.isin(truth_labels, counted), counted[0], truth_labels)
        predicted = np.full_like(check_integers(prediction.labels, "labels"), counted[0])
        return (
            prediction._replace(labels=predicted),
            InstanceTruth(labels=merged_labels, instances=ground_truth.instances),
        )

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
        for train_id in counted_classes(self.label_set):
            classes[self.label_set.names[train_id]] = {
                **average_over([train_id]),
                "instances": int(self._instances[train_id]),
                "predictions": int(self._predictions[train_id]),
            }
        small_count, other_count = self._left_out.tolist()
        totals = {
            "instances": int(self._instances.sum()),
            "predictions": int(self._predictions.sum()),
            "small": small_count,
            "other": other_count,
        }
        means = {name: average_over(train_ids) for name, train_ids in self._class_groups().items()}
        if self.is_class_agnostic:
            # All of them have the first class.
            means = {"all": means["all"]}
            classes = {"object": next(iter(classes.values()))}
        return ScoreTable(totals, means, classes)

    def _compute_precisions(self) -> dict[int, list[float]]:
        """Compute the average precision at each threshold, by train id.

        Classes without an instance in the ground truth are left out.
        """
        verdicts = np.concatenate(self._verdicts)
        # Sorted by class, then threshold, then confidence.
        order = np.lexsort((verdicts["score"], verdicts["threshold"], verdicts["train_id"]))
        verdicts = verdicts[order]

        # Divide them into one part for each cell, which is a class at a threshold; many are empty.
        cells = verdicts["train_id"] * len(THRESHOLDS) + verdicts["threshold"]
        cell_count = self._missed.size
        bounds = np.searchsorted(cells, np.arange(1, cell_count))
        parts = np.split(verdicts, bounds)

        precisions = {}
        for train_id in np.flatnonzero(self._instances).tolist():
            first_part = train_id * len(THRESHOLDS)
            missed_counts = self._missed[train_id].tolist()
            precisions[train_id] = [
                _integrate(parts[first_part + threshold_index], missed)
                for threshold_index, missed in enumerate(missed_counts)
            ]
        return precisions


def _number_instances(
    labels: NDArray[np.int64], instances: NDArray[np.int64], label_set: LabelSet
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Number the instances from 1, by class and then by their own number; 0 is void.

    Returns:
        The number of each vertex, (V,); and of each instance its class, its own number, and its
        size, (G,) each.
    """
    is_instance = np.isin(labels, counted_classes(label_set)) & (instances >= 0)
    # Class and number as one integer: class * base + number.
    base = int(instances.max(initial=0)) + 1
    vertex_keys = labels[is_instance] * base + instances[is_instance]
    keys, inverse, sizes = np.unique(vertex_keys, return_inverse=True, return_counts=True)
    numbers = np.zeros(len(labels), np.intp)
    numbers[is_instance] = inverse + 1
    return numbers, keys // base, keys % base, sizes


def check_prediction(
    prediction: InstancePrediction, vertex_count: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]:
    """Check shapes, types and values of a prediction.

    Returns:
        Masks, bool (M, V); labels, int64 (M,); and scores, float64 (M,).

    Raises:
        ContentError: Shapes do not match; masks contain values other than 0 and 1; or a confidence
            is not a finite number.
    """
    labels = check_integers(prediction.labels, "labels")
    masks = to_array(prediction.masks, "masks")
    scores = to_array(prediction.scores, "scores")
    if not len(labels) and not masks.size:
        # Nothing was predicted. An array of an empty list has no columns.
        masks = np.zeros((0, vertex_count), np.bool_)
    if masks.shape != (len(labels), vertex_count) or masks.dtype.kind not in "biuf":
        raise ContentError(
            f"masks: found {masks.dtype} {masks.shape}, expected ({len(labels)}, {vertex_count}): "
            "a row for each label, a column for each vertex"
        )
    has_numbers = scores.shape == labels.shape and scores.dtype.kind in "iuf"
    if not has_numbers or not np.isfinite(scores).all():
        raise ContentError(
            f"scores: found {scores.dtype} {scores.shape}, expected {len(labels)} finite numbers"
        )
    return _check_masks(masks), labels, scores.astype(np.float64)


def _check_masks(masks: NDArray[Any]) -> NDArray[np.bool_]:
    """Convert masks to bool, and check that they contain nothing but 0 and 1.

    Raises:
        ContentError: The masks contain other values.
    """
    is_inside = masks.astype(np.bool_, copy=False)
    if masks.dtype != np.bool_ and not np.array_equal(masks, is_inside):
        raise ContentError(
            f"masks: found {masks.dtype} from {masks.min():g} to {masks.max():g}, "
            "expected bool, or only 0 and 1",
            "compare with a threshold first: masks > 0.5 for probabilities, masks > 0 for logits",
        )
    return is_inside


def _match(
    is_above: NDArray[np.bool_], scores: NDArray[np.float64]
) -> tuple[list[int], list[int], NDArray[np.bool_]]:
    """Match each instance with the first prediction above the threshold that is not used yet.

    Of all unused predictions above the threshold, the one with the highest confidence counts as
    correct, and the others as wrong. But only the first one is used up.

    Args:
        is_above: Whether each prediction is above the threshold with each instance, (M, G).
        scores: Confidence of the predictions, (M,).

    Returns:
        The indices of the predictions that count as correct, and of those that count as wrong,
        both in order of the instances, and repeated if a prediction counts several times. Then
        whether each instance has a match, (G,).
    """
    correct: list[int] = []
    wrong: list[int] = []
    used: set[int] = set()
    is_matched = np.zeros(is_above.shape[1], np.bool_)
    for instance in np.flatnonzero(is_above.any(axis=0)).tolist():
        matching = np.flatnonzero(is_above[:, instance]).tolist()
        candidates = [index for index in matching if index not in used]
        if not candidates:
            continue
        is_matched[instance] = True
        used.add(candidates[0])
        best = max(candidates, key=scores.__getitem__)
        correct.append(best)
        wrong += [index for index in candidates if index != best]
    return correct, wrong, is_matched


def _integrate(verdicts: NDArray[np.void], missed: int) -> float:
    """Compute the area under the curve of precision over recall, as the official evaluator does.

    Args:
        verdicts: The verdicts of one class at one threshold, by ascending confidence.
        missed: Number of instances without a match.
    """
    # Index of the first verdict of each distinct confidence, (C,). The verdicts from there on are
    # those at or above this confidence.
    _, starts = np.unique(verdicts["score"], return_index=True)
    correct_before = np.append(0, np.cumsum(verdicts["is_correct"]))
    correct_count = correct_before[-1]
    correct_above = correct_count - correct_before[starts]

    # Precision and recall at each confidence; above the highest one, precision is 1 and recall 0.
    precision = np.append(correct_above / (len(verdicts) - starts), 1.0)
    recall = np.append(correct_above / max(1, correct_count + missed), 0.0)

    # Recall falls as confidence rises. Each precision counts for half the distance between the
    # recalls before and after it. The first recall is repeated, because there is none before it.
    padded = np.concatenate([recall[:1], recall, [0.0]])
    widths = (padded[:-2] - padded[2:]) / 2
    return float(np.dot(precision, widths))
