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

from scannet_prep.base.errors import FileError
from scannet_prep.evaluation.instance import NO_INSTANCES
from scannet_prep.predictions.reader import Predictions
from scannet_prep.release.label_map import builtin_label_map
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet

MAX_UNKNOWN_SHARE = 0.01
"""Share of the predictions whose ids may be unknown."""

# The ids are of another kind if, read as this kind, the share of predictions that agree with the
# ground truth is larger by this.
_MIN_AGREEMENT_GAIN = 0.2
# With fewer classes in the ground truth, agreement is no evidence: predicting a single class
# everywhere may agree by chance.
_MIN_TRUE_CLASSES = 3
# Above this agreement with the ground truth, the ids that occur are no reason for doubt.
_GOOD_AGREEMENT = 0.5
# The ids are those of another label set if this share of its classes is predicted in the test
# scenes, and nothing else.
_MIN_SHARE_OF_CLASSES = 0.5
# Ids for unlabeled. The 0 among them is only for raw ids: among train ids, it is a class.
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
            steps.append(f"pass --labels {self.label_set.name.lower()}")
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
    declared = _find_declared_kind(predictions)
    unknown_text = _describe_unknown_ids(predictions, confusion)
    actual = None
    evidence = ""
    if declared is not None:
        # None if the declared kind is plausible.
        actual, evidence = _find_actual_kind(
            predictions, declared, confusion, has_unknown=unknown_text != ""
        )
    if actual is None and not unknown_text:
        return _describe_doubts(predictions, confusion)

    problem = "; ".join(text for text in (unknown_text, evidence) if text)
    if is_forced:
        return problem
    if actual is not None and declared is not None:
        remedy = actual.describe_remedy(declared)
    elif set(predictions.unknown_ids) <= _UNLABELED_IDS:
        remedy = (
            "predict a class for every vertex (train ids begin with 0), "
            "because the others count as misses"
        )
    else:
        remedy = "check which ids the predictions contain"
    hint = f"{remedy}; or pass --force to accept the ids as they are"
    raise FileError(predictions.folder, problem, hint)


def _find_declared_kind(predictions: Predictions) -> IdKind | None:
    """Return the kind as which ids are read, or None if the files contain raw ids and train ids."""
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
    is_semantic_submission = confusion is None and predictions.task == "semantic"
    if not is_semantic_submission:
        # With ground truth, unlabeled predictions are ordinary misses. Instances without a class
        # are not submitted. In a semantic submission, ids for unlabeled count as unknown.
        for unlabeled_id in _UNLABELED_IDS:
            unknown_ids.pop(unlabeled_id, None)

    unknown_count = sum(unknown_ids.values())
    total = predictions.unknown_ids.total() + predictions.class_counts.total()
    noun = _counted_noun(predictions)
    if confusion is not None and predictions.task == "semantic":
        # Only labeled vertices count, so that the unknown ids cannot be more than those in the last
        # column. At the others, programs may copy the number for unlabeled of the ground truth,
        # such as K.
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
    # Few of these are unknown ids, which have been checked before. The others mean unlabeled.
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
    # First evidence: another kind explains the ids that are none of the classes.
    id_counts = _count_ids(predictions, declared)
    noun = _counted_noun(predictions)
    ids_text = f"the ids of {sum(id_counts.values()):,} {noun} ({_list_ids(sorted(id_counts))})"

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
        best = max(agreements, key=lambda other: agreements[other])
        best_share, best_recall = agreements[best]
        agrees_more_often = best_share > declared_share + _MIN_AGREEMENT_GAIN
        if agrees_more_often and best_recall > 2 * declared_recall:
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
    # For each predicted class of `declared`, (K,): the class of `other` with the same id in the
    # file; -1 for none. For each class of the ground truth, (K,): the class itself.
    train_ids = {number: train_id for train_id, number in enumerate(other.ids)}
    predicted = np.array([train_ids.get(number, -1) for number in declared.ids])
    truth = np.arange(len(declared.ids))
    if other.label_set != declared.label_set:
        truth = _to_scannet20(declared.label_set)
        # The appended entry is the one that -1 reaches.
        predicted = np.append(_to_scannet20(other.label_set), -1)[predicted]

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
    # Train ids are turned back into the ids in the files. Unknown ids are still those in the files.
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
        # If only 0 is unknown, it means unlabeled among raw ids of the declared label set.
        if unknown_ids == {0} and other.label_set != declared.label_set:
            continue
        # Except among train ids, 0 means unlabeled.
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
    """Whether all ids are of a kind without 0, and some of them are not of the declared kind.

    The train id 0 (wall) is the most frequent one, so that its absence is suspicious.
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
    if other.label_set == declared.label_set or not id_counts.keys() <= set(other.ids):
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
