"""Evaluate predictions against processed scenes.

    predictions, scenes --score each scene--> check_predicted_ids --> tables

Files are written only after all predictions have been read and their ids have been checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.evaluation.instance import InstancePrediction, InstanceScores, InstanceTruth
from scannet_prep.evaluation.scores import Scores, ScoreTable
from scannet_prep.evaluation.semantic import SemanticScores
from scannet_prep.predictions.ids import check_predicted_ids
from scannet_prep.predictions.reader import Predictions, Task, find_predictions
from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.processed.groups import classes_of_instances
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes
from scannet_prep.source import Place
from scannet_prep.view.confusion import draw_confusion

SCORES: Mapping[Task, Any] = {"semantic": SemanticScores, "instance": InstanceScores}
"""The class that computes the scores of a task."""
SCENE_SCORES: Mapping[Task, str] = {"semantic": "over_ground_truth", "instance": "ap"}
"""The mean over all classes by which scenes are sorted."""

# The score of a class in the table of scenes.
_CLASS_SCORES: Mapping[Task, str] = {"semantic": "iou", "instance": "ap"}
# This mean is not in the table of scenes: absent classes count 0 in it, and every scene lacks most
# classes.
_MEAN_FOR_ALL_SCENES_ONLY = "over_all"
_HINT_MISSING = "predict these scenes, or add --allow-missing to skip them"
# Every eighth vertex is enough to find the annotated class of a mask.
_VERTEX_STEP = 8


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Result of an evaluation.

    Attributes:
        task: `semantic` or `instance`.
        label_set: Name of the label set.
        splits: By split, the number of evaluated scenes (`scenes`) and of the scenes in the release
            (`official`).
        missing: Scenes without a prediction.
        left_out: Scenes with a prediction that are not in the ground truth.
        unknown_ids: Number of vertices or predicted instances by id, for ids that are none of the
            classes.
        scores: The scores of all scenes together; see `SemanticScores` and `InstanceScores`.
        warning: A warning about the predicted ids; empty if there is none.
    """

    task: Task
    label_set: str
    splits: Mapping[str, Mapping[str, int]] = field(hash=False)
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    unknown_ids: Mapping[int, int] = field(hash=False)
    scores: ScoreTable
    warning: str


def run(
    folder: Path,
    place: Place,
    *,
    task: Task = "semantic",
    label_set: LabelSet | str | None = None,
    splits: Sequence[Split] = (Split.VAL,),
    allows_missing: bool = False,
    scores_path: Path | None = None,
    confusion_path: Path | None = None,
    is_forced: bool = False,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Compare predictions with the ground truth.

    Args:
        folder: Folder of the predictions.
        place: The ground truth: a processed folder, or an archive of it.
        task: `semantic` or `instance`.
        label_set: Label set of the predictions, or its name; None for the label set that the scenes
            were processed with.
        splits: Splits of the processed scenes.
        allows_missing: Skip scenes without a prediction instead of raising an error.
        scores_path: CSV file for a table of the scenes, the worst scene first, with totals, means
            over all classes, and IoU or AP by class. None to write none.
        confusion_path: File for the confusion matrix of semantic predictions: a picture if its name
            ends in `.svg`, otherwise CSV. None to write none.
        is_forced: Accept ids that look wrong; see `check_predicted_ids`.
        progress: Progress display, advanced by each scene.

    Raises:
        MissingFileError: Predictions are missing.
        FileError: A prediction or a scene of the ground truth cannot be read or is invalid, or the
            predicted ids look wrong. Nothing is written.
        OutputError: A file cannot be written.
    """
    hint = "" if allows_missing else _HINT_MISSING
    predictions = find_predictions(
        folder, place, task=task, label_set=label_set, splits=splits, hint=hint
    )
    total, rows, confusion = _score_scenes(predictions, progress or Progress())
    warning = check_predicted_ids(predictions, confusion, is_forced=is_forced)
    if scores_path is not None:
        _write_scene_scores(scores_path, rows, SCENE_SCORES[task])
    if confusion_path is not None:
        _write_confusion(confusion_path, confusion, predictions.label_set)

    split_counts = {}
    for dataset in predictions.datasets:
        official_count = len(official_scenes(dataset.split))
        split_counts[str(dataset.split)] = {"scenes": len(dataset), "official": official_count}
    return EvaluationReport(
        task=task,
        label_set=predictions.label_set.name,
        splits=split_counts,
        missing=predictions.missing,
        left_out=predictions.left_out,
        unknown_ids=dict(predictions.unknown_ids.most_common()),
        scores=total.result(),
        warning=warning,
    )


def _score_scenes(
    predictions: Predictions, progress: Progress
) -> tuple[Scores, list[dict[str, Any]], NDArray[np.int64]]:
    """Score each scene, and all of them together.

    Returns:
        The scores of all scenes; the rows of the table of scenes; and vertices or predicted
        instances by true and by predicted class, int64 (K, K + 1). The last column is for
        predictions of unknown ids.
    """
    task = predictions.task
    label_set = predictions.label_set
    total: Scores = SCORES[task](label_set)
    rows = []
    confusion = np.zeros((len(label_set), len(label_set) + 1), np.int64)
    scene_count = sum(len(dataset) for dataset in predictions.datasets)
    with progress.work("evaluate", scene_count, "scenes"):
        for dataset in predictions.datasets:
            for scene_id in dataset.scene_ids:
                sample = dataset[scene_id]
                prediction = predictions.read(scene_id, len(sample["labels"]))
                truth = make_truth(
                    task, label_set, sample["labels"], sample["instances"], dataset.groups(scene_id)
                )
                # Scores of this scene alone, for its row, which are then added to those of all.
                scores = SCORES[task](label_set)
                scores.add(prediction, truth)
                total.merge(scores)
                if task == "semantic":
                    confusion += scores.confusion
                else:
                    confusion += _count_mask_classes(prediction, truth, label_set)
                rows.append(_make_row(task, scene_id, str(dataset.split), scores.result()))
                progress.advance()
    return total, rows, confusion


def make_truth(
    task: Task,
    label_set: LabelSet,
    labels: NDArray[np.integer],
    instances: NDArray[np.integer],
    groups: Iterable[AnnotatedGroup],
) -> Any:  # noqa: ANN401 - by task, see Returns
    """Make the ground truth of a scene, for the scores of a task.

    Args:
        task: `semantic` or `instance`.
        label_set: The label set of the predictions.
        labels: Integers (V,), train ids; negative for none.
        instances: Integers (V,), group of each vertex; -1 for none.
        groups: The groups of the scene.

    Returns:
        The labels, or an `InstanceTruth`.
    """
    if task == "semantic":
        return labels
    classes = classes_of_instances(instances, groups, label_set)
    return InstanceTruth(labels=classes, instances=instances)


def _count_mask_classes(
    prediction: InstancePrediction, truth: InstanceTruth, label_set: LabelSet
) -> NDArray[np.int64]:
    """Count masks by true and by predicted class, int64 (K, K + 1).

    The true class is the most frequent one among the labeled vertices of the mask. Masks without
    labeled vertices are not counted. The last column is for predictions of unknown ids.
    """
    class_count = len(label_set)
    counts = np.zeros((class_count, class_count + 1), np.int64)
    # Labels, (V / 8,), and masks, bool (M, V / 8), at every eighth vertex.
    true_labels = np.asarray(truth.labels)[::_VERTEX_STEP]
    masks = np.asarray(prediction.masks)[:, ::_VERTEX_STEP]
    predicted_labels = np.asarray(prediction.labels).tolist()
    for mask, predicted_label in zip(masks, predicted_labels, strict=True):
        labels_in_mask = true_labels[mask]
        labels_in_mask = labels_in_mask[labels_in_mask >= 0]  # without unlabeled vertices
        if not len(labels_in_mask):
            continue
        true_label = np.bincount(labels_in_mask).argmax()
        column = predicted_label if predicted_label >= 0 else class_count
        counts[true_label, column] += 1
    return counts


def _make_row(task: Task, scene_id: str, split: str, table: ScoreTable) -> dict[str, Any]:
    """Make the row of a scene: totals, means over all classes, and the score of each class."""
    row: dict[str, Any] = {"scene": scene_id, "split": split, **table.totals, **table.means["all"]}
    row.pop(_MEAN_FOR_ALL_SCENES_ONLY, None)
    for class_name, numbers in table.classes.items():
        row[class_name] = numbers[_CLASS_SCORES[task]]
    return row


def _write_scene_scores(path: Path, rows: list[dict[str, Any]], score: str) -> None:
    """Write a CSV table with a row per scene, the lowest score first, without empty columns."""
    import pandas as pd

    table = pd.DataFrame(rows)
    if not table.empty:
        # Scenes without a score have NaN, and come last.
        table = table.sort_values(score, kind="stable", na_position="last")
        table = table.dropna(axis="columns", how="all")
    write_atomically(path, [table.to_csv(index=False).encode()])


def _write_confusion(path: Path, confusion: NDArray[np.int64], label_set: LabelSet) -> None:
    """Write a confusion matrix, as a picture to an `.svg` file, otherwise as CSV."""
    import pandas as pd

    names = list(label_set.names)
    if path.suffix == ".svg":
        text = draw_confusion(confusion, names)
    else:
        matrix = pd.DataFrame(confusion, index=names, columns=[*names, "(none)"])
        text = matrix.to_csv(index_label="ground truth")
    write_atomically(path, [text.encode()])
