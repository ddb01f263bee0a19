"""Check that predicted ids have the numbering that their files should have.

If ids of one numbering are read as another one, most of them are still valid classes, and the
result is silently wrong. The evidence:

    ids that are none of the classes            always an error, with their number
    with ground truth                           another numbering agrees far better
    all predictions of a split, without it      what no network of the task predicts: walls and
                                                floors among instances, and no wall at all
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError
from scannet_prep.evaluation.scores import BoolArray, FloatArray, IntArray
from scannet_prep.predictions.numberings import (
    FIRST_ID,
    LAST_ID,
    Numbering,
    list_numberings,
    to_scannet20,
)
from scannet_prep.predictions.reader import Predictions

# Another numbering agrees far better with the ground truth if it raises the mean recall of the
# classes by more than this,
_MIN_GAIN = 0.1
# and if so many classes agree: predicting a single class everywhere may agree by chance.
_MIN_CLASSES = 3
# Without ground truth, ids have a numbering if they are all in it, and at most this share of its
# classes is missing.
_MAX_MISSING_SHARE = 0.5
# Share of the submitted vertices that may be predicted as unlabeled.
_MAX_UNLABELED_SHARE = 0.01
_MAX_LISTED_IDS = 5
_VERTEX_STEP = 8
_HINT_UNKNOWN = "check which ids the predictions contain"
_HINT_EVALUATE = "`scannet-prep evaluate`, with predictions of val, finds the numbering"


class IdCounts:
    """Counts of the ids in prediction files, by class of the ground truth.

    Args:
        predictions: The predictions. Their label set is that of the ground truth, too.

    Attributes:
        counts: Vertices or predicted instances, int64 (K + 1, ids). The last row is for those
            without a class in the ground truth.
    """

    def __init__(self, predictions: Predictions) -> None:
        self._task = predictions.task
        self._label_set = predictions.label_set
        self._declared = predictions.numbering
        row_count = len(self._label_set) + 1
        column_count = LAST_ID - FIRST_ID + 1
        self.counts = np.zeros((row_count, column_count), np.int64)

    def add(
        self,
        ids: IntArray,
        prediction: Any,  # noqa: ANN401 - by task, see `Predictions.read`
        true_labels: NDArray[np.integer] | None = None,
    ) -> None:
        """Count the ids of a scene.

        Args:
            ids: The ids as in the file, of each vertex or predicted instance, (N,).
            prediction: The prediction.
            true_labels: Integers (V,), train ids in the ground truth; -1 for none. None without
                ground truth.
        """
        rows = np.full(len(ids), -1)
        if true_labels is not None and self._task == "semantic":
            rows = true_labels
        elif true_labels is not None:
            rows = _find_mask_classes(prediction.masks, true_labels)
        row_count, column_count = self.counts.shape
        # Row -1 is the last one.
        cells = rows % row_count
        cells *= column_count
        cells += np.clip(ids, FIRST_ID, LAST_ID)
        cells -= FIRST_ID
        counts = np.bincount(cells, minlength=self.counts.size)
        self.counts += counts.reshape(self.counts.shape)

    def check(self, place: Path, *, is_submission: bool = False, is_forced: bool = False) -> str:
        """Check the ids of all predictions after the files have been read.

        Args:
            place: The folder or file of the predictions, for messages.
            is_submission: Whether these are all predictions of a split, without ground truth.
            is_forced: Return a warning instead of raising an error.

        Returns:
            What looks wrong, if it is accepted; empty if nothing does.

        Raises:
            FileError: Ids are none of the classes, or have another numbering or label set.
        """
        declared = self._declared
        counts = self.counts
        has_truth = bool(counts[:-1].any())
        if has_truth and self._task == "semantic":
            # Vertices without a class in the ground truth do not count.
            counts = counts[:-1]
        id_counts = _count(counts)
        possible_ids = set(declared.train_ids)
        if is_submission:
            possible_ids = declared.ids_of(self._task)
        possible_ids |= declared.unlabeled_ids
        problems = []
        strays = id_counts.keys() - possible_ids
        if strays:
            problems.append(
                f"{_share(id_counts, strays)} predicted ids are not classes that networks for "
                f"{self._task} segmentation predict ({declared.name}): {_list_ids(strays)}"
            )
        actual = None
        if has_truth:
            actual = self._find_by_truth(problems)
        elif is_submission:
            actual = self._find_by_ids(id_counts, problems)
        problem = "; ".join(problems)
        if not problem or is_forced:
            return problem
        hint = _HINT_UNKNOWN
        if actual is not None:
            hint = actual.describe_remedy(declared)
        if not has_truth:
            hint = f"{hint}; {_HINT_EVALUATE}"
        raise FileError(place, problem, hint)

    def _find_by_truth(self, problems: list[str]) -> Numbering | None:
        """Find the numbering that agrees best with the ground truth.

        Args:
            problems: What shows already that the declared numbering is wrong; extended.

        Returns:
            The numbering; None if the declared one agrees best, or not clearly worse.
        """
        best = self._declared
        found = highest = self._measure_recalls(best).mean()
        for numbering in list_numberings(self._label_set, self._task):
            recalls = self._measure_recalls(numbering)
            recall = recalls.mean()
            if recall > highest and np.count_nonzero(recalls) >= _MIN_CLASSES:
                best = numbering
                highest = recall
        if highest <= found + _MIN_GAIN:
            return None
        problems.append(
            f"read as {self._declared.name}, {found:.1%} of each class agree with the ground truth "
            f"on average, but {highest:.1%} as {best.name}"
        )
        return best

    def _measure_recalls(self, numbering: Numbering) -> FloatArray:
        """Measure how much of each class in the ground truth a numbering makes right, from 0 to 1.

        Label sets are compared by the nyu40 ids of their classes: ScanNet20's chair agrees with
        ScanNet200's armchair.
        """
        class_count = len(self._label_set)
        truth = np.arange(class_count)
        all_ids = np.arange(FIRST_ID, LAST_ID + 1)
        predicted = numbering.find_classes(all_ids)
        if numbering.label_set != self._label_set:
            truth = to_scannet20(self._label_set)
            # The last entry is for -1.
            classes = np.append(to_scannet20(numbering.label_set), -1)
            predicted = classes[predicted]
        is_equal = truth[:, None] == predicted
        has_class = predicted >= 0
        agrees = is_equal & has_class
        counts = self.counts[:-1]
        totals = counts.sum(axis=1)
        hits = np.sum(counts, axis=1, where=agrees)
        is_present = totals > 0
        recalls = hits[is_present] / totals[is_present]
        return np.asarray(recalls)

    def _find_by_ids(self, id_counts: Counter[int], problems: list[str]) -> Numbering | None:
        """Find the numbering that explains all ids, and most of whose classes occur.

        Args:
            id_counts: The ids.
            problems: As for `_find_by_truth`.

        Returns:
            The numbering; None if nothing else explains the ids better than the declared one.
        """
        declared = self._declared
        if self._task == "semantic":
            unlabeled_ids = declared.unlabeled_ids
            unlabeled = sum(id_counts[number] for number in unlabeled_ids)
            if unlabeled > _MAX_UNLABELED_SHARE * id_counts.total():
                share = _share(id_counts, unlabeled_ids)
                problems.append(f"{share} vertices are unlabeled")
            wall, *_ = declared.train_ids
            if wall not in id_counts:
                problems.append(f"no vertex is predicted as wall ({declared.name})")
        best = declared
        least_missing = _MAX_MISSING_SHARE
        others = list_numberings(self._label_set, self._task)
        for numbering in [declared, *others]:
            ids = numbering.ids_of(self._task)
            missing_ids = ids - id_counts.keys()
            missing = len(missing_ids) / len(ids)
            impossible_ids = id_counts.keys() - ids
            impossible_ids -= numbering.unlabeled_ids
            if missing < least_missing and not impossible_ids:
                best = numbering
                least_missing = missing
        # A network of ScanNet20, whose ids are read as those of ScanNet200.
        is_smaller = len(best.label_set) < len(self._label_set)
        if best == declared or not (problems or is_smaller):
            return None
        problems.append(f"the ids ({_list_ids(id_counts)}) are probably {best.name}")
        return best


def _count(counts: IntArray) -> Counter[int]:
    """Count the ids that occur."""
    id_counts: Counter[int] = Counter()
    totals = counts.sum(axis=0)
    counted = enumerate(totals.tolist(), FIRST_ID)
    for number, count in counted:
        if count:
            id_counts[number] = count
    return id_counts


def _find_mask_classes(masks: BoolArray, true_labels: NDArray[np.integer]) -> IntArray:
    """Find the most frequent class of the ground truth in each mask, int64 (M,); -1 for none.

    Args:
        masks: bool (M, V).
        true_labels: Integers (V,), train ids; negative for none.
    """
    # Every eighth vertex is enough.
    labels = true_labels[::_VERTEX_STEP]
    has_label = labels >= 0
    classes = []
    for mask in masks[:, ::_VERTEX_STEP]:
        labels_in_mask = labels[mask & has_label]
        counts = np.bincount(labels_in_mask, minlength=1)
        classes.append(counts.argmax() if counts.any() else -1)
    return np.array(classes, np.int64)


def _share(id_counts: Counter[int], ids: Collection[int]) -> str:
    count = sum(id_counts[number] for number in ids)
    total = id_counts.total()
    return f"{count:,} of {total:,}"


def _list_ids(ids: Collection[int]) -> str:
    """List the first few ids, for messages."""
    names = map(str, sorted(ids))
    return list_some(list(names), _MAX_LISTED_IDS)
