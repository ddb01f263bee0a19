"""Predictions and processed scenes in, scores out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannet_prep.dataset import ScanNet
from scannet_prep.evaluation.instance import InstanceScores, InstanceTruth
from scannet_prep.evaluation.scores import ScoreTable
from scannet_prep.evaluation.semantic import SemanticScores
from scannet_prep.export.groups import raw_ids_of_groups, table_by_group
from scannet_prep.files import make_directory, write_atomically
from scannet_prep.progress import Progress
from scannet_prep.splits import official_scenes
from scannet_prep.stages.predictions import Predictions, Task
from scannet_prep.view.charts import draw_confusion

_SCORES: Mapping[Task, tuple[Any, str]] = {
    "semantic": (SemanticScores, "iou"),
    "instance": (InstanceScores, "ap"),
}


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
    """

    task: Task
    label_set: str
    splits: Mapping[str, Mapping[str, int]] = field(hash=False)
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    unknown_ids: Mapping[int, int] = field(hash=False)
    scores: ScoreTable
    written: tuple[Path, ...]


def run(
    plan: Predictions,
    *,
    scores_path: Path | None = None,
    confusion_path: Path | None = None,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Compare predictions with the ground truth.

    Args:
        plan: From `find_predictions`.
        scores_path: Where a table of the scenes goes, as CSV: totals, means over all classes, and IoU or AP by class.
        confusion_path: Where the confusion matrix of semantic predictions goes: as a picture if it is named `.svg`,
            else as CSV.
        progress: Told of every scene.

    Raises:
        FileError: A prediction, or a scene of the ground truth, cannot be read, or is not what it should be.
        OutputError: A file cannot be written.
    """
    import pandas as pd

    make_scores, main_score = _SCORES[plan.task]
    progress, total, rows = progress or Progress(), make_scores(plan.label_set), list[dict[str, Any]]()
    written = tuple(filter(None, (scores_path, confusion_path)))
    for path in written:
        make_directory(path.parent)
    with progress.work("evaluate", sum(map(len, plan.datasets)), "scenes"):
        for dataset, scene_id in ((item, name) for item in plan.datasets for name in item.scene_ids):
            scores = make_scores(plan.label_set)
            scores.add(*_read_scene(plan, dataset, scene_id))
            total.merge(scores)
            table, row = scores.result(), {"scene": scene_id, "split": str(dataset.split)}
            classes = {name: numbers[main_score] for name, numbers in table.classes.items()}
            rows.append({**row, **table.totals, **table.means["all"], **classes})
            progress.advance()
    if scores_path is not None:  # columns that are empty everywhere are left out
        table = pd.DataFrame(rows).dropna(axis="columns", how="all")
        write_atomically(scores_path, [table.to_csv(index=False).encode()])
    if confusion_path is not None:
        names = list(plan.label_set.names)
        matrix = pd.DataFrame(total.confusion, names, [*names, "(none)"])
        is_picture = confusion_path.suffix == ".svg"
        text = draw_confusion(total.confusion, names) if is_picture else matrix.to_csv(index_label="ground truth")
        write_atomically(confusion_path, [text.encode()])
    return EvaluationReport(
        task=plan.task,
        label_set=plan.label_set.name,
        splits={
            str(dataset.split): {"scenes": len(dataset), "official": len(official_scenes(dataset.split))}
            for dataset in plan.datasets
        },
        missing=plan.missing,
        left_out=plan.left_out,
        unknown_ids=dict(plan.unknown_ids.most_common()),
        scores=total.result(),
        written=written,
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
    return prediction, InstanceTruth(labels, sample["instances"])
