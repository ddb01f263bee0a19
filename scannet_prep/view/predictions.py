"""Colourings of predictions, and the tables that explain them.

    prediction      what was predicted; a mask that matches an instance has its colour
    error           whether it is right, if there is an annotation to compare it with
    prediction-2    the same of a second prediction
    error-2

Scores are those of the scene alone, computed as `evaluate` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scannet_prep.evaluation.instance import InstanceScores
from scannet_prep.evaluation.overlaps import InstancePrediction, InstanceTruth
from scannet_prep.evaluation.scores import IntArray, ScoreTable
from scannet_prep.evaluation.semantic import SemanticScores
from scannet_prep.evaluation.verdicts import Judgement, Verdict, find_top_masks, judge_instances
from scannet_prep.processed.annotate import classes_of_instances
from scannet_prep.processed.scene import ProcessedScene, read_train_ids
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.view.coloring import (
    Category,
    Color,
    Coloring,
    Explanation,
    Integers,
    categorize,
    color_instance,
    color_labels,
    name_groups,
)

RIGHT_COLOR = (0, 114, 178)
WRONG_COLOR = (230, 135, 5)

# Blue for right and orange for wrong, which colour-blind people can distinguish. The others differ
# from these, from grey and from each other, even for people who do not perceive red or green.
VERDICT_COLORS: Mapping[Verdict, Color] = {
    Verdict.MATCHED: RIGHT_COLOR,
    Verdict.WRONG_CLASS: WRONG_COLOR,
    Verdict.MISSED: (165, 30, 0),
    Verdict.FALSE_POSITIVE: (240, 230, 135),
    Verdict.MERGED: (110, 30, 190),
    Verdict.SPLIT: (130, 225, 235),
}
"""Colours of the verdicts on instances."""

_NOTHING = "-"


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The prediction of a program for a scene.

    Attributes:
        label_set: Its classes.
        values: int64 (V,), train ids, -1 for none; or masks with classes and confidences, as
            arrays.
        name: Name to show if there are several predictions, such as that of their folder.
    """

    label_set: LabelSet
    values: IntArray | InstancePrediction
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The annotation that predictions are compared with.

    Attributes:
        labels: int64 (V,), train ids of the label set of the predictions, -1 where unlabeled.
        instances: Integers (V,), number of the instance; negative for none.
        instance_labels: int64 (V,), train id of the instance, -1 for none; it may differ from that
            of the vertex.
        names: Names of the instances by number; others are called `instance 7`.
    """

    labels: IntArray
    instances: Integers
    instance_labels: IntArray
    names: Mapping[int, str] = field(default_factory=dict)

    def name_of(self, instance: int) -> str:
        """Return the name of an instance."""
        return self.names.get(instance, f"instance {instance}")

    @classmethod
    def of(cls, scene: ProcessedScene, label_set: LabelSet) -> Truth:
        """Return the annotation of a processed scene."""
        groups = scene.meta.groups
        return cls(
            labels=read_train_ids(scene, label_set),
            instances=scene.instances,
            instance_labels=classes_of_instances(scene.instances, groups, label_set),
            names=name_groups(groups, label_set),
        )


def color_predictions(
    predictions: Sequence[Prediction], truth: Truth | None
) -> dict[str, Coloring]:
    """Make the colourings of predictions; see the module.

    Args:
        predictions: At most two.
        truth: The annotation; None for test scenes.
    """
    colorings = {}
    for prediction, suffix in zip(predictions, ("", "-2"), strict=False):
        if isinstance(prediction.values, InstancePrediction):
            made = _color_instances(prediction, prediction.values, truth, suffix)
        else:
            made = _color_classes(prediction, prediction.values, truth)
        for name, coloring in made.items():
            colorings[name + suffix] = coloring
    return colorings


def _color_classes(
    prediction: Prediction, values: IntArray, truth: Truth | None
) -> dict[str, Coloring]:
    """Colour vertices by predicted class, and by whether it is right."""
    label_set = prediction.label_set
    title = _title(f"prediction, {label_set.name}", prediction)
    if truth is None:
        return {"prediction": color_labels(values, label_set, title=title)}
    scores = SemanticScores(label_set)
    scores.add(values, truth.labels)
    result = scores.result()
    notes = {}
    for train_id, numbers in enumerate(result.classes.values()):
        if numbers["iou"] is not None:
            notes[train_id] = f"IoU {_percent(numbers['iou'])} %"

    is_labeled = truth.labels >= 0
    is_wrong = is_labeled & (truth.labels != values)
    # The mean is over the classes that occur in the scene, as in the scores of single scenes.
    tables = [
        _list_scores("IoU, %", result, {"iou": "IoU"}, {"iou": "over_ground_truth"}, "vertices"),
        _list_confusions(truth.labels[is_wrong], values[is_wrong], label_set),
    ]
    return {
        "prediction": color_labels(values, label_set, title=title, notes=notes),
        "error": categorize(
            # -1 for unlabeled, 0 for right, 1 for wrong.
            np.where(is_labeled, is_wrong, -1),
            [Category("right", RIGHT_COLOR), Category("wrong", WRONG_COLOR)].__getitem__,
            title=_title("right or wrong", prediction),
            tables=tuple(table for table in tables if table.rows),
        ),
    }


def _color_instances(
    prediction: Prediction, masks: InstancePrediction, truth: Truth | None, suffix: str
) -> dict[str, Coloring]:
    """Colour vertices by predicted instance, and by the verdict on it.

    Where masks overlap, the most confident one is shown; of equal ones, the first. The suffix
    distinguishes masks from those of another prediction.
    """
    label_set = prediction.label_set
    names = _name_masks(masks, label_set)
    # The number whose colour each mask has: that of its matched instance. Other masks get numbers
    # above those of all instances.
    first = 0
    if truth is not None:
        largest = truth.instances.max(initial=-1)
        first = int(largest) + 1
    instances = {number: first + number for number in range(len(names))}
    notes: dict[int, str] = {}
    lines: dict[int, str] = {}
    if suffix:
        lines = {number: f"{name}, prediction{suffix}" for number, name in enumerate(names)}
    errors = {}
    if truth is not None:
        instance_truth = InstanceTruth(labels=truth.instance_labels, instances=truth.instances)
        judgement = judge_instances(masks, instance_truth, label_set)
        instances |= judgement.matches
        for number, instance in judgement.matches.items():
            lines[number] = truth.name_of(instance)
        for number, verdict in judgement.predictions.items():
            notes[number] = str(verdict)
        scores = InstanceScores(label_set)
        scores.add(masks, instance_truth)
        columns = {"ap": "AP", "ap50": "AP 50", "ap25": "AP 25"}
        precisions = _list_scores("average precision, %", scores.result(), columns, {}, "instances")
        errors["error"] = categorize(
            judgement.vertices,
            _describe_verdict,
            title=_title("right or wrong", prediction),
            tables=(precisions, *_list_pairs(judgement, truth, names)),
        )

    def describe(number: int) -> Category:
        return Category(
            names[number],
            color_instance(instances[number]),
            note=notes.get(number, ""),
            line=lines.get(number, ""),
        )

    predicted = categorize(
        find_top_masks(masks),
        describe,
        title=_title("predicted instances", prediction),
        is_per_scene=True,
    )
    return {"prediction": predicted, **errors}


def _describe_verdict(number: int) -> Category:
    verdict = Verdict(number)
    return Category(str(verdict), VERDICT_COLORS[verdict])


def _title(text: str, prediction: Prediction) -> str:
    """Return the title of a colouring, with the name of the prediction if it has one."""
    return f"{text}: {prediction.name}" if prediction.name else text


def _name_masks(prediction: InstancePrediction, label_set: LabelSet) -> list[str]:
    """Name masks after class, index and confidence, such as `chair 3 (0.93)`."""
    labels = np.asarray(prediction.labels).tolist()
    scores = np.asarray(prediction.scores).tolist()
    names: list[str] = []
    for train_id, score in zip(labels, scores, strict=True):
        class_name = label_set.name_of(train_id)
        names.append(f"{class_name} {len(names)} ({score:.2f})")
    return names


def _list_scores(
    title: str,
    scores: ScoreTable,
    columns: Mapping[str, str],
    means: Mapping[str, str],
    counted: str,
) -> Explanation:
    """List the scores of the classes that are annotated, and their means.

    Args:
        title: Title of the table.
        scores: The scores.
        columns: The titles of the scores by key.
        means: The key of the mean by the key of its score, where the two keys differ.
        counted: The key of the number of annotated vertices or instances of a class.
    """
    of_scene = scores.means["all"]
    mean_keys = [means.get(key, key) for key in columns]
    mean_texts = [_percent(of_scene[key]) for key in mean_keys]
    rows = [("mean", *mean_texts)]
    for name, numbers in scores.classes.items():
        if numbers[counted]:
            texts = [_percent(numbers[key]) for key in columns]
            rows.append((name, *texts))
    return Explanation(title, ("class", *columns.values()), tuple(rows))


def _list_confusions(
    true_ids: IntArray, predicted_ids: IntArray, label_set: LabelSet
) -> Explanation:
    """Count the confusions of classes, the most frequent ones first.

    Args:
        true_ids: Train ids of the vertices with a wrong class, (N,).
        predicted_ids: Train ids of their predicted classes, -1 for none, (N,).
        label_set: The label set of both.
    """
    pairs = np.stack([true_ids, predicted_ids], axis=1)
    combinations, counts = np.unique(pairs, axis=0, return_counts=True)
    rows: list[tuple[str, ...]] = []
    for index in np.argsort(-counts, kind="stable").tolist():
        true_id, predicted_id = combinations[index].tolist()
        row = (
            label_set.name_of(true_id),
            label_set.name_of(predicted_id),
            f"{counts[index]:,}",
        )
        rows.append(row)
    return Explanation("wrong", ("class", "predicted as", "vertices"), tuple(rows))


def _list_pairs(judgement: Judgement, truth: Truth, names: Sequence[str]) -> list[Explanation]:
    """List which instance and which mask have each verdict, and their IoU."""
    rows: dict[Verdict, list[tuple[str, ...]]] = {}
    for pair in judgement.pairs:
        instance = mask = _NOTHING
        if pair.instance is not None:
            instance = truth.name_of(pair.instance)
        if pair.prediction is not None:
            mask = names[pair.prediction]
        row = (instance, mask, _percent(pair.iou))
        rows.setdefault(pair.verdict, []).append(row)
    columns = ("instance", "prediction", "IoU, %")
    tables = []
    for verdict, found in rows.items():
        tables.append(Explanation(str(verdict), columns, tuple(found)))
    return tables


def _percent(share: float | None) -> str:
    """Return a share in percent."""
    return _NOTHING if share is None else f"{100 * share:.1f}"
