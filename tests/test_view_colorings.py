"""Tests of the colourings of scenes and of predictions, with their categories and tables."""

import numpy as np
from commands import VAL
from tiny import COLORS, aggregation_file, group, process_tiny

from scannet_prep import SCANNET20, SCANNET200, read_processed
from scannet_prep.evaluation import InstancePrediction
from scannet_prep.view.coloring import (
    UNLABELED_COLOR,
    Category,
    color_instance,
    color_labels,
    color_segments,
    view_scene,
)
from scannet_prep.view.predictions import Prediction, Truth, color_predictions

WALL, FLOOR, CABINET, CHAIR, TABLE = 0, 1, 2, 4, 6

# Vertices with a class are four walls, two floors and one cabinet.
LABELS = np.array([WALL, WALL, WALL, WALL, FLOOR, FLOOR, CABINET, -1])
TRUTH = Truth(LABELS, np.full(8, -1), np.full(8, -1))
CLASSES = np.array([WALL, WALL, CHAIR, CHAIR, FLOOR, -1, CABINET, 9])

# Two chairs and a table, each of 200 vertices, and a wall. The labels of the vertices differ from
# the classes of the instances, as those of `labels.ply` may.
OBJECTS = Truth(
    labels=np.full(800, WALL),
    instances=np.arange(800) // 200,
    instance_labels=np.repeat([CHAIR, CHAIR, TABLE, WALL], 200),
    names={0: "chair 0", 2: "table 2"},
)


def predict_masks(*masks):
    """Return a prediction of masks, each of a first and a last vertex and a train id."""
    starts, ends, labels = np.transpose(masks)[..., np.newaxis]
    arrays = (np.arange(800) >= starts) & (np.arange(800) < ends)
    scores = np.linspace(0.5, 0.9, len(masks))
    return Prediction(SCANNET20, InstancePrediction(arrays, labels[:, 0], scores))


def names_of_vertices(coloring, step=1):
    return [coloring.categories[index].name for index in coloring.indices[::step]]


def tables_of(coloring):
    return {table.title: table for table in coloring.tables}


def test_tiny_scene_has_colourings_that_are_counted_by_hand(tmp_path):
    """Two vertices of floor, three of wall, and one that is unlabeled, in this order."""
    scene = view_scene(process_tiny(tmp_path))
    wall, floor = SCANNET20.colors[:2]

    assert " ".join(scene.colorings) == "rgb scannet20 scannet200 instances segments normals"
    assert np.array_equal(scene.colorings["rgb"].colors, COLORS)
    labels = scene.colorings["scannet20"]
    assert labels.categories == (
        Category("wall", wall, 3),
        Category("floor", floor, 2),
        Category("unlabeled", UNLABELED_COLOR, 1),
    )
    assert labels.indices.tolist() == [1, 1, 0, 0, 0, 2]
    assert scene.colorings["instances"].categories == (
        Category("wall 1", color_instance(1), 3),
        Category("floor 0", color_instance(0), 2),
        Category("unlabeled", UNLABELED_COLOR, 1),
    )
    # Up, and towards negative y.
    assert scene.colorings["normals"].colors[[0, 4]].tolist() == [[128, 128, 255], [128, 0, 128]]


def test_instances_are_named_after_class_group_and_raw_category(tmp_path):
    groups = [group(0, [0], "office chair"), group(1, [2], "wall"), group(2, [4], "<b>")]
    scene = process_tiny(tmp_path, {".aggregation.json": aggregation_file(groups)})

    names = names_of_vertices(view_scene(scene).colorings["instances"])

    assert " ".join(names[1:]) == "chair 0 (office chair) wall 1 wall 1 <b> 2 unlabeled"


def test_every_colouring_of_a_predicted_scene_agrees_with_its_categories(whole_dir):
    scene = read_processed(whole_dir / f"processed/val/{VAL}.npz")
    viewed = view_scene(scene)
    values = np.random.default_rng(0).integers(-1, 200, (2, len(scene.points)))
    predictions = [Prediction(SCANNET200, values[row], "AB"[row]) for row in range(2)]
    viewed.colorings.update(color_predictions(predictions, Truth.of(scene, SCANNET200)))

    assert list(viewed.colorings)[6:] == ["prediction", "error", "prediction-2", "error-2"]
    for name, coloring in viewed.colorings.items():
        if coloring.indices is not None:
            for index, each in enumerate(coloring.categories):
                is_member = coloring.indices == index
                assert (coloring.colors[is_member] == each.color).all(), name
                assert is_member.sum() == each.count, name
        keys = [(each.name == "unlabeled", -each.count) for each in coloring.categories]
        assert keys == sorted(keys), name


def test_numbers_beyond_a_type_or_a_label_set_are_kept_apart():
    for count in (256, 70_000):
        names = names_of_vertices(color_segments(np.arange(count)[::-1]), count - 1)
        assert names == [f"segment {count - 1}", "segment 0"]
    train_ids = np.array([0, 255, 20, -1, -100])
    assert names_of_vertices(color_labels(train_ids, SCANNET20)) == ["wall", *["unlabeled"] * 4]


def test_predicted_classes_are_right_or_wrong_with_iou_and_confusions():
    made = color_predictions([Prediction(SCANNET20, CLASSES)], TRUTH)

    verdicts = " ".join(names_of_vertices(made["error"]))
    assert verdicts == "right right wrong wrong right wrong right unlabeled"
    tables = tables_of(made["error"])
    # Chairs are only predicted.
    assert tables["IoU, %"].rows == (
        ("mean", "66.7"), ("wall", "50.0"), ("floor", "50.0"), ("cabinet", "100.0")
    )  # fmt: skip
    assert tables["wrong"].rows == (("wall", "chair", "2"), ("floor", "unlabeled", "1"))
    notes = {each.name: each.note for each in made["prediction"].categories}
    assert notes["wall"] == "IoU 50.0 %"


def test_predicted_instances_have_verdicts_with_their_pairs_and_precisions():
    made = color_predictions([predict_masks((0, 400, CHAIR), (400, 600, TABLE))], OBJECTS)

    names = names_of_vertices(made["error"], 200)
    assert " ".join(names) == "merged merged matched unlabeled"
    tables = tables_of(made["error"])
    assert tables["merged"].rows == (
        ("chair 0", "chair 0 (0.50)", "50.0"),
        ("instance 1", "chair 0 (0.50)", "50.0"),
    )
    assert tables["average precision, %"].rows == (
        ("mean", "50.0", "50.0", "75.0"),
        ("chair", "0.0", "0.0", "50.0"),
        ("table", "100.0", "100.0", "100.0"),
    )
    notes = {each.name: each.note for each in made["prediction"].categories}
    assert notes["table 1 (0.90)"] == "matched"
    made = color_predictions([predict_masks((0, 400, CHAIR))], OBJECTS)
    assert tables_of(made["error"])["missed"].rows == (("table 2", "-", "0.0"),)


def test_matched_mask_has_the_colour_of_its_instance_and_others_that_of_none():
    masks = [(400, 600, TABLE), (0, 200, CHAIR), (600, 800, WALL)]
    made = color_predictions([predict_masks(*masks)], OBJECTS)

    chair, none, table, other = map(tuple, made["prediction"].colors[::200].tolist())

    assert (chair, none, table) == (color_instance(0), UNLABELED_COLOR, color_instance(2))
    assert other == color_instance(4 + 2) == color_instance(20 + 4 + 2)


def test_most_confident_of_overlapping_masks_is_shown_or_the_first():
    masks = InstancePrediction(
        np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]], bool),
        labels=np.array([1, 2, -1]),
        scores=np.array([0.5, 0.9, 0.9]),
    )
    made = color_predictions([Prediction(SCANNET20, masks)], None)["prediction"]

    assert " ".join(names_of_vertices(made)) == (
        "floor 0 (0.50) cabinet 1 (0.90) cabinet 1 (0.90) unlabeled 2 (0.90)"
    )
