"""Check that predicted ids are read as they were written: in the right label set and numbering.

Files hold train ids or raw ids, of ScanNet20 or ScanNet200, and by mistake train ids that count from 1. Read in another
way than they were written, most of these ids are classes all the same, and the result is silently wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import FileError
from scannet_prep.evaluation.instance import NO_INSTANCES
from scannet_prep.predictions.reader import Predictions
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet

MAX_UNKNOWN_SHARE = 0.01
"""Share of the predictions that may be none of the classes."""

# Another kind of ids is taken for the right one if this much more of the predictions agree with the ground truth.
_MORE_AGREEMENT = 0.2
# With fewer classes in the ground truth, a prediction of one class for everything could agree by chance.
_MIN_TRUE_CLASSES = 3
# If more than this agrees with the ground truth, the ids that occur are no reason for doubt.
_GOOD_AGREEMENT = 0.5
# If this share of another label set's classes is predicted in the test scenes, and nothing else, the ids are its ids.
_MIN_SHARE_OF_SET = 0.5
# Ids that stand for unlabeled. Among train ids, 0 is a class, and never unknown.
_UNLABELED_IDS = frozenset({-1, 0, 255})
_SHOWN_IDS = 5

Numbering: TypeAlias = Literal["train", "train + 1", "train - 1", "raw"]
_FIRST_IDS = {"train": 0, "train + 1": 1, "train - 1": -1}


@dataclass(frozen=True, slots=True)
class IdKind:
    """A kind of ids that a file may hold.

    Attributes:
        label_set: The label set that the ids belong to.
        numbering: `train` for train ids, `train + 1` and `train - 1` for train ids that count from 1 and from -1, `raw`
            for raw ids.
    """

    label_set: LabelSet
    numbering: Numbering

    @property
    def ids(self) -> tuple[int, ...]:
        """The id that a file holds for each class, in the order of the train ids."""
        if self.numbering == "raw":
            return self.label_set.ids
        first = _FIRST_IDS[self.numbering]
        return tuple(range(first, first + len(self.label_set)))

    def __str__(self) -> str:
        """Name the kind of ids, for messages."""
        if self.numbering != "raw":
            return f"{self.label_set.name} {self.numbering.replace('train', 'train ids')}"
        return "nyu40 ids" if self.label_set == SCANNET20 else "ScanNet ids"

    def describe_remedy(self, declared: IdKind) -> str:
        """Describe what to do if ids are meant in this way and are read as `declared`."""
        steps = []
        if self.numbering == "train + 1":
            steps.append("subtract 1 from the ids, so that wall is 0")
        if self.numbering == "train - 1":
            steps.append("add 1 to the ids, so that wall is 0")
        if declared.numbering == "raw" and self.numbering != "raw":
            steps.append(
                "save train ids as .npy (instances: .npz), because .txt files hold raw ids"
            )
        if declared.numbering != "raw" and self.numbering == "raw":
            steps.append("save raw ids as .txt, because arrays hold train ids")
        if self.label_set != declared.label_set:
            steps.append(f"pass --labels {self.label_set.name.lower()}")
        return ", and ".join(steps)


def check_predicted_ids(
    predictions: Predictions, confusion: NDArray[np.int64] | None = None, *, is_forced: bool = False
) -> str:
    """Check the ids of all predictions, after they were read.

    Args:
        predictions: The predictions, all of them read.
        confusion: int64 (K, K + 1), vertices or predicted instances by class of the ground truth and by predicted
            class; the last column is for predictions that are none of the classes. None without ground truth.
        is_forced: Accept ids that look wrong.

    Returns:
        A warning about ids that are accepted but look wrong; empty if there is none.

    Raises:
        FileError: More than 1 % of the predictions are none of the classes, or the ids belong to another label
            set or numbering.
    """
    declared = _find_declared(predictions)
    unknown = _describe_unknown(predictions, confusion)
    meant, evidence = None, ""
    if declared is not None:
        meant, evidence = _find_meant(predictions, declared, confusion, has_unknown=bool(unknown))
    if meant is None and not unknown:
        return _describe_doubts(predictions, confusion)
    problem = "; ".join(filter(None, (unknown, evidence)))
    if is_forced:
        return problem
    if meant is not None and declared is not None:
        remedy = meant.describe_remedy(declared)
    elif set(predictions.unknown_ids) <= _UNLABELED_IDS:
        remedy = "predict a class for every vertex (train ids begin with 0), because the others count as misses"
    else:
        remedy = "check which ids the predictions hold"
    raise FileError(
        predictions.folder, problem, f"{remedy}; or pass --force to take the ids as they are"
    )


def _find_declared(predictions: Predictions) -> IdKind | None:
    """Find how the files are read; None if some hold raw ids and others train ids."""
    names = [name for dataset in predictions.datasets for name in dataset.scene_ids]
    raw_count = sum(predictions.has_raw_ids(name) for name in names)
    if raw_count == 0:
        return IdKind(predictions.label_set, "train")
    if raw_count == len(names):
        return IdKind(predictions.label_set, "raw")
    return None


def _describe_unknown(predictions: Predictions, confusion: NDArray[np.int64] | None) -> str:
    """Describe predictions that are none of the classes; empty if they are no more than 1 %."""
    unknown_ids = dict(predictions.unknown_ids.most_common())
    is_submission = confusion is None and predictions.task == "semantic"
    # With ground truth, unlabeled predictions are honest misses; and masks of no class are not submitted.
    if not is_submission:
        unknown_ids = {
            number: count for number, count in unknown_ids.items() if number not in _UNLABELED_IDS
        }
    unknown_count = sum(unknown_ids.values())
    total = predictions.unknown_ids.total() + predictions.class_counts.total()
    noun = _noun(predictions)
    if confusion is not None and predictions.task == "semantic":
        # Only vertices that have a class count: elsewhere, programs copy ids of the ground truth, such as K.
        unknown_count = min(unknown_count, int(confusion[:, -1].sum()))
        total = int(confusion.sum())
        noun = "labeled vertices"
    if unknown_count <= MAX_UNKNOWN_SHARE * total:
        return ""
    counted = f"{unknown_count:,} of {total:,} {noun} ({unknown_count / total:.1%})"
    ids = _list_ids(list(unknown_ids))
    return f"{counted} have ids that are none of the classes of {predictions.label_set.name}: {ids}"


def _describe_doubts(predictions: Predictions, confusion: NDArray[np.int64] | None) -> str:
    """Describe what is unusual in ids that are accepted; empty if nothing is."""
    if predictions.task == "instance":
        return ""
    if confusion is None:
        if predictions.class_counts[0]:
            return ""
        return "no vertex of any scene is predicted as wall (train id 0); if the ids count from 1, subtract 1"
    missed = int(confusion[:, -1].sum())
    total = int(confusion.sum())
    if missed <= MAX_UNKNOWN_SHARE * total:
        return ""
    return f"{missed:,} of {total:,} labeled vertices ({missed / total:.1%}) are predicted as unlabeled: they are misses"


def _find_meant(
    predictions: Predictions,
    declared: IdKind,
    confusion: NDArray[np.int64] | None,
    *,
    has_unknown: bool,
) -> tuple[IdKind | None, str]:
    """Find another way in which the ids are probably meant, and the evidence for it; None if there is none."""
    id_counts = _count_ids(predictions, declared)
    noun = _noun(predictions)
    ids_as_words = f"the ids of {sum(id_counts.values()):,} {noun} ({_list_ids(sorted(id_counts))})"
    if has_unknown:
        meant = _explain_unknown(id_counts, declared, has_wall=predictions.task == "semantic")
        if meant is not None:
            return meant, f"{ids_as_words} are probably {meant}, not {declared}"
    if confusion is not None and np.count_nonzero(confusion.sum(axis=1)) >= _MIN_TRUE_CLASSES:
        plain, plain_recall = _measure_agreement(confusion, declared, declared)
        agreements = {
            other: _measure_agreement(confusion, declared, other)
            for other in _list_others(declared)
        }
        best = max(agreements, key=lambda other: agreements[other])
        agreement, recall = agreements[best]
        if agreement > plain + _MORE_AGREEMENT and recall > 2 * plain_recall:
            as_read = f"read as {declared}, {plain:.1%} agree with the ground truth"
            return best, f"{as_read}, but {agreement:.1%} if they are {best}"
        # Ground truth that agrees with the ids is better evidence than the ids that occur.
        if plain > _GOOD_AGREEMENT:
            return None, ""
    for other in _list_others(declared):
        problem = f"{ids_as_words} are probably {other}, not {declared}"
        if confusion is None and _is_other_set(predictions, id_counts, declared, other):
            return other, problem
        if _is_shifted(id_counts, declared, other):
            largest_id = max(id_counts)
            return other, f"{problem}: none is 0, and {id_counts[largest_id]:,} are {largest_id}"
    return None, ""


def _list_others(declared: IdKind) -> list[IdKind]:
    """List the other kinds of ids, those of the same label set first."""
    label_sets = [
        declared.label_set,
        *(item for item in (SCANNET20, SCANNET200) if item != declared.label_set),
    ]
    numberings: tuple[Numbering, ...] = ("train", "train + 1", "train - 1", "raw")
    kinds = [IdKind(label_set, numbering) for label_set in label_sets for numbering in numberings]
    return [kind for kind in kinds if kind != declared]


def _measure_agreement(
    confusion: NDArray[np.int64], declared: IdKind, other: IdKind
) -> tuple[float, float]:
    """Measure how well predictions agree with the ground truth if their ids are read in another way.

    Label sets are compared by the nyu40 ids of their classes, so that ScanNet20's chair is also an armchair.

    Returns:
        The share of the predictions that agree; and the mean of this share over the classes of the ground truth.
    """
    classes_by_id = {number: train_id for train_id, number in enumerate(other.ids)}
    predicted = np.array(
        [classes_by_id.get(number, -1) for number in declared.ids]
    )  # (K,), by train id as read
    truth = np.arange(len(declared.ids))
    if other.label_set != declared.label_set:
        truth = _to_scannet20(declared.label_set)
        predicted = np.append(_to_scannet20(other.label_set), -1)[predicted]
    agrees = (truth[:, None] == predicted) & (predicted >= 0)  # (K, K)
    hits = (confusion[:, :-1] * agrees).sum(axis=1)
    totals = confusion.sum(axis=1)
    is_present = totals > 0
    return float(hits.sum() / totals.sum()), float(np.mean(hits[is_present] / totals[is_present]))


def _to_scannet20(label_set: LabelSet) -> NDArray[np.int64]:
    """Map the classes of a label set to train ids of ScanNet20, int64 (K,); -1 for those that it does not have."""
    if label_set == SCANNET20:
        return np.arange(len(SCANNET20))
    rows = builtin_label_map().rows
    nyu40_ids = np.array([rows[name].nyu40_id for name in label_set.names])
    return SCANNET20.train_ids_from_raw_ids(nyu40_ids, -1)


def _count_ids(predictions: Predictions, declared: IdKind) -> dict[int, int]:
    """Count the ids that the files hold, without -1 and 255, which stand for unlabeled in every numbering."""
    counts = {declared.ids[train_id]: count for train_id, count in predictions.class_counts.items()}
    counts |= {
        number: count
        for number, count in predictions.unknown_ids.items()
        if number not in {-1, 255}
    }
    return counts


def _explain_unknown(
    id_counts: Mapping[int, int], declared: IdKind, *, has_wall: bool
) -> IdKind | None:
    """Find the kind of ids of which nearly all predictions are classes, also those that are none as they are read.

    Of several, it is the one with the fewest other ids, then with the fewest classes; then, if walls are predicted in
    this task, one whose id for wall occurs.
    """
    unknown_ids = id_counts.keys() - set(declared.ids)
    if not unknown_ids:
        return None
    total = sum(id_counts.values())
    stray_counts = {}
    for other in _list_others(declared):
        # Among the raw ids of this label set, 0 stands for unlabeled.
        if unknown_ids == {0} and other.label_set != declared.label_set:
            continue
        other_ids = {*other.ids} if other.numbering == "train" else {0, *other.ids}
        stray_count = sum(count for number, count in id_counts.items() if number not in other_ids)
        if stray_count <= MAX_UNKNOWN_SHARE * total:
            stray_counts[other] = stray_count

    def rank(other: IdKind) -> tuple[int, int, bool]:
        return stray_counts[other], len(other.ids), has_wall and other.ids[0] not in id_counts

    return min(stray_counts, key=rank, default=None)


def _is_shifted(id_counts: Mapping[int, int], declared: IdKind, other: IdKind) -> bool:
    """Whether 0, the most frequent train id, never occurs, but an id occurs that only the other kind has."""
    if declared.numbering != "train" or not id_counts.keys() <= set(other.ids):
        return False
    return 0 not in other.ids and not id_counts.keys() <= set(declared.ids)


def _is_other_set(
    predictions: Predictions, id_counts: Mapping[int, int], declared: IdKind, other: IdKind
) -> bool:
    """Whether half of the classes of another label set occur, and no other ids, over all test scenes together.

    A network for that label set may never predict some of its rare classes.
    """
    if other.label_set == declared.label_set or not id_counts.keys() <= set(other.ids):
        return False
    skipped = NO_INSTANCES if predictions.task == "instance" else frozenset[str]()
    pairs = zip(other.ids, other.label_set.names, strict=True)
    expected_ids = {number for number, name in pairs if name not in skipped}
    return len(expected_ids & id_counts.keys()) >= _MIN_SHARE_OF_SET * len(expected_ids)


def _noun(predictions: Predictions) -> str:
    """Name what has a predicted id."""
    return "vertices" if predictions.task == "semantic" else "predicted instances"


def _list_ids(ids: Collection[int]) -> str:
    shown = ", ".join(map(str, list(ids)[:_SHOWN_IDS]))
    return f"{shown} and {len(ids) - _SHOWN_IDS:,} others" if len(ids) > _SHOWN_IDS else shown
