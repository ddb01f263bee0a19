"""Augmentations of other programs, compared with plain loops, and presets with their numbers."""

import colorsys
import itertools
import math
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from test_transforms import make_sample, rng

from scannet_prep import SCANNET20, SCANNET200, collate
from scannet_prep import transforms as aug
from scannet_prep.errors import UsageError

# Rotations.


def rotate(point: Any, angle: float, axis: str) -> np.ndarray:
    """Multiply a point by a matrix that is written out like those of Pointcept."""
    c = math.cos(angle)
    s = math.sin(angle)
    matrix = {
        "x": [[1, 0, 0], [0, c, -s], [0, s, c]],
        "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
        "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
    }[axis]
    return np.array([sum(a * b for a, b in zip(row, point, strict=True)) for row in matrix])


def bounding_box_middle(points: np.ndarray) -> np.ndarray:
    return (points.min(axis=0) + points.max(axis=0)) / 2


@pytest.mark.parametrize("axis", ["x", "y", "z"])
@pytest.mark.parametrize("center", [None, (0.5, -1.0, 2.0)])
def test_random_rotate_turns_points_about_the_center(axis: Any, center: Any) -> None:
    sample = make_sample(12)

    result = aug.RandomRotate([-1 / 4, 1 / 8], axis, center)(sample, rng(7))

    angle = rng(7).uniform(-1 / 4, 1 / 8) * math.pi
    origin = bounding_box_middle(sample["points"]) if center is None else np.array(center)
    expected = [rotate(point - origin, angle, axis) + origin for point in sample["points"]]
    assert result["points"] == pytest.approx(np.array(expected), abs=1e-5)


@pytest.mark.parametrize("axis", ["x", "y", "z"])
def test_random_rotate_turns_normals_about_the_origin(axis: Any) -> None:
    sample = make_sample(12)

    result = aug.RandomRotate([-1 / 4, 1 / 8], axis)(sample, rng(7))

    angle = rng(7).uniform(-1 / 4, 1 / 8) * math.pi
    expected = [rotate(normal, angle, axis) for normal in sample["normals"]]
    assert result["normals"] == pytest.approx(np.array(expected), abs=1e-5)


@pytest.mark.parametrize("key", ["points", "normals"])
def test_rotate_z_equals_random_rotate_about_the_origin(key: str) -> None:
    sample = make_sample(12)

    result = aug.RotateZ(math.pi / 4)(sample, rng(7))

    expected = aug.RandomRotate((-1 / 4, 1 / 4), "z", (0, 0, 0))(sample, rng(7))
    assert np.array_equal(result[key], expected[key])


# Elastic distortion.


def smooth_by_loops(noise: np.ndarray, axis: int) -> np.ndarray:
    """Average three neighbours along an axis, with zeros beyond the ends."""
    padding = [(1, 1) if axis == other else (0, 0) for other in range(noise.ndim)]
    lines = np.moveaxis(np.pad(noise, padding), axis, 0)
    means = [(lines[i - 1] + lines[i] + lines[i + 1]) / 3 for i in range(1, len(lines) - 1)]
    return np.moveaxis(np.array(means), 0, axis)


def distort_by_loops(
    points: np.ndarray, granularity: float, magnitude: float, generator: np.random.Generator
) -> np.ndarray:
    """Distort points in double precision, as the three programs describe it."""
    lowest = points.min(axis=0)
    extents = (points.max(axis=0) - lowest).tolist()
    shape = [int(extent // granularity) + 3 for extent in extents]
    noise = generator.standard_normal((3, *shape), np.float32).astype(np.float64)
    for axis in (1, 1, 2, 2, 3, 3):
        noise = smooth_by_loops(noise, axis)

    result = points.copy()
    for index, point in enumerate(points):
        position = (point - (lowest - granularity)) / granularity
        cell = np.floor(position).astype(int)
        fraction = position - cell
        for corner in itertools.product((0, 1), repeat=3):
            weight = np.where(corner, fraction, 1 - fraction).prod()
            x, y, z = cell + corner
            result[index] += weight * noise[:, x, y, z] * magnitude
    return result


def test_elastic_distortion_interpolates_smoothed_noise_like_a_loop() -> None:
    sample = make_sample(60)

    result = aug.ElasticDistortion([[0.4, 0.5], [0.9, 1.6]])(sample, rng(2))["points"]

    generator = rng(2)
    expected = distort_by_loops(sample["points"].astype(np.float64), 0.4, 0.5, generator)
    expected = distort_by_loops(expected, 0.9, 1.6, generator)
    assert np.abs(result - expected).max() < 2e-4
    assert 0.02 < np.abs(result - sample["points"]).mean() < 0.5


# Colours.


def make_dull_sample() -> dict[str, Any]:
    """Make a sample with colours of little contrast, and the same blue everywhere."""
    sample = make_sample(30)
    sample["colors"] = sample["colors"] // 3 + np.array([10, 50, 90], np.uint8)
    sample["colors"][:, 2] = 7
    return sample


@pytest.mark.parametrize("blend_factor", [0.0, 0.25, 1.0, None])
def test_auto_contrast_stretches_and_blends_like_a_loop(blend_factor: float | None) -> None:
    sample = make_dull_sample()

    result = aug.ChromaticAutoContrast(blend_factor)(sample, rng(4))["colors"]

    share = rng(4).random() if blend_factor is None else blend_factor
    for channel in (0, 1):
        levels = sample["colors"][:, channel].tolist()
        low = min(levels)
        high = max(levels)
        expected = []
        for level in levels:
            stretched = (level - low) * 255 / (high - low)
            expected.append((1 - share) * level + share * stretched)
        assert result[:, channel].tolist() == pytest.approx(expected, abs=0.51)


def test_auto_contrast_keeps_a_channel_of_one_value() -> None:
    result = aug.ChromaticAutoContrast(1.0)(make_dull_sample(), rng(4))["colors"]

    assert set(result[:, 2].tolist()) == {7}


def test_brightness_contrast_multiplies_and_adds() -> None:
    sample = make_dull_sample()

    result = aug.RandomBrightnessContrast()(sample, rng(5))["colors"]

    generator = rng(5)
    factor = 1 + generator.uniform(-0.2, 0.2)
    offset = 255 * generator.uniform(-0.2, 0.2)
    expected = np.clip(sample["colors"] * factor + offset, 0, 255)
    assert result == pytest.approx(expected, abs=0.51)


def test_color_jitter_without_noise_shifts_channels() -> None:
    sample = make_dull_sample()

    result = aug.ColorJitter(20, 0)(sample, rng(6))["colors"]

    expected = np.clip(sample["colors"] + rng(6).uniform(-20, 20, 3), 0, 255)
    assert result == pytest.approx(expected, abs=0.51)


def test_normalize_color_subtracts_the_mean_and_divides_by_std() -> None:
    sample = make_dull_sample()
    mean = (0.5, 0.4, 0.3)
    std = (0.2, 0.3, 0.4)

    result = aug.NormalizeColor(mean, std)(sample, rng())["colors"]

    expected = (sample["colors"] / 255 - mean) / std
    assert result == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_hue_and_saturation_change_like_in_colorsys(seed: int) -> None:
    sample = make_sample(400, seed)
    sample["colors"][:9] = [
        [0, 0, 0], [255, 255, 255], [7, 7, 7], [255, 0, 0], [0, 255, 0], [0, 0, 255],
        [255, 255, 0], [0, 255, 255], [200, 200, 9],
    ]  # fmt: skip

    result = aug.HueSaturationTranslation(0.5, 0.9)(sample, rng(seed))["colors"]

    generator = rng(seed)
    shift = generator.uniform(-0.5, 0.5)
    factor = 1 + generator.uniform(-0.9, 0.9)
    for before, after in zip(sample["colors"].tolist(), result.tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*before)
        expected = colorsys.hsv_to_rgb((hue + shift) % 1, min(saturation * factor, 1), value)
        assert after == pytest.approx(expected, abs=0.51)


def test_hue_and_saturation_without_a_range_do_not_change() -> None:
    sample = make_sample(400)

    result = aug.HueSaturationTranslation(0, 0)(sample, rng())["colors"]

    assert np.array_equal(result, sample["colors"])
    assert result.dtype == np.uint8


def test_grayscale_weighs_channels() -> None:
    sample = make_sample(200)

    result = aug.RandomColorGrayScale()(sample, rng())["colors"]

    gray = sample["colors"] @ [0.2989, 0.587, 0.114]
    assert result == pytest.approx(np.tile(gray[:, None], 3), abs=0.501)
    assert result.dtype == np.uint8


# Dropped colours and normals.

DROPS = [(aug.RandomDropColor, "colors"), (aug.RandomDropNormal, "normals")]


def make_sample_without_black(count: int) -> dict[str, Any]:
    sample = make_sample(count)
    sample["colors"] = np.maximum(sample["colors"], 1)
    return sample


def find_zero_rows(array: np.ndarray) -> np.ndarray:
    return (array == 0).all(axis=1)


@pytest.mark.parametrize(("kind", "key"), DROPS)
@pytest.mark.parametrize("ratio", [0, 0.2, 0.999, 1])
def test_dropped_features_are_0_at_a_share_of_the_vertices(
    kind: Any, key: str, ratio: float
) -> None:
    sample = make_sample_without_black(99)

    result = kind(ratio)(sample, rng())[key]

    is_zero = find_zero_rows(result)
    assert np.count_nonzero(is_zero) == int(99 * ratio)
    assert np.array_equal(result[~is_zero], sample[key][~is_zero])
    assert result.dtype == sample[key].dtype


@pytest.mark.parametrize(("kind", "key"), DROPS)
def test_any_vertex_may_lose_its_feature(kind: Any, key: str) -> None:
    sample = make_sample_without_black(10)

    counts = sum(find_zero_rows(kind(0.3)(sample, rng(seed))[key]) for seed in range(300))

    assert counts / 300 == pytest.approx(0.3, abs=0.1)


def test_share_of_dropped_colors_is_of_the_remaining_vertices() -> None:
    transform = aug.Compose(aug.RandomDropColor(0.5), aug.Drop(0.5))

    result = transform(make_sample_without_black(200), rng())

    assert np.count_nonzero(find_zero_rows(result["colors"])) == 50


# Jitter, scale, shift and boxes.


def test_clipped_jitter_is_the_normal_noise_of_its_formula() -> None:
    sample = make_sample(40_000)

    result = aug.ClipGaussianJitter(0.02)(sample, rng())

    change = result["points"] - sample["points"]
    expected = 0.02 * np.clip(rng(1).standard_normal(change.shape) / 1.96, -1, 1)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert np.quantile(change, share) == pytest.approx(np.quantile(expected, share), abs=2e-4)


def test_clipped_jitter_clips_5_percent() -> None:
    sample = make_sample(40_000)

    result = aug.ClipGaussianJitter(0.02)(sample, rng())

    distances = np.abs(result["points"] - sample["points"])
    assert distances.max() <= 0.02 + 1e-6
    assert np.isclose(distances, 0.02, atol=1e-6).mean() == pytest.approx(0.05, abs=0.005)


def test_clipped_jitter_equals_jitter_with_its_deviation() -> None:
    sample = make_sample(1000)

    result = aug.ClipGaussianJitter(0.02)(sample, rng())

    expected = aug.Jitter(0.02 / 1.96, 0.02)(sample, rng())
    assert np.array_equal(result["points"], expected["points"])


@dataclass(frozen=True)
class Surfaces:
    """Fifty surfaces, each spanned by two edges from the origin.

    Attributes:
        edges: The two edges, float32 (2, 50, 3).
        normals: Unit normals, float32 (50, 3); that of the first surface is 0.
    """

    edges: np.ndarray
    normals: np.ndarray


@pytest.fixture
def surfaces() -> Surfaces:
    edges = rng().normal(size=(2, 50, 3))
    normals = np.cross(edges[0], edges[1])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    normals[0] = 0
    return Surfaces(edges.astype(np.float32), normals.astype(np.float32))


def test_anisotropic_scale_multiplies_each_axis(surfaces: Surfaces) -> None:
    sample = {"points": surfaces.edges[0], "normals": surfaces.normals}

    result = aug.Scale(0.5, 2.0, anisotropic=True)(sample, rng(3))

    expected = surfaces.edges[0] * rng(3).uniform(0.5, 2.0, 3)
    assert result["points"] == pytest.approx(expected, rel=1e-5)


def test_anisotropic_scale_keeps_normals_perpendicular_to_surfaces(surfaces: Surfaces) -> None:
    for edges in surfaces.edges:
        sample = {"points": edges, "normals": surfaces.normals}
        result = aug.Scale(0.5, 2.0, anisotropic=True)(sample, rng(3))
        products = (result["points"] * result["normals"]).sum(axis=1)
        assert np.abs(products).max() < 1e-5


def test_anisotropic_scale_keeps_the_length_of_normals(surfaces: Surfaces) -> None:
    sample = {"points": surfaces.edges[0], "normals": surfaces.normals}

    result = aug.Scale(0.5, 2.0, anisotropic=True)(sample, rng(3))

    lengths = np.linalg.norm(result["normals"], axis=1)
    assert lengths == pytest.approx([0] + [1] * 49, abs=1e-6)


def test_isotropic_scale_multiplies_points_and_keeps_normals() -> None:
    sample = make_sample(8)

    result = aug.Scale(0.5, 2.0)(sample, rng(3))

    expected = sample["points"] * rng(3).uniform(0.5, 2.0)
    assert result["points"] == pytest.approx(expected, rel=1e-6)
    assert result["normals"] is sample["normals"]


def test_random_shift_puts_the_mean_anywhere_in_the_inner_half_of_the_box() -> None:
    sample = make_sample(500)
    points = sample["points"]
    mean = points.mean(axis=0)

    results = [aug.RandomShift()(sample, rng(seed))["points"] for seed in range(300)]

    means = np.array([result[0] - points[0] for result in results]) + mean
    lowest = (points.min(axis=0) - mean) / 2
    highest = (points.max(axis=0) - mean) / 2
    assert (means > lowest - 1e-5).all()
    assert (means < highest + 1e-5).all()
    # The standard deviation of a uniform distribution.
    assert means.std(axis=0) == pytest.approx((highest - lowest) / math.sqrt(12), rel=0.15)


def test_random_shift_with_ranges_shifts_each_axis_within_its_range() -> None:
    sample = make_sample(500)

    result = aug.RandomShift([[1, 2], [-1, -1], [0, 0]])(sample, rng())

    shift = result["points"][0] - sample["points"][0]
    assert shift.tolist() == pytest.approx([rng().uniform(1, 2), -1, 0], abs=1e-6)


def test_crop_box_keeps_the_vertices_inside() -> None:
    sample = make_sample(500)

    result = aug.CropBox(0.7)(sample, rng())

    is_inside = [max(map(abs, point)) < 0.7 for point in sample["points"].tolist()]
    assert result["labels"].tolist() == np.flatnonzero(is_inside).tolist()


@pytest.mark.parametrize(("max_points", "expected"), [(400, 250), (100, 100)])
def test_crop_keeps_the_smaller_of_number_and_share(max_points: int, expected: int) -> None:
    result = aug.CropPoints(max_points, 0.5)(make_sample(500), rng())

    assert len(result["points"]) == expected


# Crops around classes.


def make_labeled_sample() -> dict[str, Any]:
    """Make a sample with few vertices of class 5, and many of 7 and 0."""
    return make_sample(400) | {"labels": np.array([5] * 10 + [7] * 200 + [0] * 190)}


def test_crop_is_centred_on_each_of_the_classes_equally_often() -> None:
    crop = aug.CropPoints(1, classes=np.array([5, 7, 9]), label_set=SCANNET20)
    sample = make_labeled_sample()

    centers = [crop(sample, rng(seed))["labels"][0] for seed in range(400)]

    assert set(centers) == {5, 7}
    assert centers.count(5) / 400 == pytest.approx(0.5, abs=0.1)


def test_crop_is_centred_on_any_vertex_if_no_class_occurs() -> None:
    crop = aug.CropPoints(1, classes=SCANNET200.tail)
    sample = make_labeled_sample()

    centers = {int(crop(sample, rng(seed))["labels"][0]) for seed in range(60)}

    assert centers >= {0, 7}


def test_crop_around_a_class_may_be_larger_than_the_class() -> None:
    crop = aug.CropPoints(30, classes=(5,), label_set=SCANNET20)

    assert len(crop(make_labeled_sample(), rng())["points"]) == 30


# Fragments.

FRAGMENT_SIZE = 0.9


@pytest.fixture(scope="module")
def scene() -> dict[str, Any]:
    return make_sample(60)


@pytest.fixture(scope="module")
def fragments(scene: dict[str, Any]) -> list[dict[str, Any]]:
    return aug.fragments(scene, FRAGMENT_SIZE)


def find_cells(sample: dict[str, Any]) -> list[tuple[int, ...]]:
    points = sample["points"].astype(float).tolist()
    return [tuple(math.floor(value / FRAGMENT_SIZE) for value in point) for point in points]


def test_there_are_as_many_fragments_as_vertices_in_the_fullest_cell(
    scene: dict[str, Any], fragments: list[dict[str, Any]]
) -> None:
    cells = find_cells(scene)

    assert len(fragments) == max(cells.count(cell) for cell in cells)


def test_fragments_have_every_vertex(fragments: list[dict[str, Any]]) -> None:
    indices = {index for fragment in fragments for index in fragment["index"].tolist()}

    assert indices == set(range(60))


def test_fragment_has_one_vertex_of_each_cell(
    scene: dict[str, Any], fragments: list[dict[str, Any]]
) -> None:
    cells = find_cells(scene)

    for fragment in fragments:
        assert sorted(cells[index] for index in fragment["index"]) == sorted(set(cells))


def test_index_and_grid_of_a_fragment_fit_its_vertices(
    scene: dict[str, Any], fragments: list[dict[str, Any]]
) -> None:
    cells = np.array(find_cells(scene))

    for fragment in fragments:
        assert fragment["labels"].tolist() == fragment["index"].tolist()
        shifts = cells[fragment["index"]] - fragment["grid"]
        assert (shifts == shifts[0]).all()


Predictions = list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def predictions(fragments: list[dict[str, Any]]) -> Predictions:
    """Random predictions of four classes for each fragment, with its index."""
    result = []
    for number, fragment in enumerate(fragments):
        scores = rng(number).random((len(fragment["index"]), 4), np.float32)
        result.append((fragment["index"], scores))
    return result


def test_merged_predictions_are_the_mean_for_each_vertex(predictions: Predictions) -> None:
    merged = aug.merge_fragments(predictions, 60)

    assert merged.dtype == np.float32
    for vertex in range(60):
        rows = [scores[index == vertex] for index, scores in predictions]
        expected = np.concatenate(rows).mean(axis=0)
        assert merged[vertex] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([], "60 of 60 vertices are in no fragment"),
        ([(np.array([0, 0]), np.ones((2, 3)))], "above 59 or repeated"),
        ([(np.array([60]), np.ones((1, 3)))], "above 59 or repeated"),
    ],
)
def test_invalid_index_of_a_fragment_is_refused(parts: Predictions, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        aug.merge_fragments(parts, 60)


def test_fragment_with_fewer_classes_is_refused(predictions: Predictions) -> None:
    index, scores = predictions[0]

    with pytest.raises(UsageError, match="a row for each vertex"):
        aug.merge_fragments([*predictions, (index, scores[:, :2])], 60)


# Mix3D.


@pytest.fixture
def three_scenes() -> list[dict[str, Any]]:
    scenes = []
    for number in range(3):
        names = {"scene_id": f"scene000{number}_00", "faces": np.eye(3)}
        scenes.append(make_sample(30 + number, number) | names)
    return scenes


def test_mix_joins_the_vertices_of_both_scenes(three_scenes: list[dict[str, Any]]) -> None:
    first, second, _ = three_scenes

    mixed = aug.mix([first, second])

    assert np.array_equal(mixed["points"], np.concatenate([first["points"], second["points"]]))
    assert mixed["scene_id"] == "scene0000_00+scene0001_00"


def test_mix_removes_keys_that_are_not_of_the_vertices(three_scenes: list[dict[str, Any]]) -> None:
    mixed = aug.mix(three_scenes[:2])

    assert set(mixed) == set(three_scenes[0]) - {"faces", "boxes"}


@pytest.mark.parametrize("key", ["instances", "segments"])
def test_mix_shifts_the_ids_of_the_second_scene(
    three_scenes: list[dict[str, Any]], key: str
) -> None:
    mixed = aug.mix(three_scenes[:2])

    first, second = (scene[key].tolist() for scene in three_scenes[:2])
    shift = max(first) + 1
    assert mixed[key].tolist() == first + [id_ + shift if id_ >= 0 else -1 for id_ in second]


def test_mix_refuses_arrays_of_different_types(three_scenes: list[dict[str, Any]]) -> None:
    first, second, _ = three_scenes
    second["normals"] = second["normals"].astype(np.float64)

    with pytest.raises(UsageError, match="'normals' differs in type or shape"):
        aug.mix([first, second])


def test_mix3d_mixes_pairs_and_leaves_the_last_scene_alone(
    three_scenes: list[dict[str, Any]],
) -> None:
    batch = aug.Mix3D(collate, 1.0)(three_scenes)

    assert batch["scene_ids"] == ["scene0000_00+scene0001_00", "scene0002_00"]
    assert np.array_equal(batch["points"], aug.mix(three_scenes)["points"])


def test_mix3d_applies_its_step_to_mixed_scenes(three_scenes: list[dict[str, Any]]) -> None:
    batch = aug.Mix3D(collate, 1.0, aug.GridSample(0.5))(three_scenes)

    cells = np.column_stack([batch["batch"], batch["grid"]])
    assert len(np.unique(cells, axis=0)) == len(batch["points"])


def test_pickled_mix3d_equals_the_original() -> None:
    assert pickle.loads(pickle.dumps(aug.Mix3D(collate))) == aug.Mix3D(collate)


def mix_pair(seed: int) -> dict[str, Any]:
    return aug.Mix3D(collate, 0.8)([make_sample(4, seed), make_sample(4, seed + 1)])


def test_mix3d_mixes_with_its_probability() -> None:
    mixed_count = sum(len(mix_pair(seed)["scene_ids"]) == 1 for seed in range(200))

    assert mixed_count / 200 == pytest.approx(0.8, abs=0.07)


def test_mix3d_decides_the_same_for_the_same_scenes() -> None:
    for seed in range(200):
        assert mix_pair(seed)["scene_ids"] == mix_pair(seed)["scene_ids"]


# Instance targets and superpoints.


@dataclass(frozen=True)
class Targets:
    """A sample after `InstanceTargets`.

    Attributes:
        sample: The sample before.
        result: The sample after.
        pairs: Label and instance of each vertex before.
        instances: The pairs that are instances, in order.
    """

    sample: dict[str, Any]
    result: dict[str, Any]
    pairs: list[tuple[int, int]]
    instances: list[tuple[int, int]]


@pytest.fixture(params=[SCANNET20, SCANNET200], ids=str)
def targets(request: pytest.FixtureRequest) -> Targets:
    label_set = request.param
    sample = make_sample(90, 4) | {"labels": rng().integers(-1, 5, 90)}
    result = aug.InstanceTargets(label_set)(sample, rng())

    skipped = {-1, label_set.names.index("wall"), label_set.names.index("floor")}
    pairs = list(zip(sample["labels"].tolist(), sample["instances"].tolist(), strict=True))
    instances = {pair for pair in pairs if pair[0] not in skipped and pair[1] >= 0}
    return Targets(sample, result, pairs, sorted(instances))


def test_instance_targets_number_instances_by_label_and_number(targets: Targets) -> None:
    ids = {pair: number for number, pair in enumerate(targets.instances)}

    assert targets.result["instances"].tolist() == [ids.get(pair, -1) for pair in targets.pairs]
    assert targets.result["instance_labels"].tolist() == [label for label, _ in targets.instances]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_instance_targets_of_small_label_types_do_not_overflow(dtype: type) -> None:
    sample = make_sample(90) | {"labels": np.full(90, 190), "instances": np.full(90, 250)}

    small = aug.InstanceTargets(SCANNET200)(
        sample | {"labels": sample["labels"].astype(dtype)}, rng()
    )

    assert small["instance_labels"].tolist() == [190]


def test_instance_masks_are_the_vertices_of_each_instance(targets: Targets) -> None:
    masks = aug.instance_masks(targets.result["instances"])

    expected = [[pair == instance for pair in targets.pairs] for instance in targets.instances]
    assert masks.tolist() == expected


def test_boxes_and_centers_are_those_of_the_vertices(targets: Targets) -> None:
    boxes = targets.result["instance_boxes"]
    centers = targets.result["instance_centers"]

    assert len(boxes) == len(targets.instances)
    for number, instance in enumerate(targets.instances):
        is_inside = [pair == instance for pair in targets.pairs]
        points = targets.sample["points"][is_inside]
        extent = points.max(axis=0) - points.min(axis=0)
        expected = np.append(bounding_box_middle(points), extent)
        assert boxes[number] == pytest.approx(expected, abs=1e-5)
        assert centers[number] == pytest.approx(points.mean(axis=0), abs=1e-5)


@pytest.fixture
def empty_targets() -> dict[str, Any]:
    sample = make_sample(90) | {"labels": np.full(90, -1)}
    return aug.InstanceTargets(SCANNET20)(sample, rng())


def test_scene_without_instances_has_empty_targets(empty_targets: dict[str, Any]) -> None:
    assert empty_targets["instance_boxes"].shape == (0, 6)
    assert aug.instance_masks(empty_targets["instances"]).shape == (0, 90)


def test_batch_has_the_offsets_of_instances(
    targets: Targets, empty_targets: dict[str, Any]
) -> None:
    batch = collate([targets.result, empty_targets])

    assert batch["instance_labels_offset"].tolist() == [len(targets.instances)] * 2


@dataclass(frozen=True)
class Superpoints:
    """A batch of three scenes, with the superpoints of its points.

    Attributes:
        points: Array or tensor (N, 3).
        numbers: The superpoint of each point, array or tensor (N,).
        scenes: The scene of each superpoint, array or tensor (S,).
        pairs: Scene and segment of each point.
        distinct_pairs: Scene and segment of each superpoint.
    """

    points: Any
    numbers: Any
    scenes: Any
    pairs: list[tuple[int, int]]
    distinct_pairs: list[tuple[int, int]]


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def superpoints(request: pytest.FixtureRequest) -> Superpoints:
    batch = collate([make_sample(40, seed) for seed in range(3)])
    segments = batch["segments"]
    scenes = batch["batch"]
    points = batch["points"]
    segments[5] = -1
    pairs = list(zip(scenes.tolist(), segments.tolist(), strict=True))
    if request.param == "torch":
        torch = pytest.importorskip("torch")
        segments = torch.from_numpy(segments)
        scenes = torch.from_numpy(scenes)
        points = torch.from_numpy(points).requires_grad_()

    numbers, scenes_of_superpoints = aug.unique_segments(segments, scenes)
    distinct_pairs = sorted({pair for pair in pairs if pair[1] >= 0})
    return Superpoints(points, numbers, scenes_of_superpoints, pairs, distinct_pairs)


def test_superpoints_are_numbered_by_scene_and_segment(superpoints: Superpoints) -> None:
    numbers = {pair: number for number, pair in enumerate(superpoints.distinct_pairs)}

    assert superpoints.numbers.tolist() == [numbers.get(pair, -1) for pair in superpoints.pairs]
    assert superpoints.scenes.tolist() == [scene for scene, _ in superpoints.distinct_pairs]


def test_pooled_values_are_the_means_of_superpoints(superpoints: Superpoints) -> None:
    count = len(superpoints.distinct_pairs)

    means = aug.pool_segments(superpoints.points, superpoints.numbers, count)

    assert means.dtype == superpoints.points.dtype
    points = np.array(superpoints.points.tolist())
    for number, superpoint in enumerate(superpoints.distinct_pairs):
        is_inside = [pair == superpoint for pair in superpoints.pairs]
        expected = points[is_inside].mean(axis=0).tolist()
        assert means[number].tolist() == pytest.approx(expected, abs=1e-5)


def test_pooled_values_are_0_for_a_superpoint_without_points(superpoints: Superpoints) -> None:
    count = len(superpoints.distinct_pairs) + 1

    means = aug.pool_segments(superpoints.points, superpoints.numbers, count)

    assert means[-1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("superpoints", ["torch"], indirect=True)
@pytest.mark.torch
def test_gradients_pass_through_pooled_values(superpoints: Superpoints) -> None:
    count = len(superpoints.distinct_pairs)

    aug.pool_segments(superpoints.points, superpoints.numbers, count).sum().backward()

    assert superpoints.points.grad[:, 0].sum().item() == pytest.approx(count, rel=1e-5)


@pytest.mark.parametrize("superpoints", ["torch"], indirect=True)
@pytest.mark.torch
def test_instance_masks_of_a_tensor_are_a_boolean_tensor(superpoints: Superpoints) -> None:
    torch = pytest.importorskip("torch")

    assert aug.instance_masks(superpoints.numbers).dtype == torch.bool


# Presets.


def test_views_for_testing_are_12_rotations_with_scales_and_a_reflection() -> None:
    sample = {"points": np.array([[1, 2, 3]], np.float32)}

    views = [view(sample, rng(seed)) for seed, view in enumerate(aug.views_for_testing())]

    expected = []
    for scale in (1, 0.95, 1.05):
        for x, y in ((1, 2), (-2, 1), (-1, -2), (2, -1)):
            expected.append([scale * x, scale * y, scale * 3])
    expected.append([-1, -2, 3])
    positions = np.array([view["points"][0] for view in views])
    assert positions == pytest.approx(np.array(expected), abs=1e-5)


RUN_COUNT = 400
VERTEX_COUNT = 900


class PresetRuns:
    """400 results of a preset, for a room of three by two and a half metres, 1.2 m high.

    Attributes:
        results: The samples.
        axes: The directions into which the axes x, y and z are turned, (400, 3, 3).
        tilts: The angle between the z axis and its new direction, degrees, (400,).
        shares: The share of the vertices that remain, (400,).
    """

    def __init__(self, preset: Any) -> None:
        sample = make_sample(VERTEX_COUNT)
        points = rng(9).uniform(0, 1, (VERTEX_COUNT, 3)) * [3, 2.5, 1.2]
        sample["points"] = points.astype(np.float32)
        sample["colors"] = rng(8).integers(100, 156, (VERTEX_COUNT, 3), dtype=np.uint8)
        # The normals of the vertices are the x, y and z axis in turn.
        sample["normals"] = np.tile(np.eye(3, dtype=np.float32), (VERTEX_COUNT // 3, 1))

        self.results = [preset(sample, rng(seed)) for seed in range(RUN_COUNT)]
        self.axes = np.array([self._find_axes(result) for result in self.results])
        cosines = np.clip(self.axes[:, 2, 2], -1, 1)
        self.tilts = np.degrees(np.arccos(cosines))
        counts = np.array([len(result["labels"]) for result in self.results])
        self.shares = counts / VERTEX_COUNT

    @staticmethod
    def _find_axes(result: dict[str, Any]) -> list[np.ndarray]:
        axis_of_vertex = result["labels"] % 3
        return [result["normals"][axis_of_vertex == axis][0] for axis in range(3)]

    def mean_colors(self) -> np.ndarray:
        return np.array([result["colors"].mean(axis=0) for result in self.results])

    def color_spreads(self) -> np.ndarray:
        """The largest standard deviation of a channel in each result."""
        return np.array([result["colors"].std(axis=0).max() for result in self.results])


@pytest.fixture(scope="module")
def pointcept_runs() -> PresetRuns:
    return PresetRuns(aug.pointcept(grid_size=0.001, point_max=870, shuffle=True))


@pytest.fixture(scope="module")
def octformer_runs() -> PresetRuns:
    return PresetRuns(aug.octformer())


@pytest.fixture(scope="module")
def mask3d_runs() -> PresetRuns:
    return PresetRuns(aug.mask3d(voxel_size=0.001))


@pytest.mark.parametrize("name", ["pointcept_runs", "octformer_runs", "mask3d_runs"])
def test_presets_reflect_x_and_y_with_probability_one_half(
    request: pytest.FixtureRequest, name: str
) -> None:
    runs = request.getfixturevalue(name)

    # Exactly one of the two reflections makes the determinant negative.
    is_mirrored = np.linalg.det(runs.axes) < 0
    assert is_mirrored.mean() == pytest.approx(0.5, abs=0.08)


DISTORTION = aug.Sometimes(aug.ElasticDistortion(((0.2, 0.4), (0.8, 1.6))), 0.95)


def test_pointcept_preset_has_the_distortion_jitter_and_scale_of_pointcept() -> None:
    steps = set(aug.pointcept().steps)

    assert steps >= {DISTORTION, aug.Jitter(0.005, 0.02), aug.Scale(0.9, 1.1)}


def test_mask3d_preset_has_the_distortion_and_scale_of_mask3d() -> None:
    assert set(aug.mask3d().steps) >= {DISTORTION, aug.Scale(0.9, 1.1, anisotropic=True)}


def test_octformer_preset_has_the_distortion_of_octformer_in_metres() -> None:
    steps = aug.octformer().steps
    step = next(step for step in steps if "ElasticDistortion" in repr(step))

    pairs = np.array([[0.05, 0.1], [0.1, 0.2], [0.2, 0.4], [0.4, 0.8]]) * 10.24
    assert np.array(step.step.distortion_params) == pytest.approx(pairs)
    assert step.p == 0.95


def test_octformer_preset_has_the_shift_of_octformer_in_metres() -> None:
    assert aug.RandomShift(((-1.024, 1.024),) * 3) in aug.octformer().steps


def test_pointcept_preset_tilts_about_x_and_y_with_probability_one_half(
    pointcept_runs: PresetRuns,
) -> None:
    tilts = pointcept_runs.tilts

    # Up to 1/64 of half a turn about each axis.
    assert 180 / 64 < tilts.max() < 180 / 64 * math.sqrt(2) + 0.01
    assert (tilts < 1e-3).mean() == pytest.approx(0.25, abs=0.07)


def test_pointcept_preset_rotates_about_z_with_probability_one_half(
    pointcept_runs: PresetRuns,
) -> None:
    # Of uniform angles, 91 % have a cosine below 0.99.
    is_rotated = np.abs(pointcept_runs.axes[:, 0, 0]) < 0.99
    assert is_rotated.mean() == pytest.approx(0.5 * 0.91, abs=0.08)


def test_pointcept_preset_drops_a_fifth_with_probability_one_fifth(
    pointcept_runs: PresetRuns,
) -> None:
    shares = pointcept_runs.shares

    # Without the drop, the crop leaves 870 vertices.
    assert sorted(set(shares)) == [0.8, pytest.approx(870 / 900)]
    assert (shares == 0.8).mean() == pytest.approx(0.2, abs=0.06)


def test_pointcept_preset_adds_color_noise(pointcept_runs: PresetRuns) -> None:
    # The colours alone have a deviation of 16.2.
    expected = math.hypot(16.2, 0.05 * 255)
    assert np.median(pointcept_runs.color_spreads()) == pytest.approx(expected, rel=0.05)


def test_pointcept_preset_stretches_contrast_with_probability_one_fifth(
    pointcept_runs: PresetRuns,
) -> None:
    # 85 % of the blend factors lead to a spread above 26.
    is_stretched = pointcept_runs.color_spreads() > 26
    assert is_stretched.mean() == pytest.approx(0.2 * 0.85, abs=0.06)


def test_pointcept_preset_shifts_colors(pointcept_runs: PresetRuns) -> None:
    deviations = pointcept_runs.mean_colors().std(axis=0)

    expected = math.sqrt(0.95 / 3) * 0.05 * 255
    assert deviations == pytest.approx(expected, rel=0.12)


def test_pointcept_preset_keeps_the_keys_of_the_vertices(pointcept_runs: PresetRuns) -> None:
    assert set(pointcept_runs.results[0]) >= {"points", "grid", "colors", "normals", "labels"}


def test_pointcept_preset_shuffles_vertices_if_asked(pointcept_runs: PresetRuns) -> None:
    assert (np.diff(pointcept_runs.results[0]["labels"]) < 0).any()


def test_octformer_preset_crops_to_its_share(octformer_runs: PresetRuns) -> None:
    assert octformer_runs.shares == pytest.approx(0.8, abs=1e-9)


def test_octformer_preset_crops_to_its_number_of_points() -> None:
    result = aug.octformer(max_npt=100)(make_sample(400), rng())

    assert len(result["points"]) == 100


def test_octformer_preset_tilts_up_to_5_degrees_about_x_and_y(octformer_runs: PresetRuns) -> None:
    # Scales between 0.8 and 1.2 increase the tilt by up to a half.
    assert 5 < octformer_runs.tilts.max() < math.hypot(5, 5) * 1.5 + 0.1


def test_octformer_preset_puts_the_lowest_point_at_0(octformer_runs: PresetRuns) -> None:
    assert [result["points"][:, 2].min() for result in octformer_runs.results] == [0] * RUN_COUNT


def test_octformer_preset_shifts_the_scene_by_up_to_1_metre(octformer_runs: PresetRuns) -> None:
    middles = [bounding_box_middle(result["points"])[:2] for result in octformer_runs.results]

    # More than by the shift alone, because of the crop.
    assert (np.std(middles, axis=0) > 1.024 / math.sqrt(3)).all()


def test_octformer_preset_always_stretches_contrast(octformer_runs: PresetRuns) -> None:
    # 85 % of the blend factors lead to a spread above 26.
    is_stretched = octformer_runs.color_spreads() > 26
    assert is_stretched.mean() == pytest.approx(0.85, abs=0.07)


def test_octformer_preset_shifts_colors(octformer_runs: PresetRuns) -> None:
    deviations = octformer_runs.mean_colors().std(axis=0)

    expected = math.sqrt(0.95 / 3) * 0.1 * 255
    assert deviations == pytest.approx(expected, rel=0.15)


def test_mask3d_preset_keeps_all_vertices(mask3d_runs: PresetRuns) -> None:
    # A few share a voxel of 1 mm.
    assert mask3d_runs.shares.min() > 0.99


def test_mask3d_preset_tilts_up_to_7_5_degrees_about_x_and_y(mask3d_runs: PresetRuns) -> None:
    # 1/24 of half a turn. Scales increase the tilt.
    assert 7.5 < mask3d_runs.tilts.max() < 7.5 * math.sqrt(2) * 1.25


def test_mask3d_preset_changes_brightness_contrast_and_channels(mask3d_runs: PresetRuns) -> None:
    std = [0.283, 0.276, 0.270]
    mean = [0.478, 0.430, 0.375]
    colors = mask3d_runs.mean_colors() * std + mean

    assert colors.mean(axis=0) == pytest.approx(0.5, abs=0.02)
    brightness = 0.2
    contrast = 0.5 * 0.2
    shift = 20 / 255
    expected = math.sqrt((brightness**2 + contrast**2 + shift**2) / 3)
    assert colors.std(axis=0) == pytest.approx(expected, rel=0.12)
