"""Augmentations as other programs have them: compared with plain loops, and presets with the numbers they state."""

import colorsys
import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest
from test_transforms import make_sample, rng

from scannet_prep import SCANNET20, SCANNET200, collate
from scannet_prep import transforms as aug
from scannet_prep.base.errors import UsageError


def turn(point: Any, angle: float, axis: str) -> Any:
    """By a matrix written out as Pointcept's are."""
    c, s = math.cos(angle), math.sin(angle)
    matrix = {
        "x": [[1, 0, 0], [0, c, -s], [0, s, c]],
        "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
        "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
    }[axis]
    return np.array([sum(a * b for a, b in zip(row, point, strict=True)) for row in matrix])


@pytest.mark.parametrize("axis", ["x", "y", "z"])
@pytest.mark.parametrize("center", [None, (0.5, -1.0, 2.0)])
def test_rotation_about_any_axis_turns_points_about_the_centre_and_normals(
    axis: Any, center: Any
) -> None:
    sample = make_sample(12)
    found = aug.RandomRotate([-1 / 4, 1 / 8], axis, center)(sample, rng(7))
    angle = float(rng(7).uniform(-1 / 4, 1 / 8)) * math.pi
    middle = center or [(min(column) + max(column)) / 2 for column in sample["points"].T.tolist()]
    for key, origin in (("points", np.array(middle)), ("normals", np.zeros(3))):
        for before, after in zip(sample[key], found[key], strict=True):
            assert after == pytest.approx(turn(before - origin, angle, axis) + origin, abs=1e-5)
    about_z = aug.RotateZ(math.pi / 4)(sample, rng(7))
    expected = aug.RandomRotate((-1 / 4, 1 / 4), "z", (0, 0, 0))(sample, rng(7))
    assert all(np.array_equal(about_z[key], expected[key]) for key in ("points", "normals"))


def distort(
    points: np.ndarray, granularity: float, magnitude: float, generator: np.random.Generator
) -> np.ndarray:
    """Elastic distortion as the three programs describe it, in loops and double precision."""
    lowest = points.min(axis=0)
    shape = [
        int((high - low) // granularity) + 3
        for low, high in zip(lowest, points.max(axis=0), strict=True)
    ]
    noise = generator.standard_normal((3, *shape), np.float32).astype(np.float64)
    for axis, _ in itertools.product((1, 2, 3), range(2)):
        padded = np.moveaxis(
            np.pad(noise, [(1, 1) if axis == place else (0, 0) for place in range(4)]), axis, 0
        )
        mean = [(padded[i - 1] + padded[i] + padded[i + 1]) / 3 for i in range(1, len(padded) - 1)]
        noise = np.moveaxis(np.array(mean), 0, axis)
    result = points.copy()
    for number, point in enumerate(points):
        place = (point - (lowest - granularity)) / granularity
        cell = np.floor(place).astype(int)
        for corner in itertools.product((0, 1), repeat=3):
            weight = np.prod(
                [f if up else 1 - f for f, up in zip(place - cell, corner, strict=True)]
            )
            result[number] += weight * noise[(slice(None), *(cell + corner))] * magnitude
    return result


def test_elastic_distortion_interpolates_smoothed_noise_as_a_loop_does() -> None:
    sample = make_sample(60)
    found = aug.ElasticDistortion([[0.4, 0.5], [0.9, 1.6]])(sample, rng(2))["points"]
    generator = rng(2)
    expected = distort(sample["points"].astype(np.float64), 0.4, 0.5, generator)
    expected = distort(expected, 0.9, 1.6, generator)
    assert np.abs(found - expected).max() < 2e-4
    assert 0.02 < np.abs(found - sample["points"]).mean() < 0.5


def test_colours_are_stretched_shifted_and_normalized_as_loops_do() -> None:
    sample = make_sample(30)
    sample["colors"] = sample["colors"] // 3 + np.array([10, 50, 90], np.uint8)
    sample["colors"][:, 2] = 7
    columns = sample["colors"].T.tolist()
    for blend_factor in (0.0, 0.25, 1.0, None):
        found = aug.ChromaticAutoContrast(blend_factor)(sample, rng(4))["colors"].T.tolist()
        share = rng(4).random() if blend_factor is None else blend_factor
        for before, after in zip(columns[:2], found[:2], strict=True):
            low, high = min(before), max(before)
            expected = [(1 - share) * c + share * (c - low) * 255 / (high - low) for c in before]
            assert after == pytest.approx(expected, abs=0.51)
        assert found[2] == columns[2]
    generator = rng(5)
    factor, offset = 1 + generator.uniform(-0.2, 0.2), 255 * generator.uniform(-0.2, 0.2)
    found = aug.RandomBrightnessContrast()(sample, rng(5))["colors"]
    assert found == pytest.approx(np.clip(sample["colors"] * factor + offset, 0, 255), abs=0.51)
    shifted = np.clip(sample["colors"] + rng(6).uniform(-20, 20, 3), 0, 255)
    assert aug.ColorJitter(20, 0)(sample, rng(6))["colors"] == pytest.approx(shifted, abs=0.51)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    found = aug.NormalizeColor(mean, std)(sample, rng())["colors"][3].tolist()
    expected = [
        (c / 255 - m) / d for c, m, d in zip(sample["colors"][3].tolist(), mean, std, strict=True)
    ]
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_hues_and_saturations_change_as_colorsys_computes_them(seed: int) -> None:
    sample = make_sample(400, seed)
    sample["colors"][:9] = [
        [0, 0, 0], [255, 255, 255], [7, 7, 7], [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0],
        [0, 255, 255], [200, 200, 9],
    ]  # fmt: skip
    found = aug.HueSaturationTranslation(0.5, 0.9)(sample, rng(seed))["colors"]
    generator = rng(seed)
    shift, factor = generator.uniform(-0.5, 0.5), 1 + generator.uniform(-0.9, 0.9)
    for before, after in zip(sample["colors"].tolist(), found.tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*before)
        expected = colorsys.hsv_to_rgb((hue + shift) % 1, min(saturation * factor, 1), value)
        assert after == pytest.approx(expected, abs=0.51)


def test_hues_and_saturations_stay_without_a_range() -> None:
    sample = make_sample(400)
    found = aug.HueSaturationTranslation(0, 0)(sample, rng())
    assert np.array_equal(found["colors"], sample["colors"])
    assert found["colors"].dtype == np.uint8


def test_grayscale_weighs_channels_as_its_formula_says() -> None:
    sample = make_sample(200)
    found = aug.RandomColorGrayScale()(sample, rng())["colors"]
    assert found.dtype == np.uint8
    for (red, green, blue), after in zip(sample["colors"].tolist(), found.tolist(), strict=True):
        assert after == [pytest.approx(0.2989 * red + 0.587 * green + 0.114 * blue, abs=0.501)] * 3


@pytest.mark.parametrize(
    ("kind", "key"), [(aug.RandomDropColor, "colors"), (aug.RandomDropNormal, "normals")]
)
@pytest.mark.parametrize("ratio", [0, 0.2, 0.999, 1])
def test_dropped_features_are_zero_at_a_share_of_the_vertices(
    kind: Any, key: str, ratio: float
) -> None:
    sample = make_sample(99)
    sample["colors"] = np.maximum(sample["colors"], 1)
    found = kind(ratio)(sample, rng())[key]
    is_zero = (found == 0).all(axis=1)
    assert np.count_nonzero(is_zero) == int(99 * ratio)
    assert np.array_equal(found[~is_zero], sample[key][~is_zero])
    assert found.dtype == sample[key].dtype


@pytest.mark.parametrize(
    ("kind", "key"), [(aug.RandomDropColor, "colors"), (aug.RandomDropNormal, "normals")]
)
def test_every_vertex_may_lose_its_feature(kind: Any, key: str) -> None:
    sample = make_sample(10)
    sample["colors"] = np.maximum(sample["colors"], 1)
    times = sum((kind(0.3)(sample, rng(seed))[key] == 0).all(axis=1) for seed in range(300))
    assert times / 300 == pytest.approx(0.3, abs=0.1)


def test_share_of_dropped_colors_is_of_the_vertices_that_are_left() -> None:
    sample = make_sample(200)
    sample["colors"] = np.maximum(sample["colors"], 1)
    found = aug.Compose(aug.RandomDropColor(0.5), aug.Drop(0.5))(sample, rng())
    assert np.count_nonzero((found["colors"] == 0).all(axis=1)) == 50


def test_clipped_jitter_is_the_normal_noise_of_its_formula() -> None:
    sample = make_sample(40_000)
    change = aug.ClipGaussianJitter(0.02)(sample, rng())["points"] - sample["points"]
    expected = 0.02 * np.clip(rng(1).standard_normal(change.shape) / 1.96, -1, 1)
    assert np.abs(change).max() <= 0.02 + 1e-6
    assert np.isclose(np.abs(change), 0.02, atol=1e-6).mean() == pytest.approx(0.05, abs=0.005)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert np.quantile(change, share) == pytest.approx(np.quantile(expected, share), abs=2e-4)
    same = aug.Jitter(0.02 / 1.96, 0.02)(sample, rng())["points"]
    assert np.array_equal(same, sample["points"] + change)


def test_anisotropic_scale_keeps_normals_at_right_angles_to_surfaces() -> None:
    corners = rng().normal(size=(50, 2, 3))  # two edges of each surface, from a common corner
    normals = np.cross(corners[:, 0], corners[:, 1])
    normals = (normals / np.linalg.norm(normals, axis=1, keepdims=True)).astype(np.float32)
    normals[0] = 0
    transform = aug.Scale(0.5, 2.0, anisotropic=True)
    found = transform({"points": corners[:, 0].astype(np.float32), "normals": normals}, rng(3))
    other = transform({"points": corners[:, 1].astype(np.float32), "normals": normals}, rng(3))
    assert found["points"] == pytest.approx(corners[:, 0] * rng(3).uniform(0.5, 2.0, 3), rel=1e-5)
    for edge in (found["points"], other["points"]):
        assert np.abs((edge * found["normals"]).sum(axis=1)).max() < 1e-5
    assert np.linalg.norm(found["normals"], axis=1) == pytest.approx([0] + [1] * 49, abs=1e-6)
    sample = make_sample(8)
    found = aug.Scale(0.5, 2.0)(sample, rng(3))
    assert found["points"] == pytest.approx(sample["points"] * rng(3).uniform(0.5, 2.0), rel=1e-6)
    assert found["normals"] is sample["normals"]


def test_shifts_and_boxes_are_where_they_are_told_to_be() -> None:
    sample = make_sample(500)
    low, high = sample["points"].min(axis=0), sample["points"].max(axis=0)
    moves = np.array(
        [
            (aug.RandomShift()(sample, rng(seed))["points"] - sample["points"])[0]
            for seed in range(300)
        ]
    )
    means = moves + sample["points"].mean(axis=0)  # where the mean has come to
    half = np.array([low, high] - sample["points"].mean(axis=0)) / 2
    assert (means > half[0] - 1e-5).all()
    assert (means < half[1] + 1e-5).all()
    assert means.std(axis=0) == pytest.approx((half[1] - half[0]) / math.sqrt(12), rel=0.15)
    shifted = (
        aug.RandomShift([[1, 2], [-1, -1], [0, 0]])(sample, rng())["points"] - sample["points"]
    )
    assert shifted[0].tolist() == pytest.approx([rng().uniform(1, 2), -1, 0], abs=1e-6)
    kept = aug.CropBox(0.7)(sample, rng())["labels"].tolist()
    assert kept == [
        i for i, point in enumerate(sample["points"].tolist()) if max(map(abs, point)) < 0.7
    ]
    assert len(aug.CropPoints(400, 0.5)(sample, rng())["points"]) == 250
    assert len(aug.CropPoints(100, 0.5)(sample, rng())["points"]) == 100


def test_crops_are_centred_on_the_wanted_classes_each_as_often() -> None:
    sample = make_sample(400)
    sample["labels"] = np.array([5] * 10 + [7] * 200 + [0] * 190)  # 5 is rare
    crop = aug.CropPoints(1, classes=np.array([5, 7, 9]), label_set=SCANNET20)
    centers = [crop(sample, rng(seed))["labels"][0] for seed in range(400)]
    assert set(centers) == {5, 7}
    assert centers.count(5) / 400 == pytest.approx(0.5, abs=0.1)
    assert {
        int(aug.CropPoints(1, classes=SCANNET200.tail)(sample, rng(seed))["labels"][0])
        for seed in range(60)
    } >= {
        0,
        7,
    }
    assert len(aug.CropPoints(30, classes=(5,), label_set=SCANNET20)(sample, rng())["points"]) == 30


def test_fragments_have_every_vertex_and_their_predictions_come_together() -> None:
    sample = make_sample(60) | {"scene": 3}
    parts = aug.fragments(sample, 0.9)
    cells = [
        tuple(math.floor(x / 0.9) for x in point)
        for point in sample["points"].astype(float).tolist()
    ]
    assert len(parts) == max(cells.count(cell) for cell in cells)
    for part in parts:
        assert sorted(cells[index] for index in part["index"]) == sorted(set(cells)), (
            "one of each cell"
        )
        assert part["labels"].tolist() == part["index"].tolist()
        shift = np.array(cells)[part["index"]] - part["grid"]
        assert (shift == shift[0]).all()
    predictions = [
        rng(number).random((len(part["index"]), 4), np.float32) for number, part in enumerate(parts)
    ]
    pairs = [
        (part["index"], prediction) for part, prediction in zip(parts, predictions, strict=True)
    ]
    merged = aug.merge_fragments(pairs, 60)
    assert merged.dtype == np.float32
    for vertex in range(60):
        rows = [
            prediction[index.tolist().index(vertex)]
            for index, prediction in pairs
            if vertex in index
        ]
        assert merged[vertex] == pytest.approx(np.mean(rows, axis=0), abs=1e-6)
    for wrong, message in [
        (pairs[1:1], "60 of 60 vertices are in no fragment"),
        ([(np.array([0, 0]), np.ones((2, 3)))], "above 59 or repeated"),
        ([(np.array([60]), np.ones((1, 3)))], "above 59"),
        ([*pairs, (pairs[0][0], predictions[0][:, :2])], "a row for each vertex"),
    ]:
        with pytest.raises(UsageError, match=message):
            aug.merge_fragments(wrong, 60)


def test_mix3d_joins_pairs_keeps_ids_apart_and_decides_alike_in_every_worker() -> None:
    samples = [
        make_sample(30 + i, i) | {"scene_id": f"scene000{i}_00", "faces": np.eye(3)}
        for i in range(3)
    ]
    found = aug.mix(samples[:2])
    assert found["scene_id"] == "scene0000_00+scene0001_00"
    assert set(found) == set(samples[0]) - {"faces", "boxes"}
    assert np.array_equal(
        found["points"], np.concatenate([samples[0]["points"], samples[1]["points"]])
    )
    for key in ("instances", "segments"):
        first, second = (sample[key].tolist() for sample in samples[:2])
        assert found[key].tolist() == first + [i + max(first) + 1 if i >= 0 else -1 for i in second]
    batch = aug.Mix3D(collate, 1.0, aug.GridSample(0.5))(samples)
    assert batch["scene_ids"] == ["scene0000_00+scene0001_00", "scene0002_00"]
    assert len(np.unique(np.column_stack([batch["batch"], batch["grid"]]), axis=0)) == len(
        batch["points"]
    )
    assert np.array_equal(aug.Mix3D(collate, 1.0)(samples)["points"], aug.mix(samples)["points"])
    assert pickle.loads(pickle.dumps(aug.Mix3D(collate))) == aug.Mix3D(collate)
    mixed = 0
    for seed in range(200):
        batches = [
            aug.Mix3D(collate, 0.8)([make_sample(4, seed), make_sample(4, seed + 1)])
            for _ in range(2)
        ]
        assert batches[0]["scene_ids"] == batches[1]["scene_ids"]
        mixed += len(batches[0]["scene_ids"]) == 1
    assert mixed / 200 == pytest.approx(0.8, abs=0.07)
    with pytest.raises(UsageError, match="'normals' differs in type or shape"):
        aug.mix([samples[0], samples[1] | {"normals": samples[1]["normals"].astype(np.float64)}])


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200])
def test_instance_targets_leave_out_walls_floors_and_unlabeled(label_set: Any) -> None:
    sample = make_sample(90, 4)
    sample["labels"] = rng().integers(-1, 5, 90)
    found = aug.InstanceTargets(label_set)(sample, rng())
    left_out = {
        -1,
        *(item.train_id for item in label_set.classes if item.name in ("wall", "floor")),
    }
    assert len(left_out) == 3
    pairs = list(zip(sample["labels"].tolist(), sample["instances"].tolist(), strict=True))
    expected = sorted(
        {(label, number) for label, number in pairs if label not in left_out and number >= 0}
    )
    assert found["instances"].tolist() == [
        expected.index(pair) if pair in expected else -1 for pair in pairs
    ]
    assert found["instance_labels"].tolist() == [label for label, _ in expected]
    masks = aug.instance_masks(found["instances"])
    assert len(masks) == len(found["instance_boxes"]) == len(expected)
    for number, pair in enumerate(expected):
        rows = [
            point
            for point, other in zip(sample["points"].tolist(), pairs, strict=True)
            if other == pair
        ]
        assert masks[number].tolist() == [other == pair for other in pairs]
        low, high = (
            np.array(list(map(function, zip(*rows, strict=True)))) for function in (min, max)
        )
        assert found["instance_boxes"][number] == pytest.approx(
            np.array([*(low + high) / 2, *high - low]), abs=1e-5
        )
        assert found["instance_centers"][number].tolist() == pytest.approx(
            np.mean(rows, axis=0).tolist(), abs=1e-5
        )
    nothing = aug.InstanceTargets(label_set)(sample | {"labels": np.full(90, -1)}, rng())
    assert nothing["instance_boxes"].shape == (0, 6)
    assert aug.instance_masks(nothing["instances"]).shape == (0, 90)
    batch = collate([found, nothing])
    assert batch["instance_labels_offset"].tolist() == [len(expected)] * 2


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_superpoints_are_unique_in_a_batch_and_values_are_averaged_over_them(kind: str) -> None:
    batch = collate([make_sample(40, seed) for seed in range(3)])
    segments, scenes, points = batch["segments"], batch["batch"], batch["points"]
    segments[5] = -1
    if kind == "torch":
        torch = pytest.importorskip("torch")
        segments, scenes, points = (torch.from_numpy(array) for array in (segments, scenes, points))
        points.requires_grad_()
    superpoints, of_scenes = aug.unique_segments(segments, scenes)
    pairs = list(zip(scenes.tolist(), segments.tolist(), strict=True))
    expected = sorted({pair for pair in pairs if pair[1] >= 0})
    assert superpoints.tolist() == [
        expected.index(pair) if pair in expected else -1 for pair in pairs
    ]
    assert of_scenes.tolist() == [scene for scene, _ in expected]
    means = aug.pool_segments(points, superpoints, len(expected) + 1)
    assert means.dtype == points.dtype
    for number, pair in enumerate(expected):
        rows = [point for point, other in zip(points.tolist(), pairs, strict=True) if other == pair]
        assert means[number].tolist() == pytest.approx(np.mean(rows, axis=0).tolist(), abs=1e-5)
    assert means[-1].tolist() == [0, 0, 0]
    if kind == "torch":
        means.sum().backward()
        assert points.grad[:, 0].sum().item() == pytest.approx(len(expected), rel=1e-5)
        assert aug.instance_masks(superpoints).dtype == torch.bool


def test_views_for_testing_are_right_angles_at_three_scales_and_a_reflection() -> None:
    sample = {"points": np.array([[1, 2, 3]], np.float32)}
    found = [
        view(sample, rng(seed))["points"][0].tolist()
        for seed, view in enumerate(aug.views_for_testing())
    ]
    expected = [
        [s * x, s * y, s * 3]
        for s in (1, 0.95, 1.05)
        for x, y in ((1, 2), (-2, 1), (-1, -2), (2, -1))
    ]
    assert found == [pytest.approx(view, abs=1e-5) for view in [*expected, [-1, -2, 3]]]


def run(preset: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
    """400 runs of a preset: where x, y and z are turned to, by how much z, the share of points that stay, samples."""
    sample = make_sample(900) | {
        "points": (rng(9).uniform(0, 1, (900, 3)) * [3, 2.5, 1.2]).astype(np.float32)
    }
    sample["colors"] = rng(8).integers(100, 156, (900, 3), dtype=np.uint8)
    sample["normals"] = np.tile(np.eye(3, dtype=np.float32), (300, 1))
    found = [preset(sample, rng(seed)) for seed in range(400)]
    axes = np.array(
        [[item["normals"][item["labels"] % 3 == axis][0] for axis in range(3)] for item in found]
    )
    assert (np.linalg.det(axes) < 0).mean() == pytest.approx(0.5, abs=0.08), (
        "reflected in x or y, each with 0.5"
    )
    tilt = np.degrees(np.arccos(np.clip(axes[:, 2, 2], -1, 1)))
    return axes, tilt, np.array([len(item["labels"]) / 900 for item in found]), found


def test_presets_distort_as_their_configurations_say() -> None:
    both = aug.Sometimes(aug.ElasticDistortion(((0.2, 0.4), (0.8, 1.6))), 0.95)
    pairs = (
        np.array([[0.05, 0.1], [0.1, 0.2], [0.2, 0.4], [0.4, 0.8]]) * 10.24
    )  # OctFormer's unit, metres
    four = next(step for step in aug.octformer().steps if "ElasticDistortion" in repr(step))
    assert np.array(four.step.distortion_params) == pytest.approx(pairs)
    assert four.p == 0.95
    assert {both, aug.Jitter(0.005, 0.02), aug.Scale(0.9, 1.1)} <= set(aug.pointcept().steps)
    assert {both, aug.Scale(0.9, 1.1, anisotropic=True)} <= set(aug.mask3d().steps)
    assert aug.RandomShift(((-1.024, 1.024),) * 3) in aug.octformer().steps


def test_pointcept_preset_has_the_numbers_of_its_configuration() -> None:
    axes, tilt, shares, found = run(aug.pointcept(grid_size=0.001, point_max=870, shuffle=True))
    assert 180 / 64 < tilt.max() < 180 / 64 * math.sqrt(2) + 0.01, (
        "1/64 of a half turn about x and y"
    )
    assert (tilt < 1e-3).mean() == pytest.approx(0.25, abs=0.07), "each with 0.5"
    assert (np.abs(axes[:, 0, 0]) < 0.99).mean() == pytest.approx(0.5 * 0.91, abs=0.08), (
        "any angle about z with 0.5"
    )
    assert sorted(set(shares)) == [0.8, pytest.approx(870 / 900)], "point_max"
    assert (shares == 0.8).mean() == pytest.approx(0.2, abs=0.06), "a fifth is dropped with 0.2"
    spread = np.array([item["colors"].std(axis=0).max() for item in found])
    assert np.median(spread) == pytest.approx(math.hypot(16.2, 0.05 * 255), rel=0.05), (
        "noise of 0.05"
    )
    assert (spread > 26).mean() == pytest.approx(0.2 * 0.85, abs=0.06), "auto-contrast with 0.2"
    means = np.array([item["colors"].mean(axis=0) for item in found])
    assert means.std(axis=0) == pytest.approx(math.sqrt(0.95 / 3) * 0.05 * 255, rel=0.12), (
        "shifted by up to 0.05"
    )
    assert {"points", "grid", "colors", "normals", "labels"} <= set(found[0])
    assert (np.diff(found[0]["labels"]) < 0).any(), "shuffled"


def test_octformer_preset_has_the_numbers_of_its_configuration() -> None:
    _, tilt, shares, found = run(aug.octformer())
    assert shares == pytest.approx(0.8, abs=1e-9), "crop_ratio"
    assert len(aug.octformer(max_npt=100)(make_sample(400), rng())["points"]) == 100
    assert 5 < tilt.max() < math.hypot(5, 5) * 1.5 + 0.1, (
        "5 degrees about x and y, and scales of 0.8 to 1.2"
    )
    assert [item["points"][:, 2].min() for item in found] == [0] * 400
    middles = np.array(
        [(item["points"].max(axis=0) + item["points"].min(axis=0))[:2] / 2 for item in found]
    )
    assert (middles.std(axis=0) > 1.024 / math.sqrt(3)).all(), (
        "shifted by up to 1.024 m, and cropped"
    )
    spread = np.array([item["colors"].std(axis=0).max() for item in found])
    assert (spread > 26).mean() == pytest.approx(0.85, abs=0.07), "auto-contrast always"
    means = np.array([item["colors"].mean(axis=0) for item in found])
    assert means.std(axis=0) == pytest.approx(math.sqrt(0.95 / 3) * 0.1 * 255, rel=0.15), (
        "shifted by up to 0.1"
    )


def test_mask3d_preset_has_the_numbers_of_its_configuration() -> None:
    _, tilt, shares, found = run(aug.mask3d(voxel_size=0.001))
    assert shares.min() > 0.99, "nothing is cropped"
    assert 7.5 < tilt.max() < 7.5 * math.sqrt(2) * 1.25, (
        "a 24th of a half turn about x and y, and scales"
    )
    colors = np.array([item["colors"].mean(axis=0) for item in found]) * [0.283, 0.276, 0.270] + [
        0.478,
        0.430,
        0.375,
    ]
    assert colors.mean(axis=0) == pytest.approx(0.5, abs=0.02)
    deviation = math.sqrt(
        (0.2**2 + (0.5 * 0.2) ** 2 + (20 / 255) ** 2) / 3
    )  # brightness, contrast, shift
    assert colors.std(axis=0) == pytest.approx(deviation, rel=0.12)
