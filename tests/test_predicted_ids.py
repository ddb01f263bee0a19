"""The check of predicted ids: every numbering in use is found, and unusual predictions pass."""

import re
from pathlib import Path

import numpy as np
import pytest
from commands import process_all_test_scenes, run_main

from scannet_prep import SCANNET20, SCANNET200, ScanNet, Split, official_scenes
from scannet_prep.errors import FileError
from scannet_prep.evaluation.instance import InstancePrediction, counted_classes
from scannet_prep.predictions.ids import IdCounts
from scannet_prep.predictions.numberings import (
    declared_numbering,
    list_numberings,
    to_scannet20,
)
from scannet_prep.predictions.reader import Predictions
from scannet_prep.synthetic import write_release

VAL = ("scene0011_00", "scene0015_00", "scene0025_00")
LABEL_SETS = [SCANNET20, SCANNET200]
TASKS = ["semantic", "instance"]


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
@pytest.mark.parametrize("task", TASKS)
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
    "only 1": lambda labels, _: np.ones_like(labels),
    # One more than the largest label of a scene with three classes.
    "only 3": lambda labels, _: np.full_like(labels, 3),
    "random": lambda labels, count: np.random.default_rng(0).integers(0, count, len(labels)),
    "random, no wall": lambda labels, count: np.random.default_rng(0).integers(
        1, count, len(labels)
    ),
    "frequent": lambda labels, _: np.clip(labels, 0, 19),
    "a tenth missed": lambda labels, _: np.where(np.arange(len(labels)) % 10 == 0, -1, labels),
}


@pytest.mark.parametrize("predict", UNUSUAL.values(), ids=UNUSUAL)
@pytest.mark.parametrize("label_set", LABEL_SETS, ids=str)
def test_unusual_predictions_are_accepted_if_there_is_ground_truth(label_set, predict):
    for class_count in (3, 8, len(label_set)):
        truth, _ = draw_classes(label_set, "semantic", 1, class_count)
        labels = np.where(truth < class_count, truth, -1)
        predicted = predict(labels, len(label_set))
        assert check(label_set, predicted, labels, "semantic") == ("", "")


def test_ids_that_are_no_class_are_refused_with_their_number():
    truth, predicted = draw_classes(SCANNET20, "semantic", 1, 0)
    predicted[:7] = 1000
    problem, hint = check(SCANNET20, predicted, truth, "semantic")
    assert problem.startswith("7 of 50,000 predicted ids are no class that networks for semantic")
    assert problem.endswith(": 1000")
    assert hint == "check which ids the predictions contain"
    assert check(SCANNET20, predicted, truth, "semantic", is_forced=True) == (problem, "")
    problem, _ = check(SCANNET20, predicted, None, "semantic")
    assert problem.startswith("7 of 50,000 predicted ids are no class")

    # At most 1 % of the submitted vertices may be unlabeled.
    predicted[:7] = -1
    assert check(SCANNET20, predicted, None, "semantic") == ("", "")
    predicted[:501] = 255
    problem, _ = check(SCANNET20, predicted, None, "semantic")
    assert problem == "501 of 50,000 vertices are unlabeled"


# The commands.


@pytest.fixture(scope="module", params=LABEL_SETS, ids=str)
def place(request, tmp_path_factory):
    """Val scenes, processed for either label set."""
    root = tmp_path_factory.mktemp("ids")
    write_release(root / "raw", VAL, vertices=2000)
    options = ["--scannet200"] if request.param == SCANNET200 else []
    assert run_main("process", root / "raw", "-o", root / "processed", *options).status == 0
    return root / "processed"


def write_masks(folder, place, change):
    """Write the annotated instances of all scenes, with changed train ids."""
    folder.mkdir()
    for sample in ScanNet(place, split="val"):
        numbers = np.setdiff1d(sample["instances"], [-1])
        masks = sample["instances"] == numbers[:, None]
        labels = np.array([sample["labels"][mask][0] for mask in masks])
        label_set = ScanNet(place, split="val").label_set
        is_counted = np.isin(labels, counted_classes(label_set))
        np.savez(
            folder / f"{sample['scene_id']}.npz",
            masks=masks[is_counted],
            labels=change(labels[is_counted]),
            scores=np.full(is_counted.sum(), 0.5),
        )
    return folder


def test_evaluate_and_view_name_the_numbering_of_instances_without_wall_and_floor(place, tmp_path):
    label_set = ScanNet(place, split="val").label_set
    counted = np.array(counted_classes(label_set))
    right = write_masks(tmp_path / "right", place, lambda labels: labels)
    wrong = write_masks(tmp_path / "wrong", place, lambda labels: np.searchsorted(counted, labels))
    options = ("--gt", place, "--task", "instance")

    outcome = run_main("evaluate", wrong, *options)

    assert outcome.status == 1
    name = f"{label_set.name} classes counted without wall and floor"
    assert f"error: {wrong}: " in outcome.stderr
    assert f"but 100.0% as {name}\nhint: make train ids of the ids: np.delete" in outcome.stderr
    assert run_main("evaluate", right, *options).status == 0
    forced = run_main("evaluate", wrong, *options, "--force")
    assert forced.status == 0
    assert name in forced.stderr
    # Masks alone are perfect in either numbering.
    agnostic = run_main("evaluate", wrong, *options, "--class-agnostic", "--json")
    assert agnostic.json["scores"]["means"]["all"]["ap"] == 1
    assert run_main("evaluate", wrong, "--gt", place, "--class-agnostic").status == 2
    page = ("-o", tmp_path / "page.html", "--source", place, "--task", "instance")
    assert name in run_main("view", VAL[0], "--pred", wrong, *page).stderr
    assert run_main("view", VAL[0], "--pred", right, *page).status == 0


def test_nothing_scored_is_no_score(place, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    for sample in ScanNet(place, split="val"):
        count = len(sample["points"])
        masks = np.arange(count)[None] < 50
        arrays = {"masks": masks, "labels": np.array([5]), "scores": np.array([1.0])}
        np.savez(small / f"{sample['scene_id']}.npz", **arrays)
    outcome = run_main("evaluate", small, "--gt", place, "--task", "instance")
    assert outcome.status == 1
    assert "nothing can be scored (instances:" in outcome.stderr
    assert "small: 3" in outcome.stderr

    missed = tmp_path / "missed"
    missed.mkdir()
    for sample in ScanNet(place, split="val"):
        np.save(missed / f"{sample['scene_id']}.npy", np.full(len(sample["points"]), -1))
    outcome = run_main("evaluate", missed, "--gt", place)
    assert outcome.status == 1
    assert "nothing can be scored" in outcome.stderr

    np.savetxt(missed / f"{VAL[0]}.txt", [1], fmt="%d")
    (missed / f"{VAL[0]}.npy").unlink()
    outcome = run_main("evaluate", missed, "--gt", place)
    assert outcome.status == 2
    assert "has .txt files, which hold raw ids, and arrays" in outcome.stderr


@pytest.fixture(scope="module")
def submission_place(tmp_path_factory):
    """All test scenes, copies of a single one, for ScanNet20."""
    return process_all_test_scenes(tmp_path_factory.mktemp("submitted"), 600)


def test_submit_refuses_instances_without_wall_and_floor_and_keeps_negative_confidences(
    submission_place, tmp_path
):
    classes = np.arange(18)  # the classes but wall and floor, from 0

    def write(labels):
        arrays = {
            "masks": np.ones((len(labels), 600), bool),
            "labels": labels,
            "scores": np.full(len(labels), -2.5),
        }
        for scene_id in official_scenes(Split.TEST):
            np.savez(tmp_path / f"{scene_id}.npz", **arrays)

    words = ("submit", tmp_path, "--gt", submission_place, "--task", "instance")
    write(classes)
    outcome = run_main(*words, "-o", tmp_path / "a.zip")
    assert outcome.status == 1
    assert "200 of 1,800 predicted ids are no class that networks for instance" in outcome.stderr
    assert "probably ScanNet20 classes counted without wall and floor" in outcome.stderr
    assert not (tmp_path / "a.zip").exists()

    write(classes + 2)
    outcome = run_main(*words, "-o", tmp_path / "a.zip", "--json")
    assert outcome.status == 0
    assert outcome.json["masks"] == 1800
    assert outcome.json["left_out"] == {}
    for extra, problem in [
        (("--min-score", "0"), "below --min-score: 1,800"),
        (("--force",), ""),
    ]:
        outcome = run_main(*words, "-o", tmp_path / "b.zip", *extra)
        assert bool(problem) is (outcome.status == 1)
        assert problem in outcome.stderr


def test_octformer_scores_of_the_other_label_set_are_refused_with_a_hint(place, tmp_path):
    label_set = ScanNet(place, split="val").label_set
    other = SCANNET20 if label_set == SCANNET200 else SCANNET200
    scores = np.zeros((2000, len(other) + 1), np.float32)
    np.savez(tmp_path / f"{VAL[0]}.eval.npz", prob=scores)

    outcome = run_main("evaluate", tmp_path, "--gt", place, "--allow-missing")

    assert outcome.status == 1
    assert f"--label-set {other.name.lower()}" in outcome.stderr
