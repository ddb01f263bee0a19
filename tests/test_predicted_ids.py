"""The check of predicted ids: every numbering in use is found, and unusual predictions pass."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import scannet_prep
from scannet_prep import SCANNET20, SCANNET200
from scannet_prep.errors import FileError
from scannet_prep.evaluation.overlaps import InstancePrediction
from scannet_prep.predictions.ids import IdCounts
from scannet_prep.predictions.numberings import list_numberings
from scannet_prep.release.label_map import builtin_label_map

LABEL_SETS = [SCANNET20, SCANNET200]
# Neither a problem nor a hint.
ACCEPTED = ("", "")


def draw_classes(label_set, task, accuracy, seed):
    """Draw true train ids, wall and floor most often, and predicted ones."""
    generator = np.random.default_rng(seed)
    classes, count = sorted(range(len(label_set)), key=label_set.things.__contains__), 50_000
    if task == "instance":
        classes, count = label_set.things, 2000
    weights = 1 / np.arange(1, len(classes) + 1)
    truth, drawn = generator.choice(classes, (2, count), p=weights / weights.sum())
    return truth, np.where(generator.random(count) < accuracy, truth, drawn)


def to_ids(numbering, train_ids):
    """Write train ids in a numbering; classes without an id become -1."""
    ids = np.full(len(numbering.label_set), -1)
    for number, train_id in numbering.train_ids.items():
        ids[train_id] = number
    return ids[train_ids]


def make_scene(label_set, train_ids):
    """Make the raw ids of vertices whose train ids in a label set are given, -1 for unlabeled."""
    ids = {0: (0, 0)}
    # ScanNet id and nyu40 id.
    for row in builtin_label_map().rows.values():
        ids.setdefault(row[label_set == SCANNET20], row)
    raw_ids = np.append(label_set.ids, 0)[train_ids]
    scannet_ids, nyu40_ids = np.array([ids[number] for number in raw_ids.tolist()]).T
    return SimpleNamespace(scannet_ids=scannet_ids, nyu40_ids=nyu40_ids)


def declared_numbering(label_set, task, is_raw):
    # The first one has raw ids, the third one train ids.
    return list_numberings(label_set, task)[0 if is_raw else 2]


def check(label_set, ids, scene, task, *, is_raw=False):
    """Return the problem and the hint."""
    predictions = SimpleNamespace(task=task, numbering=declared_numbering(label_set, task, is_raw))
    counts = IdCounts(predictions)
    for part in np.array_split(np.arange(len(ids)), 2):
        prediction, vertices = ids[part], part
        if task == "instance":
            # Each mask is one of sixteen vertices: no more are compared with the ground truth.
            masks = np.repeat(np.eye(len(part), dtype=bool), 16, axis=1)
            prediction, vertices = InstancePrediction(masks, ids[part], None), part.repeat(16)
        of_part = scene and SimpleNamespace(
            **{key: raw[vertices] for key, raw in vars(scene).items()}
        )
        predictions.read = lambda *_, result=prediction: result
        counts.read("", len(vertices), of_part)
    try:
        counts.check(Path("predictions"), is_submission=scene is None)
    except FileError as error:
        return error.problem, error.hint
    return ACCEPTED


@pytest.mark.parametrize("accuracy", [1, 0.5])
@pytest.mark.parametrize("is_raw", [False, True])
@pytest.mark.parametrize("task", ["semantic", "instance"])
@pytest.mark.parametrize("label_set", LABEL_SETS, ids=str)
def test_each_numbering_in_use_is_found_and_its_hint_makes_the_declared_one(
    label_set, task, is_raw, accuracy
):
    declared = declared_numbering(label_set, task, is_raw)
    numberings = list_numberings(label_set, task)
    assert {actual.label_set for actual in numberings} == {*LABEL_SETS}
    for number, actual in enumerate(numberings):
        truth, predicted = draw_classes(actual.label_set, task, accuracy, number)
        ids = to_ids(actual, predicted)
        scene = make_scene(actual.label_set, truth)

        problem, hint = check(label_set, ids, scene, task, is_raw=is_raw)

        # Wall and floor are the first train ids of ScanNet20.
        is_declared = actual[1:3] == declared[1:3]
        assert bool(problem) is not is_declared, actual
        # Without ground truth, the ids alone are evidence.
        problem_of_ids, hint_of_ids = check(
            label_set, np.append(ids, 255), None, task, is_raw=is_raw
        )
        assert bool(problem_of_ids) is not is_declared, actual
        if is_declared:
            continue
        # A numbering that gives the same ids to the same classes is as good.
        [named] = [other for other in numberings if problem.endswith(f" as {other.name}")]
        assert (to_ids(named, predicted) == ids).all(), (actual, problem)
        assert f"probably {named.name}: " in hint
        follow_hint(hint, ids, actual, predicted)
        assert "`scannet-prep evaluate`" in hint_of_ids or not problem_of_ids
        if task == "instance":
            follow_hint(hint_of_ids, ids, actual, predicted)


def follow_hint(hint, ids, actual, predicted):
    """Convert ids as a hint says, and check that they become train ids or raw ids."""
    formula, file, label_set = re.search(
        r"save (.*) as (\.\w+).* with --label-set (\w+)", hint
    ).groups()
    names = {"np": np, "scannet_prep": scannet_prep, "ids": ids}
    converted = eval(formula, names).tolist()
    # The id before the first class is none, like the marks of unlabeled vertices.
    marks = {-1, 255, min(actual.train_ids) - 1} - actual.train_ids.keys()
    names["ids"] = np.array([*marks])
    assert {*eval(formula, names)} <= (marks if file == ".txt" else {-1, 255})
    assert label_set == actual.label_set.name.lower()
    expected = np.array(actual.label_set.ids)[predicted] if file == ".txt" else predicted
    assert converted == expected.tolist(), hint


UNUSUAL = {
    "255 for unlabeled": lambda labels, _: np.where(labels < 0, 255, labels),
    "a tenth missed": lambda labels, _: np.where(np.arange(len(labels)) % 10 == 0, -1, labels),
    # One more than the largest label of a scene with three classes.
    "only 3": lambda labels, _: np.full_like(labels, 3),
    # As train ids + 1, many of them would agree by chance.
    "random, of two classes": lambda labels, _: np.random.default_rng(0).integers(
        1, 3, len(labels)
    ),
    "reversed": lambda labels, count: (count - 1 - labels) % count,
}


@pytest.mark.parametrize("predict", UNUSUAL.values(), ids=UNUSUAL)
@pytest.mark.parametrize("label_set", LABEL_SETS, ids=str)
def test_unusual_predictions_are_accepted_if_there_is_ground_truth(label_set, predict):
    for class_count in (3, 8, 20):
        truth, _ = draw_classes(label_set, "semantic", 1, class_count)
        labels = np.where(truth < class_count, truth, -1)
        predicted = predict(labels, len(label_set))
        scene = make_scene(label_set, labels)
        assert check(label_set, predicted, scene, "semantic") == ACCEPTED


def test_ids_that_are_no_class_are_refused_with_their_number():
    truth, predicted = draw_classes(SCANNET20, "semantic", 1, 0)
    scene = make_scene(SCANNET20, truth)
    predicted[:7] = [-100] * 3 + [5003] * 4
    assert check(SCANNET20, predicted, scene, "semantic") == (
        "7 of 50,000 predicted ids are not classes (ScanNet20 train ids): -100, 5003",
        "check which ids the predictions contain",
    )
    # A numbering that lacks some of them has no conversion.
    assert check(SCANNET20, predicted + 1, scene, "semantic")[1].startswith("check which ids")
    # Some submitted vertices may be unlabeled.
    predicted[:7] = -1
    assert check(SCANNET20, predicted, None, "semantic") == ACCEPTED
    # As in train ids + 1, none is 0.
    predicted[predicted < 1] = 3
    assert "0 vertices are wall" in check(SCANNET20, predicted, None, "semantic")[0]


def test_few_masks_tell_the_numbering_in_which_most_agree():
    truth = np.array([2, 2, 2, 3, 4])
    scene = make_scene(SCANNET20, truth)
    assert "as nyu40 ids" in check(SCANNET20, truth + 1, scene, "instance")[0]
    # An instance network predicts no floors. Three chairs among ten masks are enough, not one.
    for chair_count in (1, 3):
        of_masks = np.append([1] * chair_count, range(3, 10))
        swapped = np.where(of_masks == 1, 2, of_masks)
        problem, _ = check(SCANNET200, swapped, make_scene(SCANNET200, of_masks), "instance")
        assert problem.endswith("wall and floor first") is (chair_count == 3)
    # Read in other numberings, two of the first agree by chance, and three of the others, of one
    # class.
    for ids in np.array([[6, 8, 9, 10, 4], [3, 3, 3, 9, 10]]):
        assert check(SCANNET20, ids, scene, "instance") == ACCEPTED


def test_two_classes_tell_the_numbering_that_has_all_ids():
    truth = np.arange(50_000) % 3 - 1
    # The last class is predicted where nothing is annotated: 20 is no nyu40 id.
    ids = np.where(truth < 0, 20, truth + 1)
    problem, _ = check(SCANNET20, ids, make_scene(SCANNET20, truth), "semantic")
    assert problem.endswith(
        "0 of the compared vertices agree, but 2,084 as ScanNet20 train ids + 1"
    )


def test_network_that_knows_few_of_200_classes_tells_its_numbering():
    truth, _ = draw_classes(SCANNET200, "instance", 1, 0)
    scene = make_scene(SCANNET200, truth)
    # Chair, table and door: they have the same ids in ScanNet20, counted without wall and floor.
    known = np.resize([1, 3, 4], len(truth))
    predicted = np.where(np.isin(truth, known), truth, known)
    problem, _ = check(SCANNET200, predicted - 1, scene, "instance")
    assert problem.endswith("as ScanNet200 train ids - 1")
    # As in ISBNet, a chair is 2, and not 1. Two of five masks have the right class.
    predicted[800:] = 3
    swapped = np.where(predicted == 1, 2, predicted)
    problem, _ = check(SCANNET200, swapped, scene, "instance")
    assert problem.endswith("classes with wall and floor first")
    ids = np.array(SCANNET200.ids)
    problem, _ = check(SCANNET200, ids[swapped], scene, "instance", is_raw=True)
    assert problem.endswith("as ScanNet ids with chair and floor swapped")
    ids = ids[predicted]
    ids[0] = 0
    assert check(SCANNET200, ids, scene, "instance", is_raw=True) == ACCEPTED
    # One of these ids is not a class of ScanNet20.
    predicted[0] = 150
    assert check(SCANNET200, predicted, None, "instance") == ACCEPTED
