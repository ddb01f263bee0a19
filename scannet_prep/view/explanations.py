"""Tables that explain colourings of predictions: scores, and what was confused with what.

Scores are those of the scene alone, in percent, computed as `evaluate` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from scannet_prep.evaluation.instance import InstancePrediction, InstanceScores, InstanceTruth
from scannet_prep.evaluation.scores import ScoreTable
from scannet_prep.evaluation.semantic import SemanticScores
from scannet_prep.evaluation.verdicts import Judgement, Verdict
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.view.categories import Explanation

MAX_ROWS = 100
"""A longer table ends with the number of the rows that are left out."""

_NOTHING = "-"
# The mean over the classes that occur in the scene, as in the scores of single scenes.
_MEAN_IOU = "over_ground_truth"


def list_ious(
    train_ids: NDArray[np.int64], truth: NDArray[np.int64], label_set: LabelSet
) -> Explanation:
    """List the IoU of each class that occurs in annotation or prediction, and their mean.

    Args:
        train_ids: int64 (V,), the prediction.
        truth: int64 (V,), the annotation, -1 where unlabeled.
        label_set: The label set of both.
    """
    scores = _score_classes(train_ids, truth, label_set)
    rows = [("mean", _percent(scores.means["all"][_MEAN_IOU]))]
    for name, numbers in scores.classes.items():
        if numbers["iou"] is not None:
            rows.append((name, _percent(numbers["iou"])))
    return Explanation("IoU, %", ("class", "IoU"), tuple(rows))


def note_ious(
    train_ids: NDArray[np.int64], truth: NDArray[np.int64], label_set: LabelSet
) -> dict[int, str]:
    """Return the IoU of each class as a note, by train id; the arguments as in `list_ious`."""
    scores = _score_classes(train_ids, truth, label_set)
    notes = {}
    for train_id, numbers in enumerate(scores.classes.values()):
        if numbers["iou"] is not None:
            notes[train_id] = f"IoU {_percent(numbers['iou'])}"
    return notes


def list_precisions(
    prediction: InstancePrediction, truth: InstanceTruth, label_set: LabelSet
) -> Explanation:
    """List the average precision of each class with annotated instances, and the means."""
    scores = InstanceScores(label_set)
    scores.add(prediction, truth)
    result = scores.result()
    columns = {"ap": "AP", "ap50": "AP 50", "ap25": "AP 25"}
    rows = []
    for name, numbers in (("mean", result.means["all"]), *result.classes.items()):
        if numbers["ap"] is not None:
            rows.append((name, *(_percent(numbers[key]) for key in columns)))
    return Explanation("average precision, %", ("class", *columns.values()), tuple(rows))


def list_class_pairs(
    columns: Mapping[str, NDArray[np.int64]],
    is_listed: NDArray[np.bool_],
    label_set: LabelSet,
    *,
    category: str,
) -> list[Explanation]:
    """Count which classes occur together at some vertices, the most frequent ones first.

    Args:
        columns: Train ids of the vertices by title, int64 (V,) each, -1 for none.
        is_listed: Which vertices are counted, (V,).
        label_set: The label set of the train ids.
        category: Name of the category of these vertices.

    Returns:
        One table; none if there are no such vertices.
    """
    train_ids = np.stack([column[is_listed] for column in columns.values()], axis=1)
    if not len(train_ids):
        return []
    combinations, counts = np.unique(train_ids, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rows = []
    for index in order.tolist():
        names = [label_set.name_of(train_id) for train_id in combinations[index].tolist()]
        rows.append((*names, f"{counts[index]:,}"))
    return [_make_table(category, (*columns, "vertices"), rows)]


def list_instance_pairs(
    judgement: Judgement,
    *,
    columns: tuple[str, str],
    instance_name: Callable[[int], str],
    mask_name: Callable[[int], str],
    verdict_name: Callable[[Verdict], str],
) -> list[Explanation]:
    """List which instance and which mask have each verdict, and their IoU.

    Args:
        judgement: The verdicts.
        columns: The titles of the column of instances and of that of masks.
        instance_name: Returns the name of an instance by its number.
        mask_name: Returns the name of a mask by its index.
        verdict_name: Returns the name of the category of a verdict.
    """
    rows: dict[Verdict, list[tuple[str, ...]]] = {}
    for pair in judgement.pairs:
        instance = _NOTHING if pair.instance is None else instance_name(pair.instance)
        mask = _NOTHING if pair.prediction is None else mask_name(pair.prediction)
        rows.setdefault(pair.verdict, []).append((instance, mask, _percent(pair.iou)))
    titles = (*columns, "IoU, %")
    return [_make_table(verdict_name(verdict), titles, found) for verdict, found in rows.items()]


def list_verdicts(
    judgements: Mapping[str, Judgement],
    instances: Iterable[int],
    instance_name: Callable[[int], str],
    *,
    category: str,
) -> list[Explanation]:
    """List the verdicts of several predictions on some instances.

    Args:
        judgements: The verdicts by name of the prediction.
        instances: Numbers of the instances, which count.
        instance_name: Returns the name of an instance by its number.
        category: Name of the category of these instances.

    Returns:
        One table; none if there are no such instances.
    """
    rows = []
    for instance in instances:
        verdicts = [str(judgement.instances[instance]) for judgement in judgements.values()]
        rows.append((instance_name(instance), *verdicts))
    if not rows:
        return []
    return [_make_table(category, ("instance", *judgements), rows)]


def _make_table(
    category: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]
) -> Explanation:
    """Make the table of a category, and shorten it if it is too long."""
    listed = rows[:MAX_ROWS]
    if len(rows) > MAX_ROWS:
        blanks = [""] * (len(columns) - 1)
        listed.append((f"and {len(rows) - MAX_ROWS:,} more", *blanks))
    return Explanation(category, columns, tuple(listed), category)


def _score_classes(
    train_ids: NDArray[np.int64], truth: NDArray[np.int64], label_set: LabelSet
) -> ScoreTable:
    """Compute the scores of one scene."""
    scores = SemanticScores(label_set)
    scores.add(train_ids, truth)
    return scores.result()


def _percent(share: float | None) -> str:
    """Return a share in percent."""
    return _NOTHING if share is None else f"{100 * share:.1f}"
