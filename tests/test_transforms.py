"""Transforms, each compared with a plain loop."""

import math
import pickle
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_sources import check_same

from scannet_prep import SCANNET20
from scannet_prep import transforms as aug
from scannet_prep.base.errors import UsageError
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

NOT_RANDOM = [Normalize(), aug.CenterShift(), aug.CropBox(1.0), aug.InstanceTargets(SCANNET20), aug.NormalizeColor(),
              aug.RandomColorGrayScale()]  # fmt: skip
ALL = [
    aug.ColorJitter(), CropPoints(20), Drop(0.5), Flip(), GridSample(0.5), Jitter(), RotateZ(), Scale(), *NOT_RANDOM,
    aug.ChromaticAutoContrast(), CropPoints(20, 1, (3, 7), SCANNET20), aug.ElasticDistortion(),
    aug.RandomBrightnessContrast(),
    aug.RandomRotate(), aug.RandomRotate((-0.1, 0.1), "x", (0, 1, 2)), aug.RandomShift(), aug.ShufflePoint(),
    aug.RandomShift(((-1, 1), (0, 1), (0, 0))), Scale(0.8, 1.2, anisotropic=True), aug.Sometimes(Jitter(), 0.7),
    aug.ClipGaussianJitter(), aug.HueSaturationTranslation(), aug.RandomDropColor(), aug.RandomDropNormal(),
    Compose(RotateZ(), Flip(), Scale(), Jitter(), aug.ColorJitter(), GridSample(0.3), CropPoints(15), Drop(),
            Normalize()),
]  # fmt: skip
SINGLE = ALL[:-1]
LATE = {aug.ColorJitter: "colors", aug.RandomDropColor: "colors", aug.RandomDropNormal: "normals"}


def make_sample(count: int = 40, seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    normals = generator.normal(size=(count, 3))
    return {
        "points": generator.uniform(-1, 2, (count, 3)).astype(np.float32),
        "normals": (normals / np.linalg.norm(normals, axis=1, keepdims=True)).astype(np.float32),
        "colors": generator.integers(0, 256, (count, 3), dtype=np.uint8),
        "labels": np.arange(count),
        "instances": generator.integers(-1, 3, count),
        "segments": generator.integers(0, 9, count),
        "height": np.arange(count) / 7,  # not ours, but of the vertices
        "boxes": np.ones((count + 1, 6)),  # neither
        "scene_id": "scene0000_00",
    }


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def check_rows(before: dict[str, Any], after: dict[str, Any], kept: list[int]) -> None:
    """Every array of the vertices holds the kept rows; everything else is untouched."""
    for key in ("points", "normals", "colors", "labels", "instances", "segments", "height"):
        assert after[key].tolist() == [before[key][index].tolist() for index in kept], key
        assert after[key].dtype == before[key].dtype
    assert after["boxes"] is before["boxes"]
    assert after["scene_id"] == "scene0000_00"


@pytest.mark.parametrize("transform", ALL)
def test_the_generator_alone_decides_and_the_given_sample_stays_as_it_is(transform: Any) -> None:
    sample, untouched = make_sample(), make_sample()
    first = transform(sample, rng(3))
    again = pickle.loads(pickle.dumps(transform))(sample, rng(3))
    assert pickle.loads(pickle.dumps(transform)) == transform
    check_same(sample, untouched)
    check_same(first, again)
    assert first is not sample
    for key in first.keys() - {"boxes", "scene_id"}:
        assert first[key].flags.c_contiguous, key
    assert first["points"].dtype == first["normals"].dtype == np.float32
    if transform not in NOT_RANDOM:
        others = [transform(sample, rng(seed)) for seed in range(9)]
        assert not all(
            np.array_equal(first[key], other[key])
            for other in others
            for key in ("points", "colors", "normals")
        )


def check_keys_agree(sample: dict[str, Any]) -> None:
    """Whatever was computed from the points holds for those that are there now."""
    count = len(sample["points"])
    for key in ("normals", "colors", "labels", "instances", "segments", "height"):
        assert len(sample[key]) == count, key
    if "grid" in sample:
        cells = np.floor(sample["points"].astype(np.float64) / 0.5)
        shifts = cells - sample["grid"]
        assert (shifts == shifts[0]).all()
        assert len(np.unique(sample["grid"], axis=0)) == count
    if "inverse" in sample:
        assert sample["inverse"].max() < count
    for number, box in enumerate(sample.get("instance_boxes", [])):
        corners = sample["points"][sample["instances"] == number]
        assert box[:3] == pytest.approx((corners.min(axis=0) + corners.max(axis=0)) / 2, abs=1e-6)
        assert sample["instance_centers"][number] == pytest.approx(corners.mean(axis=0), abs=1e-6)


@pytest.mark.parametrize("first", SINGLE)
def test_after_any_two_transforms_all_keys_agree(first: Any) -> None:
    refusals = []
    for second, seed in product(SINGLE, range(3)):
        try:
            found = Compose(first, second)(make_sample(seed=seed), rng(seed))
        except UsageError as error:  # colours twice, or a grid twice
            refusals.append((str(error), {type(first), type(second)}))
            continue
        check_keys_agree(found)
        generator = rng(seed)
        expected = second(first(make_sample(seed=seed), generator), generator)
        assert list(found) == list(expected)
        # Drawn at the end, for the vertices that are left.
        late = {LATE[type(step)] for step in (first, second) if type(step) in LATE}
        for key in found.keys() - late:
            assert np.array_equal(found[key], expected[key]), key
    for message, types in refusals:
        assert re.search("expected uint8|has an inverse map", message)
        assert types & {Normalize, aug.NormalizeColor, GridSample}


@pytest.mark.parametrize(
    "step", [step for step in SINGLE if type(step) not in (GridSample, aug.InstanceTargets)]
)
def test_the_keys_of_a_sample_do_not_depend_on_chance_or_size(step: Any) -> None:
    found = set()
    for seed in range(12):
        sample = make_sample(10 + 5 * seed, seed) | {
            "faces": np.zeros((2, 3), np.int32),
            "grid": np.arange(3),
        }
        sample |= {"instance_boxes": np.ones((1, 6)), "instance_centers": np.ones((1, 3))}
        for transform in (
            step,
            aug.Sometimes(step),
            aug.Sometimes(Compose(aug.Sometimes(step), Jitter()), 0.3),
        ):
            found.add((transform, tuple(sorted(transform(sample, rng(seed))))))
    assert len(found) == 3


def test_integer_points_are_neither_truncated_nor_overflow_and_a_scene_without_vertices_stays_one() -> (
    None
):
    sample = make_sample() | {"points": np.arange(120).reshape(40, 3)}
    expected = sample | {"points": sample["points"].astype(np.float64)}
    moving = (
        RotateZ(),
        Flip(0),
        Flip(1),
        Scale(),
        Jitter(),
        aug.ElasticDistortion(((9, 5),)),
        aug.RandomShift(),
    )
    for transform in moving:
        found = transform(sample, rng())["points"]
        assert found.dtype == np.float64, (
            "also where chance moves nothing: samples of one batch need the same types"
        )
        assert found == pytest.approx(transform(expected, rng())["points"]), transform
    for transform in SINGLE:
        if transform not in (Normalize(), GridSample(0.5)):
            assert len(transform(make_sample(0), rng())["points"]) == 0
    points = np.random.default_rng(0).integers(0, 256, (40, 3), np.uint8)
    for step in (
        RotateZ(),
        aug.RandomRotate(),
        aug.CenterShift(),
        aug.RandomShift(),
        CropPoints(9),
        GridSample(30),
    ):
        small, large = (
            step(make_sample() | {"points": points.astype(kind)}, rng())
            for kind in (np.uint8, np.float32)
        )
        assert np.array_equal(small["points"], large["points"]), (
            f"{step}: small integers do not overflow"
        )


class Marked(RotateZ):
    """A class of a user's."""

    def __call__(self, sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        return super().__call__(sample, generator) | {"mark": generator.random()}


class Timed(Compose):
    """Another, which notes something."""

    def __init__(self, *steps: Any) -> None:
        super().__init__(*steps)
        self.seconds = 0.0


def test_a_subclass_with_a_call_of_its_own_is_called_and_other_names_for_points_are_none_of_ours() -> (
    None
):
    generator = rng()
    expected = Marked()(Drop()(make_sample(), generator), generator)
    found = Compose(Drop(), Marked(), aug.Sometimes(Marked(), 0))(make_sample(), rng())
    assert list(found) == list(expected)
    assert found["mark"] == expected["mark"]
    assert list(Timed(Drop(), [Flip()])(make_sample(), rng())) == list(make_sample())
    assert (
        pickle.loads(pickle.dumps(Timed(Drop(), Flip())))
        == Timed([Drop(), Flip()])
        != Timed(Drop())
    )
    assert hash(Compose(Flip())) == hash(Compose([Flip()]))
    assert Compose()(expected, rng()) is expected
    renamed = {"coord": make_sample()["points"]}
    for p in (0, 1):
        assert aug.Sometimes(lambda sample, _: sample, p)(renamed, rng()) == renamed


@given(st.integers(1, 45), st.integers(0, 20), st.booleans())
def test_crop_keeps_the_nearest_to_one_of_the_vertices(
    max_points: int, seed: int, has_ties: bool
) -> None:
    sample = make_sample(40, seed)
    if has_ties:
        sample["points"] = np.rint(sample["points"])
    found = CropPoints(max_points)(sample, rng(seed))
    kept = found["labels"].tolist()
    check_rows(sample, found, kept)
    assert kept == sorted(kept)
    assert len(kept) == min(40, max_points)
    points = [tuple(map(float, point)) for point in sample["points"].tolist()]
    centre = points[int(rng(seed).integers(40))]
    by_distance = sorted(
        range(40), key=lambda index: (round(math.dist(points[index], centre), 5), index)
    )
    assert max_points >= 40 or kept == sorted(by_distance[:max_points])


@given(st.floats(0, 1))
def test_drop_keeps_its_share_in_order(share: float) -> None:
    sample = make_sample()
    found = Drop(share)(sample, rng())
    kept = found["labels"].tolist()
    check_rows(sample, found, kept)
    assert (kept, len(kept)) == (sorted(set(kept)), max(1, 40 - round(40 * share)))


@given(st.sampled_from([0.1, 0.25, 0.5, 1.0, 10.0]), st.integers(0, 20), st.integers(1, 60))
def test_grid_sampling_keeps_one_of_each_cell_and_the_way_back(
    size: float, seed: int, count: int
) -> None:
    sample = make_sample(count, seed)
    found = GridSample(size)(sample, rng(seed))
    kept = found["labels"].tolist()
    check_rows(sample, found, kept)
    cells = [
        tuple(math.floor(float(value) / size) for value in point) for point in sample["points"]
    ]
    smallest = [min(cell[axis] for cell in cells) for axis in range(3)]
    assert kept == sorted(kept)
    assert sorted(cells[index] for index in kept) == sorted(set(cells))
    assert found["grid"].dtype == np.int32
    for index, cell in zip(kept, found["grid"].tolist(), strict=True):
        assert cell == [value - start for value, start in zip(cells[index], smallest, strict=True)]
    assert len(found["inverse"]) == count
    for index, place in enumerate(found["inverse"].tolist()):
        assert cells[kept[place]] == cells[index]
    assert "inverse" not in GridSample(size, has_inverse=False)(sample, rng(seed))


def test_every_vertex_of_a_cell_has_a_chance() -> None:
    same_place = make_sample(4) | {"points": np.zeros((4, 3), np.float32)}
    chosen = [int(GridSample(1)(same_place, rng(seed))["labels"][0]) for seed in range(40)]
    assert set(chosen) == {0, 1, 2, 3}


@pytest.mark.parametrize("after", [CropPoints(7), Drop(0.5), CropPoints(2), aug.ShufflePoint()])
def test_the_way_back_survives_a_later_selection_or_another_order(after: Any) -> None:
    few = make_sample(5) | {"points": np.eye(5, 3, dtype=np.float32) * range(1, 4)}
    sampled = GridSample(0.8)(few if after == CropPoints(2) else make_sample(), rng())
    found = after(sampled, rng(1))
    kept = found["labels"].tolist()
    assert kept
    assert kept != sampled["labels"].tolist()
    rows = [sampled["labels"].tolist().index(label) for label in kept]
    for key in ("points", "grid"):
        assert np.array_equal(found[key], sampled[key][rows])
    expected = [
        kept.index(label) if label in kept else -1
        for label in sampled["labels"][sampled["inverse"]]
    ]
    assert found["inverse"].tolist() == expected


def test_a_flip_reflects_points_and_normals_alike() -> None:
    sample = make_sample(6)
    seen = set()
    for flip, seed in [(Flip(1.0), 0), (Flip(0.0), 0), *((Flip(), seed) for seed in range(30))]:
        found = flip(sample, rng(seed))
        signs = np.sign(found["points"][0] / sample["points"][0])
        seen.add((flip.probability, *signs.tolist()))
        for key in ("points", "normals"):
            assert (found[key] == sample[key] * signs).all()
    assert seen == {
        (1, -1, -1, 1),
        (0, 1, 1, 1),
        *((0.5, x, y, 1) for x in (1, -1) for y in (1, -1)),
    }


def test_jitter_is_normal_noise_that_is_cut_and_color_jitter_shifts_channels_too() -> None:
    sample = make_sample(20_000)
    change = np.abs(Jitter(0.01, 0.015)(sample, rng())["points"] - sample["points"])
    assert change.max() <= 0.015 + 1e-6
    assert np.isclose(change, 0.015, atol=1e-6).mean() == pytest.approx(
        0.1336, abs=0.01
    )  # beyond 1.5 sigma
    assert np.median(change) == pytest.approx(0.00674, rel=0.05)
    assert (Jitter(0.0)(sample, rng())["points"] == sample["points"]).all()
    sample["colors"][:] = 128
    found = aug.ColorJitter(20, 4)(sample, rng())["colors"]
    assert found.dtype == np.uint8
    assert found.mean(axis=0) == pytest.approx(128 + rng().uniform(-20, 20, 3), abs=0.2)
    assert found.std(axis=0) == pytest.approx(4, rel=0.05)
    sample["colors"][:] = 250
    assert aug.ColorJitter(0, 50)(sample, rng())["colors"].max() == 255
    assert (aug.ColorJitter(0, 0)(sample, rng())["colors"] == 250).all()


def test_normalize_centres_and_scales_as_a_loop_does() -> None:
    sample = make_sample()
    found = Normalize()(sample, rng())
    x, y, z = sample["points"].T.tolist()
    origin = np.array([(min(x) + max(x)) / 2, (min(y) + max(y)) / 2, min(z)])
    for options in ({}, {"apply_z": False}, {"apply_xy": False}):
        moved = aug.CenterShift(**options)(sample, rng())["points"]
        is_moved = [options.get("apply_xy", True)] * 2 + [options.get("apply_z", True)]
        assert moved == pytest.approx(sample["points"] - origin * is_moved, abs=1e-6)
    assert found["points"] == pytest.approx(sample["points"] - origin, abs=1e-6)
    assert found["colors"] == pytest.approx(sample["colors"] / 127.5 - 1, abs=1e-6)
    assert found["colors"].dtype == np.float32


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
            r"RandomRotate: angle is \(-90, 90\), expected a pair \(smallest, largest\) of numbers from -2 to 2",
        ),
        (lambda: aug.RandomRotate(axis="w"), "axis is 'w', expected 'x', 'y' or 'z'"),
        (lambda: aug.Sometimes(Flip(), 1.1), "Sometimes: p is 1.1"),
        (
            lambda: aug.ElasticDistortion(((0, 0.4),)),
            r"distortion_params is \(\(0, 0.4\),\), expected pairs \(granularity, magnitude\), each a number",
        ),
        (lambda: aug.ElasticDistortion(((1e-4, 1),))(make_sample(), rng()), "too many"),
        (lambda: aug.ChromaticAutoContrast(2), "blend_factor is 2"),
        (lambda: Jitter(-0.1), "sigma is -0.1"),
        (lambda: Jitter(float("nan")), "sigma is nan"),
        (lambda: aug.ColorJitter(300), "shift is 300"),
        (
            lambda: GridSample(1e-5)(Scale(1e6, 1e6)(make_sample(), rng()), rng()),
            "too many to count",
        ),
        (
            lambda: Compose(GridSample(1), GridSample(1))(make_sample(), rng()),
            "has an inverse map already",
        ),
        (
            lambda: Compose(Normalize(), aug.ColorJitter())(make_sample(), rng()),
            "colors are float32, expected uint8",
        ),
        (
            lambda: Compose(Normalize(), Normalize())(make_sample(), rng()),
            "^Normalize: colors are float32, expected",
        ),
        (lambda: Marked(max_angle=4), "Marked: max_angle is 4"),
        (
            lambda: Drop()(make_sample() | {"edge_index": np.eye(2)}, rng()),
            "has an edge_index, whose numbers",
        ),
        (lambda: GridSample(1)(make_sample(0), rng()), "there are no points"),
        (
            lambda: CropPoints(3)(make_sample() | {"points": np.full((40, 3), np.nan)}, rng()),
            "not finite",
        ),
        (lambda: Normalize()(make_sample(0), rng()), "there are no points"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
