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
    BoolArray,
    FloatArray,
    IntArray,
    Numbers,
    Scores,
    ScoreTable,
    average,
    check_integers,
    check_truth,
    describe_array,
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
    is_matched: BoolArray


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

    numbers: IntArray
    classes: IntArray
    instances: IntArray
    sizes: IntArray
    predictions: IntArray
    labels: IntArray
    scores: FloatArray
    pred_sizes: IntArray
    void: IntArray
    common: IntArray
    small_count: int
    other_count: int

    @property
    def is_large(self) -> BoolArray:
        """Whether each instance has enough vertices to count, (G,)."""
        return self.sizes >= MIN_VERTICES

    @property
    def has_class(self) -> BoolArray:
        """Whether each prediction has the class of each instance, (M, G)."""
        is_equal: BoolArray = self.labels[:, None] == self.classes
        return is_equal

    @property
    def ious(self) -> FloatArray:
        """IoU of each prediction with each instance, whatever their classes are, (M, G)."""
        # This never divides by 0: every instance has a vertex, and so does every union.
        both = self.sizes + self.pred_sizes[:, None]
        unions = both - self.common
        return self.common / unions

    def match(self, threshold: float) -> Matching:
        """Match the instances that count with the predictions of their class.

        A prediction that overlaps with no instance of its class by more than the threshold, not
        even with a small one, is wrong. It is ignored instead if its share of vertices that do not
        count exceeds the threshold: those in void, and those in small instances of its class.

        Args:
            threshold: The value that an IoU must exceed.
        """
        has_class = self.has_class
        is_above = self.ious > threshold
        is_above &= has_class
        has_none = ~is_above.any(axis=1)
        is_candidate = is_above & self.is_large
        correct, wrong, is_matched = _match(is_candidate, self.scores)

        is_small_of_class = has_class & ~self.is_large
        small_common = np.sum(self.common, axis=1, where=is_small_of_class)
        ignored = (self.void + small_common) / self.pred_sizes
        is_wrong = has_none & (ignored <= threshold)
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
    vertex_count = len(truth_labels)
    truth_instances = check_integers(
        ground_truth.instances, "instances of the ground truth", vertex_count
    )
    numbers, classes, instances, sizes = _number_instances(truth_labels, truth_instances, label_set)

    masks, labels, scores = check_prediction(prediction, vertex_count)
    pred_sizes = np.count_nonzero(masks, axis=1)
    is_known = np.isin(labels, counted_classes(label_set))
    is_large = pred_sizes >= MIN_VERTICES
    is_small_of_known = is_known & ~is_large
    predictions = np.flatnonzero(is_known & is_large)
    masks = masks[predictions]

    # Vertices of each prediction (M rows) in void (column 0) and in each instance (columns 1..G):
    # count how often each pair of row and column occurs.
    rows, vertices = np.nonzero(masks)
    width = len(classes) + 1
    cells = rows * width
    cells += numbers[vertices]
    cell_count = len(masks) * width
    counts = np.bincount(cells, minlength=cell_count)
    common = counts.reshape(-1, width)
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
        small_count=int(is_small_of_known.sum()),
        other_count=int(np.sum(~is_known)),
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
        threshold_count = len(THRESHOLDS)
        self._verdicts = [np.empty(0, _VERDICT)]
        # By class: instances of the ground truth, and predictions, that count.
        self._instances = np.zeros(class_count, np.int64)
        self._predictions = np.zeros(class_count, np.int64)
        # By threshold and class: large instances without a match.
        self._missed = np.zeros((threshold_count, class_count), np.int64)
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
        self._instances += self._count_by_class(large_classes)
        self._predictions += self._count_by_class(overlaps.labels)
        for index, threshold in enumerate(THRESHOLDS):
            matching = overlaps.match(threshold)
            has_no_match = ~matching.is_matched
            is_missed = overlaps.is_large & has_no_match
            missed_classes = overlaps.classes[is_missed]
            self._missed[index] += self._count_by_class(missed_classes)
            # A prediction may have several verdicts at one threshold, and both kinds of them.
            rows = matching.correct + matching.wrong
            verdicts = np.zeros(len(rows), _VERDICT)
            verdicts["train_id"] = overlaps.labels[rows]
            verdicts["threshold"] = index
            verdicts["score"] = overlaps.scores[rows]
            is_correct = verdicts["is_correct"]
            is_correct[: len(matching.correct)] = True
            self._verdicts.append(verdicts)

    def _count_by_class(self, train_ids: IntArray) -> IntArray:
        """Count how often each class occurs, (K,)."""
        return np.bincount(train_ids, minlength=len(self.label_set))

    def merge(self, other: InstanceScores) -> None:
        """Add everything that another object has collected; see `Scores.merge`."""
        self._check_like(other)
        self._verdicts += other._verdicts
        self._instances += other._instances
        self._predictions += other._predictions
        self._missed += other._missed
        self._left_out += other._left_out

    def _merge_classes(
        self, prediction: InstancePrediction, ground_truth: InstanceTruth
    ) -> tuple[InstancePrediction, InstanceTruth]:
        """Give all predictions and all instances the first of the classes that count."""
        counted = counted_classes(self.label_set)
        merged = counted[0]
        truth_labels = check_integers(ground_truth.labels, "labels of the ground truth")
        check_truth(truth_labels, self.label_set)
        is_counted = np.isin(truth_labels, counted)
        merged_labels = np.where(is_counted, merged, truth_labels)
        labels = check_integers(prediction.labels, "labels")
        predicted = np.full_like(labels, merged)
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
            name = self.label_set.names[train_id]
            classes[name] = {
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
        train_ids = verdicts["train_id"]
        order = np.lexsort((verdicts["score"], verdicts["threshold"], train_ids))
        verdicts = verdicts[order]

        # Divide them into one part for each cell, which is a class at a threshold; many are empty.
        threshold_count = len(THRESHOLDS)
        cells = verdicts["train_id"] * threshold_count
        cells += verdicts["threshold"]
        all_cells = np.arange(1, self._missed.size)
        bounds = np.searchsorted(cells, all_cells)
        parts = np.split(verdicts, bounds)

        precisions = {}
        for train_id in np.flatnonzero(self._instances).tolist():
            first_part = train_id * threshold_count
            missed_counts = self._missed[:, train_id].tolist()
            precisions[train_id] = [
                _integrate(parts[first_part + index], missed)
                for index, missed in enumerate(missed_counts)
            ]
        return precisions


def _number_instances(
    labels: IntArray, instances: IntArray, label_set: LabelSet
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Number the instances from 1, by class and then by their own number; 0 is void.

    Returns:
        The number of each vertex, (V,); and of each instance its class, its own number, and its
        size, (G,) each.
    """
    has_number = instances >= 0
    has_class = np.isin(labels, counted_classes(label_set))
    is_instance = has_number & has_class
    # Class and number as one integer: class * base + number.
    largest = instances.max(initial=0)
    base = int(largest) + 1
    vertex_keys = labels[is_instance] * base
    vertex_keys += instances[is_instance]
    keys, inverse, sizes = np.unique(
        vertex_keys,
        return_inverse=True,
        return_counts=True,
    )
    numbers = np.zeros(len(labels), np.intp)
    numbers[is_instance] = inverse + 1
    classes, own_numbers = np.divmod(keys, base)
    return numbers, classes, own_numbers, sizes


def check_prediction(
    prediction: InstancePrediction, vertex_count: int
) -> tuple[BoolArray, IntArray, FloatArray]:
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
    count = len(labels)
    shape = (count, vertex_count)
    if count == 0 and masks.size == 0:
        # Nothing was predicted. An array of an empty list has no columns.
        masks = np.zeros(shape, np.bool_)
    if masks.shape != shape or masks.dtype.kind not in "biuf":
        found = describe_array(masks)
        rows = "a row for each label, a column for each vertex"
        raise ContentError(f"masks: found {found}, expected {shape}: {rows}")
    is_finite = False
    if scores.shape == labels.shape and scores.dtype.kind in "iuf":
        is_finite = bool(np.isfinite(scores).all())
    if not is_finite:
        found = describe_array(scores)
        raise ContentError(f"scores: found {found}, expected {count} finite numbers")
    return _check_masks(masks), labels, scores.astype(np.float64)


def _check_masks(masks: NDArray[Any]) -> BoolArray:
    """Convert masks to bool, and check that they contain nothing but 0 and 1.

    Raises:
        ContentError: The masks contain other values.
    """
    is_inside = masks.astype(np.bool_, copy=False)
    is_bool = masks.dtype == np.bool_
    if not is_bool and not np.array_equal(masks, is_inside):
        least = masks.min()
        largest = masks.max()
        raise ContentError(
            f"masks: found {masks.dtype} from {least:g} to {largest:g}, "
            "expected bool, or only 0 and 1",
            "compare with a threshold first: masks > 0.5 for probabilities, masks > 0 for logits",
        )
    return is_inside


def _match(is_above: BoolArray, scores: FloatArray) -> tuple[list[int], list[int], BoolArray]:
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
    has_candidates = is_above.any(axis=0)
    for instance in np.flatnonzero(has_candidates).tolist():
        matching = np.flatnonzero(is_above[:, instance])
        candidates = [index for index in matching.tolist() if index not in used]
        if not candidates:
            continue
        is_matched[instance] = True
        used.add(candidates[0])
        best = max(candidates, key=scores.__getitem__)
        correct.append(best)
        candidates.remove(best)
        wrong += candidates
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
    is_correct = verdicts["is_correct"]
    cumulated = np.cumsum(is_correct)
    correct_before = np.append(0, cumulated)
    correct_count = correct_before[-1]
    correct_above = correct_count - correct_before[starts]
    counts_above = len(verdicts) - starts
    positive_count = max(1, correct_count + missed)

    # Precision and recall at each confidence; above the highest one, precision is 1 and recall 0.
    precision = correct_above / counts_above
    precision = np.append(precision, 1.0)
    recall = correct_above / positive_count
    recall = np.append(recall, 0.0)

    # Recall falls as confidence rises. Each precision counts for half the distance between the
    # recalls before and after it. The first recall is repeated, because nothing precedes it.
    before = np.append(recall[:1], recall[:-1])
    after = np.append(recall[1:], 0.0)
    widths = (before - after) / 2
    area = np.dot(precision, widths)
    return float(area)
