"""Evaluate predictions against processed scenes.

    predictions, scenes --score each scene--> IdCounts.check --> table

The table is written only after all predictions have been read and their ids have been checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scannet_prep.base.files import write_atomically
from scannet_prep.base.progress import Progress
from scannet_prep.errors import FileError, UsageError
from scannet_prep.evaluation.instance import InstanceScores
from scannet_prep.evaluation.overlaps import InstanceTruth
from scannet_prep.evaluation.scores import ScoreTable
from scannet_prep.evaluation.semantic import SemanticScores
from scannet_prep.predictions.ids import IdCounts
from scannet_prep.predictions.numberings import Task
from scannet_prep.predictions.reader import find_predictions
from scannet_prep.processed.annotate import classes_of_instances
from scannet_prep.processed.scene import ProcessedScene, read_train_ids
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.release.scenes import Split, official_scenes
from scannet_prep.source.place import open_processed
from scannet_prep.stages.selection import Selection

_HINT_SPLITS = "choose other splits, or process their scenes: scannet-prep process"
_HINT_MISSING = "predict these scenes, or add --allow-missing to skip them"
_HINT_UNSCORED = (
    "instances and masks need 100 vertices and a class that is neither wall nor floor; scenes "
    "without aggregation have no instances and no ScanNet ids; labels are train ids from 0 in "
    "arrays, and raw ids in .txt; --class-agnostic scores masks alone"
)


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Result of an evaluation.

    Attributes:
        task: `semantic` or `instance`.
        label_set: Name of the label set.
        splits: Names of the splits.
        scenes: Number of evaluated scenes.
        official: Number of scenes that the release has in these splits.
        missing: Scenes without a prediction.
        left_out: Scenes with a prediction that are not in the splits of the ground truth.
        scores: The scores of all scenes together; see `SemanticScores` and `InstanceScores`.
        warning: A warning about the predicted ids; may be empty.
    """

    task: Task
    label_set: str
    splits: tuple[str, ...]
    scenes: int
    official: int
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    scores: ScoreTable
    warning: str


def run(
    folder: Path,
    place: str | Path,
    *,
    task: Task = "semantic",
    label_set: LabelSet | str | None = None,
    splits: Sequence[Split] = (Split.VAL,),
    allows_missing: bool = False,
    scores_path: Path | None = None,
    is_class_agnostic: bool = False,
    is_forced: bool = False,
    progress: Progress = Progress(),
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
        scores_path: CSV file for a table of the scenes, the worst scene first, with totals and
            means over all classes. None to write none.
        is_class_agnostic: Score masks alone, whatever their ids; see `InstanceScores`.
        is_forced: Accept ids that look wrong; see `IdCounts.check`.
        progress: Progress display, advanced by each scene.

    Raises:
        UsageError: `is_class_agnostic` is set for semantic predictions.
        UnknownSceneError: There are no scenes of the splits.
        MissingFileError: Predictions are missing.
        FileError: A prediction or a scene of the ground truth cannot be read or is invalid, the
            predicted ids look wrong, or nothing can be scored. Nothing is written.
        OutputError: The table cannot be written.
    """
    if is_class_agnostic and task == "semantic":
        raise UsageError("only instances are scored without classes", "pass --task instance")
    truth_place = open_processed(place)
    label_set = parse_label_set(label_set or truth_place.options.label_set)
    selection = Selection(tuple(splits))
    selected = selection.find(truth_place.name, truth_place.scenes, _HINT_SPLITS)
    predictions = find_predictions(folder, task, label_set, selected)
    scene_ids = [scene_id for scene_id in selected if scene_id in predictions.paths]
    if not (allows_missing and scene_ids):
        predictions.check_scenes(selected, _HINT_MISSING)

    def make_scores() -> Any:  # noqa: ANN401 - by task
        if task == "semantic":
            return SemanticScores(label_set)
        return InstanceScores(label_set, is_class_agnostic=is_class_agnostic)

    total = make_scores()
    rows = []
    id_counts = IdCounts(predictions)
    with progress.work("evaluate", len(scene_ids), "scenes"):
        for scene_id in scene_ids:
            scene = truth_place.read(scene_id)
            prediction = id_counts.read(scene_id, len(scene.points), scene)
            # Scores of this scene alone, for its row, which are then added to those of all.
            scores = make_scores()
            scores.add(prediction, _read_truth(scene, task, label_set))
            total.merge(scores)
            result = scores.result()
            rows.append({"scene": scene_id, **result.totals, **result.means["all"]})
            progress.advance()

    warning = ""
    if not is_class_agnostic:
        warning = id_counts.check(folder, is_forced=is_forced)
    result = total.result()
    totals = result.totals
    if task == "semantic":
        mean = "over_ground_truth"
        scored = totals["vertices"] != totals["missed"]
    else:
        mean = "ap"
        scored = totals["instances"] and totals["predictions"]
    if not scored:
        counts = ", ".join(f"{name}: {count}" for name, count in totals.items())
        raise FileError(folder, f"nothing can be scored ({counts})", _HINT_UNSCORED)
    warning = warning or _warn_of_one_class(result)
    if scores_path is not None:
        _write_scene_scores(scores_path, rows, mean)
    return EvaluationReport(
        task=task,
        label_set=label_set.name,
        splits=selection.splits,
        scenes=len(scene_ids),
        official=sum(len(official_scenes(split)) for split in splits),
        missing=tuple(sorted(set(selected) - predictions.paths.keys())),
        left_out=tuple(sorted(predictions.paths.keys() - selected)),
        scores=result,
        warning=warning,
    )


def _read_truth(scene: ProcessedScene, task: Task, label_set: LabelSet) -> Any:  # noqa: ANN401 - by task
    """Return the ground truth of a scene, for the scores of a task.

    Returns:
        int64 (V,), train ids of a label set, -1 for none; or an `InstanceTruth`.
    """
    if task == "semantic":
        return read_train_ids(scene, label_set)
    classes = classes_of_instances(scene.instances, scene.meta.groups, label_set)
    return InstanceTruth(labels=classes, instances=scene.instances)


def _warn_of_one_class(result: ScoreTable) -> str:
    """Describe predicted instances that are all of one class, unlike the annotated ones."""
    rows = result.classes.items()
    predicted = [name for name, numbers in rows if numbers.get("predictions")]
    annotated = [name for name, numbers in rows if numbers.get("instances")]
    if len(predicted) == 1 < len(annotated):
        return f"all predictions have the class {predicted[0]}: --class-agnostic scores masks alone"
    return ""


def _write_scene_scores(path: Path, rows: list[dict[str, Any]], mean: str) -> None:
    """Write a CSV table with a row per scene, the one with the lowest mean over classes first."""
    import pandas as pd

    # Scenes without a score have NaN, and come last.
    table = pd.DataFrame(rows).sort_values(mean, kind="stable")
    write_atomically(path, [table.to_csv(index=False).encode()])
