"""Predictions and processed scenes in, scores out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.evaluation.instance import InstanceScores, InstanceTruth
from scannet_prep.evaluation.scores import ScoreTable
from scannet_prep.evaluation.semantic import SemanticScores
from scannet_prep.export.groups import raw_ids_of_groups, table_by_group
from scannet_prep.predictions.ids import check_predicted_ids
from scannet_prep.predictions.reader import Predictions, Task
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.release.splits import official_scenes
from scannet_prep.training.dataset import ScanNet
from scannet_prep.view.charts import draw_confusion

_SCORES: Mapping[Task, Any] = {"semantic": SemanticScores, "instance": InstanceScores}
# The number that scores a class, and the mean over classes by which scenes are sorted.
_CLASS_SCORES: Mapping[Task, str] = {"semantic": "iou", "instance": "ap"}
_SCENE_SCORES: Mapping[Task, str] = {"semantic": "over_ground_truth", "instance": "ap"}
# Every scene lacks most classes, and they would count 0 in this mean.
_NOT_BY_SCENE = "over_all"
# To find the annotated class of a mask, some of its vertices are enough.
_STEP = 8


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What a run found.

    Attributes:
        task: `semantic` or `instance`.
        label_set: Name of the label set.
        splits: Of each split, how many scenes were evaluated, and how many there are officially (`official`).
        missing: Scenes without a prediction.
        left_out: Scenes with a prediction that are not in the ground truth.
        unknown_ids: Ids in the predictions that are none of the classes, with the number of vertices, or of predicted
            instances, that have them.
        scores: The scores of all scenes together; see `SemanticScores` and `InstanceScores`.
        written: Files that were asked for.
        warning: What looks wrong with the predicted ids; empty if nothing does.
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
        plan: From `find_predictions`.
        scores_path: Where a table of the scenes goes, as CSV, the worst first: totals, means over all classes, and IoU
            or AP by class.
        confusion_path: Where the confusion matrix of semantic predictions goes: as a picture if it is named `.svg`,
            else as CSV.
        is_forced: Accept ids that look wrong; see `check_predicted_ids`.
        progress: Told of every scene.

    Raises:
        FileError: A prediction, or a scene of the ground truth, cannot be read, or is not what it should be; or the
            predicted ids look wrong. Nothing is written.
        OutputError: A file cannot be written.
    """
    progress = progress or Progress()
    total = _SCORES[plan.task](plan.label_set)
    confusion = np.zeros((len(plan.label_set), len(plan.label_set) + 1), np.int64)
    rows = list[dict[str, Any]]()
    written = tuple(path for path in (scores_path, confusion_path) if path is not None)
    for path in written:
        make_directory(path.parent)
    with progress.work("evaluate", sum(map(len, plan.datasets)), "scenes"):
        for dataset in plan.datasets:
            for scene_id in dataset.scene_ids:
                prediction, truth = _read_scene(plan, dataset, scene_id)
                scores = _SCORES[plan.task](plan.label_set)
                scores.add(prediction, truth)
                total.merge(scores)
                if plan.task == "instance":
                    confusion += _count_mask_classes(prediction, truth, plan.label_set)
                rows.append(_make_row(plan.task, scene_id, str(dataset.split), scores.result()))
                progress.advance()
    if plan.task == "semantic":
        confusion = total.confusion
    warning = check_predicted_ids(plan, confusion, is_forced=is_forced)
    if scores_path is not None:
        _write_scene_scores(scores_path, rows, _SCENE_SCORES[plan.task])
    if confusion_path is not None:
        _write_confusion(confusion_path, confusion, plan.label_set)
    return EvaluationReport(
        task=plan.task,
        label_set=plan.label_set.name,
        splits={
            str(dataset.split): {
                "scenes": len(dataset),
                "official": len(official_scenes(dataset.split)),
            }
            for dataset in plan.datasets
        },
        missing=plan.missing,
        left_out=plan.left_out,
        unknown_ids=dict(plan.unknown_ids.most_common()),
        scores=total.result(),
        written=written,
        warning=warning,
    )


def _read_scene(plan: Predictions, dataset: ScanNet, scene_id: str) -> tuple[Any, Any]:
    """Read the prediction and the ground truth of a scene.

    The class of an instance is that of its group: where labels come from `labels.ply`, its vertices may have several.
    """
    sample = dataset[scene_id]
    prediction = plan.read(scene_id, len(sample["labels"]))
    if plan.task == "semantic":
        return prediction, sample["labels"]
    raw_ids = table_by_group(raw_ids_of_groups(dataset.groups(scene_id), plan.label_set), none=0)
    labels = plan.label_set.train_ids_from_raw_ids(raw_ids, -1)[sample["instances"]]
    return prediction, InstanceTruth(labels=labels, instances=sample["instances"])


def _count_mask_classes(
    prediction: Any,
    truth: InstanceTruth,
    label_set: LabelSet,  # noqa: ANN401
) -> NDArray[np.int64]:
    """Count masks by the class that most of their labeled vertices have and by the predicted class, (K, K + 1)."""
    class_count = len(label_set)
    counts = np.zeros((class_count, class_count + 1), np.int64)
    true_labels = np.asarray(truth.labels)[::_STEP]  # (V / 8,)
    for mask, label in zip(prediction.masks[:, ::_STEP], prediction.labels.tolist(), strict=True):
        inside = true_labels[mask]
        inside = inside[inside >= 0]
        if len(inside):
            counts[np.bincount(inside).argmax(), label if label >= 0 else class_count] += 1
    return counts


def _make_row(task: Task, scene_id: str, split: str, table: ScoreTable) -> dict[str, Any]:
    """Make the row of a scene: totals, means over all classes, and the score of each class."""
    row: dict[str, Any] = {"scene": scene_id, "split": split, **table.totals}
    row |= {name: value for name, value in table.means["all"].items() if name != _NOT_BY_SCENE}
    return row | {name: numbers[_CLASS_SCORES[task]] for name, numbers in table.classes.items()}


def _write_scene_scores(path: Path, rows: list[dict[str, Any]], score: str) -> None:
    """Write a CSV table with a row for each scene, the lowest score first, without the columns that are all empty."""
    import pandas as pd

    table = pd.DataFrame(rows)
    if not table.empty:
        table[score] = table[score].astype(float)
        table = table.sort_values(score, kind="stable", na_position="last").dropna(
            axis="columns", how="all"
        )
    write_atomically(path, [table.to_csv(index=False).encode()])


def _write_confusion(path: Path, confusion: NDArray[np.int64], label_set: LabelSet) -> None:
    """Write a confusion matrix: as a picture if the file is named `.svg`, else as CSV."""
    import pandas as pd

    names = list(label_set.names)
    if path.suffix == ".svg":
        text = draw_confusion(confusion, names)
    else:
        matrix = pd.DataFrame(confusion, index=names, columns=[*names, "(none)"])
        text = matrix.to_csv(index_label="ground truth")
    write_atomically(path, [text.encode()])
