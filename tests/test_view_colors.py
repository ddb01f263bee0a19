"""Tests of colours: how different they look, those of neighbouring instances, and their shades."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from commands import TRAIN

from scannet_prep import SCANNET20, SCANNET200, read_processed
from scannet_prep.evaluation import InstancePrediction
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.view.categories import UNLABELED_COLOR, Coloring
from scannet_prep.view.color_distance import measure_distances, to_lab
from scannet_prep.view.coloring import color_labels, view_scene
from scannet_prep.view.instance_colors import MIN_DISTANCE, choose_colors, find_neighbours
from scannet_prep.view.predicted import VERDICT_COLORS, Prediction
from scannet_prep.view.shading import AMBIENT, find_ambients

# Pairs of colours in CIELAB and their distance, from table 1 of Sharma, Wu and Dalal (2005).
PUBLISHED = [
    ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
    ((50, 3.1571, -77.2803), (50, 0, -82.7485), 2.8615),
    ((50, -1.3802, -84.2814), (50, 0, -82.7485), 1.0),
    ((50, 0, 0), (50, -1, 2), 2.3669),
    ((50, 2.49, -0.001), (50, -2.49, 0.0009), 7.1792),
    ((50, 2.5, 0), (73, 25, -18), 27.1492),
    ((50, 2.5, 0), (61, -5, 29), 22.8977),
    ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
]


def distance(first: object, second: object) -> float:
    """Return the distance of two colours, red, green, blue."""
    return float(measure_distances(to_lab(np.array(first)), to_lab(np.array(second))))


@pytest.mark.parametrize(("first", "second", "expected"), PUBLISHED)
def test_distance_is_that_of_the_published_table(
    first: tuple[float, ...], second: tuple[float, ...], expected: float
) -> None:
    measured = float(measure_distances(np.array(first), np.array(second)))

    assert measured == pytest.approx(expected, abs=1e-4)


def test_black_and_white_are_100_apart() -> None:
    assert distance((0, 0, 0), (255, 255, 255)) == pytest.approx(100, abs=0.01)


# Instances.


def make_row(count: int, gap: float) -> tuple[np.ndarray, np.ndarray]:
    """Make instances of one vertex each in a row, and return their points and numbers."""
    points = np.zeros((count, 3), np.float32)
    points[:, 0] = gap * np.arange(count)
    return points, np.arange(count)


def test_instances_within_20_cm_are_neighbours() -> None:
    points, numbers = make_row(5, 0.19)
    neighbours = find_neighbours(points, numbers)

    assert all(number + 1 in neighbours[number] for number in range(4))


def test_instances_a_metre_apart_are_no_neighbours() -> None:
    assert find_neighbours(*make_row(5, 1)) == {}


def test_vertices_without_an_instance_are_neighbours_of_none() -> None:
    points, _ = make_row(5, 0.01)
    assert find_neighbours(points, np.array([-1, 3, -1, -1, 7])) == {3: {7}, 7: {3}}


def test_a_vertex_far_away_does_not_hide_neighbours() -> None:
    points, numbers = make_row(5, 0.01)
    points[4] = 1e30

    assert find_neighbours(points, numbers)[0] >= {1, 2, 3}


def measure_neighbours(points: np.ndarray, colorings: Coloring) -> float:
    """Return the smallest distance of neighbours, each at its brightest and at its darkest."""
    assert colorings.indices is not None
    neighbours = find_neighbours(points, colorings.indices.astype(np.int64))
    smallest = math.inf
    for one, others in neighbours.items():
        for other in others:
            for brightness in itertools.product((AMBIENT, 1), repeat=2):
                pair = [colorings.categories[one].color, colorings.categories[other].color]
                shades = np.array(pair) * np.array(brightness)[:, np.newaxis]
                smallest = min(smallest, distance(*shades))
    return smallest


@pytest.fixture(scope="module")
def train_scene(seen_dir: Path) -> ProcessedScene:
    return read_processed(seen_dir / "train" / f"{TRAIN}.npz")


def test_neighbouring_instances_differ_in_any_light(train_scene: ProcessedScene) -> None:
    coloring = view_scene(train_scene).colorings["instances"]

    assert len(coloring.categories) > 10
    assert measure_neighbours(train_scene.points, coloring) >= MIN_DISTANCE


def test_neighbours_among_a_hundred_parts_of_a_room_differ(train_scene: ProcessedScene) -> None:
    rng = np.random.default_rng(0)
    points = train_scene.points
    centers = points[rng.integers(0, len(points), 100)]
    numbers = np.linalg.norm(points[:, np.newaxis] - centers, axis=2).argmin(axis=1)
    colors = choose_colors(points, numbers)

    for one, others in find_neighbours(points, numbers).items():
        for other in others:
            assert distance(colors[one], colors[other]) >= MIN_DISTANCE


def predict_instances(scene: ProcessedScene, seed: int) -> Prediction:
    """Predict each instance without some vertices; one in three is split in two."""
    rng = np.random.default_rng(seed)
    masks = []
    for number in np.unique(scene.instances[scene.instances >= 0]).tolist():
        mask = (scene.instances == number) & (rng.random(len(scene.points)) < 0.9)
        parts = [mask]
        if number % 3 == 0:
            is_left = scene.points[:, 0] < np.median(scene.points[mask, 0])
            parts = [mask & is_left, mask & ~is_left]
        masks += parts
    labels = np.full(len(masks), 4)
    for row, mask in enumerate(masks):
        classes = SCANNET20.train_ids_from_raw_ids(scene.nyu40_ids[mask], -1)
        labels[row] = np.bincount(classes[classes >= 0], minlength=1).argmax()
    order = rng.permutation(len(masks))
    values = InstancePrediction(
        np.array(masks)[order], labels[order], rng.random(len(masks)).astype(np.float32)
    )
    return Prediction(SCANNET20, values, f"seed {seed}")


def test_neighbouring_masks_differ_in_any_light(train_scene: ProcessedScene) -> None:
    colorings = view_scene(
        train_scene,
        prediction=predict_instances(train_scene, 0),
        second=predict_instances(train_scene, 1),
    ).colorings

    for name in ("prediction", "prediction-2"):
        assert measure_neighbours(train_scene.points, colorings[name]) >= MIN_DISTANCE


def test_matched_masks_of_both_predictions_have_the_colour_of_their_instance(
    train_scene: ProcessedScene,
) -> None:
    colorings = view_scene(
        train_scene,
        prediction=predict_instances(train_scene, 0),
        second=predict_instances(train_scene, 1),
    ).colorings
    instances = colorings["instances"]
    assert instances.indices is not None

    matched_count = 0
    for name in ("prediction", "prediction-2"):
        coloring = colorings[name]
        for index, category in enumerate(coloring.categories):
            if category.note == "matched":
                # The instance of most of its vertices.
                under = instances.indices[coloring.indices == index]
                instance = instances.categories[np.bincount(under).argmax()]
                assert category.color == instance.color
                matched_count += 1
    assert matched_count > 10


def test_instances_look_like_neither_unlabeled_nor_background() -> None:
    colors = choose_colors(*make_row(60, 0.05)).values()

    for color in colors:
        for avoided in (UNLABELED_COLOR, (0, 0, 0), (255, 255, 255)):
            assert distance(color, avoided) >= MIN_DISTANCE


# Light.


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=lambda each: each.name)
def test_each_shade_of_a_class_is_nearest_to_its_own_colour(label_set: LabelSet) -> None:
    colors = np.array([*label_set.colors, UNLABELED_COLOR])
    swatches = to_lab(colors)
    ambients = find_ambients((*label_set.colors, UNLABELED_COLOR))
    for number, (color, ambient) in enumerate(zip(colors, ambients, strict=True)):
        for brightness in np.linspace(ambient, 1, 25):
            shade = np.floor(brightness * color)
            by_eye = measure_distances(to_lab(shade), swatches)
            by_number = np.linalg.norm(shade - colors, axis=1)

            assert by_eye.argmin() == number
            assert by_number.argmin() == number


def test_light_on_classes_changes_their_colours_by_15_percent_at_most() -> None:
    assert min(find_ambients(SCANNET200.colors)) >= 0.85


def test_most_classes_of_scannet200_are_shaded() -> None:
    assert sum(ambient < 1 for ambient in find_ambients(SCANNET200.colors)) == 200


def test_each_shade_of_a_verdict_is_nearest_to_its_own_colour() -> None:
    colors = np.array([*VERDICT_COLORS.values(), UNLABELED_COLOR])
    swatches = to_lab(colors)
    for brightness in np.linspace(AMBIENT, 1, 9):
        distances = measure_distances(to_lab(brightness * colors)[:, np.newaxis], swatches)

        assert distances.argmin(axis=1).tolist() == list(range(len(colors)))


def test_coloring_stores_the_ambient_of_each_class() -> None:
    ambients = find_ambients((*SCANNET200.colors, UNLABELED_COLOR))
    coloring = color_labels(np.array([7, 7, 150, -1]), SCANNET200)

    stored = [category.ambient for category in coloring.categories]
    assert stored == [ambients[7], ambients[150], ambients[-1]]
