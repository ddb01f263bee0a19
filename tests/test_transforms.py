"""Transforms of points, and selections of vertices, compared with plain loops."""

import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_sources import check_same

from scannet_prep import SCANNET20
from scannet_prep import transforms as aug
from scannet_prep.errors import UsageError
from scannet_prep.transforms import (
    Compose,
    CropPoints,
    Drop,
    Flip,
    GridSample,
    Jitter,
    Normalize,
    RotateZ,
    Scale,
)

NOT_RANDOM = [
    Normalize(), aug.CenterShift(), aug.CropBox(1.0), aug.InstanceTargets(SCANNET20),
    aug.NormalizeColor(), aug.RandomColorGrayScale(),
]  # fmt: skip
SINGLE = [
    aug.ColorJitter(), CropPoints(20), Drop(0.5), Flip(), GridSample(0.5), Jitter(), RotateZ(),
    Scale(), *NOT_RANDOM, aug.ChromaticAutoContrast(), CropPoints(20, 1, (3, 7), SCANNET20),
    aug.ElasticDistortion(), aug.RandomBrightnessContrast(), aug.RandomRotate(),
    aug.RandomRotate((-0.1, 0.1), "x", (0, 1, 2)), aug.RandomShift(), aug.ShufflePoint(),
    aug.RandomShift(((-1, 1), (0, 1), (0, 0))), Scale(0.8, 1.2, anisotropic=True),
    aug.Sometimes(Jitter(), 0.7), aug.ClipGaussianJitter(), aug.HueSaturationTranslation(),
    aug.RandomDropColor(), aug.RandomDropNormal(),
]  # fmt: skip
PIPELINE = Compose(
    RotateZ(), Flip(), Scale(), Jitter(), aug.ColorJitter(), GridSample(0.3), CropPoints(15),
    Drop(), Normalize(),
)  # fmt: skip
ALL = [*SINGLE, PIPELINE]
RANDOM = [transform for transform in ALL if transform not in NOT_RANDOM]
# Transforms that draw numbers after the last selection, and the key that they change.
LATE_KEYS = {
    aug.ColorJitter: "colors",
    aug.RandomDropColor: "colors",
    aug.RandomDropNormal: "normals",
}
# The arrays of the sample that belong to the vertices.
VERTEX_KEYS = ("points", "normals", "colors", "labels", "instances", "segments", "height")


def make_sample(count: int = 40, seed: int = 0) -> dict[str, Any]:
    """Make a sample in which the label of a vertex is its index.

    `height` is an array of a user's for the vertices, and `boxes` one that has other rows.
    """
    generator = np.random.default_rng(seed)
    normals = generator.normal(size=(count, 3))
    return {
        "points": generator.uniform(-1, 2, (count, 3)).astype(np.float32),
        "normals": (normals / np.linalg.norm(normals, axis=1, keepdims=True)).astype(np.float32),
        "colors": generator.integers(0, 256, (count, 3), dtype=np.uint8),
        "labels": np.arange(count),
        "instances": generator.integers(-1, 3, count),
        "segments": generator.integers(0, 9, count),
        "height": np.arange(count) / 7,
        "boxes": np.ones((count + 1, 6)),
        "scene_id": "scene0000_00",
    }


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def check_rows(before: dict[str, Any], after: dict[str, Any], kept: list[int]) -> None:
    """Check that the arrays of the vertices have the kept rows, and that nothing else changed."""
    for key in VERTEX_KEYS:
        assert after[key].tolist() == before[key][kept].tolist(), key
        assert after[key].dtype == before[key].dtype
    assert after["boxes"] is before["boxes"]
    assert after["scene_id"] == "scene0000_00"


# All transforms.


@pytest.mark.parametrize("transform", ALL)
def test_transform_gives_the_same_result_for_the_same_generator(transform: Any) -> None:
    copy = pickle.loads(pickle.dumps(transform))

    check_same(transform(make_sample(), rng(3)), copy(make_sample(), rng(3)))


@pytest.mark.parametrize("transform", RANDOM)
def test_random_transform_gives_other_results_for_other_generators(transform: Any) -> None:
    results = [transform(make_sample(), rng(seed)) for seed in range(9)]

    contents = set()
    for result in results:
        contents.add(b"".join(result[key].tobytes() for key in ("points", "colors", "normals")))
    assert len(contents) > 1


@pytest.mark.parametrize("transform", ALL)
def test_transform_returns_a_new_sample_and_keeps_the_given_one(transform: Any) -> None:
    sample = make_sample()

    result = transform(sample, rng(3))

    assert result is not sample
    check_same(sample, make_sample())


@pytest.mark.parametrize("transform", ALL)
def test_transform_returns_contiguous_arrays(transform: Any) -> None:
    result = transform(make_sample(), rng(3))

    for key in result.keys() - {"boxes", "scene_id"}:
        assert result[key].flags.c_contiguous, key


@pytest.mark.parametrize("transform", ALL)
def test_transform_keeps_points_and_normals_float32(transform: Any) -> None:
    result = transform(make_sample(), rng(3))

    assert result["points"].dtype == np.float32
    assert result["normals"].dtype == np.float32


@pytest.mark.parametrize("transform", ALL)
def test_pickled_transform_equals_the_original(transform: Any) -> None:
    assert pickle.loads(pickle.dumps(transform)) == transform


def check_keys_agree(sample: dict[str, Any]) -> None:
    """Check that everything that was computed from points fits the points of the sample."""
    points = sample["points"]
    for key in VERTEX_KEYS:
        assert len(sample[key]) == len(points), key
    if "grid" in sample:
        cells = np.floor(points.astype(np.float64) / 0.5)
        shifts = cells - sample["grid"]
        assert (shifts == shifts[0]).all()
        assert len(np.unique(sample["grid"], axis=0)) == len(points)
    if "inverse" in sample:
        assert sample["inverse"].max() < len(points)
    for number, box in enumerate(sample.get("instance_boxes", [])):
        inside = points[sample["instances"] == number]
        middle = (inside.min(axis=0) + inside.max(axis=0)) / 2
        assert box[:3] == pytest.approx(middle, abs=1e-6)
        assert sample["instance_centers"][number] == pytest.approx(inside.mean(axis=0), abs=1e-6)


def compose_or_refuse(first: Any, second: Any, seed: int) -> dict[str, Any] | None:
    """Apply two transforms; None if the second one refuses the result of the first."""
    try:
        return Compose(first, second)(make_sample(seed=seed), rng(seed))
    except UsageError as error:
        problem = str(error)
    # Colours are normalized twice, or voxels sampled twice.
    assert re.search("expected uint8|has an inverse map", problem)
    assert {type(first), type(second)} & {Normalize, aug.NormalizeColor, GridSample}
    return None


@pytest.mark.parametrize("first", SINGLE)
def test_keys_agree_after_any_two_transforms(first: Any) -> None:
    for second in SINGLE:
        for seed in range(3):
            result = compose_or_refuse(first, second, seed)
            if result is not None:
                check_keys_agree(result)


@pytest.mark.parametrize("first", SINGLE)
def test_composed_transforms_give_the_same_as_one_after_the_other(first: Any) -> None:
    for second in SINGLE:
        for seed in range(3):
            result = compose_or_refuse(first, second, seed)
            if result is None:
                continue
            generator = rng(seed)
            expected = second(first(make_sample(seed=seed), generator), generator)
            assert list(result) == list(expected)
            late_keys = {LATE_KEYS.get(type(first)), LATE_KEYS.get(type(second))}
            for key in result.keys() - late_keys:
                assert np.array_equal(result[key], expected[key]), (second, key)


def add_optional_keys(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {
        "faces": np.zeros((2, 3), np.int32),
        "grid": np.arange(3),
        "instance_boxes": np.ones((1, 6)),
        "instance_centers": np.ones((1, 3)),
    }


@pytest.mark.parametrize(
    "step", [step for step in SINGLE if type(step) not in (GridSample, aug.InstanceTargets)]
)
def test_keys_of_a_result_do_not_depend_on_chance_or_size(step: Any) -> None:
    sometimes_nested = aug.Sometimes(Compose(aug.Sometimes(step), Jitter()), 0.3)
    for transform in (step, aug.Sometimes(step), sometimes_nested):
        key_sets = set()
        for seed in range(12):
            sample = add_optional_keys(make_sample(10 + 5 * seed, seed))
            key_sets.add(frozenset(transform(sample, rng(seed))))
        assert len(key_sets) == 1, transform


# Types and sizes of points.


@pytest.mark.parametrize(
    "transform",
    [
        RotateZ(),
        Flip(0),
        Flip(1),
        Scale(),
        Jitter(),
        aug.ElasticDistortion(((9, 5),)),
        aug.RandomShift(),
    ],
)
def test_integer_points_are_moved_as_floats(transform: Any) -> None:
    points = np.arange(120).reshape(40, 3)
    of_integers = make_sample() | {"points": points}
    of_floats = make_sample() | {"points": points.astype(np.float64)}

    result = transform(of_integers, rng())["points"]

    # Even if chance moves nothing, because samples of a batch need the same types.
    assert result.dtype == np.float64
    assert result == pytest.approx(transform(of_floats, rng())["points"])


@pytest.mark.parametrize(
    "transform",
    [
        RotateZ(),
        aug.RandomRotate(),
        aug.CenterShift(),
        aug.RandomShift(),
        CropPoints(9),
        GridSample(30),
    ],
)
def test_small_integer_points_do_not_overflow(transform: Any) -> None:
    points = rng().integers(0, 256, (40, 3), np.uint8)
    of_bytes = make_sample() | {"points": points}
    of_floats = make_sample() | {"points": points.astype(np.float32)}

    result = transform(of_bytes, rng())["points"]

    assert np.array_equal(result, transform(of_floats, rng())["points"])


@pytest.mark.parametrize(
    "transform", [step for step in SINGLE if type(step) not in (Normalize, GridSample)]
)
def test_scene_without_vertices_stays_without_vertices(transform: Any) -> None:
    assert len(transform(make_sample(0), rng())["points"]) == 0


# Compose and Sometimes.


class Marked(RotateZ):
    """A transform of a user's that overrides the call."""

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        return super().__call__(sample, generator) | {"mark": generator.random()}


class Timed(Compose):
    """A transform of a user's with an attribute of its own."""

    def __init__(self, *steps: Any) -> None:
        super().__init__(*steps)
        self.seconds = 0.0


def test_compose_calls_a_subclass_that_overrides_the_call() -> None:
    generator = rng()
    expected = Marked()(Drop()(make_sample(), generator), generator)

    result = Compose(Drop(), Marked(), aug.Sometimes(Marked(), 0))(make_sample(), rng())

    assert list(result) == list(expected)
    assert result["mark"] == expected["mark"]


def test_subclass_of_compose_with_an_attribute_can_be_called() -> None:
    assert list(Timed(Drop(), [Flip()])(make_sample(), rng())) == list(make_sample())


def test_subclass_of_compose_compares_by_its_steps() -> None:
    assert pickle.loads(pickle.dumps(Timed(Drop(), Flip()))) == Timed([Drop(), Flip()])
    assert Timed([Drop(), Flip()]) != Timed(Drop())


def test_steps_in_a_list_hash_like_separate_steps() -> None:
    assert hash(Compose(Flip())) == hash(Compose([Flip()]))


def test_compose_without_steps_returns_the_given_sample() -> None:
    sample = make_sample()

    assert Compose()(sample, rng()) is sample


@pytest.mark.parametrize("p", [0, 1])
def test_sometimes_accepts_a_sample_whose_points_were_renamed(p: int) -> None:
    renamed = {"coord": make_sample()["points"]}

    assert aug.Sometimes(lambda sample, _: sample, p)(renamed, rng()) == renamed


# Selections.


@given(st.integers(1, 45), st.integers(0, 20), st.booleans())
def test_crop_keeps_the_nearest_to_one_of_the_vertices(
    max_points: int, seed: int, has_ties: bool
) -> None:
    sample = make_sample(40, seed)
    if has_ties:
        sample["points"] = np.rint(sample["points"])

    result = CropPoints(max_points)(sample, rng(seed))

    points = [tuple(map(float, point)) for point in sample["points"].tolist()]
    center = points[int(rng(seed).integers(40))]
    distances = [round(math.dist(point, center), 5) for point in points]
    by_distance = sorted(range(40), key=lambda index: (distances[index], index))
    check_rows(sample, result, sorted(by_distance[:max_points]))


@given(st.floats(0, 1))
def test_drop_keeps_its_share_in_order(share: float) -> None:
    sample = make_sample()

    result = Drop(share)(sample, rng())

    kept = result["labels"].tolist()
    check_rows(sample, result, kept)
    assert kept == sorted(set(kept))
    assert len(kept) == max(1, 40 - round(40 * share))


CELL_SIZES = st.sampled_from([0.1, 0.25, 0.5, 1.0, 10.0])


def find_cells(sample: dict[str, Any], size: float) -> list[tuple[int, ...]]:
    def find_cell(point: np.ndarray) -> tuple[int, ...]:
        return tuple(math.floor(float(value) / size) for value in point)

    return [find_cell(point) for point in sample["points"]]


@given(CELL_SIZES, st.integers(0, 20), st.integers(1, 60))
def test_grid_sample_keeps_one_vertex_of_each_cell_in_order(
    size: float, seed: int, count: int
) -> None:
    sample = make_sample(count, seed)

    result = GridSample(size)(sample, rng(seed))

    kept = result["labels"].tolist()
    check_rows(sample, result, kept)
    assert kept == sorted(kept)
    cells = find_cells(sample, size)
    assert sorted(cells[index] for index in kept) == sorted(set(cells))


@given(CELL_SIZES, st.integers(0, 20), st.integers(1, 60))
def test_grid_has_the_cell_of_each_vertex_from_the_smallest(
    size: float, seed: int, count: int
) -> None:
    sample = make_sample(count, seed)

    result = GridSample(size)(sample, rng(seed))

    cells = np.array(find_cells(sample, size))
    assert result["grid"].dtype == np.int32
    expected = cells[result["labels"]] - cells.min(axis=0)
    assert result["grid"].tolist() == expected.tolist()


@given(CELL_SIZES, st.integers(0, 20), st.integers(1, 60))
def test_inverse_leads_to_the_vertex_that_represents_the_cell(
    size: float, seed: int, count: int
) -> None:
    sample = make_sample(count, seed)

    result = GridSample(size)(sample, rng(seed))

    cells = find_cells(sample, size)
    kept = result["labels"]
    assert len(result["inverse"]) == count
    representatives = kept[result["inverse"]].tolist()
    assert [cells[index] for index in representatives] == cells


def test_grid_sample_without_inverse_adds_none() -> None:
    assert "inverse" not in GridSample(0.5, has_inverse=False)(make_sample(), rng())


def test_grid_sample_may_keep_any_vertex_of_a_cell() -> None:
    one_cell = make_sample(4) | {"points": np.zeros((4, 3), np.float32)}

    chosen = {int(GridSample(1)(one_cell, rng(seed))["labels"][0]) for seed in range(40)}

    assert chosen == {0, 1, 2, 3}


FIVE_CELLS = make_sample(5) | {"points": np.eye(5, 3, dtype=np.float32) * range(1, 4)}


@pytest.mark.parametrize(
    ("sample", "later_step"),
    [
        (make_sample(), CropPoints(7)),
        (make_sample(), Drop(0.5)),
        (FIVE_CELLS, CropPoints(2)),
        (make_sample(), aug.ShufflePoint()),
    ],
)
def test_later_selection_renumbers_inverse(sample: dict[str, Any], later_step: Any) -> None:
    sampled = GridSample(0.8)(sample, rng())

    result = later_step(sampled, rng(1))

    kept = result["labels"].tolist()
    assert kept
    assert kept != sampled["labels"].tolist()
    new_indices = {label: index for index, label in enumerate(kept)}
    representatives = sampled["labels"][sampled["inverse"]].tolist()
    expected = [new_indices.get(label, -1) for label in representatives]
    assert result["inverse"].tolist() == expected


@pytest.mark.parametrize("later_step", [CropPoints(7), Drop(0.5), aug.ShufflePoint()])
def test_later_selection_keeps_the_rows_of_grid(later_step: Any) -> None:
    sampled = GridSample(0.8)(make_sample(), rng())

    result = later_step(sampled, rng(1))

    all_labels = sampled["labels"].tolist()
    rows = [all_labels.index(label) for label in result["labels"].tolist()]
    assert np.array_equal(result["grid"], sampled["grid"][rows])
    assert np.array_equal(result["points"], sampled["points"][rows])


# Motion and colours.


def find_signs(sample: dict[str, Any], result: dict[str, Any]) -> list[float]:
    return np.sign(result["points"][0] / sample["points"][0]).tolist()


@pytest.mark.parametrize("seed", range(9))
def test_flip_reflects_points_and_normals_alike(seed: int) -> None:
    sample = make_sample(6)

    result = Flip()(sample, rng(seed))

    signs = find_signs(sample, result)
    assert np.array_equal(result["points"], sample["points"] * signs)
    assert np.array_equal(result["normals"], sample["normals"] * signs)


@pytest.mark.parametrize(
    ("probability", "expected"),
    [
        (0.0, {(1, 1, 1)}),
        (0.5, {(1, 1, 1), (1, -1, 1), (-1, 1, 1), (-1, -1, 1)}),
        (1.0, {(-1, -1, 1)}),
    ],
)
def test_flip_reflects_x_and_y_independently(
    probability: float, expected: set[tuple[int, ...]]
) -> None:
    sample = make_sample(6)
    flip = Flip(probability)

    signs = {tuple(find_signs(sample, flip(sample, rng(seed)))) for seed in range(30)}

    assert signs == expected


def test_jitter_is_normal_noise_clipped_at_the_limit() -> None:
    sample = make_sample(20_000)

    result = Jitter(0.01, 0.015)(sample, rng())

    distances = np.abs(result["points"] - sample["points"])
    assert distances.max() <= 0.015 + 1e-6
    # The share beyond 1.5 standard deviations, and the median of a normal distribution.
    clipped_share = np.isclose(distances, 0.015, atol=1e-6).mean()
    assert clipped_share == pytest.approx(0.1336, abs=0.01)
    assert np.median(distances) == pytest.approx(0.00674, rel=0.05)


def test_jitter_without_deviation_does_not_move_points() -> None:
    sample = make_sample()

    assert np.array_equal(Jitter(0.0)(sample, rng())["points"], sample["points"])


def make_colored_sample(level: int) -> dict[str, Any]:
    return make_sample(20_000) | {"colors": np.full((20_000, 3), level, np.uint8)}


def test_color_jitter_shifts_channels_and_adds_noise() -> None:
    result = aug.ColorJitter(20, 4)(make_colored_sample(128), rng())["colors"]

    assert result.dtype == np.uint8
    shift = rng().uniform(-20, 20, 3)
    assert result.mean(axis=0) == pytest.approx(128 + shift, abs=0.2)
    assert result.std(axis=0) == pytest.approx(4, rel=0.05)


def test_color_jitter_clips_at_255() -> None:
    assert aug.ColorJitter(0, 50)(make_colored_sample(250), rng())["colors"].max() == 255


def test_color_jitter_of_0_changes_nothing() -> None:
    assert (aug.ColorJitter(0, 0)(make_colored_sample(250), rng())["colors"] == 250).all()


def find_origin(sample: dict[str, Any]) -> np.ndarray:
    """Find the middle of x and y, and the lowest z."""
    x, y, z = sample["points"].T.tolist()
    return np.array([(min(x) + max(x)) / 2, (min(y) + max(y)) / 2, min(z)])


@pytest.mark.parametrize(
    ("options", "is_shifted"),
    [
        ({}, (True, True, True)),
        ({"apply_z": False}, (True, True, False)),
        ({"apply_xy": False}, (False, False, True)),
    ],
)
def test_center_shift_shifts_the_chosen_axes(
    options: dict[str, bool], is_shifted: tuple[bool, ...]
) -> None:
    sample = make_sample()

    result = aug.CenterShift(**options)(sample, rng())

    expected = sample["points"] - find_origin(sample) * is_shifted
    assert result["points"] == pytest.approx(expected, abs=1e-6)


def test_normalize_centres_points() -> None:
    sample = make_sample()

    result = Normalize()(sample, rng())

    expected = sample["points"] - find_origin(sample)
    assert result["points"] == pytest.approx(expected, abs=1e-6)


def test_normalize_scales_colors_to_float32() -> None:
    sample = make_sample()

    result = Normalize()(sample, rng())["colors"]

    assert result == pytest.approx(sample["colors"] / 127.5 - 1, abs=1e-6)
    assert result.dtype == np.float32


# Refusals.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CropPoints(0), "CropPoints: max_points is 0"),
        (lambda: Drop(1.5), "Drop: share is 1.5, expected a number from 0 to 1"),
        (lambda: Flip(-1), "Flip: probability is -1"),
        (lambda: GridSample(0), "GridSample: size is 0"),
        (lambda: GridSample("2cm"), "size is '2cm'"),
        (lambda: RotateZ(180), "max_angle is 180"),
        (
            lambda: aug.RandomRotate((-90, 90)),
            r"RandomRotate: angle is \(-90, 90\), expected a pair .* of numbers from -2 to 2",
        ),
        (lambda: aug.RandomRotate(axis="w"), "axis is 'w', expected 'x', 'y' or 'z'"),
        (lambda: aug.Sometimes(Flip(), 1.1), "Sometimes: p is 1.1"),
        (
            lambda: aug.ElasticDistortion(((0, 0.4),)),
            r"distortion_params is .*, expected pairs \(granularity, magnitude\), each a number",
        ),
        (lambda: aug.ChromaticAutoContrast(2), "blend_factor is 2"),
        (lambda: Jitter(-0.1), "sigma is -0.1"),
        (lambda: Jitter(float("nan")), "sigma is nan"),
        (lambda: aug.ColorJitter(300), "shift is 300"),
        (lambda: Marked(max_angle=4), "Marked: max_angle is 4"),
    ],
)
def test_invalid_argument_of_a_transform_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (aug.ElasticDistortion(((1e-4, 1),)), "too many"),
        (Compose(Scale(1e6, 1e6), GridSample(1e-5)), "too many to count"),
        (Compose(GridSample(1), GridSample(1)), "has an inverse map already"),
        (Compose(Normalize(), aug.ColorJitter()), "colors are float32, expected uint8"),
        (Compose(Normalize(), Normalize()), "^Normalize: colors are float32, expected"),
    ],
)
def test_unsuitable_transform_of_a_sample_is_refused(transform: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        transform(make_sample(), rng())


@pytest.mark.parametrize(
    ("transform", "sample", "message"),
    [
        (Drop(), make_sample() | {"edge_index": np.eye(2)}, "has an edge_index, whose numbers"),
        (GridSample(1), make_sample(0), "there are no points"),
        (Normalize(), make_sample(0), "there are no points"),
        (CropPoints(3), make_sample() | {"points": np.full((40, 3), np.nan)}, "not finite"),
    ],
)
def test_unsuitable_sample_is_refused(transform: Any, sample: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        transform(sample, rng())
