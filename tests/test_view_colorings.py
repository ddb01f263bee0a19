"""Tests of the colourings of a scene: colours, categories, and predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import TEST, TRAIN, VAL
from tiny import COLORS, aggregation_file, group, process_tiny

from scannet_prep import SCANNET20, SCANNET200, read_processed
from scannet_prep.evaluation import InstancePrediction
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.view.categories import Category, Coloring
from scannet_prep.view.coloring import COLORINGS, ViewedScene, view_scene
from scannet_prep.view.predicted import Prediction

GRAY = (100, 100, 100)
WALL_COLOR = SCANNET20.colors[0]
FLOOR_COLOR = SCANNET20.colors[1]


def read_scene(whole_dir: Path, scene_id: str) -> ProcessedScene:
    (path,) = (whole_dir / "processed").glob(f"*/{scene_id}.npz")
    return read_processed(path)


def category_names(coloring: Coloring) -> list[str]:
    return [category.name for category in coloring.categories]


def category_counts(coloring: Coloring) -> list[tuple[str, int]]:
    return [(category.name, category.count) for category in coloring.categories]


def names_of_vertices(coloring: Coloring) -> list[str]:
    """Return the name of the category of each vertex."""
    assert coloring.indices is not None
    return [coloring.categories[index].name for index in coloring.indices]


# The colourings of a tiny scene, which are counted by hand.


@pytest.fixture(scope="module")
def tiny_processed(tmp_path_factory: pytest.TempPathFactory) -> ProcessedScene:
    """A scene of two vertices of floor, three of wall, and one that is unlabeled, in this order."""
    return process_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tiny_scene(tiny_processed: ProcessedScene) -> ViewedScene:
    return view_scene(tiny_processed)


def test_scene_without_prediction_has_six_colourings(tiny_scene: ViewedScene) -> None:
    names = ["rgb", "scannet20", "scannet200", "instances", "segments", "normals"]
    assert list(tiny_scene.colorings) == names


def test_viewed_scene_has_id_split_and_frame(tiny_scene: ViewedScene) -> None:
    assert tiny_scene.scene_id == TRAIN
    assert tiny_scene.split == "train"
    assert tiny_scene.frame == "frame of the scan"


def test_rgb_has_the_colours_of_the_scan(tiny_scene: ViewedScene) -> None:
    assert tiny_scene.colorings["rgb"].colors.tolist() == [list(color) for color in COLORS]


def test_labels_have_a_category_per_class_the_largest_first(tiny_scene: ViewedScene) -> None:
    assert tiny_scene.colorings["scannet20"].categories == (
        Category("wall", WALL_COLOR, 3),
        Category("floor", FLOOR_COLOR, 2),
        Category("unlabeled", GRAY, 1),
    )


def test_labels_have_the_category_of_each_vertex(tiny_scene: ViewedScene) -> None:
    indices = tiny_scene.colorings["scannet20"].indices

    assert indices is not None
    assert indices.dtype == np.uint16
    assert indices.tolist() == [1, 1, 0, 0, 0, 2]


def test_labels_have_the_official_colours(tiny_scene: ViewedScene) -> None:
    expected = [FLOOR_COLOR, FLOOR_COLOR, WALL_COLOR, WALL_COLOR, WALL_COLOR, GRAY]
    colors = tiny_scene.colorings["scannet20"].colors

    assert colors.tolist() == [list(color) for color in expected]


def test_instances_are_named_after_class_and_group(tiny_scene: ViewedScene) -> None:
    counts = category_counts(tiny_scene.colorings["instances"])
    assert counts == [("wall 1", 3), ("floor 0", 2), ("unlabeled", 1)]


def test_instances_have_raw_categories(tiny_scene: ViewedScene) -> None:
    categories = tiny_scene.colorings["instances"].categories
    assert [category.raw_category for category in categories] == ["wall", "floor", ""]


def test_segments_are_named_after_their_numbers(tiny_scene: ViewedScene) -> None:
    names = category_names(tiny_scene.colorings["segments"])
    assert names == ["segment 0", "segment 1", "segment 2", "segment 3"]


def test_normals_are_coloured_by_direction(tiny_scene: ViewedScene) -> None:
    up, towards_negative_y = tiny_scene.colorings["normals"].colors[[0, 4]].tolist()

    assert up == [128, 128, 255]
    assert towards_negative_y == [128, 0, 128]


def test_instance_names_contain_class_and_raw_category(tmp_path: Path) -> None:
    groups = [
        group(0, [0], "office chair"),
        group(1, [2], "wall"),
        group(2, [4], "<script>alert(1)</script>"),
    ]
    scene = process_tiny(tmp_path, {".aggregation.json": aggregation_file(groups)})

    names = category_names(view_scene(scene).colorings["instances"])

    assert set(names) == {
        "chair 0 (office chair)",
        "wall 1",
        "<script>alert(1)</script> 2",
        "unlabeled",
    }


# The properties of all colourings.


@pytest.fixture(scope="module")
def predicted_scene(whole_dir: Path) -> ViewedScene:
    """A scene with two random predictions, and therefore with all colourings."""
    scene = read_scene(whole_dir, VAL)
    first, second = np.random.default_rng(0).integers(-1, 200, (2, len(scene.points)))
    return view_scene(
        scene,
        prediction=Prediction(SCANNET200, first, "first"),
        second=Prediction(SCANNET200, second, "second"),
    )


def test_scene_with_two_predictions_has_all_colourings(predicted_scene: ViewedScene) -> None:
    assert tuple(predicted_scene.colorings) == COLORINGS


@pytest.mark.parametrize("name", COLORINGS)
def test_colouring_has_its_name_and_a_colour_per_vertex(
    predicted_scene: ViewedScene, name: str
) -> None:
    coloring = predicted_scene.colorings[name]

    assert coloring.name == name
    assert coloring.colors.shape == (600, 3)
    assert coloring.colors.dtype == np.uint8


@pytest.mark.parametrize("name", ["rgb", "normals"])
def test_colouring_by_colours_has_no_categories(predicted_scene: ViewedScene, name: str) -> None:
    coloring = predicted_scene.colorings[name]

    assert coloring.categories == ()
    assert coloring.indices is None


@pytest.mark.parametrize("name", [name for name in COLORINGS if name not in {"rgb", "normals"}])
def test_categories_have_the_colours_and_counts_of_their_vertices(
    predicted_scene: ViewedScene, name: str
) -> None:
    coloring = predicted_scene.colorings[name]
    colors = np.array([category.color for category in coloring.categories])
    counts = [category.count for category in coloring.categories]

    assert coloring.indices is not None
    assert np.array_equal(colors[coloring.indices], coloring.colors)
    assert np.bincount(coloring.indices).tolist() == counts


@pytest.mark.parametrize("name", COLORINGS)
def test_categories_are_sorted_by_size_with_unlabeled_last(
    predicted_scene: ViewedScene, name: str
) -> None:
    categories = predicted_scene.colorings[name].categories
    keys = [(category.name == "unlabeled", -category.count) for category in categories]

    assert keys == sorted(keys)


def test_test_scene_has_only_colours_and_normals(whole_dir: Path) -> None:
    assert list(view_scene(read_scene(whole_dir, TEST)).colorings) == ["rgb", "normals"]


def test_scene_with_one_prediction_has_no_difference(tiny_prediction: ViewedScene) -> None:
    assert set(COLORINGS) - set(tiny_prediction.colorings) == {
        "prediction-2",
        "error-2",
        "difference",
    }


def test_test_scene_with_a_prediction_has_no_errors(whole_dir: Path) -> None:
    prediction = Prediction(SCANNET20, np.zeros(600, np.int64))
    viewed = view_scene(read_scene(whole_dir, TEST), prediction=prediction)

    assert list(viewed.colorings) == ["rgb", "normals", "prediction"]


# Predicted classes.


@pytest.fixture(scope="module")
def tiny_prediction(tiny_processed: ProcessedScene) -> ViewedScene:
    """The tiny scene (floor is 1, wall is 0) with a prediction that is partly right."""
    prediction = Prediction(SCANNET20, np.array([1, 0, 0, -1, 0, 0]))
    return view_scene(tiny_processed, prediction=prediction)


def test_prediction_counts_the_predicted_classes(tiny_prediction: ViewedScene) -> None:
    counts = category_counts(tiny_prediction.colorings["prediction"])
    assert counts == [("wall", 4), ("floor", 1), ("unlabeled", 1)]


def test_error_is_right_wrong_or_unlabeled(tiny_prediction: ViewedScene) -> None:
    names = names_of_vertices(tiny_prediction.colorings["error"])
    assert names == ["right", "wrong", "right", "wrong", "right", "unlabeled"]


# Predicted instances.


@pytest.fixture(scope="module")
def overlapping_masks(tmp_path_factory: pytest.TempPathFactory) -> ViewedScene:
    """A scene of a cabinet and a bed with four masks, of which some overlap."""
    masks = np.array(
        [[1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 0, 0]], bool
    )
    prediction = InstancePrediction(
        masks, labels=np.array([1, 2, 3, -1]), scores=np.array([0.5, 0.9, 0.5, 0.5])
    )
    groups = [group(0, [0], "cabinet"), group(1, [2, 4], "bed")]
    scene = process_tiny(
        tmp_path_factory.mktemp("masks"), {".aggregation.json": aggregation_file(groups)}
    )
    return view_scene(scene, prediction=Prediction(SCANNET20, prediction))


def test_most_confident_of_overlapping_masks_is_shown_or_the_first(
    overlapping_masks: ViewedScene,
) -> None:
    assert names_of_vertices(overlapping_masks.colorings["prediction"]) == [
        "floor 0 (0.50)",
        "cabinet 1 (0.90)",
        "cabinet 1 (0.90)",
        "bed 2 (0.50)",
        "unlabeled",
        "unlabeled",
    ]


def test_error_of_instances_leaves_wall_and_floor_unlabeled(
    tiny_processed: ProcessedScene,
) -> None:
    prediction = InstancePrediction(
        np.ones((1, 6), bool), labels=np.array([3]), scores=np.array([1.0])
    )
    viewed = view_scene(tiny_processed, prediction=Prediction(SCANNET20, prediction))

    assert category_counts(viewed.colorings["error"]) == [("unlabeled", 6)]
