"""Check that predicted ids have the numbering that their files should have.

If ids of one numbering are read as another one, most of them are still valid classes, and the
result is silently wrong. The evidence, in this order:

    ids that are none of the classes            an error with their number
    the ground truth, if there is one           another numbering agrees far better: an error
    what no network of the task predicts        walls and floors among instances: an error
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.text import list_some
from scannet_prep.errors import FileError
from scannet_prep.evaluation.instance import counted_classes
from scannet_prep.predictions.numberings import (
    UNLABELED_IDS,
    Numbering,
    declared_numbering,
    list_numberings,
    to_scannet20,
)
from scannet_prep.predictions.reader import Task
from scannet_prep.release.label_sets import LabelSet

# Ids are counted from the first to the last of these; all others are counted as one of the two.
_FIRST_ID = -2
_LAST_ID = 1500
# Another numbering agrees far better with the ground truth if it raises the share of predictions
# that agree by more than this,
_MIN_GAIN = 0.2
# and the mean share over the classes by more than this factor, so that a few frequent classes do
# not decide.
_MIN_RECALL_FACTOR = 2
# With fewer classes, agreement is no evidence: predicting a single class everywhere may agree by
# chance.
_MIN_CLASSES = 3
# Share of the predicted instances that may be walls or floors.
_MAX_SHARE_OF_WALLS = 0.01
# The ids are those of another label set if they include this share of its classes, and no others.
_MIN_SHARE_OF_CLASSES = 0.5
# Share of the vertices that may be predicted as unlabeled.
_MAX_UNLABELED_SHARE = 0.01
_MAX_LISTED_IDS = 5
_VERTEX_STEP = 8


class Agreement(NamedTuple):
    """How well predictions agree with the ground truth.

    Attributes:
        share: The share of the predictions that agree.
        recall: The mean of this share over the classes of the ground truth.
        classes: The number of classes of the ground truth of which a prediction agrees.
    """

    share: float
    recall: float
    classes: int


class IdCounts:
    """How often each id occurs in prediction files, by class of the ground truth.

    Args:
        label_set: The label set of the ground truth and of the predictions.

    Attributes:
        counts: Vertices or predicted instances, int64 (K + 1, ids). The last row is for those
            without a class in the ground truth.
    """

    def __init__(self, label_set: LabelSet) -> None:
        self.label_set = label_set
        self.counts = np.zeros((len(label_set) + 1, _LAST_ID - _FIRST_ID + 1), np.int64)

    def add(self, ids: NDArray[np.int64], true_labels: NDArray[np.int64] | None = None) -> None:
        """Count the ids of a scene.

        Args:
            ids: The ids as in the file, of each vertex or predicted instance, (N,).
            true_labels: The train id of each in the ground truth; negative for none. None without
                ground truth.
        """
        row_count, column_count = self.counts.shape
        rows = np.full(len(ids), row_count - 1)
        if true_labels is not None:
            is_class = (true_labels >= 0) & (true_labels < row_count - 1)
            rows = np.where(is_class, true_labels, row_count - 1)
        columns = np.clip(ids, _FIRST_ID, _LAST_ID) - _FIRST_ID
        cells = np.bincount(rows * column_count + columns, minlength=self.counts.size)
        self.counts += cells.reshape(self.counts.shape)

    def by_id(self, *, labeled_only: bool = False) -> dict[int, int]:
        """Count the ids that occur, the most frequent first."""
        totals = (self.counts[:-1] if labeled_only else self.counts).sum(axis=0)
        order = np.argsort(-totals, kind="stable")[: np.count_nonzero(totals)]
        return dict(zip((order + _FIRST_ID).tolist(), totals[order].tolist(), strict=True))

    def measure_agreement(self, numbering: Numbering) -> Agreement:
        """Measure how well the ids agree with the ground truth if they have a numbering.

        Label sets are compared by the nyu40 ids of their classes: ScanNet20's chair agrees with
        ScanNet200's armchair.

        """
        truth = np.arange(len(self.label_set))
        predicted = numbering.find_classes(np.arange(_FIRST_ID, _LAST_ID + 1))
        if numbering.label_set != self.label_set:
            truth = to_scannet20(self.label_set)
            classes = to_scannet20(numbering.label_set)[predicted]
            predicted = np.where(predicted >= 0, classes, -1)
        agrees = (truth[:, None] == predicted) & (predicted >= 0)
        counts = self.counts[:-1]
        hits = (counts * agrees).sum(axis=1)
        totals = counts.sum(axis=1)
        is_present = totals > 0
        return Agreement(
            share=float(hits.sum() / totals.sum()),
            recall=float(np.mean(hits[is_present] / totals[is_present])),
            classes=int(np.count_nonzero(hits)),
        )


def find_mask_classes(
    masks: NDArray[np.bool_], true_labels: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Find the most frequent class of the ground truth in each mask, int64 (M,); -1 for none.

    Args:
        masks: bool (M, V).
        true_labels: Integers (V,), train ids; negative for none.
    """
    # Every eighth vertex is enough.
    labels = true_labels[::_VERTEX_STEP]
    classes = np.full(len(masks), -1, np.int64)
    for row, mask in enumerate(masks[:, ::_VERTEX_STEP]):
        labels_in_mask = labels[mask]
        labels_in_mask = labels_in_mask[labels_in_mask >= 0]
        if len(labels_in_mask):
            classes[row] = np.bincount(labels_in_mask).argmax()
    return classes


def check_predicted_ids(
    counts: IdCounts,
    folder: Path,
    task: Task,
    *,
    is_raw: bool,
    has_truth: bool,
    is_submission: bool = False,
    is_forced: bool = False,
) -> str:
    """Check the ids of all predictions after the files have been read.

    Args:
        counts: The ids.
        folder: The folder of the predictions, for messages.
        task: The task.
        is_raw: Whether the files hold raw ids instead of train ids.
        has_truth: Whether the ids were counted by class of the ground truth.
        is_submission: Whether these are all predictions of a split: then the ids that occur are
            evidence without ground truth, and vertices need a class.
        is_forced: Return a warning instead of raising an error.

    Returns:
        A warning about ids that are accepted but look wrong; empty if there is none.

    Raises:
        FileError: Ids are none of the classes, or have another numbering or label set.
    """
    declared = declared_numbering(counts.label_set, is_raw=is_raw)
    others = [each for each in list_numberings(counts.label_set, task) if each != declared]
    noun = "vertices" if task == "semantic" else "predicted instances"
    if has_truth and task == "semantic":
        noun = "labeled vertices"
    id_counts = counts.by_id(labeled_only=noun == "labeled vertices")
    total = sum(id_counts.values())
    unlabeled = _sum(id_counts, UNLABELED_IDS - set(declared.ids))
    unknown_ids = id_counts.keys() - set(declared.ids) - UNLABELED_IDS
    unknown = _sum(id_counts, unknown_ids)

    problems = []
    if unknown:
        problems.append(
            f"{unknown:,} of {total:,} {noun} have ids that are none of the classes of "
            f"{declared}: {_list_ids(unknown_ids)}"
        )
    is_incomplete = is_submission and unlabeled > _MAX_UNLABELED_SHARE * total
    if is_incomplete and task == "semantic":
        problems.append(f"{unlabeled:,} of {total:,} {noun} are unlabeled")
    actual = None
    evidence = ""
    if has_truth:
        actual, evidence = _find_by_truth(counts, declared, others)
    elif is_submission:
        actual, evidence = _find_by_ids(counts, declared, others, task)
    if evidence:
        problems.append(evidence)
    if not problems:
        return _describe_doubts(id_counts, declared, noun, unlabeled)

    problem = "; ".join(problems)
    if is_forced:
        return problem
    raise FileError(folder, problem, _choose_hint(actual, declared, has_truth=has_truth))


def _choose_hint(actual: Numbering | None, declared: Numbering, *, has_truth: bool) -> str:
    hint = "check which ids the predictions contain"
    if actual is not None:
        hint = actual.describe_remedy(declared)
    if has_truth:
        return hint
    return f"{hint}; `scannet-prep evaluate`, with predictions of val, finds the numbering"


def _find_by_truth(
    counts: IdCounts, declared: Numbering, others: list[Numbering]
) -> tuple[Numbering | None, str]:
    """Find the numbering that agrees best with the ground truth.

    Returns:
        The numbering, and the evidence for it; None and an empty text if the declared one agrees
        best, or not clearly worse.
    """
    if not counts.counts[:-1].any():
        return None, ""
    found = counts.measure_agreement(declared)
    best = max(others, key=counts.measure_agreement)
    expected = counts.measure_agreement(best)
    has_gain = expected.share > found.share + _MIN_GAIN
    is_clear = has_gain and expected.recall > _MIN_RECALL_FACTOR * found.recall
    # Ids that are none of the classes are evidence, too.
    has_unknown = bool(counts.by_id(labeled_only=True).keys() - set(declared.ids) - UNLABELED_IDS)
    is_better = is_clear or (has_unknown and expected.share > found.share)
    if not is_better or expected.classes < _MIN_CLASSES:
        return None, ""
    return best, (
        f"read as {declared}, {found.share:.1%} agree with the ground truth, "
        f"but {expected.share:.1%} as {best}"
    )


def _find_by_ids(
    counts: IdCounts, declared: Numbering, others: list[Numbering], task: Task
) -> tuple[Numbering | None, str]:
    """Find a numbering that explains ids which a network of the task cannot have predicted.

    The result is that of `_find_by_truth`, but there may be evidence without a numbering.
    """
    id_counts = counts.by_id()
    total = sum(id_counts.values())
    ids_text = f"the ids of {total:,} predictions ({_list_ids(id_counts)})"

    def count_strays(numbering: Numbering) -> int:
        possible_ids = _list_possible_ids(numbering, task)
        possible_ids |= UNLABELED_IDS - set(numbering.ids)
        return _sum(id_counts, id_counts.keys() - possible_ids)

    def count_missing(numbering: Numbering) -> int:
        return len(_list_possible_ids(numbering, task) - id_counts.keys())

    # Of the numberings that explain all ids, the one most of whose classes occur.
    fitting = [other for other in others if count_strays(other) == 0]
    best = min(fitting, key=count_missing, default=None)
    unknown = _sum(id_counts, id_counts.keys() - set(declared.ids) - UNLABELED_IDS)
    walls = count_strays(declared) - unknown
    evidence = []
    if walls > _MAX_SHARE_OF_WALLS * total:
        evidence.append(
            f"{walls:,} of {total:,} predicted instances are walls or floors, "
            "which no instance network predicts"
        )
    if best is not None and (evidence or unknown):
        evidence.append(f"{ids_text} are probably {best}, not {declared}")
    if evidence or unknown:
        return best, "; ".join(evidence)

    # A network of ScanNet20, whose ids are read as those of ScanNet200.
    for other in fitting:
        class_count = len(_list_possible_ids(other, task))
        occurring = class_count - count_missing(other)
        has_fewer = len(other.label_set) < len(declared.label_set)
        if has_fewer and occurring >= _MIN_SHARE_OF_CLASSES * class_count:
            return other, f"{ids_text} are probably {other}, not {declared}"
    return None, ""


def _list_possible_ids(numbering: Numbering, task: Task) -> set[int]:
    """List the ids that a network of the task predicts: instances are no walls and no floors."""
    pairs = zip(numbering.classes, numbering.ids, strict=True)
    counted = set(counted_classes(numbering.label_set))
    return {number for train_id, number in pairs if task == "semantic" or train_id in counted}


def _describe_doubts(
    id_counts: Mapping[int, int], declared: Numbering, noun: str, unlabeled: int
) -> str:
    """Describe what is unusual about accepted ids; empty if nothing is."""
    if noun == "predicted instances":
        return ""
    total = sum(id_counts.values())
    if unlabeled > (_MAX_UNLABELED_SHARE * total if noun == "labeled vertices" else 0):
        share = f"{unlabeled:,} of {total:,} {noun} ({unlabeled / total:.1%})"
        return f"{share} are predicted as unlabeled: they are misses"
    wall = declared.ids[0]
    if noun == "vertices" and wall not in id_counts:
        return f"no vertex of any scene is predicted as wall ({declared}: {wall})"
    return ""


def _sum(id_counts: Mapping[int, int], ids: Collection[int]) -> int:
    return sum(id_counts.get(number, 0) for number in ids)


def _list_ids(ids: Collection[int]) -> str:
    """List the first few ids, for messages."""
    return list_some([str(number) for number in sorted(ids)], _MAX_LISTED_IDS)
