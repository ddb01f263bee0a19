"""Tests of the colourings of predictions: errors with their tables, colours, and differences."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import TEST, VAL
from tiny import process_written

from scannet_prep import SCANNET20, SCANNET200, read_processed
from scannet_prep.errors import UsageError
from scannet_prep.evaluation import InstancePrediction
from scannet_prep.raw.tree import RawScene
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.synthetic.release import write_scene
from scannet_prep.synthetic.scene import make_scene
from scannet_prep.view.categories import UNLABELED_COLOR, Color, Coloring, Explanation
from scannet_prep.view.coloring import view_scene
from scannet_prep.view.difference import color_difference
from scannet_prep.view.explanations import MAX_ROWS, list_class_pairs
from scannet_prep.view.predicted import (
    RIGHT_COLOR,
    VERDICT_COLORS,
    WRONG_COLOR,
    Prediction,
    Truth,
    color_error,
    color_prediction,
)

WALL, FLOOR, CABINET, CHAIR, TABLE = 0, 1, 2, 4, 6

# Of vertices with a class: four walls, two floors, one cabinet.
LABELS = np.array([WALL, WALL, WALL, WALL, FLOOR, FLOOR, CABINET, -1])
TRUTH = Truth(LABELS, np.full(8, -1), np.full(8, -1))
FIRST = Prediction(SCANNET20, np.array([WALL, WALL, FLOOR, FLOOR, FLOOR, -1, CABINET, 9]), "A")
SECOND = Prediction(SCANNET20, np.array([WALL, 5, WALL, FLOOR, FLOOR, FLOOR, 5, 9]), "B")

# Two chairs and a table, each of 200 vertices, and a wall.
OBJECTS = Truth(
    labels=np.repeat([CHAIR, CHAIR, TABLE, WALL], 200),
    instances=np.repeat([0, 1, 2, 3], 200),
    instance_labels=np.repeat([CHAIR, CHAIR, TABLE, WALL], 200),
    names={0: "chair 0", 1: "chair 1", 2: "table 2"},
)
# They stand in a row.
POINTS = np.stack([np.arange(800) / 200, np.zeros(800), np.zeros(800)], axis=1)


def predict_masks(*masks: tuple[int, int, int], name: str = "") -> Prediction:
    """Return a prediction of masks, each of a first and a last vertex and a train id."""
    arrays = np.zeros((len(masks), 800), bool)
    for row, (start, end, _) in enumerate(masks):
        arrays[row, start:end] = True
    labels = np.array([mask[2] for mask in masks], int)
    values = InstancePrediction(arrays, labels, np.full(len(masks), 0.5))
    return Prediction(SCANNET20, values, name)


ON_FIRST_CHAIR = (0, 200, CHAIR)
ON_BOTH_CHAIRS = (0, 400, CHAIR)
ON_TABLE = (400, 600, TABLE)


def names_of_vertices(coloring: Coloring, step: int = 1) -> list[str]:
    """Return the name of the category of each vertex, or of each `step`-th one."""
    assert coloring.indices is not None
    return [coloring.categories[index].name for index in coloring.indices[::step]]


def find_table(coloring: Coloring, category: str) -> Explanation:
    (table,) = [table for table in coloring.tables if table.category == category]
    return table


# Classes.


def test_wrong_lists_what_was_confused_the_most_frequent_first() -> None:
    table = find_table(color_error(FIRST, TRUTH), "wrong")

    assert table.columns == ("class", "predicted as", "vertices")
    assert table.rows == (("wall", "floor", "2"), ("floor", "unlabeled", "1"))


def test_error_lists_the_iou_of_each_class_and_the_mean() -> None:
    table = find_table(color_error(FIRST, TRUTH), "")

    # Floor: one vertex is right, of two in the annotation and three predicted.
    assert table.rows == (
        ("mean", "58.3"),
        ("wall", "50.0"),
        ("floor", "25.0"),
        ("cabinet", "100.0"),
    )


def test_predicted_classes_have_their_iou_as_a_note() -> None:
    notes = {each.name: each.note for each in color_prediction(FIRST, POINTS[:8], TRUTH).categories}

    assert notes["wall"] == "IoU 50.0"
    assert notes["unlabeled"] == ""


def test_predicted_classes_without_annotation_have_no_notes() -> None:
    assert {each.note for each in color_prediction(FIRST, POINTS[:8]).categories} == {""}


def test_long_table_ends_with_the_number_of_omitted_rows() -> None:
    pairs = list(itertools.product(range(11), range(10)))
    columns = {"one": np.array(pairs)[:, 0], "other": np.array(pairs)[:, 1]}

    (table,) = list_class_pairs(columns, np.ones(110, bool), SCANNET20, category="wrong")

    assert len(table.rows) == MAX_ROWS + 1
    assert table.rows[-1] == ("and 10 more", "", "")


# Instances.


def test_error_of_instances_shows_merged_and_matched_ones() -> None:
    coloring = color_error(predict_masks(ON_BOTH_CHAIRS, ON_TABLE), OBJECTS)
    assert names_of_vertices(coloring, 200) == ["merged", "merged", "matched", "unlabeled"]


def test_merged_lists_the_instances_and_their_mask() -> None:
    coloring = color_error(predict_masks(ON_BOTH_CHAIRS, ON_TABLE), OBJECTS)

    assert find_table(coloring, "merged").rows == (
        ("chair 0", "chair 0 (0.50)", "50.0"),
        ("chair 1", "chair 0 (0.50)", "50.0"),
    )


def test_missed_instance_without_any_mask_is_listed() -> None:
    coloring = color_error(predict_masks(ON_BOTH_CHAIRS), OBJECTS)
    assert find_table(coloring, "missed").rows == (("table 2", "-", "0.0"),)


def test_error_of_instances_lists_the_average_precision_of_each_class() -> None:
    table = find_table(color_error(predict_masks(ON_BOTH_CHAIRS, ON_TABLE), OBJECTS), "")

    assert table.columns == ("class", "AP", "AP 50", "AP 25")
    assert table.rows == (
        ("mean", "50.0", "50.0", "75.0"),
        ("chair", "0.0", "0.0", "50.0"),
        ("table", "100.0", "100.0", "100.0"),
    )


def color_at(coloring: Coloring, vertex: int) -> list[int]:
    color: list[int] = coloring.colors[vertex].tolist()
    return color


def test_matched_mask_has_the_colour_of_its_instance(tmp_path: Path) -> None:
    path = write_scene(make_scene(VAL, vertices=4000), tmp_path)
    scene = process_written(RawScene(SceneId(VAL), path), Split.VAL)
    counts = np.bincount(scene.instances[scene.instances >= 0])
    labels = SCANNET20.train_ids_from_raw_ids(scene.nyu40_ids, -1)
    (instance, *_) = [
        number
        for number in np.argsort(-counts).tolist()
        if counts[number] >= 100 and labels[scene.instances == number][0] > FLOOR
    ]
    mask = scene.instances == instance
    values = InstancePrediction(mask[np.newaxis], labels[mask][:1], np.array([1.0]))

    colorings = view_scene(scene, prediction=Prediction(SCANNET20, values)).colorings

    vertex = int(mask.argmax())
    expected = color_at(colorings["instances"], vertex)
    assert color_at(colorings["prediction"], vertex) == expected
    assert colorings["prediction"].categories[0].note == "matched"


def test_class_of_an_instance_is_that_of_its_group() -> None:
    """With labels from `labels.ply`, its vertices may have other classes."""
    truth = replace(OBJECTS, labels=np.full(800, WALL))
    coloring = color_error(predict_masks(ON_FIRST_CHAIR), truth)

    assert names_of_vertices(coloring, 200)[0] == "matched"


def test_other_masks_have_the_colour_of_no_instance() -> None:
    matched = color_prediction(predict_masks(ON_FIRST_CHAIR, ON_TABLE), POINTS, OBJECTS)
    other = color_prediction(predict_masks(ON_BOTH_CHAIRS), POINTS, OBJECTS)
    colors = [color_at(matched, 0), color_at(matched, 400), color_at(other, 0)]

    assert len(np.unique(colors, axis=0)) == 3


def test_masks_of_two_predictions_share_a_colour_without_annotation() -> None:
    first = predict_masks(ON_TABLE, ON_FIRST_CHAIR, name="A")
    second = predict_masks(ON_FIRST_CHAIR, ON_TABLE, name="B")

    one = color_prediction(first, POINTS)
    other = color_prediction(second, POINTS, other=first, name="prediction-2")

    assert color_at(one, 0) == color_at(other, 0)
    assert color_at(one, 400) == color_at(other, 400)


# Differences.


def test_difference_of_classes_shows_which_prediction_is_right() -> None:
    assert names_of_vertices(color_difference(FIRST, SECOND, TRUTH)) == [
        "both right",
        "only A right",
        "only B right",
        "neither right",
        "both right",
        "only B right",
        "only A right",
        "unlabeled",
    ]


def test_difference_lists_the_classes_of_both_predictions() -> None:
    table = find_table(color_difference(FIRST, SECOND, TRUTH), "only A right")

    assert table.columns == ("class", "A", "B", "vertices")
    assert set(table.rows) == {("wall", "wall", "sofa", "1"), ("cabinet", "cabinet", "sofa", "1")}


def test_difference_without_annotation_shows_where_classes_differ() -> None:
    coloring = color_difference(FIRST, SECOND, None)

    assert names_of_vertices(coloring)[:2] == ["same class", "different classes"]
    assert ("wall", "sofa", "1") in find_table(coloring, "different classes").rows


def test_difference_of_instances_shows_which_prediction_matches() -> None:
    first = predict_masks(ON_FIRST_CHAIR, name="A")
    second = predict_masks(ON_FIRST_CHAIR, ON_TABLE, name="B")

    coloring = color_difference(first, second, OBJECTS)

    names = names_of_vertices(coloring, 200)
    assert names == ["both right", "neither right", "only B right", "unlabeled"]
    assert find_table(coloring, "only B right").rows == (("table 2", "missed", "matched"),)


def test_difference_of_instances_without_annotation_shows_common_masks() -> None:
    first = predict_masks(ON_FIRST_CHAIR, ON_TABLE, name="A")
    second = predict_masks(ON_FIRST_CHAIR, name="B")

    names = names_of_vertices(color_difference(first, second, None), 200)

    assert names == ["in both", "unlabeled", "only in A", "unlabeled"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (predict_masks(ON_TABLE, name="B"), "has classes, and the other one has instances"),
        (replace(SECOND, label_set=SCANNET200), "A is of ScanNet20, and B of ScanNet200"),
        (replace(SECOND, name="A"), "both predictions are named 'A'"),
    ],
    ids=["tasks", "label sets", "names"],
)
def test_predictions_that_cannot_be_compared_are_refused(second: Prediction, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        color_difference(FIRST, second, TRUTH)


def test_test_scene_with_two_predictions_has_a_difference(whole_dir: Path) -> None:
    scene = read_processed(whole_dir / f"processed/test/{TEST}.npz")
    values = np.zeros(len(scene.points), np.int64)
    one = Prediction(SCANNET20, values, "A")
    other = Prediction(SCANNET20, values + 1, "B")

    colorings = view_scene(scene, prediction=one, second=other).colorings

    assert list(colorings) == ["rgb", "normals", "prediction", "prediction-2", "difference"]


# Colours for people who do not see red or green.

# Linear red, green and blue as a deuteranope sees them (Machado et al., 2009), and XYZ from these.
DEUTERANOPIA = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def to_lab(color: Any, vision: np.ndarray) -> np.ndarray:
    """Return a colour in CIELAB as seen with some vision."""
    values = np.array(color) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(XYZ @ (vision @ linear).clip(0, 1) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


DIFFERENCE = color_difference(FIRST, SECOND, TRUTH)


@pytest.mark.parametrize("vision", [np.eye(3), DEUTERANOPIA], ids=["usual", "deuteranopia"])
@pytest.mark.parametrize(
    "colors",
    [
        [*VERDICT_COLORS.values(), UNLABELED_COLOR],
        [category.color for category in DIFFERENCE.categories],
    ],
    ids=["verdicts", "difference"],
)
def test_colours_differ_clearly(colors: list[Color], vision: np.ndarray) -> None:
    for one, other in itertools.combinations(colors, 2):
        distance = np.linalg.norm(to_lab(one, vision) - to_lab(other, vision))
        assert distance > 20, (one, other)


def test_right_and_wrong_differ_most_of_all_for_a_deuteranope() -> None:
    difference = to_lab(RIGHT_COLOR, DEUTERANOPIA) - to_lab(WRONG_COLOR, DEUTERANOPIA)
    assert np.linalg.norm(difference) > 100
