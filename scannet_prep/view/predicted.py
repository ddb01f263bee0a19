"""Colourings of a prediction: what was predicted, and whether it is right.

Each takes a class for each vertex, or instances as masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.evaluation.instance import InstancePrediction, InstanceTruth
from scannet_prep.evaluation.verdicts import Judgement, Verdict, find_top_masks, judge_instances
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.view.categories import (
    Color,
    Coloring,
    categorize,
    color_classes,
)
from scannet_prep.view.explanations import (
    list_class_pairs,
    list_instance_pairs,
    list_ious,
    list_precisions,
    note_ious,
)
from scannet_prep.view.instance_colors import choose_colors

RIGHT_COLOR = (0, 114, 178)
WRONG_COLOR = (230, 135, 5)

# Blue for right and orange for wrong, which colour-blind people can distinguish. The others differ
# from these, from gray and from each other, also without red or green light.
VERDICT_COLORS: Mapping[Verdict, Color] = {
    Verdict.MATCHED: RIGHT_COLOR,
    Verdict.WRONG_CLASS: WRONG_COLOR,
    Verdict.MISSED: (110, 10, 10),
    Verdict.FALSE_POSITIVE: (240, 230, 135),
    Verdict.MERGED: (110, 30, 190),
    Verdict.SPLIT: (130, 225, 235),
}
"""Colours of the verdicts on instances."""


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The prediction of a program for a scene, as `stages.predictions.Predictions.read` returns it.

    Attributes:
        label_set: Its classes.
        values: int64 (V,), train ids, -1 for none; or masks with classes and confidences, as
            arrays.
        name: Name to show if there are several predictions, such as that of their folder.
    """

    label_set: LabelSet
    values: NDArray[np.int64] | InstancePrediction
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

    labels: NDArray[np.int64]
    instances: NDArray[np.integer[Any]]
    instance_labels: NDArray[np.int64]
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def instance_truth(self) -> InstanceTruth:
        """The instances, as scores take them."""
        return InstanceTruth(labels=self.instance_labels, instances=self.instances)

    def name_of(self, instance: int) -> str:
        """Return the name of an instance."""
        return self.names.get(instance, f"instance {instance}")


def color_prediction(
    prediction: Prediction,
    points: NDArray[np.floating[Any]],
    truth: Truth | None = None,
    *,
    other: Prediction | None = None,
    name: str = "prediction",
) -> Coloring:
    """Colour vertices by predicted class, or by predicted instance.

    Where masks overlap, the most confident one is shown; of equal ones, the first. A mask that
    matches an instance has the colour of that instance. The others have the colour of no instance,
    and look different from their neighbours.

    Args:
        prediction: The prediction.
        points: (V, 3), metres.
        truth: The annotation; None if there is none.
        other: Another prediction, whose masks take the place of missing annotated instances.
        name: Name of the colouring.
    """
    label_set = prediction.label_set
    values = prediction.values
    if not isinstance(values, InstancePrediction):
        return color_classes(
            name,
            values,
            label_set,
            title=title_of(f"prediction, {label_set.name}", prediction),
            notes=None if truth is None else note_ious(values, truth.labels, label_set),
        )

    reference = truth
    if truth is None and other is not None and isinstance(other.values, InstancePrediction):
        reference = as_reference(other.values, label_set)
    instance_colors: Mapping[int, Color] = {}
    matched_colors = {}
    notes = {}
    if reference is not None:
        judgement = judge(values, reference, label_set)
        instance_colors = choose_colors(points, reference.instances)
        for number, instance in judgement.matches.items():
            matched_colors[number] = instance_colors[instance]
        if truth is not None:
            notes = {number: str(verdict) for number, verdict in judgement.predictions.items()}
    top = find_top_masks(values)
    mask_colors = choose_colors(points, top, matched_colors, reserved=instance_colors.values())
    return categorize(
        name,
        top,
        title=title_of("predicted instances", prediction),
        name_of=name_masks(values, label_set).__getitem__,
        color_of=mask_colors.__getitem__,
        notes=notes,
        is_per_scene=True,
    )


def color_error(prediction: Prediction, truth: Truth, *, name: str = "error") -> Coloring:
    """Colour vertices by whether the prediction is right.

    Classes are right or wrong; where the true class is unknown, vertices are unlabeled. Instances
    are compared as `evaluate` does at an IoU of 0.5, see `verdicts`; vertices of what does not
    count there are unlabeled.

    Args:
        prediction: The prediction.
        truth: The annotation.
        name: Name of the colouring.
    """
    label_set = prediction.label_set
    values = prediction.values
    title = title_of("right or wrong", prediction)
    if isinstance(values, InstancePrediction):
        judgement = judge(values, truth, label_set)
        mask_names = name_masks(values, label_set)
        tables = list_instance_pairs(
            judgement,
            columns=("instance", "prediction"),
            instance_name=truth.name_of,
            mask_name=mask_names.__getitem__,
            verdict_name=str,
        )
        return categorize(
            name,
            judgement.vertices,
            title=title,
            name_of=lambda verdict: str(Verdict(verdict)),
            color_of=lambda verdict: VERDICT_COLORS[Verdict(verdict)],
            tables=(list_precisions(values, truth.instance_truth, label_set), *tables),
        )
    is_labeled = truth.labels >= 0
    is_wrong = is_labeled & (truth.labels != values)
    confusions = list_class_pairs(
        {"class": truth.labels, "predicted as": values}, is_wrong, label_set, category="wrong"
    )
    return categorize(
        name,
        # -1 for unlabeled, 0 for right, 1 for wrong.
        np.where(is_labeled, is_wrong, -1),
        title=title,
        name_of=["right", "wrong"].__getitem__,
        color_of=(RIGHT_COLOR, WRONG_COLOR).__getitem__,
        tables=(list_ious(values, truth.labels, label_set), *confusions),
    )


def as_reference(masks: InstancePrediction, label_set: LabelSet) -> Truth:
    """Return predicted instances in the place of an annotation: the masks that are shown."""
    top = find_top_masks(masks)
    # Index -1, for no mask, leads to the train id -1 at the end.
    labels = np.append(np.asarray(masks.labels, np.int64), -1)[top]
    return Truth(labels, top, labels, dict(enumerate(name_masks(masks, label_set))))


def judge(values: InstancePrediction, reference: Truth, label_set: LabelSet) -> Judgement:
    """Give verdicts on predicted instances."""
    return judge_instances(values, reference.instance_truth, label_set)


def title_of(text: str, prediction: Prediction) -> str:
    """Return the title of a colouring, with the name of the prediction if it has one."""
    return f"{text}: {prediction.name}" if prediction.name else text


def name_masks(prediction: InstancePrediction, label_set: LabelSet) -> list[str]:
    """Name masks after class, index and confidence, such as `chair 3 (0.93)`."""
    labels = np.asarray(prediction.labels).tolist()
    scores = np.asarray(prediction.scores).tolist()
    return [
        f"{label_set.name_of(train_id)} {number} ({score:.2f})"
        for number, (train_id, score) in enumerate(zip(labels, scores, strict=True))
    ]
