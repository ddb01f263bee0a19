"""The check of predicted ids: every numbering in use is found, and unusual predictions pass."""

import re
from pathlib import Path

import numpy as np
import pytest

from scannet_prep import SCANNET20, SCANNET200
from scannet_prep.errors import FileError
from scannet_prep.evaluation.instance import InstancePrediction, counted_classes
from scannet_prep.predictions.ids import IdCounts
from scannet_prep.predictions.numberings import (
    declared_numbering,
    list_numberings,
    to_scannet20,
)
from scannet_prep.predictions.reader import Predictions

LABEL_SETS = [SCANNET20, SCANNET200]


def draw_classes(label_set, task, accuracy, seed):
    """Draw true train ids, frequent classes first, and predicted ones."""
    generator = np.random.default_rng(seed)
    weights = 1 / np.arange(1, len(label_set) + 1)
    if task == "instance":
        is_counted = np.isin(np.arange(len(label_set)), counted_classes(label_set))
        weights = weights * is_counted
    weights /= weights.sum()
    count = 2000 if task == "instance" else 50_000
    truth = generator.choice(len(label_set), count, p=weights)
    drawn = generator.choice(len(label_set), count, p=weights)
    return truth, np.where(generator.random(count) < accuracy, truth, drawn)


def to_ids(numbering, train_ids):
    """Write train ids in a numbering; classes without an id become -1."""
    ids = np.full(len(numbering.label_set), -1)
    for number, train_id in numbering.train_ids.items():
        ids[train_id] = number
    return ids[train_ids]


def to_label_set(label_set, other, train_ids):
    """Map train ids of a label set to another one by nyu40 ids; -1 for no class."""
    if label_set == other:
        return train_ids
    if other == SCANNET20:
        return to_scannet20(SCANNET200)[train_ids]
    classes = to_scannet20(SCANNET200).tolist()
    first = [classes.index(number) if number in classes else -1 for number in range(20)]
    return np.array(first)[train_ids]


def check(label_set, ids, truth, task, *, is_raw=False, is_forced=False):
    """Return the problem and the hint, both empty if the ids are accepted."""
    path = Path("predictions/scene.txt" if is_raw else "predictions/scene.npz")
    counts = IdCounts(Predictions(task, label_set, {"scene": path}))
    for part in np.array_split(np.arange(len(ids)), 2):
        # Each mask is one vertex; only every eighth counts.
        masks = np.repeat(np.eye(len(part), dtype=bool), 8, axis=1) if task == "instance" else None
        labels = None
        if truth is not None:
            labels = truth[part] if task == "semantic" else truth[part].repeat(8)
        counts.add(ids[part], InstancePrediction(masks, None, None), labels)
    try:
        problem = counts.check(path.parent, is_submission=truth is None, is_forced=is_forced)
    except FileError as error:
        return error.problem, error.hint
    return problem, ""


@pytest.mark.parametrize("accuracy", [1, 0.5])
@pytest.mark.parametrize("is_raw", [False, True])
@pytest.mark.parametrize("task", ["semantic", "instance"])
@pytest.mark.parametrize("label_set", LABEL_SETS, ids=str)
def test_each_numbering_in_use_is_found_and_its_hint_makes_the_declared_one(
    label_set, task, is_raw, accuracy
):
    declared = declared_numbering(label_set, is_raw=is_raw)
    for number, actual in enumerate(list_numberings(label_set, task)):
        truth, predicted = draw_classes(actual.label_set, task, accuracy, number)
        ids = to_ids(actual, predicted)
        true_labels = to_label_set(actual.label_set, label_set, truth)

        problem, hint = check(label_set, ids, true_labels, task, is_raw=is_raw)

        assert bool(problem) is (actual != declared), actual
        # Without ground truth, the ids alone are evidence.
        problem_of_ids, hint_of_ids = check(label_set, ids, None, task, is_raw=is_raw)
        assert bool(problem_of_ids) is (actual != declared), actual
        if actual == declared:
            continue
        # A numbering that gives the same ids to the same classes is as good.
        named = [
            other
            for other in list_numberings(label_set, task)
            if re.search(rf"as {re.escape(other.name)}$", problem)
        ]
        assert len(named) == 1, problem
        assert (to_ids(named[0], predicted) == ids).all(), (actual, problem)
        assert "`scannet-prep evaluate`" in hint_of_ids
        follow_hint(hint, ids, named[0], predicted, label_set)


def follow_hint(hint, ids, named, predicted, label_set):
    """Convert ids as a hint says, and check that they become train ids or raw ids."""
    converted = ids
    if match := re.search(r"make train ids of the ids: (np\S+ \S+ \S+\]\)\[.*?\])", hint):
        converted = eval(match[1], {"np": np, "ids": ids})
    elif "subtract 1" in hint:
        converted = ids - 1
    elif "add 1" in hint:
        converted = ids + 1
    assert ("--label-set" in hint) is (named.label_set != label_set)
    expected = np.array(named.label_set.ids)[predicted] if named.is_raw else predicted
    assert converted.tolist() == expected.tolist(), hint


def replace_wall(labels, class_count):
    """Predict no wall, and the number of classes for unlabeled vertices."""
    return np.where(labels < 0, class_count, np.where(labels == 0, 5, labels))


UNUSUAL = {
    "no wall": replace_wall,
    "255 for unlabeled": lambda labels, _: np.where(labels < 0, 255, labels),
    "only floor": lambda labels, count: np.full_like(labels, 1 if count == 20 else 2),
    # One more than the largest label of a scene with three classes.
    "only 3": lambda labels, _: np.full_like(labels, 3),
    "random, no wall": lambda labels, count: np.random.default_rng(0).integers(
        1, count, len(labels)
    ),
    "a tenth missed": lambda labels, _: np.where(np.arange(len(labels)) % 10 == 0, -1, labels),
}


@pytest.mark.parametrize("predict", UNUSUAL.values(), ids=UNUSUAL)
@pytest.mark.parametrize("label_set", LABEL_SETS, ids=str)
def test_unusual_predictions_are_accepted_if_there_is_ground_truth(label_set, predict):
    for class_count in (3, 8, 20):
        truth, _ = draw_classes(label_set, "semantic", 1, class_count)
        labels = np.where(truth < class_count, truth, -1)
        predicted = predict(labels, len(label_set))
        assert check(label_set, predicted, labels, "semantic") == ("", "")


def test_ids_that_are_no_class_are_refused_with_their_number():
    truth, predicted = draw_classes(SCANNET20, "semantic", 1, 0)
    predicted[:7] = 1000
    problem, hint = check(SCANNET20, predicted, truth, "semantic")
    assert problem.startswith("7 of 50,000 predicted ids are not classes that networks for sem")
    assert problem.endswith(": 1000")
    assert hint == "check which ids the predictions contain"
    assert check(SCANNET20, predicted, truth, "semantic", is_forced=True) == (problem, "")
    problem, _ = check(SCANNET20, predicted, None, "semantic")
    assert problem.startswith("7 of 50,000 predicted ids are not classes")

    # At most 1 % of the submitted vertices may be unlabeled.
    predicted[:7] = -1
    assert check(SCANNET20, predicted, None, "semantic") == ("", "")
    predicted[:501] = 255
    problem, _ = check(SCANNET20, predicted, None, "semantic")
    assert problem == "501 of 50,000 vertices are unlabeled"
