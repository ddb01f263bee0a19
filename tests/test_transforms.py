"""Transforms compared with plain loops, and the promises that all of them keep."""

import cmath
import itertools
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import check_same
from training import make_sample

from scannet_prep import SCANNET20, SCANNET200, collate
from scannet_prep.errors import UsageError
from scannet_prep.transforms import (
    CenterShift,
    ChromaticAutoContrast,
    ColorJitter,
    Compose,
    CropPoints,
    Drop,
    ElasticDistortion,
    Flip,
    GridSample,
    InstanceTargets,
    Jitter,
    Mix3D,
    Normalize,
    Rotate,
    Scale,
    Sometimes,
    fragments,
    merge_fragments,
    mix,
    pointcept,
    views_for_testing,
)


def rng(seed=0):
    return np.random.default_rng(seed)


MOVING = [
    Flip(), Jitter(), Rotate(), Rotate(-5, 5, "y", center=None),
    Scale(), Scale(0.8, 1.2, anisotropic=True), ElasticDistortion(), CenterShift(), Normalize(),
    Sometimes(Jitter(), 0.7), Compose(Scale(), Flip())
]  # fmt: skip
SELECTING = [CropPoints(20), CropPoints(20, (3, 7), SCANNET20), Drop(0.5), Drop(1), GridSample(0.5)]
COLORS = [ColorJitter(), ChromaticAutoContrast()]
STEPS = [*MOVING, *SELECTING, *COLORS, InstanceTargets(SCANNET20)]
OPTIONAL = ("faces", "grid", "axis_alignment", "instance_boxes", "instance_centers")
VERTEX_KEYS = ("points", "normals", "colors", "labels", "instances", "segments", "height")


def check_rows(before, after, kept):
    """Check that the arrays of the vertices have the kept rows, and that nothing else changed."""
    for key in VERTEX_KEYS:
        assert after[key].tolist() == before[key][kept].tolist(), key
        assert after[key].dtype == before[key].dtype
    assert after["boxes"] is before["boxes"]


def mark(count, annotated):
    return np.isin(np.arange(count), list(annotated))


class Tensor:
    """An array of another package; without values, NumPy cannot convert it, as on a GPU."""

    shape = (40,)

    def __init__(self, values=None):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        if self.values is None:
            raise TypeError
        return self.values


def find_cells(points, size):
    return [tuple(math.floor(float(value) / size) for value in point) for point in points]


# All transforms.


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_transform_is_a_value_whose_result_has_the_same_keys_whatever_chance_and_size_are(step):
    lost = set()
    if step in MOVING:
        lost = {"instance_boxes", "instance_centers", "grid", "axis_alignment"}
    if step in SELECTING:
        lost = {"instance_boxes", "instance_centers", "faces"}
    transforms = [step, Sometimes(Compose(Sometimes(step, 0.7)))]
    # There are no cells without points. A crop of few vertices changes nothing.
    for transform, count in itertools.product(transforms, range(5 * (step in SELECTING), 60, 5)):
        optional = dict.fromkeys(OPTIONAL, np.ones((count, 3)))
        sample = make_sample(count) | optional
        copy = pickle.loads(pickle.dumps(transform))

        result = transform(sample, rng(count))

        assert copy == transform
        assert hash(copy) == hash(transform)
        check_same(result, copy(make_sample(count) | optional, rng(count)))
        check_same(sample, make_sample(count) | optional)
        assert optional.keys() - result.keys() == lost
        for key in VERTEX_KEYS:
            assert result[key].flags.c_contiguous, key


def add_mean(sample, _):
    return sample | {"mean": sample["points"].mean(axis=0)}


def test_two_composed_transforms_agree_with_one_after_the_other():
    pairs = itertools.permutations([*STEPS, add_mean], 2)
    for (first, second), seed in itertools.product(pairs, range(3)):
        if first == Normalize() and second in COLORS:
            continue  # refused
        result = Compose(first, second)(make_sample(seed=seed), rng(seed))
        generator = rng(seed)
        expected = second(first(make_sample(seed=seed), generator), generator)
        assert list(result) == list(expected)
        # Noise of colours is drawn for the vertices that remain.
        late = {"colors"} if ColorJitter() in (first, second) else set()
        for key in result.keys() - late:
            assert np.array_equal(result[key], expected[key]), (first, second, key)


# Selections.


def test_tensors_become_arrays_of_the_selected_vertices():
    sample = make_sample(40)
    tensors = {key: Tensor(sample[key]) for key in ("labels", "height")}
    crop = CropPoints(9, (3,), SCANNET20)
    check_same(crop(sample | tensors, rng()), crop(sample, rng()))


@given(st.integers(1, 45), st.integers(0, 20), st.booleans())
def test_crop_keeps_the_nearest_to_one_of_the_vertices(max_points, seed, has_ties):
    sample = make_sample(40, seed)
    if has_ties:
        # Their squares exceed this type.
        sample["points"] = (sample["points"] * 2).astype(np.int8)

    result = CropPoints(max_points)(sample, rng(seed))

    points = sample["points"].tolist()
    center = points[int(rng(seed).integers(40))]
    distances = [round(math.dist(point, center), 5) for point in points]
    by_distance = sorted(range(40), key=lambda index: (distances[index], index))
    check_rows(sample, result, sorted(by_distance[:max_points]))


def test_crop_is_centred_on_each_of_its_classes_equally_often():
    # Few vertices of class 5, and many of 7 and 0.
    sample = make_sample(400) | {"labels": np.repeat([5, 7, 0], [10, 200, 190])}

    def find_centers(*classes):
        crop = CropPoints(1, classes, SCANNET20)
        return [int(crop(sample, rng(seed))["labels"][0]) for seed in range(400)]

    centers = find_centers(5, 7, 9)
    assert centers.count(5) / 400 == pytest.approx(0.5, abs=0.1)
    assert set(centers) == {5, 7}
    # Any vertex, as the class does not occur.
    assert set(find_centers(9)) >= {0, 7}


@given(st.floats(0, 1), st.sets(st.integers(0, 39)), st.integers(0, 9))
def test_drop_keeps_its_share_in_order_and_all_annotated_vertices(share, annotated, seed):
    sample = make_sample()
    kept = Drop(share)(sample, rng(seed))["labels"].tolist()
    assert len(kept) == max(1, 40 - round(40 * share))

    sample["annotated"] = mark(40, annotated)
    result = Drop(share)(sample, rng(seed))
    check_rows(sample, result, sorted({*kept, *annotated}))


@given(
    st.sampled_from([0.1, 0.25, 1.0, 10.0]),
    st.integers(0, 20),
    st.integers(1, 60),
    st.sets(st.integers(0, 59)),
)
def test_grid_sample_keeps_one_vertex_of_each_cell_or_the_annotated_ones(size, seed, count, marked):
    sample = make_sample(count, seed)
    # Some lie on the edge of a cell, or beside it by the precision of float32.
    sample["points"] = sample["points"].round(1)
    annotated = marked.intersection(range(count))
    sample["annotated"] = mark(count, annotated)

    result = GridSample(size)(sample, rng(seed))

    kept = result["labels"].tolist()
    check_rows(sample, result, sorted({*kept, *annotated}))
    cells = find_cells(sample["points"], size)
    marked_cells = [cells[index] for index in annotated]
    assert len(kept) == sum(max(1, marked_cells.count(cell)) for cell in set(cells))
    cells = np.array(cells)
    assert result["grid"].dtype == np.int32
    assert np.array_equal(result["grid"], cells[kept] - cells.min(axis=0))
    # Later selections renumber `inverse` of its own result.
    later = Compose(Drop(0.5), Drop(0.5))(result, rng(seed))
    representatives = result["labels"][result["inverse"]]
    assert np.array_equal(cells[representatives], cells)
    assert all(representatives[index] == index for index in annotated)

    left = later["labels"].tolist()
    inverse = [left.index(one) if one in left else -1 for one in representatives]
    assert later["inverse"].tolist() == inverse
    assert np.array_equal(later["grid"], cells[left] - cells.min(axis=0))


@pytest.mark.parametrize("annotated", [(), (1, 3)])
def test_grid_sample_keeps_any_vertex_of_a_cell_equally_often(annotated):
    sample = make_sample(4) | {"points": np.zeros((4, 3))}
    if annotated:
        sample["annotated"] = mark(4, annotated)
    results = [GridSample(1)(sample, rng(seed)) for seed in range(400)]
    counts = Counter(result["labels"][result["inverse"][0]] for result in results)
    expected = annotated or range(4)
    assert counts == pytest.approx(dict.fromkeys(expected, 400 / len(expected)), abs=35)


# Motion.


def check_motion(step, matrix, origin=0, moved_origin=0, seed=7):
    """Check that points (rows) are multiplied by a matrix, and normals stay perpendicular."""
    sample = make_sample(30)
    sample["normals"][1] = 0  # undefined

    result = step(sample, rng(seed))

    points = (sample["points"] - origin) @ matrix + moved_origin
    assert result["points"] == pytest.approx(points, abs=1e-5)
    normals = sample["normals"] @ np.linalg.inv(matrix).T
    lengths = np.linalg.norm(normals, axis=1, keepdims=True)
    assert result["normals"] == pytest.approx(normals / lengths.clip(1e-9), abs=1e-5)


def test_points_are_turned_reflected_scaled_and_centred():
    points = make_sample(30)["points"]
    middle = (points.min(axis=0) + points.max(axis=0)) / 2
    turn = cmath.rect(1, math.radians(rng(7).uniform(-45, 22.5)))
    turns = [("x", [1, 2], None), ("y", [2, 0], (0.5, -1, 2)), ("z", [0, 1], None)]
    for axis, plane, center in turns:
        matrix = np.eye(3)
        matrix[np.ix_(plane, plane)] = [[turn.real, turn.imag], [-turn.imag, turn.real]]
        fixed = center or middle
        check_motion(Rotate(-45, 22.5, axis, center), matrix, fixed, fixed)

    for seed in range(9):
        signs = np.where(rng(seed).random(2) < 0.5, -1, 1)
        check_motion(Flip(), np.diag([*signs, 1]), seed=seed)
    check_motion(Scale(0.5, 1.5), np.eye(3) * rng(7).uniform(0.5, 1.5))
    check_motion(Scale(0.5, 1.5, anisotropic=True), np.diag(rng(7).uniform(0.5, 1.5, 3)))
    for step in (CenterShift(), Normalize()):
        check_motion(step, np.eye(3), [*middle[:2], points.min(axis=0)[2]])
    # There need not be normals.
    Compose(Flip(), Scale(anisotropic=True))({"points": points}, rng())


def test_jitter_is_normal_noise_clipped_at_the_limit():
    points = np.zeros((20_000, 3), np.float32)

    # Among the uniform numbers of this seed is a 0, whose logarithm would be infinite.
    change = Jitter(0.01, 0.015)({"points": points}, rng(1194))["points"]

    quartiles = np.quantile(change, [0, 0.25, 0.5, 0.75, 1])
    assert quartiles == pytest.approx([-0.015, -0.00674, 0, 0.00674, 0.015], abs=2e-4)
    # Each coordinate by itself, and no number twice, apart from the limits.
    assert len(np.unique(change)) > 0.8 * change.size
    assert np.corrcoef(change.T) == pytest.approx(np.eye(3), abs=0.03)


def distort_by_loops(points, granularity, magnitude, generator):
    """Distort points in double precision, as the three programs describe it."""
    lowest = points.min(axis=0)
    shape = ((points.max(axis=0) - lowest) // granularity).astype(int) + 3
    noise = generator.standard_normal((3, *shape), np.float32).astype(np.float64)
    for axis in (1, 1, 2, 2, 3, 3):
        noise = np.apply_along_axis(np.convolve, axis, noise, np.ones(3) / 3, "same")

    positions = (points - lowest) / granularity
    cells = np.floor(positions).astype(int)
    result = points.copy()
    for corner in itertools.product((0, 1), repeat=3):
        weights = np.where(corner, positions - cells, cells + 1 - positions).prod(axis=1)
        # The grid begins one cell below the lowest point.
        x, y, z = cells.T + np.add(corner, 1)[:, None]
        result += (noise[:, x, y, z] * weights * magnitude).T
    return result


def test_elastic_distortion_interpolates_smoothed_noise_like_a_loop():
    # More than one block.
    sample = make_sample(20_000)

    result = ElasticDistortion(((0.4, 0.5), (0.9, 1.6)))(sample, rng(2))["points"]

    generator = rng(2)
    expected = distort_by_loops(sample["points"].astype(np.float64), 0.4, 0.5, generator)
    expected = distort_by_loops(expected, 0.9, 1.6, generator)
    assert result == pytest.approx(expected, abs=2e-4)


# Colours.


def test_normalize_scales_colors_to_one():
    sample = make_sample()
    colors = Normalize()(sample, rng())["colors"]
    assert colors == pytest.approx(sample["colors"] / 127.5 - 1, abs=1e-6)
    assert colors.dtype == np.float32


def test_color_jitter_shifts_channels_and_adds_noise_within_the_range_of_colors():
    def jitter(shift, noise, level, seed=0):
        colors = np.full((20_000, 3), level, np.uint8)
        return ColorJitter(shift, noise)({"colors": colors}, rng(seed))["colors"]

    shifts = rng().uniform(-20, 20, 3)
    colors = jitter(20, 4, 128)
    assert colors.mean(axis=0) == pytest.approx(128 + shifts, abs=0.2)
    assert colors.std(axis=0) == pytest.approx([4] * 3, rel=0.05)
    levels = (254, 4, 128)
    assert (jitter(20, 0, levels) == np.rint(shifts + levels).clip(0, 255)).all()
    assert jitter(0, 4, 253).min() > 220
    assert jitter(0, 4, 2).max() < 30
    # Each channel by itself, and another time otherwise.
    columns = np.hstack([jitter(0, 4, 128, seed) for seed in range(2)])
    assert np.corrcoef(columns.T) == pytest.approx(np.eye(6), abs=0.03)


def test_auto_contrast_stretches_and_blends_like_a_loop():
    # A channel of one value does not change.
    colors = rng().integers([10, 50, 7], [95, 140, 8], (30, 3), np.uint8)

    result = ChromaticAutoContrast()({"colors": colors}, rng(4))["colors"]

    share = rng(4).random()
    for before, after in zip(colors.T.tolist(), result.T.tolist(), strict=True):
        low, high = min(before), max(before)
        for level, changed in zip(before, after, strict=True):
            stretched = (level - low) * 255 / (high - low) if low < high else level
            assert changed == pytest.approx(level + share * (stretched - level), abs=0.51)


# Several scenes, fragments, targets and presets.


def test_mix_joins_vertices_and_keeps_ids_apart():
    # Ids of a small type that their sum exceeds.
    others = {"faces": np.eye(3), "label_set": "ScanNet20", "segments": np.uint8([200] * 30)}
    others["grid"] = np.zeros((30, 3))
    scenes = [make_sample(30, number) | others for number in range(3)]
    first, second, _ = scenes
    # In between, a scene without ids.
    nothing = first | {key: first[key][:0] for key in VERTEX_KEYS}

    mixed = mix([first, nothing, second])

    assert set(mixed) == set(first) - {"faces", "boxes", "grid"}
    for key in VERTEX_KEYS:
        ids = second[key]
        if key in ("instances", "segments"):
            ids = np.where(ids < 0, -1, ids.astype(int) + first[key].max() + 1)
        assert mixed[key].tolist() == [*first[key].tolist(), *ids.tolist()]

    batch = Mix3D(collate, 1.0, GridSample(0.5))(scenes)
    assert batch["scene_ids"] == ["scene0000_00+scene0000_00", "scene0000_00"]
    cells = np.column_stack([batch["batch"], batch["grid"]])
    assert len(np.unique(cells, axis=0)) == len(batch["points"])
    # The step draws anew for each scene.
    labels = Mix3D(collate, 0, Drop(0.5))([first] * 2)["labels"]
    assert any(labels[:15] != labels[15:])


def test_mix3d_mixes_with_its_probability_and_decides_the_same_for_the_same_scenes():
    pairs = [[make_sample(4, seed), make_sample(4, seed + 1)] for seed in range(200)]

    def count(seed=0):
        return [len(Mix3D(collate, seed=seed)(pair)["scene_ids"]) for pair in pairs]

    assert count().count(1) / 200 == pytest.approx(0.8, abs=0.07)
    assert count() == count() != count(1)


def test_fragments_contain_every_vertex_and_merge_to_means():
    scene = make_sample(60) | {"faces": np.eye(3)}
    cells = find_cells(scene["points"], 0.9)

    parts = fragments(scene, 0.9)

    assert len(parts) == max(cells.count(cell) for cell in cells)
    scores = []
    for number, part in enumerate(parts):
        index = part["index"]
        assert part["labels"].tolist() == index.tolist()
        assert "faces" not in part
        assert sorted(cells[vertex] for vertex in index) == sorted(set(cells))
        assert np.array_equal(part["grid"], np.array(cells)[index] - np.min(cells, axis=0))
        scores.append((index, rng(number).random((len(index), 4))))
    merged = merge_fragments(scores, 60)
    assert merged.dtype == np.float32
    for vertex in range(60):
        rows = [predictions[index == vertex] for index, predictions in scores]
        assert merged[vertex] == pytest.approx(np.concatenate(rows).mean(axis=0), abs=1e-6)


def test_views_for_testing_are_12_rotations_with_scales_and_a_reflection():
    turned = [Rotate(angle, angle) for angle in (0, 90, 180, 270)]
    scaled = [Compose(turn, Scale(size, size)) for size in (1, 0.95, 1.05) for turn in turned]
    assert views_for_testing() == (*scaled, Flip(1))


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=str)
def test_instance_targets_number_instances_by_label_and_number(label_set):
    floor = next(each.train_id for each in label_set.classes if each.name == "floor")
    labels = rng(1).choice([0, floor, 5, 9, 19], 300)
    numbers = rng(2).integers(-1, 60, 300)
    # Labels of a type that their products with numbers exceed.
    sample = make_sample(300) | {"labels": labels.astype(np.uint8), "instances": numbers}

    result = InstanceTargets(label_set)(sample, rng())

    pairs = list(zip(labels.tolist(), numbers.tolist(), strict=True))
    real = sorted({pair for pair in pairs if pair[0] not in (0, floor) and pair[1] >= 0})
    ids = [real.index(pair) if pair in real else -1 for pair in pairs]
    assert result["instances"].tolist() == ids
    assert result["instances"].dtype == result["instance_labels"].dtype == np.int64
    assert result["instance_labels"].tolist() == [label for label, _ in real]
    boxes, centers = [], []
    for number in range(len(real)):
        points = sample["points"][np.equal(ids, number)]
        low, high = points.min(axis=0), points.max(axis=0)
        boxes.append([*(low + high) / 2, *high - low])
        centers.append(points.mean(axis=0))
    assert result["instance_boxes"] == pytest.approx(np.array(boxes), abs=1e-6)
    assert result["instance_centers"] == pytest.approx(np.array(centers), abs=1e-6)


def test_pointcept_preset_has_the_chances_and_sizes_of_pointcept():
    # As in configs/scannet/semseg-pt-v3m1-0-base.py.
    expected = Compose(
        CenterShift(),
        Sometimes(Drop(), 0.2),
        Sometimes(Rotate(-180, 180), 0.5),
        Sometimes(Rotate(-2.8125, 2.8125, "x", center=None), 0.5),
        Sometimes(Rotate(-2.8125, 2.8125, "y", center=None), 0.5),
        Scale(0.9, 1.1),
        Flip(),
        Jitter(),
        Sometimes(ElasticDistortion(((0.2, 0.4), (0.8, 1.6))), 0.95),
        Sometimes(ChromaticAutoContrast(), 0.2),
        Sometimes(ColorJitter(12.75, 0), 0.95),
        Sometimes(ColorJitter(0, 12.75), 0.95),
        GridSample(0.05, has_inverse=False),
        CropPoints(50),
    )
    assert pointcept(grid_size=0.05, point_max=50) == expected
    assert pointcept().steps[-1] == CropPoints(102_400)


# Refusals.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CropPoints(0), "max_points is 0"),
        (lambda: Drop(20), "share is 20, expected a number from 0 to 1"),
        (lambda: Flip(50), "probability is 50"),
        (lambda: Sometimes(Flip(), -0.1), "p is -0.1"),
        (lambda: Mix3D(collate, 80), "mix_prob is 80"),
        (lambda: Compose([Flip(), Jitter()]), r"steps are \(\[Flip\(.*, expected transforms"),
        (lambda: CropPoints(9, (3,)), "no label_set"),
        (lambda: CropPoints(9, (3, 150), SCANNET20), "150, which is not a train id of ScanNet20"),
        (lambda: Rotate(10, -10), "smallest is 10 and largest is -10"),
        (lambda: Scale(1, 0.5), "smallest is 1 and largest is 0.5"),
        (lambda: Scale(0, 0.5), "smallest is 0, expected a factor above 0"),
        (lambda: Flip()({"x": 1}, rng()), "has no 'points', only x"),
        (lambda: merge_fragments([], 60), "60 of 60 vertices are in no fragment"),
        (lambda: merge_fragments([([0], np.ones(2))], 1), "a row for each vertex"),
        (lambda: mix([{"label_set": "A"}, {}]), r"labels are of \['A', 'None'\]"),
        (lambda: mix([make_sample(), {"points": np.eye(3)}]), "'points' differs in type or shape"),
        (lambda: mix([{"points": ()}, {"points": (), "labels": 0}]), "'labels' differs in type"),
    ],
)
def test_argument_that_would_stay_unnoticed_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "changes", "message"),
    [
        (GridSample(1e-9), {"points": np.eye(40, 3)}, "too many to count"),
        (GridSample(2e-5), make_sample(5000), "too many to count"),
        (GridSample(1), {"inverse": np.arange(40)}, "has an inverse map already"),
        (ColorJitter(), {"colors": np.eye(3)}, "^ColorJitter: colors are float64"),
        (ChromaticAutoContrast(), {"colors": np.eye(3)}, "^ChromaticAutoContrast: colors are fl"),
        (GridSample(0), {}, "cells of 0 m"),
        (GridSample(1), make_sample(0), "there are 0 points"),
        (Drop(), {"normals": np.eye(3)}, "'normals' has 3 rows, but there are 40 points"),
        (Drop(), {"vertex_keys": []}, "'height' has a row for each vertex"),
        (Drop(), {"more": Tensor()}, "'more' has a row for each vertex"),
        (CropPoints(3), {"points": np.full((40, 3), np.nan)}, "not finite"),
        (GridSample(1), {"annotated": np.ones(39, bool)}, "has 39 rows, but there"),
        (InstanceTargets(SCANNET20), {"label_set": "ScanNet200"}, "are of ScanNet200"),
        (CropPoints(9, (3,), SCANNET200), {"label_set": "ScanNet20"}, "are of ScanNet20"),
    ],
)
def test_sample_that_does_not_fit_a_transform_is_refused(transform, changes, message):
    with pytest.raises(UsageError, match=message):
        transform(make_sample() | changes, rng())
