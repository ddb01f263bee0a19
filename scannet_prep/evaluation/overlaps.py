"""Predicted and annotated instances of a scene, how they overlap, and which of them match.

The rules are those of `evaluate_semantic_instance.py` in the ScanNet repository, which
docs/evaluation.md explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scannet_prep.errors import ContentError
from scannet_prep.evaluation.scores import (
    BoolArray,
    FloatArray,
    IntArray,
    check_integers,
    check_truth,
    describe_array,
)
from scannet_prep.release.label_sets import LabelSet

MIN_VERTICES = 100
"""Instances with fewer vertices count neither in the ground truth nor in predictions."""


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


class Overlaps(NamedTuple):
    """The instances of one scene, the predictions that count, and their overlaps.

    Attributes:
        numbers: Integers (V,), the instance of each vertex as index + 1; 0 is void: the vertices
            without an instance, and those of walls and floors.
        classes: int64 (G,), train id of each instance.
        instances: int64 (G,), number of each instance in the ground truth.
        sizes: int64 (G,), vertices of each instance.
        is_large: bool (G,), whether each instance has enough vertices to count.
        predictions: int64 (M,), index of each prediction that counts among all of the scene.
        labels: int64 (M,), its train id.
        scores: float64 (M,), its confidence.
        pred_sizes: int64 (M,), its vertices.
        void: int64 (M,), its vertices in void.
        common: int64 (M, G), its vertices in each instance, whatever their classes are.
        ious: float64 (M, G), its IoU with each instance, whatever their classes are.
        has_class: bool (M, G), whether it has the class of each instance.
        small_count: Number of predictions that do not count because they are small.
        other_count: Number of predictions that do not count because of their class.
    """

    numbers: IntArray
    classes: IntArray
    instances: IntArray
    sizes: IntArray
    is_large: BoolArray
    predictions: IntArray
    labels: IntArray
    scores: FloatArray
    pred_sizes: IntArray
    void: IntArray
    common: IntArray
    ious: FloatArray
    has_class: BoolArray
    small_count: int
    other_count: int

    def match(self, threshold: float) -> Matching:
        """Match the instances that count with the predictions of their class.

        Each instance takes the first prediction above the threshold that is not used yet. Of all
        unused predictions above the threshold, the one with the highest confidence counts as
        correct, and the others as wrong. But only the first one is used up.

        A prediction that overlaps with no instance of its class by more than the threshold, not
        even with a small one, is wrong. It is ignored instead if its share of vertices that do not
        count exceeds the threshold: those in void, and those in small instances of its class.

        Args:
            threshold: The value that an IoU must exceed.
        """
        is_above = self.ious > threshold
        is_above &= self.has_class
        correct = []
        wrong = []
        used = set()
        is_matched = is_above.any(axis=0) & self.is_large
        for instance in np.flatnonzero(is_matched).tolist():
            above = np.flatnonzero(is_above[:, instance])
            candidates = [index for index in above.tolist() if index not in used]
            is_matched[instance] = bool(candidates)
            if candidates:
                used.add(candidates[0])
                best = max(candidates, key=self.scores.__getitem__)
                correct.append(best)
                candidates.remove(best)
                wrong += candidates

        is_small_of_class = self.has_class & ~self.is_large
        small_common = np.sum(self.common, axis=1, where=is_small_of_class)
        ignored = (self.void + small_common) / self.pred_sizes
        has_none = ~is_above.any(axis=1)
        is_wrong = has_none & (ignored <= threshold)
        wrong += np.flatnonzero(is_wrong).tolist()
        return Matching(correct, wrong, is_matched)


def find_overlaps(
    prediction: InstancePrediction,
    ground_truth: InstanceTruth,
    label_set: LabelSet,
    *,
    is_class_agnostic: bool = False,
) -> Overlaps:
    """Find the predictions of one scene that count, and their overlaps with the instances.

    Args:
        prediction: The predictions.
        ground_truth: The annotation of the same vertices.
        label_set: The label set of both.
        is_class_agnostic: Whether all predictions, and all instances that count, are of one class:
            the first that counts.

    Raises:
        ContentError: See `InstanceScores.add`.
    """
    truth_labels = check_integers(ground_truth.labels, "labels of the ground truth")
    check_truth(truth_labels, label_set)
    vertex_count = len(truth_labels)
    truth_instances = check_integers(
        ground_truth.instances, "instances of the ground truth", vertex_count
    )
    numbers, classes, instances, sizes = _number_instances(
        truth_labels, truth_instances, label_set.things
    )

    masks, labels, scores = check_prediction(prediction, vertex_count)
    if is_class_agnostic:
        # The instances keep their order, which decides which prediction each one takes.
        classes = np.full_like(classes, label_set.things[0])
        labels = np.full_like(labels, label_set.things[0])
    pred_sizes = np.count_nonzero(masks, axis=1)
    is_known = np.isin(labels, label_set.things)
    is_large = pred_sizes >= MIN_VERTICES
    predictions = np.flatnonzero(is_known & is_large)
    labels = labels[predictions]
    pred_sizes = pred_sizes[predictions]

    # Vertices of each prediction (M rows) in void (column 0) and in each instance (columns 1..G).
    width = len(classes) + 1
    counts = np.zeros((len(predictions), width), np.int64)
    for row, index in enumerate(predictions):
        counts[row] = np.bincount(numbers[masks[index]], minlength=width)
    common = counts[:, 1:]
    # The unions are never 0: every instance has a vertex.
    both = sizes + pred_sizes[:, None]
    unions = both - common
    return Overlaps(
        numbers=numbers,
        classes=classes,
        instances=instances,
        sizes=sizes,
        is_large=sizes >= MIN_VERTICES,
        predictions=predictions,
        labels=labels,
        scores=scores[predictions],
        pred_sizes=pred_sizes,
        void=counts[:, 0],
        common=common,
        ious=common / unions,
        has_class=labels[:, None] == classes,
        small_count=int(np.sum(is_known & ~is_large)),
        other_count=int(np.sum(~is_known)),
    )


def _number_instances(
    labels: IntArray, instances: IntArray, things: tuple[int, ...]
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Number the instances of some classes from 1, by class and then by their own number.

    Returns:
        The number of each vertex, (V,), 0 for void; and of each instance its class, its own number,
        and its size, (G,) each.
    """
    has_number = instances >= 0
    is_instance = np.isin(labels, things) & has_number
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
    masks = np.asarray(prediction.masks)
    scores = np.asarray(prediction.scores)
    shape = (len(labels), vertex_count)
    if len(labels) == 0 and masks.size == 0:
        # Nothing was predicted. An array of an empty list has no columns.
        masks = np.zeros(shape, np.bool_)
    if masks.shape != shape or masks.dtype.kind not in "biuf":
        found = describe_array(masks)
        rows = "a row for each label, a column for each vertex"
        raise ContentError(f"masks: found {found}, expected {shape}: {rows}")
    is_inside = masks.astype(np.bool_, copy=False)
    if masks.dtype != np.bool_ and not np.array_equal(masks, is_inside):
        least = masks.min()
        largest = masks.max()
        raise ContentError(
            f"masks: found {masks.dtype} from {least:g} to {largest:g}, "
            "expected bool, or only 0 and 1",
            "compare with a threshold first: masks > 0.5 for probabilities, masks > 0 for logits",
        )
    has_shape = scores.shape == labels.shape
    is_number = scores.dtype.kind in "iuf"
    if not (has_shape and is_number and np.isfinite(scores).all()):
        found = describe_array(scores)
        raise ContentError(f"scores: found {found}, expected {len(labels)} finite numbers")
    return is_inside, labels, scores.astype(np.float64)
