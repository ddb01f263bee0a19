"""Check that predicted ids belong to the expected label set and numbering.

Files contain train ids or raw ids of ScanNet20 or ScanNet200, and by mistake also train ids that
count from 1. If ids of one kind are read as another kind, most of them are still valid classes, and
the result is silently wrong.

    check_predicted_ids --> unknown ids?            _describe_unknown_ids
                        --> ids of another kind?    _find_actual_kind
                              by the unknown ids       _explain_unknown_ids
                              by the ground truth      _measure_agreement
                              by the ids that occur    _is_other_label_set, _is_shifted
                        --> accepted, but unusual?  _describe_doubts
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import FileError
from scannet_prep.evaluation.instance import NO_INSTANCES
from scannet_prep.predictions.reader import Predictions
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet

MAX_UNKNOWN_SHARE = 0.01
"""Share of the predictions whose ids may be unknown."""

# The ids are of another kind if reading them as that kind raises the share of predictions that
# agree with the ground truth by more than this.
_MIN_AGREEMENT_GAIN = 0.2
# The mean agreement over the classes must rise by more than this factor, too, so that a few
# frequent classes do not decide.
_MIN_RECALL_FACTOR = 2
# With fewer classes in the ground truth, agreement is no evidence: predicting a single class
# everywhere may agree by chance.
_MIN_TRUE_CLASSES = 3
# Above this agreement with the ground truth, the ids that occur are no reason for doubt.
_GOOD_AGREEMENT = 0.5
# Without ground truth, the ids are those of another label set if they include this share of its
# classes, and no other ids.
_MIN_SHARE_OF_CLASSES = 0.5
# Ids that may mean unlabeled. Among train ids, 0 is a class and therefore never an unknown id.
_UNLABELED_IDS = frozenset({-1, 0, 255})
_MAX_LISTED_IDS = 5

Numbering: TypeAlias = Literal["train", "train + 1", "train - 1", "raw"]
# The id of the class wall, by numbering.
_FIRST_IDS = {"train": 0, "train + 1": 1, "train - 1": -1}


@dataclass(frozen=True, slots=True)
class IdKind:
    """A kind of ids that a file may contain.

    Attributes:
        label_set: The label set that the ids belong to.
        numbering: `train` for train ids, `train + 1` and `train - 1` for train ids that count from
            1 and from -1, `raw` for raw ids.
    """

    label_set: LabelSet
    numbering: Numbering

    @property
    def ids(self) -> tuple[int, ...]:
        """The id of each class in a file, in the order of the train ids."""
        if self.numbering == "raw":
            return self.label_set.ids
        first = _FIRST_IDS[self.numbering]
        return tuple(range(first, first + len(self.label_set)))

    def __str__(self) -> str:
        """Return the name of the kind, for messages."""
        if self.numbering != "raw":
            numbering = self.numbering.replace("train", "train ids")
            return f"{self.label_set.name} {numbering}"
        return "nyu40 ids" if self.label_set == SCANNET20 else "ScanNet ids"

    def describe_remedy(self, declared: IdKind) -> str:
        """Describe how to correct files with ids of this kind that are read as `declared`."""
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
            steps.append(f"pass --label-set {self.label_set.name.lower()}")
        return ", and ".join(steps)


def check_predicted_ids(
    predictions: Predictions,
    confusion: NDArray[np.int64] | None = None,
    *,
    is_forced: bool = False,
) -> str:
    """Check the ids of all predictions after the files have been read.

    Args:
        predictions: The predictions, with the ids counted by `read`.
        confusion: Vertices or predicted instances by class of the ground truth and by predicted
            class, int64 (K, K + 1). The last column counts predictions of unknown ids. None without
            ground truth.
        is_forced: Return a warning instead of raising an error.

    Returns:
        A warning about ids that are accepted but look wrong; empty if there is none.

    Raises:
        FileError: More than 1 % of the predictions are none of the classes, or the ids belong to
            another label set or numbering.
    """
    unknown_text = _describe_unknown_ids(predictions, confusion)
    evidence = ""
    remedy = ""
    declared = _find_declared_kind(predictions)
    if declared is not None:
        actual, evidence = _find_actual_kind(
            predictions, declared, confusion, has_unknown=unknown_text != ""
        )
        if actual is not None:
            remedy = actual.describe_remedy(declared)
    if not unknown_text and not evidence:
        return _describe_doubts(predictions, confusion)

    problem = "; ".join(text for text in (unknown_text, evidence) if text)
    if is_forced:
        return problem
    if not remedy:
        remedy = _describe_general_remedy(predictions)
    hint = f"{remedy}; or pass --force to accept the ids as they are"
    raise FileError(predictions.folder, problem, hint)


def _describe_general_remedy(predictions: Predictions) -> str:
    """Describe what to do about unknown ids that no other kind explains."""
    if set(predictions.unknown_ids) <= _UNLABELED_IDS:
        return (
            "predict a class for every vertex (train ids begin with 0), "
            "because the others count as misses"
        )
    return "check which ids the predictions contain"


def _find_declared_kind(predictions: Predictions) -> IdKind | None:
    """Find the kind that all ids are read as; None if some files hold raw ids, others train ids."""
    scene_ids = [scene_id for dataset in predictions.datasets for scene_id in dataset.scene_ids]
    raw_count = sum(predictions.has_raw_ids(scene_id) for scene_id in scene_ids)
    if raw_count == 0:
        return IdKind(predictions.label_set, "train")
    if raw_count == len(scene_ids):
        return IdKind(predictions.label_set, "raw")
    return None


def _describe_unknown_ids(predictions: Predictions, confusion: NDArray[np.int64] | None) -> str:
    """Describe predictions that are none of the classes; empty if they are at most 1 %."""
    unknown_ids = dict(predictions.unknown_ids.most_common())
    # In a semantic submission, ids for unlabeled count as unknown, because each vertex must have a
    # class. With ground truth, they are ordinary misses. Instances with such ids are not submitted.
    is_semantic_submission = confusion is None and predictions.task == "semantic"
    if not is_semantic_submission:
        for unlabeled_id in _UNLABELED_IDS:
            unknown_ids.pop(unlabeled_id, None)

    unknown_count = sum(unknown_ids.values())
    total = predictions.unknown_ids.total() + predictions.class_counts.total()
    noun = _counted_noun(predictions)
    if confusion is not None and predictions.task == "semantic":
        # Only vertices with a label in the ground truth count. At the others, programs may copy the
        # number that the ground truth uses for unlabeled, such as K. The last column of the
        # confusion matrix counts labeled vertices only, so the unknown ids are at most as many.
        unknown_count = min(unknown_count, int(confusion[:, -1].sum()))
        total = int(confusion.sum())
        noun = "labeled vertices"
    if unknown_count <= MAX_UNKNOWN_SHARE * total:
        return ""
    ids = _list_ids(list(unknown_ids))
    return (
        f"{unknown_count:,} of {total:,} {noun} ({unknown_count / total:.1%}) have ids "
        f"that are none of the classes of {predictions.label_set.name}: {ids}"
    )


def _describe_doubts(predictions: Predictions, confusion: NDArray[np.int64] | None) -> str:
    """Describe what is unusual about accepted ids; empty if nothing is."""
    if predictions.task == "instance":
        return ""
    if confusion is None:
        if predictions.class_counts[0]:
            return ""
        return (
            "no vertex of any scene is predicted as wall (train id 0); "
            "if the ids count from 1, subtract 1"
        )
    # Nearly all of these mean unlabeled: with many unknown ids, the ids are not accepted.
    missed = int(confusion[:, -1].sum())
    total = int(confusion.sum())
    if missed <= MAX_UNKNOWN_SHARE * total:
        return ""
    return (
        f"{missed:,} of {total:,} labeled vertices ({missed / total:.1%}) "
        "are predicted as unlabeled: they are misses"
    )


def _find_actual_kind(
    predictions: Predictions,
    declared: IdKind,
    confusion: NDArray[np.int64] | None,
    *,
    has_unknown: bool,
) -> tuple[IdKind | None, str]:
    """Find the kind that the ids probably are, if it is not the declared one.

    Args:
        predictions: The predictions.
        declared: The kind as which the ids are read.
        confusion: As in `check_predicted_ids`.
        has_unknown: Whether more than 1 % of the predictions are none of the classes.

    Returns:
        The kind and the evidence for it; None and an empty text if the declared kind is plausible.
    """
    id_counts = _count_ids(predictions, declared)
    noun = _counted_noun(predictions)
    ids_text = f"the ids of {sum(id_counts.values()):,} {noun} ({_list_ids(sorted(id_counts))})"

    # First evidence: another kind explains the ids that are none of the classes.
    if has_unknown:
        actual = _explain_unknown_ids(
            id_counts, declared, predicts_wall=predictions.task == "semantic"
        )
        if actual is not None:
            return actual, f"{ids_text} are probably {actual}, not {declared}"

    # Second evidence: read as another kind, the ids agree far better with the ground truth.
    if confusion is not None and np.count_nonzero(confusion.sum(axis=1)) >= _MIN_TRUE_CLASSES:
        declared_share, declared_recall = _measure_agreement(confusion, declared, declared)
        agreements = {
            other: _measure_agreement(confusion, declared, other)
            for other in _list_other_kinds(declared)
        }
        # The kind with the largest share.
        best = max(agreements, key=lambda other: agreements[other])
        best_share, best_recall = agreements[best]
        has_better_share = best_share > declared_share + _MIN_AGREEMENT_GAIN
        has_better_recall = best_recall > _MIN_RECALL_FACTOR * declared_recall
        if has_better_share and has_better_recall:
            return best, (
                f"read as {declared}, {declared_share:.1%} agree with the ground truth, "
                f"but {best_share:.1%} if they are {best}"
            )
        # Agreement with the ground truth is better evidence than the ids that occur.
        if declared_share > _GOOD_AGREEMENT:
            return None, ""

    # Third evidence: the ids that occur.
    for other in _list_other_kinds(declared):
        problem = f"{ids_text} are probably {other}, not {declared}"
        if confusion is None and _is_other_label_set(predictions, id_counts, declared, other):
            return other, problem
        if _is_shifted(id_counts, declared, other):
            largest_id = max(id_counts)
            return other, f"{problem}: none is 0, and {id_counts[largest_id]:,} are {largest_id}"
    return None, ""


def _list_other_kinds(declared: IdKind) -> list[IdKind]:
    """List the other kinds of ids, beginning with those of the same label set."""
    other_label_set = SCANNET200 if declared.label_set == SCANNET20 else SCANNET20
    label_sets = (declared.label_set, other_label_set)
    numberings: tuple[Numbering, ...] = ("train", "train + 1", "train - 1", "raw")
    kinds = [IdKind(label_set, numbering) for label_set in label_sets for numbering in numberings]
    return [kind for kind in kinds if kind != declared]


def _measure_agreement(
    confusion: NDArray[np.int64], declared: IdKind, other: IdKind
) -> tuple[float, float]:
    """Measure how well predictions agree with the ground truth if their ids are of another kind.

    Label sets are compared by the nyu40 ids of their classes: ScanNet20's chair agrees with
    ScanNet200's armchair.

    Args:
        confusion: As in `check_predicted_ids`.
        declared: The kind as which the ids were read.
        other: The kind as which to read them instead.

    Returns:
        The share of the predictions that agree, and the mean of this share over the classes that
        occur in the ground truth.
    """
    # For each predicted class of `declared`, (K,): the train id that its id in the file has in
    # `other`; -1 for none.
    train_ids = {number: train_id for train_id, number in enumerate(other.ids)}
    predicted = np.array([train_ids.get(number, -1) for number in declared.ids])

    # For each class of the ground truth, (K,): its train id. Classes of two label sets are compared
    # as classes of ScanNet20.
    truth = np.arange(len(declared.ids))
    if other.label_set != declared.label_set:
        truth = _to_scannet20(declared.label_set)
        predicted = np.where(predicted >= 0, _to_scannet20(other.label_set)[predicted], -1)

    # Whether each pair of true and predicted class agrees, (K, K), and the number of agreeing
    # predictions by class of the ground truth, (K,).
    agrees = (truth[:, None] == predicted) & (predicted >= 0)
    hits = (confusion[:, :-1] * agrees).sum(axis=1)
    totals = confusion.sum(axis=1)
    is_present = totals > 0
    share = hits.sum() / totals.sum()
    mean_recall = np.mean(hits[is_present] / totals[is_present])
    return float(share), float(mean_recall)


def _to_scannet20(label_set: LabelSet) -> NDArray[np.int64]:
    """Map the classes of a label set to train ids of ScanNet20, int64 (K,); -1 for no class."""
    if label_set == SCANNET20:
        return np.arange(len(SCANNET20))
    rows = builtin_label_map().rows
    nyu40_ids = np.array([rows[name].nyu40_id for name in label_set.names])
    return SCANNET20.train_ids_from_raw_ids(nyu40_ids, ignore_index=-1)


def _count_ids(predictions: Predictions, declared: IdKind) -> dict[int, int]:
    """Count the ids in the files, except -1 and 255, which mean unlabeled in every numbering."""
    # Known classes were counted by train id, unknown ids as they are in the files.
    counts = {declared.ids[train_id]: count for train_id, count in predictions.class_counts.items()}
    counts |= predictions.unknown_ids
    for unlabeled_id in (-1, 255):
        counts.pop(unlabeled_id, None)
    return counts


def _explain_unknown_ids(
    id_counts: Mapping[int, int], declared: IdKind, *, predicts_wall: bool
) -> IdKind | None:
    """Find another kind of ids for which at least 99 % of the predictions are classes.

    Of several such kinds, prefer the one with the fewest predictions of other ids, then the one
    with the fewest classes, then one whose id for wall occurs.

    Args:
        id_counts: Number of predictions of each id in the files.
        declared: The kind as which the ids are read.
        predicts_wall: Whether the task includes walls; otherwise, their id need not occur.
    """
    unknown_ids = id_counts.keys() - set(declared.ids)
    if not unknown_ids:
        return None
    total = sum(id_counts.values())
    # Number of predictions that are none of the classes, by kind.
    stray_counts = {}
    for other in _list_other_kinds(declared):
        # If 0 is the only unknown id, the files hold raw ids, and 0 means unlabeled. That is no
        # evidence of another label set.
        if unknown_ids == {0} and other.label_set != declared.label_set:
            continue
        # 0 means unlabeled in every numbering in which it is no class.
        other_ids = set(other.ids)
        if other.numbering != "train":
            other_ids.add(0)
        stray_count = sum(count for number, count in id_counts.items() if number not in other_ids)
        if stray_count <= MAX_UNKNOWN_SHARE * total:
            stray_counts[other] = stray_count

    # The smallest rank is the best.
    def rank(other: IdKind) -> tuple[int, int, bool]:
        lacks_wall = predicts_wall and other.ids[0] not in id_counts
        return stray_counts[other], len(other.ids), lacks_wall

    return min(stray_counts, key=rank, default=None)


def _is_shifted(id_counts: Mapping[int, int], declared: IdKind, other: IdKind) -> bool:
    """Whether ids that are read as train ids fit a kind without 0, but not the train ids.

    Wall (train id 0) is the most frequent class, so its absence is suspicious.
    """
    if declared.numbering != "train" or 0 in other.ids:
        return False
    fits_other = id_counts.keys() <= set(other.ids)
    fits_declared = id_counts.keys() <= set(declared.ids)
    return fits_other and not fits_declared


def _is_other_label_set(
    predictions: Predictions, id_counts: Mapping[int, int], declared: IdKind, other: IdKind
) -> bool:
    """Whether at least half of the classes of another label set are predicted, and no other ids.

    Half is enough, because a network may never predict some of the rare classes.
    """
    if other.label_set == declared.label_set:
        return False
    has_only_its_ids = id_counts.keys() <= set(other.ids)
    if not has_only_its_ids:
        return False
    skipped_names = NO_INSTANCES if predictions.task == "instance" else frozenset[str]()
    pairs = zip(other.ids, other.label_set.names, strict=True)
    expected_ids = {number for number, name in pairs if name not in skipped_names}
    predicted_count = len(expected_ids & id_counts.keys())
    return predicted_count >= _MIN_SHARE_OF_CLASSES * len(expected_ids)


def _counted_noun(predictions: Predictions) -> str:
    """Return the noun for the things that have a predicted id."""
    return "vertices" if predictions.task == "semantic" else "predicted instances"


def _list_ids(ids: Collection[int]) -> str:
    """List the first few ids, for messages."""
    text = ", ".join(map(str, list(ids)[:_MAX_LISTED_IDS]))
    other_count = len(ids) - _MAX_LISTED_IDS
    if other_count <= 0:
        return text
    return f"{text} and {other_count:,} others"
