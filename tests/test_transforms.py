"""Transforms compared with plain loops, and the promises that all of them keep."""

import itertools
import math
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import make_sample, rng
from training_sources import check_same

from scannet_prep import SCANNET20, SCANNET200, collate
from scannet_prep import transforms as aug
from scannet_prep.errors import UsageError
from scannet_prep.transforms import Compose, CropPoints, Drop, Flip, GridSample, Jitter, Sometimes

NOT_RANDOM = [aug.Normalize(), aug.CenterShift(), aug.InstanceTargets(SCANNET20)]
SINGLE = [
    aug.ColorJitter(), CropPoints(20), Drop(0.5), Flip(), GridSample(0.5), Jitter(), aug.Rotate(),
    aug.Rotate(-5, 5, "x", (0, 1, 2)), aug.Rotate(-5, 5, "y", center=None), aug.Scale(),
    aug.Scale(0.8, 1.2, anisotropic=True), aug.ChromaticAutoContrast(), aug.ElasticDistortion(),
    CropPoints(20, 1, (3, 7), SCANNET20), Sometimes(Jitter(), 0.7), *NOT_RANDOM,
]  # fmt: skip
ALL = [*SINGLE, Compose(aug.Rotate(), aug.ColorJitter(), GridSample(0.3), Drop(), aug.Normalize())]
MOVING = (
    Flip, Jitter, aug.Rotate, aug.Scale, aug.ElasticDistortion, aug.CenterShift, aug.Normalize,
)  # fmt: skip
VERTEX_KEYS = ("points", "normals", "colors", "labels", "instances", "segments", "height")
CELL_SIZES = st.sampled_from([0.1, 0.25, 0.5, 1.0, 10.0])


def check_rows(before, after, kept):
    """Check that the arrays of the vertices have the kept rows, and that nothing else changed."""
    for key in VERTEX_KEYS:
        assert after[key].tolist() == before[key][kept].tolist(), key
        assert after[key].dtype == before[key].dtype
    assert after["boxes"] is before["boxes"]
    assert after["scene_id"] == "scene0000_00"


def find_cells(points, size):
    return [tuple(math.floor(float(value) / size) for value in point) for point in points]


# All transforms.


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_transform_is_a_value_that_leaves_its_sample_alone_and_repeats_its_result(transform):
    sample = make_sample()
    copy = pickle.loads(pickle.dumps(transform))

    result = transform(sample, rng(3))

    assert copy == transform
    assert hash(copy) == hash(transform)
    check_same(result, copy(make_sample(), rng(3)))
    check_same(sample, make_sample())
    assert result["points"].dtype == result["normals"].dtype == np.float32
    for key in VERTEX_KEYS:
        assert result[key].flags.c_contiguous, key
        assert len(result[key]) == len(result["points"]), key


@pytest.mark.parametrize("transform", [step for step in ALL if step not in NOT_RANDOM], ids=repr)
def test_random_transform_gives_other_results_for_other_generators(transform):
    contents = set()
    for seed in range(9):
        result = transform(make_sample(), rng(seed))
        contents.add(b"".join(result[key].tobytes() for key in ("points", "colors", "normals")))

    assert len(contents) > 1


def check_keys_agree(sample):
    """Check that everything that was computed from points fits the points of the sample."""
    points = sample["points"]
    if "grid" in sample:
        shifts = np.floor(points.astype(np.float64) / 0.5) - sample["grid"]
        assert (shifts == shifts[0]).all()
        assert len(np.unique(sample["grid"], axis=0)) == len(points)
    if "inverse" in sample:
        assert sample["inverse"].max() < len(points)
    for number, box in enumerate(sample.get("instance_boxes", [])):
        inside = points[sample["instances"] == number]
        middle = (inside.min(axis=0) + inside.max(axis=0)) / 2
        assert box[:3] == pytest.approx(middle, abs=1e-6)
        assert sample["instance_centers"][number] == pytest.approx(inside.mean(axis=0), abs=1e-6)


@pytest.mark.parametrize("first", SINGLE, ids=repr)
def test_two_composed_transforms_agree_with_one_after_the_other(first):
    for second, seed in itertools.product(SINGLE, range(3)):
        try:
            result = Compose(first, second)(make_sample(seed=seed), rng(seed))
        except UsageError as error:
            problem = error.message
        else:
            problem = ""
        if problem:
            # Colours are normalized twice, or voxels sampled twice.
            assert re.search("expected uint8|has an inverse map", problem)
            continue
        check_keys_agree(result)
        generator = rng(seed)
        expected = second(first(make_sample(seed=seed), generator), generator)
        assert list(result) == list(expected)
        # Noise of colours is drawn for the vertices that remain.
        late = {"colors"} if aug.ColorJitter() in (first, second) else set()
        for key in result.keys() - late:
            assert np.array_equal(result[key], expected[key]), (second, key)


@pytest.mark.parametrize("step", SINGLE, ids=repr)
def test_keys_of_a_result_depend_neither_on_chance_nor_on_size(step):
    transforms = [step, Sometimes(step), Sometimes(Compose(Sometimes(step), Jitter()), 0.3)]
    if isinstance(step, GridSample | aug.InstanceTargets):
        transforms = [step]  # adds keys
    for transform in transforms:
        key_sets = set()
        for seed in range(12):
            optional = {
                "faces": np.zeros((2, 3), np.int32),
                "grid": np.zeros((10 + 5 * seed, 3), np.int32),
                "axis_alignment": np.eye(4),
                "instance_boxes": np.ones((1, 6)),
                "instance_centers": np.ones((1, 3)),
            }
            result = transform(make_sample(10 + 5 * seed, seed) | optional, rng(seed))
            key_sets.add(frozenset(result))
        assert len(key_sets) == 1, transform


@pytest.mark.parametrize("step", SINGLE, ids=repr)
def test_axis_alignment_is_removed_exactly_if_points_move(step):
    result = step(make_sample() | {"axis_alignment": np.eye(4)}, rng())

    may_move = isinstance(step, MOVING) or step == Sometimes(Jitter(), 0.7)
    assert ("axis_alignment" in result) is not may_move


@pytest.mark.parametrize(
    "transform",
    [step for step in SINGLE if not isinstance(step, GridSample)],
    ids=repr,
)
def test_scene_without_vertices_stays_without_vertices(transform):
    assert len(transform(make_sample(0), rng())["points"]) == 0


def test_own_steps_receive_whole_samples_between_the_others():
    def add_mean(sample, generator):
        return sample | {"mean": sample["points"].mean(axis=0), "number": generator.random()}

    sample = Compose(Drop(0.5), add_mean, Sometimes(add_mean, 0), Flip(1))(make_sample(), rng())

    expected = Drop(0.5)(make_sample(), rng())
    assert sample["mean"].tolist() == expected["points"].mean(axis=0).tolist()
    assert np.array_equal(sample["points"], expected["points"] * [-1, -1, 1])
    untouched = make_sample()
    assert Compose()(untouched, rng()) is untouched
    renamed = {"coord": untouched["points"]}
    assert Sometimes(lambda sample, _: sample, 1)(renamed, rng()) == renamed


# Selections.


@given(st.integers(1, 45), st.integers(0, 20), st.booleans())
def test_crop_keeps_the_nearest_to_one_of_the_vertices(max_points, seed, has_ties):
    sample = make_sample(40, seed)
    if has_ties:
        sample["points"] = np.rint(sample["points"])

    result = CropPoints(max_points)(sample, rng(seed))

    points = [tuple(map(float, point)) for point in sample["points"].tolist()]
    center = points[int(rng(seed).integers(40))]
    distances = [round(math.dist(point, center), 5) for point in points]
    by_distance = sorted(range(40), key=lambda index: (distances[index], index))
    check_rows(sample, result, sorted(by_distance[:max_points]))


def test_crop_is_centred_on_each_of_its_classes_equally_often():
    # Few vertices of class 5, and many of 7 and 0.
    sample = make_sample(400) | {"labels": np.array([5] * 10 + [7] * 200 + [0] * 190)}

    def find_centers(classes):
        crop = CropPoints(1, classes=classes, label_set=SCANNET20)
        return [int(crop(sample, rng(seed))["labels"][0]) for seed in range(400)]

    centers = find_centers((5, 7, 9))
    assert set(centers) == {5, 7}
    assert centers.count(5) / 400 == pytest.approx(0.5, abs=0.1)
    assert set(find_centers((9,))) >= {0, 7}  # any vertex, as the class does not occur
    crop = CropPoints(30, classes=(5,), label_set=SCANNET20)
    assert len(crop(sample, rng())["points"]) == 30
    assert len(CropPoints(300, 0.25)(sample, rng())["points"]) == 100


@given(st.floats(0, 1), st.sets(st.integers(0, 39)), st.integers(0, 9))
def test_drop_keeps_its_share_in_order_and_all_annotated_vertices(share, annotated, seed):
    sample = make_sample()
    result = Drop(share)(sample, rng(seed))
    kept = result["labels"].tolist()
    check_rows(sample, result, kept)
    assert kept == sorted(set(kept))
    assert len(kept) == max(1, 40 - round(40 * share))

    limited = sample | {"annotated": np.isin(np.arange(40), list(annotated))}
    result = Drop(share)(limited, rng(seed))
    assert result["labels"].tolist() == sorted({*kept, *annotated})
    assert result["annotated"].sum() == len(annotated)


@given(CELL_SIZES, st.integers(0, 20), st.integers(1, 60), st.sets(st.integers(0, 59)))
def test_grid_sample_keeps_one_vertex_of_each_cell_or_the_annotated_ones(
    size, seed, count, annotated
):
    annotated = {index for index in annotated if index < count}
    sample = make_sample(count, seed)
    if annotated:
        sample["annotated"] = np.isin(np.arange(count), list(annotated))

    result = GridSample(size)(sample, rng(seed))

    kept = result["labels"].tolist()
    check_rows(sample, result, kept)
    assert kept == sorted(kept)
    cells = find_cells(sample["points"], size)
    for cell in set(cells):
        in_cell = {index for index in range(count) if cells[index] == cell}
        kept_in_cell = in_cell.intersection(kept)
        if in_cell & annotated:
            assert kept_in_cell == in_cell & annotated
        else:
            assert len(kept_in_cell) == 1
    assert result["grid"].dtype == np.int32
    expected = np.array(cells)[kept] - np.array(cells).min(axis=0)
    assert result["grid"].tolist() == expected.tolist()
    representatives = result["labels"][result["inverse"]].tolist()
    assert [cells[index] for index in representatives] == cells
    assert all(representatives[index] == index for index in annotated)


def test_grid_sample_may_keep_any_vertex_of_a_cell():
    one_cell = make_sample(4) | {"points": np.zeros((4, 3), np.float32)}
    chosen = {int(GridSample(1)(one_cell, rng(seed))["labels"][0]) for seed in range(40)}
    assert chosen == {0, 1, 2, 3}
    assert "inverse" not in GridSample(1, has_inverse=False)(one_cell, rng())

    one_cell["annotated"] = np.array([False, True, False, True])
    results = [GridSample(1)(one_cell, rng(seed)) for seed in range(40)]
    assert {int(result["labels"][result["inverse"][0]]) for result in results} == {1, 3}


@pytest.mark.parametrize("later_step", [CropPoints(7), Drop(0.5)])
def test_later_selection_renumbers_inverse_and_keeps_the_rows_of_grid(later_step):
    sampled = GridSample(0.8)(make_sample(), rng())

    result = later_step(sampled, rng(1))

    kept = result["labels"].tolist()
    all_labels = sampled["labels"].tolist()
    assert 0 < len(kept) < len(all_labels)
    new_indices = {label: index for index, label in enumerate(kept)}
    expected = [new_indices.get(all_labels[index], -1) for index in sampled["inverse"]]
    assert result["inverse"].tolist() == expected
    rows = [all_labels.index(label) for label in kept]
    assert np.array_equal(result["grid"], sampled["grid"][rows])


# Motion.


def rotate(point, degrees, axis):
    """Multiply a point by a matrix that is written out like those of Pointcept."""
    c = math.cos(math.radians(degrees))
    s = math.sin(math.radians(degrees))
    matrix = {
        "x": [[1, 0, 0], [0, c, -s], [0, s, c]],
        "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
        "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
    }[axis]
    return np.array([sum(a * b for a, b in zip(row, point, strict=True)) for row in matrix])


@pytest.mark.parametrize("axis", ["x", "y", "z"])
@pytest.mark.parametrize("center", [None, (0.5, -1.0, 2.0), (0.0, 0.0, 0.0)])
def test_rotate_turns_points_about_the_center_and_normals_about_the_origin(axis, center):
    sample = make_sample(12)
    points = sample["points"]

    result = aug.Rotate(-45, 22.5, axis, center)(sample, rng(7))

    degrees = rng(7).uniform(-45, 22.5)
    origin = np.array(center)
    if center is None:
        origin = (points.min(axis=0) + points.max(axis=0)) / 2
    expected = [rotate(point - origin, degrees, axis) + origin for point in points]
    assert result["points"] == pytest.approx(np.array(expected), abs=1e-5)
    expected = [rotate(normal, degrees, axis) for normal in sample["normals"]]
    assert result["normals"] == pytest.approx(np.array(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("probability", "expected"),
    [
        (0.0, {(1, 1, 1)}),
        (0.5, {(1, 1, 1), (1, -1, 1), (-1, 1, 1), (-1, -1, 1)}),
        (1.0, {(-1, -1, 1)}),
    ],
)
def test_flip_reflects_points_and_normals_along_x_and_y_independently(probability, expected):
    sample = make_sample(6)
    found = set()
    for seed in range(30):
        result = Flip(probability)(sample, rng(seed))
        signs = np.sign(result["points"][0] / sample["points"][0])
        assert np.array_equal(result["points"], sample["points"] * signs)
        assert np.array_equal(result["normals"], sample["normals"] * signs)
        found.add(tuple(signs.tolist()))
    assert found == expected


def test_scale_keeps_normals_perpendicular_to_surfaces():
    # Triangles, with the normal of each at its first vertex.
    sample = make_sample(30)
    a, b, c = sample["points"].reshape(10, 3, 3).transpose(1, 0, 2)
    sample["normals"][::3] = np.cross(b - a, c - a)
    sample["normals"] /= np.linalg.norm(sample["normals"], axis=1, keepdims=True)
    sample["normals"][1] = 0  # undefined

    result = aug.Scale(0.5, 1.5, anisotropic=True)(sample, rng(5))
    factors = rng(5).uniform(0.5, 1.5, 3)
    assert result["points"] == pytest.approx(sample["points"] * factors, abs=1e-6)
    a, b, _ = result["points"].reshape(10, 3, 3).transpose(1, 0, 2)
    assert np.abs(((b - a) * result["normals"][::3]).sum(axis=1)).max() < 1e-5
    lengths = np.linalg.norm(result["normals"], axis=1)
    assert np.delete(lengths, 1) == pytest.approx(1, abs=1e-6)
    assert lengths[1] == 0

    result = aug.Scale(0.5, 1.5)(sample, rng(5))
    factor = rng(5).uniform(0.5, 1.5, 1)
    assert result["points"] == pytest.approx(sample["points"] * factor, abs=1e-6)
    assert np.array_equal(result["normals"], sample["normals"])


def test_jitter_is_normal_noise_clipped_at_the_limit():
    sample = make_sample(20_000)

    result = Jitter(0.01, 0.015)(sample, rng())

    change = result["points"] - sample["points"]
    assert np.abs(change).max() <= 0.015 + 1e-6
    # The share beyond 1.5 standard deviations, and the median of a normal distribution.
    clipped_share = np.isclose(np.abs(change), 0.015, atol=1e-6).mean()
    assert clipped_share == pytest.approx(0.1336, abs=0.01)
    assert np.median(np.abs(change)) == pytest.approx(0.00674, rel=0.05)
    # Each coordinate by itself.
    assert np.abs(np.corrcoef(change.T) - np.eye(3)).max() < 0.03
    assert np.abs(change.mean(axis=0)).max() < 0.0004
    assert np.array_equal(Jitter(0.0)(sample, rng())["points"], sample["points"])


def smooth_by_loops(noise, axis):
    """Average three neighbours along an axis, with zeros beyond the ends."""
    padding = [(1, 1) if axis == other else (0, 0) for other in range(noise.ndim)]
    lines = np.moveaxis(np.pad(noise, padding), axis, 0)
    means = [(lines[i - 1] + lines[i] + lines[i + 1]) / 3 for i in range(1, len(lines) - 1)]
    return np.moveaxis(np.array(means), 0, axis)


def distort_by_loops(points, granularity, magnitude, generator):
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


def test_elastic_distortion_interpolates_smoothed_noise_like_a_loop():
    sample = make_sample(60)

    result = aug.ElasticDistortion(((0.4, 0.5), (0.9, 1.6)))(sample, rng(2))["points"]

    generator = rng(2)
    expected = distort_by_loops(sample["points"].astype(np.float64), 0.4, 0.5, generator)
    expected = distort_by_loops(expected, 0.9, 1.6, generator)
    assert np.abs(result - expected).max() < 2e-4
    assert 0.02 < np.abs(result - sample["points"]).mean() < 0.5


def test_center_shift_and_normalize_put_the_scene_on_the_origin():
    sample = make_sample()
    x, y, z = sample["points"].T.tolist()
    origin = np.array([(min(x) + max(x)) / 2, (min(y) + max(y)) / 2, min(z)])

    shifted = aug.CenterShift()(sample, rng())["points"]
    assert shifted == pytest.approx(sample["points"] - origin, abs=1e-6)
    normalized = aug.Normalize()(sample, rng())
    assert normalized["points"] == pytest.approx(sample["points"] - origin, abs=1e-6)
    assert normalized["colors"] == pytest.approx(sample["colors"] / 127.5 - 1, abs=1e-6)
    assert normalized["colors"].dtype == np.float32


# Colours.


def test_color_jitter_shifts_channels_and_adds_noise():
    def jitter(shift, noise, level):
        colors = np.full((20_000, 3), level, np.uint8)
        return aug.ColorJitter(shift, noise)(make_sample(20_000) | {"colors": colors}, rng())

    result = jitter(20, 4, 128)["colors"]
    assert result.dtype == np.uint8
    assert result.mean(axis=0) == pytest.approx(128 + rng().uniform(-20, 20, 3), abs=0.2)
    assert result.std(axis=0) == pytest.approx(4, rel=0.05)
    assert jitter(0, 50, 250)["colors"].max() == 255
    assert jitter(0, 50, 5)["colors"].min() == 0
    assert (jitter(0, 0, 250)["colors"] == 250).all()
    assert (jitter(0, 1e-6, 250)["colors"] == 250).all()
    shifted = jitter(20, 0, 250)["colors"][0]
    assert shifted.tolist() == np.rint(250 + rng().uniform(-20, 20, 3)).clip(0, 255).tolist()


@pytest.mark.parametrize("blend_factor", [0.0, 0.25, 1.0, None])
def test_auto_contrast_stretches_and_blends_like_a_loop(blend_factor):
    sample = make_sample(30)
    sample["colors"] = sample["colors"] // 3 + np.array([10, 50, 90], np.uint8)
    sample["colors"][:, 2] = 7  # a channel of one value does not change

    result = aug.ChromaticAutoContrast(blend_factor)(sample, rng(4))["colors"]

    share = rng(4).random() if blend_factor is None else blend_factor
    for channel in (0, 1):
        levels = sample["colors"][:, channel].tolist()
        low, high = min(levels), max(levels)
        for level, changed in zip(levels, result[:, channel].tolist(), strict=True):
            stretched = (level - low) * 255 / (high - low)
            assert changed == pytest.approx(level + share * (stretched - level), abs=0.51)
    assert (result[:, 2] == 7).all()


# Several scenes, fragments, targets and presets.


def test_mix_joins_vertices_and_keeps_ids_apart():
    scenes = []
    for number in range(3):
        names = {"scene_id": f"scene000{number}_00", "faces": np.eye(3), "label_set": "ScanNet20"}
        scenes.append(make_sample(30 + number, number) | names)
    first, second, _ = scenes

    mixed = aug.mix([first, second])

    assert set(mixed) == set(first) - {"faces", "boxes"}
    assert np.array_equal(mixed["points"], np.concatenate([first["points"], second["points"]]))
    assert np.array_equal(mixed["height"], np.concatenate([first["height"], second["height"]]))
    assert (mixed["scene_id"], mixed["label_set"]) == ("scene0000_00+scene0001_00", "ScanNet20")
    for key in ("instances", "segments"):
        shift = max(first[key].tolist()) + 1
        ids = [id_ + shift if id_ >= 0 else -1 for id_ in second[key].tolist()]
        assert mixed[key].tolist() == first[key].tolist() + ids

    batch = aug.Mix3D(collate, 1.0)(scenes)
    assert batch["scene_ids"] == ["scene0000_00+scene0001_00", "scene0002_00"]
    batch = aug.Mix3D(collate, 1.0, GridSample(0.5))(scenes)
    cells = np.column_stack([batch["batch"], batch["grid"]])
    assert len(np.unique(cells, axis=0)) == len(batch["points"])


def test_mix3d_mixes_with_its_probability_and_decides_the_same_for_the_same_scenes():
    mix3d = pickle.loads(pickle.dumps(aug.Mix3D(collate, 0.8)))

    def count_scenes(seed):
        return len(mix3d([make_sample(4, seed), make_sample(4, seed + 1)])["scene_ids"])

    counts = [count_scenes(seed) for seed in range(200)]
    assert counts.count(1) / 200 == pytest.approx(0.8, abs=0.07)
    assert counts == [count_scenes(seed) for seed in range(200)]


def test_fragments_contain_every_vertex_and_merge_to_means():
    scene = make_sample(60)
    cells = find_cells(scene["points"], 0.9)

    fragments = aug.fragments(scene, 0.9)

    assert len(fragments) == max(cells.count(cell) for cell in cells)
    parts = []
    for number, fragment in enumerate(fragments):
        index = fragment["index"]
        assert fragment["labels"].tolist() == index.tolist()
        assert sorted(cells[vertex] for vertex in index) == sorted(set(cells))
        shifts = np.array(cells)[index] - fragment["grid"]
        assert (shifts == shifts[0]).all()
        parts.append((index, rng(number).random((len(index), 4), np.float32)))
    merged = aug.merge_fragments(parts, 60)
    assert merged.dtype == np.float32
    for vertex in range(60):
        rows = [scores[index == vertex] for index, scores in parts]
        assert merged[vertex] == pytest.approx(np.concatenate(rows).mean(axis=0), abs=1e-6)

    index, scores = parts[0]
    for wrong, problem in [
        ([], "60 of 60 vertices are in no fragment"),
        ([*parts, (index, scores[:, :2])], "a row for each vertex"),
    ]:
        with pytest.raises(UsageError, match=problem):
            aug.merge_fragments(wrong, 60)


def test_views_for_testing_are_12_rotations_with_scales_and_a_reflection():
    point = {"points": np.array([[1, 2, 3]], np.float32)}

    found = {tuple(view(point, rng())["points"][0].round(3)) for view in aug.views_for_testing()}

    expected = {(-1, -2, 3)}
    for scale in (1, 0.95, 1.05):
        for x, y in [(1, 2), (-2, 1), (-1, -2), (2, -1)]:
            expected.add(tuple(np.float32([x * scale, y * scale, 3 * scale]).round(3)))
    assert found == expected


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=str)
@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_instance_targets_number_instances_by_label_and_number(label_set, dtype):
    floor = next(each.train_id for each in label_set.classes if each.name == "floor")
    sample = make_sample(300)
    sample["labels"] = rng(1).choice([0, floor, 5, 9, 19], 300).astype(dtype)
    sample["instances"] = rng(2).integers(-1, 60, 300)

    result = aug.InstanceTargets(label_set)(sample | {"label_set": label_set.name}, rng())

    pairs = list(zip(sample["labels"].tolist(), sample["instances"].tolist(), strict=True))
    real = sorted({pair for pair in pairs if pair[0] not in (0, floor) and pair[1] >= 0})
    expected = [real.index(pair) if pair in real else -1 for pair in pairs]
    assert result["instances"].tolist() == expected
    assert result["instances"].dtype == result["instance_labels"].dtype == np.int64
    assert result["instance_labels"].tolist() == [label for label, _ in real]
    for number in range(len(real)):
        points = sample["points"][result["instances"] == number]
        low, high = points.min(axis=0), points.max(axis=0)
        box = np.concatenate([(low + high) / 2, high - low])
        assert result["instance_boxes"][number] == pytest.approx(box, abs=1e-6)
        assert result["instance_centers"][number] == pytest.approx(points.mean(axis=0), abs=1e-6)

    empty = sample | {"instances": np.full(300, -1), "label_set": label_set.name}
    batch = collate([result, aug.InstanceTargets(label_set)(empty, rng())])
    assert batch["instance_labels_offset"].tolist() == [len(real), len(real)]
    assert batch["instance_boxes"].shape == (len(real), 6)


def test_pointcept_preset_has_the_chances_and_sizes_of_pointcept():
    count = 600
    sample = make_sample(count)
    sample["points"] = rng(5).uniform(0, 4, (count, 3)).astype(np.float32)
    sample["colors"] = rng(6).integers(60, 200, (count, 3), np.uint8)
    sample["vertex_keys"] = ["height"]
    preset = aug.pointcept(grid_size=1e-4)

    kept, changed, tilted = [], [], []
    for seed in range(300):
        result = preset(sample, rng(seed))
        kept.append(len(result["points"]))
        normals = sample["normals"][result["labels"]]
        turned = result["normals"]
        tilted.append(not np.allclose(turned[:, 2], normals[:, 2], atol=1e-6))
        changed.append(not np.array_equal(result["colors"], sample["colors"][result["labels"]]))
        assert result["grid"].shape == (len(result["points"]), 3)
        assert "inverse" not in result
    assert set(kept) == {480, 600}
    assert kept.count(480) / 300 == pytest.approx(0.2, abs=0.07)
    assert sum(tilted) / 300 == pytest.approx(0.75, abs=0.08)
    assert sum(changed) / 300 > 0.98
    assert len(aug.pointcept(grid_size=1e-4, point_max=50)(sample, rng())["points"]) == 50
    distortion = next(step.step for step in preset.steps if "ElasticDistortion" in repr(step))
    assert distortion.distortion_params == ((0.2, 0.4), (0.8, 1.6))


def test_annotated_vertices_survive_the_pipeline_and_mixing():
    annotated = {1, 5, 20, 33}
    sample = make_sample() | {"annotated": np.isin(np.arange(40), list(annotated))}
    scenes = []
    for seed in range(2):
        scene = Compose(aug.pointcept(grid_size=0.4), Drop(0.5))(sample, rng(seed))
        del scene["grid"]
        scenes.append(scene)

    mixed = aug.Mix3D(collate, 1.0, GridSample(0.5))(scenes)

    assert sorted(mixed["labels"][mixed["annotated"]].tolist()) == sorted([*annotated, *annotated])
    crop = CropPoints(15)(sample, rng())
    assert crop["annotated"].tolist() == [index in annotated for index in crop["labels"]]


# Refusals.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CropPoints(0), "max_points is 0"),
        (lambda: CropPoints(9, sample_rate=0), "sample_rate is 0"),
        (lambda: CropPoints(9, classes=(3,)), "no label_set"),
        (lambda: CropPoints(9, 1, SCANNET200.tail, SCANNET20), "none of ScanNet20"),
        (lambda: aug.Rotate(10, -10), "smallest is 10 and largest is -10"),
        (lambda: aug.Rotate(axis="w"), "axis is 'w', expected 'x', 'y' or 'z'"),
        (lambda: aug.Scale(1.1, 0.9), "expected ascending"),
        (lambda: aug.Scale(0, 1), "expected a factor above 0"),
        (lambda: Compose(Flip), "step 1 is <class"),
        (lambda: Compose(Drop(), [Flip()]), "step 2 is "),
    ],
)
def test_argument_that_would_stay_unnoticed_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def with_labels_of(name):
    return make_sample() | {"label_set": name}


@pytest.mark.parametrize(
    ("transform", "sample", "message"),
    [
        (aug.ElasticDistortion(((1e-4, 1),)), make_sample(), "too many"),
        (Compose(aug.Scale(1e6, 1e6), GridSample(1e-5)), make_sample(), "too many to count"),
        (Compose(GridSample(1), GridSample(1)), make_sample(), "has an inverse map already"),
        (Compose(aug.Normalize(), aug.ColorJitter()), make_sample(), "^ColorJitter: colors are fl"),
        (Compose(aug.Normalize(), aug.Normalize()), make_sample(), "^Normalize: colors are float"),
        (GridSample(0), make_sample(), "cells of 0 m"),
        (GridSample(-1), make_sample(), "cells of -1 m"),
        (GridSample(1), make_sample(0), "there are 0 points"),
        (
            Compose(lambda sample, _: sample | {"points": sample["points"][5:]}, Drop()),
            make_sample(),
            "'normals' has 40 rows, but there are 35 points",
        ),
        (Drop(), make_sample() | {"vertex_keys": []}, "'height' has a row for each vertex"),
        (GridSample(1), {"colors": np.eye(3)}, "has no 'points', only colors"),
        (Flip(), [1, 2], "the sample is a list"),
        (CropPoints(3), make_sample() | {"points": np.full((40, 3), np.nan)}, "not finite"),
        (GridSample(1), make_sample() | {"annotated": np.ones(39, bool)}, "has 39 rows, but there"),
        (aug.InstanceTargets(SCANNET20), with_labels_of("ScanNet200"), "are of ScanNet200"),
        (CropPoints(9, 1, (3,), SCANNET200), with_labels_of("ScanNet20"), "are of ScanNet20"),
    ],
)
def test_sample_that_does_not_fit_a_transform_is_refused(transform, sample, message):
    with pytest.raises(UsageError, match=message):
        transform(sample, rng())


def test_scenes_that_cannot_be_mixed_are_refused():
    with pytest.raises(UsageError, match=r"labels are of \['ScanNet20', 'ScanNet200'\]"):
        aug.mix([with_labels_of("ScanNet20"), with_labels_of("ScanNet200")])
    double = make_sample()["normals"].astype(np.float64)
    with pytest.raises(UsageError, match="'normals' differs in type or shape"):
        aug.mix([make_sample(), make_sample() | {"normals": double}])
