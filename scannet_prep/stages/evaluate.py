"""Evaluate predictions against processed scenes.

    find_predictions --> run --> _score_scenes --> _read_scene, scores.add   for each scene
                             --> check_predicted_ids
                             --> write the table of scenes and the confusion matrix

Files are written only after all predictions have been read and their ids have been checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.evaluation.instance import InstancePrediction, InstanceScores, InstanceTruth
from scannet_prep.evaluation.scores import ScoreTable
from scannet_prep.evaluation.semantic import SemanticScores
from scannet_prep.predictions.ids import check_predicted_ids
from scannet_prep.predictions.reader import Predictions, Task
from scannet_prep.processed.groups import classes_of_instances
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.splits import official_scenes
from scannet_prep.training.dataset import ScanNet
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
        written: The files that were written.
        warning: A warning about the predicted ids; empty if there is none.
    """

    task: Task
    label_set: str
    splits: Mapping[str, Mapping[str, int]] = field(hash=False)
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    unknown_ids: Mapping[int, int] = field(hash=False)
    scores: ScoreTable
    written: tuple[Path, ...]
    warning: str


def run(
    plan: Predictions,
    *,
    scores_path: Path | None = None,
    confusion_path: Path | None = None,
    is_forced: bool = False,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Compare predictions with the ground truth.

    Args:
        plan: The predictions, from `find_predictions`.
        scores_path: CSV file for a table of the scenes, the worst scene first, with totals, means
            over all classes, and IoU or AP by class. None to write none.
        confusion_path: File for the confusion matrix of semantic predictions: a picture if its name
            ends in `.svg`, otherwise CSV. None to write none.
        is_forced: Accept ids that look wrong; see `check_predicted_ids`.
        progress: Progress display, advanced by each scene.

    Raises:
        FileError: A prediction or a scene of the ground truth cannot be read or is invalid, or the
            predicted ids look wrong. Nothing is written.
        OutputError: A file cannot be written.
    """
    progress = progress or Progress()
    written = tuple(path for path in (scores_path, confusion_path) if path is not None)
    for path in written:
        make_directory(path.parent)

    scored = _score_scenes(plan, progress)
    warning = check_predicted_ids(plan, scored.confusion, is_forced=is_forced)
    if scores_path is not None:
        _write_scene_scores(scores_path, scored.rows, SCENE_SCORES[plan.task])
    if confusion_path is not None:
        _write_confusion(confusion_path, scored.confusion, plan.label_set)

    splits = {}
    for dataset in plan.datasets:
        official_count = len(official_scenes(dataset.split))
        splits[str(dataset.split)] = {"scenes": len(dataset), "official": official_count}
    return EvaluationReport(
        task=plan.task,
        label_set=plan.label_set.name,
        splits=splits,
        missing=plan.missing,
        left_out=plan.left_out,
        unknown_ids=dict(plan.unknown_ids.most_common()),
        scores=scored.scores,
        written=written,
        warning=warning,
    )


@dataclass(frozen=True, slots=True)
class _Scored:
    """Scores of all scenes.

    Attributes:
        scores: The scores of all scenes together.
        rows: The rows of the table of scenes.
        confusion: Vertices or predicted instances by true and by predicted class, int64 (K, K + 1).
            The last column is for predictions of unknown ids.
    """

    scores: ScoreTable
    rows: list[dict[str, Any]]
    confusion: NDArray[np.int64]


def _score_scenes(plan: Predictions, progress: Progress) -> _Scored:
    """Score each scene, and all of them together."""
    total = SCORES[plan.task](plan.label_set)
    class_count = len(plan.label_set)
    confusion = np.zeros((class_count, class_count + 1), np.int64)
    rows: list[dict[str, Any]] = []
    scene_count = sum(len(dataset) for dataset in plan.datasets)
    with progress.work("evaluate", scene_count, "scenes"):
        for dataset in plan.datasets:
            for scene_id in dataset.scene_ids:
                prediction, truth = _read_scene(plan, dataset, scene_id)
                # Scores of this scene alone, for its row, which are then added to those of all.
                scores = SCORES[plan.task](plan.label_set)
                scores.add(prediction, truth)
                total.merge(scores)
                if plan.task == "instance":
                    confusion += _count_mask_classes(prediction, truth, plan.label_set)
                rows.append(_make_row(plan.task, scene_id, str(dataset.split), scores.result()))
                progress.advance()
    if plan.task == "semantic":
        confusion = total.confusion
    return _Scored(total.result(), rows, confusion)


def _read_scene(plan: Predictions, dataset: ScanNet, scene_id: str) -> tuple[Any, Any]:
    """Read the prediction and the ground truth of a scene, as the scores of the task take them."""
    sample = dataset[scene_id]
    prediction = plan.read(scene_id, len(sample["labels"]))
    if plan.task == "semantic":
        return prediction, sample["labels"]
    instances = sample["instances"]
    labels = classes_of_instances(instances, dataset.groups(scene_id), plan.label_set)
    return prediction, InstanceTruth(labels=labels, instances=instances)


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
