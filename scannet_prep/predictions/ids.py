"""Check that predicted ids have the numbering that their files should have.

If ids of one numbering are read as another one, most of them are still valid classes, and the
result is silently wrong. The evidence:

    ids that are none of the classes            always an error, with their number
    with ground truth                           another numbering agrees far better
    all predictions of a split, without it      what no network of the task predicts: walls and
                                                floors among instances, and no wall at all
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError
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
    """How often each id occurs in prediction files, by class of the ground truth.

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
        self.counts = np.zeros((len(self._label_set) + 1, LAST_ID - FIRST_ID + 1), np.int64)

    def add(
        self,
        ids: NDArray[np.int64],
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
        columns = np.clip(ids, FIRST_ID, LAST_ID) - FIRST_ID
        # Row -1 is the last one.
        cells = np.bincount(rows % row_count * column_count + columns, minlength=self.counts.size)
        self.counts += cells.reshape(self.counts.shape)

    def find_unknown(self) -> dict[int, int]:
        """Count the ids that are none of the classes, in ascending order."""
        return _without(_count(self.counts), self._declared.train_ids)

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
        has_truth = bool(self.counts[:-1].any())
        # Vertices without a class in the ground truth do not count.
        is_partial = has_truth and self._task == "semantic"
        id_counts = _count(self.counts[:-1] if is_partial else self.counts)
        possible_ids = self._declared.ids_of(self._task if is_submission else "semantic")
        strays = _without(id_counts, possible_ids | self._declared.unlabeled_ids)
        problems = []
        if strays:
            problems.append(
                f"{_share(strays, id_counts)} predicted ids are no class that networks for "
                f"{self._task} segmentation predict ({self._declared.name}): {_list_ids(strays)}"
            )
        actual = None
        if has_truth:
            actual = self._find_by_truth(problems)
        elif is_submission:
            actual = self._find_by_ids(id_counts, problems)
        problem = "; ".join(problems)
        if not problem or is_forced:
            return problem
        hint = _HINT_UNKNOWN if actual is None else actual.describe_remedy(self._declared)
        raise FileError(place, problem, hint if has_truth else f"{hint}; {_HINT_EVALUATE}")

    def _find_by_truth(self, problems: list[str]) -> Numbering | None:
        """Find the numbering that agrees best with the ground truth.

        Args:
            problems: What shows already that the declared numbering is wrong; extended.

        Returns:
            The numbering; None if the declared one agrees best, or not clearly worse.
        """
        numberings = list_numberings(self._label_set, self._task)
        best = max(numberings, key=lambda each: self._measure_recalls(each).mean())
        recalls = self._measure_recalls(best)
        found = self._measure_recalls(self._declared).mean()
        # Ids that are no class are evidence by themselves.
        least_gain = 0.0 if problems else _MIN_GAIN
        if recalls.mean() <= found + least_gain or np.count_nonzero(recalls) < _MIN_CLASSES:
            return None
        problems.append(
            f"read as {self._declared.name}, {found:.1%} of a class agree with the ground truth "
            f"on average, but {recalls.mean():.1%} as {best.name}"
        )
        return best

    def _measure_recalls(self, numbering: Numbering) -> NDArray[np.float64]:
        """Measure how much of each class in the ground truth a numbering makes right, from 0 to 1.

        Label sets are compared by the nyu40 ids of their classes: ScanNet20's chair agrees with
        ScanNet200's armchair.
        """
        truth = np.arange(len(self._label_set))
        predicted = numbering.find_classes(np.arange(FIRST_ID, LAST_ID + 1))
        if numbering.label_set != self._label_set:
            truth = to_scannet20(self._label_set)
            predicted = np.append(to_scannet20(numbering.label_set), -1)[predicted]
        agrees = (truth[:, None] == predicted) & (predicted >= 0)
        counts = self.counts[:-1]
        totals = counts.sum(axis=1)
        hits = (counts * agrees).sum(axis=1)
        return np.asarray(hits[totals > 0] / totals[totals > 0])

    def _find_by_ids(self, id_counts: Mapping[int, int], problems: list[str]) -> Numbering | None:
        """Find the numbering that explains all ids, and most of whose classes occur.

        Args:
            id_counts: The ids.
            problems: As for `_find_by_truth`.

        Returns:
            The numbering; None if there is none, or if the declared one explains the ids as well.
        """
        declared = self._declared
        if self._task == "semantic":
            unlabeled = _without(id_counts, id_counts.keys() - declared.unlabeled_ids)
            if sum(unlabeled.values()) > _MAX_UNLABELED_SHARE * sum(id_counts.values()):
                problems.append(f"{_share(unlabeled, id_counts)} vertices are unlabeled")
            if next(iter(declared.train_ids)) not in id_counts:
                problems.append(f"no vertex is predicted as wall ({declared.name})")
        best = declared
        least_missing = _MAX_MISSING_SHARE
        for numbering in [declared, *list_numberings(self._label_set, self._task)]:
            ids = numbering.ids_of(self._task)
            missing = len(ids - id_counts.keys()) / len(ids)
            is_fitting = id_counts.keys() <= ids | numbering.unlabeled_ids
            if is_fitting and missing < least_missing:
                best = numbering
                least_missing = missing
        # A network of ScanNet20, whose ids are read as those of ScanNet200.
        is_smaller = len(best.label_set) < len(self._label_set)
        if best == declared or not (problems or is_smaller):
            return None
        problems.append(f"the ids ({_list_ids(id_counts)}) are probably {best.name}")
        return best


def _count(counts: NDArray[np.int64]) -> dict[int, int]:
    """Count the ids that occur, in ascending order."""
    totals = counts.sum(axis=0).tolist()
    return {number: total for number, total in enumerate(totals, FIRST_ID) if total}


def _without(id_counts: Mapping[int, int], ids: Collection[int]) -> dict[int, int]:
    return {number: count for number, count in id_counts.items() if number not in ids}


def _find_mask_classes(
    masks: NDArray[np.bool_], true_labels: NDArray[np.integer]
) -> NDArray[np.int64]:
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
        counts = np.bincount(labels[mask & has_label])
        classes.append(counts.argmax() if len(counts) else -1)
    return np.array(classes, np.int64)


def _share(part: Mapping[int, int], id_counts: Mapping[int, int]) -> str:
    return f"{sum(part.values()):,} of {sum(id_counts.values()):,}"


def _list_ids(ids: Collection[int]) -> str:
    """List the first few ids, for messages."""
    return list_some([str(number) for number in sorted(ids)], _MAX_LISTED_IDS)
