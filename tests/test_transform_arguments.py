"""Refusal of wrong arguments of transforms, and of wrong calls."""

import dataclasses
import pickle
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_transforms import ALL, make_sample, rng

from scannet_prep import SCANNET20, SCANNET200, collate
from scannet_prep import transforms as aug
from scannet_prep.errors import UsageError

# Accepted arguments of every class.
VALID: dict[Any, dict[str, Any]] = {
    aug.CenterShift: {"apply_z": True, "apply_xy": True},
    aug.ChromaticAutoContrast: {"blend_factor": 0.5},
    aug.ClipGaussianJitter: {"scalar": 0.02},
    aug.ColorJitter: {"shift": 12, "noise": 6},
    aug.CropBox: {"limit": 1},
    aug.CropPoints: {
        "max_points": 9,
        "sample_rate": 0.5,
        "classes": (1, 2),
        "label_set": SCANNET20,
    },
    aug.Drop: {"share": 0.5},
    aug.ElasticDistortion: {"distortion_params": ((0.5, 1),)},
    aug.Flip: {"probability": 0.5},
    aug.GridSample: {"size": 0.5, "has_inverse": True},
    aug.HueSaturationTranslation: {"hue_max": 0.5, "saturation_max": 0.2},
    aug.InstanceTargets: {"label_set": SCANNET20},
    aug.Jitter: {"sigma": 0.005, "limit": 0.02},
    aug.Mix3D: {"collate": collate, "mix_prob": 0.8, "step": aug.Flip(), "seed": 0},
    aug.Normalize: {},
    aug.NormalizeColor: {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    aug.RandomBrightnessContrast: {"brightness_limit": 0.2, "contrast_limit": 0.2},
    aug.RandomColorGrayScale: {},
    aug.RandomDropColor: {"drop_ratio": 0.2},
    aug.RandomDropNormal: {"drop_ratio": 0.2},
    aug.RandomRotate: {"angle": (-1, 1), "axis": "z", "center": (0, 0, 0)},
    aug.RandomShift: {"shift": ((-1, 1), (0, 1), (0, 0))},
    aug.RotateZ: {"max_angle": 1},
    aug.Scale: {"smallest": 0.9, "largest": 1.1, "anisotropic": False},
    aug.ShufflePoint: {},
    aug.Sometimes: {"step": aug.Flip(), "p": 0.5},
}
ARGUMENTS = [(kind, name) for kind, values in VALID.items() for name in values]

# Numbers in and out of range, other types, and sequences of several lengths.
NUMBERS = st.one_of(
    st.floats(), st.integers(-3, 300), st.integers(), st.just(10**400), st.booleans(),
    st.floats(0, 1).map(np.float32), st.integers(0, 9).map(np.int64), st.just(1 + 1j),
)  # fmt: skip
SCALARS = st.one_of(
    NUMBERS, st.none(), st.text(max_size=3), st.binary(max_size=3), st.just(object), st.just({})
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.tuples(inner, inner, inner),
        st.lists(st.floats(), max_size=4).map(np.array),
    ),
    max_leaves=9,
)


def test_every_argument_of_every_class_is_listed_here() -> None:
    classes = {getattr(aug, name) for name in aug.__all__ if isinstance(getattr(aug, name), type)}

    assert classes == {*VALID, aug.Compose}
    for kind, arguments in VALID.items():
        assert {field.name for field in dataclasses.fields(kind)} == set(arguments)


@pytest.mark.parametrize(("kind", "name"), ARGUMENTS)
@given(value=VALUES)
@example(value=None)
def test_any_argument_is_refused_by_name_or_the_transform_works(
    kind: Any, name: str, value: Any
) -> None:
    try:
        transform = kind(**VALID[kind] | {name: value})
    except UsageError as error:
        check_refusal(error, kind, name)
        return

    assert hash(transform) == hash(pickle.loads(pickle.dumps(transform)))
    # Mix3D is not a transform of a sample. Fine noise of ElasticDistortion takes long.
    if kind not in {aug.Mix3D, aug.ElasticDistortion}:
        check_works(transform)


def check_refusal(error: UsageError, kind: Any, name: str) -> None:
    """Check that the error names class, argument and expectation, and has a hint."""
    start = rf"^{kind.__name__}: \w+ (is|has) .*, expected "
    assert re.match(start, error.message, re.DOTALL)
    assert f"{name} " in error.message
    assert error.hint


def check_works(transform: Any) -> None:
    """Check that points stay finite, or that cells too small for the scene are refused."""
    sample = make_sample() | {"labels": np.arange(40) % 20}
    try:
        sample = transform(sample, rng())
    except UsageError as error:
        if "too many to count" not in error.message:
            raise
    assert np.isfinite(sample["points"]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: aug.Scale((0.9, 1.1)),
            r"Scale: smallest is \(0.9, 1.1\), expected a number from 1e-06 to 1e\+06",
        ),
        (
            lambda: aug.Scale(1.1, 0.9),
            "Scale: smallest is 1.1 and largest is 0.9, expected smallest <= largest",
        ),
        (lambda: aug.Scale(2), "Scale: smallest is 2 and largest is 1.1, expected"),
        (lambda: aug.Scale(largest=float("inf")), "Scale: largest is inf, expected a number"),
        (lambda: aug.Scale(anisotropic="no"), "Scale: anisotropic is 'no', expected True or False"),
        (lambda: aug.GridSample(True), "GridSample: size is True, expected a number"),
        (
            lambda: aug.CropPoints(1e5),
            "CropPoints: max_points is 100000.0, expected a whole number from 1",
        ),
        (
            lambda: aug.CropPoints(9, classes={3}),
            r"CropPoints: classes is \{3\}, expected train ids from 0 to 199",
        ),
        (
            lambda: aug.CropPoints(9, classes=(20,), label_set=SCANNET20),
            "train id 20, expected those of ScanNet20",
        ),
        (
            lambda: aug.CropPoints(9, classes=(0, 19)),
            r"classes is \(0, 19\), expected label_set with them: both label sets have these",
        ),
        (
            lambda: aug.RandomRotate((1, -1)),
            r"RandomRotate: angle is \(1, -1\), expected a pair \(smallest, largest",
        ),
        (lambda: aug.RandomRotate(0.5), "RandomRotate: angle is 0.5, expected a pair"),
        (
            lambda: aug.RandomShift((0.2, 0.2, 0.2)),
            r"RandomShift: shift is .*, expected three pairs",
        ),
        (
            lambda: aug.RandomShift(((1, 0), (0, 0), (0, 0))),
            "RandomShift: shift is .*, expected three pairs",
        ),
        (
            lambda: aug.NormalizeColor(std=(0, 1, 1)),
            r"NormalizeColor: std is \(0, 1, 1\), expected three numbers",
        ),
        (
            lambda: aug.InstanceTargets("nyu40"),
            "InstanceTargets: label_set is 'nyu40', expected a label set",
        ),
        (lambda: aug.InstanceTargets(20), "InstanceTargets: label_set is 20, expected a label set"),
        (
            lambda: aug.Mix3D(aug.Flip),
            "Mix3D: collate is .*, expected a function of a list of samples",
        ),
        (lambda: aug.Mix3D(collate, seed=-1), "Mix3D: seed is -1, expected a whole number from 0"),
        (
            lambda: aug.Sometimes(aug.Flip),
            r"Sometimes: step is .*Flip'>, expected .* called as transform\(sample, rng",
        ),
        (
            lambda: aug.Compose(aug.Flip(), aug.Flip),
            "Compose: step 2 is .*Flip'>, expected a transform",
        ),
        (lambda: aug.Compose([aug.Flip(), 5]), "Compose: step 2 is 5, expected a transform"),
        (lambda: aug.Compose("Flip"), "Compose: step 1 is 'Flip', expected a transform"),
        (
            lambda: aug.Compose(lambda sample: sample),
            r"Compose: step 1 is .*lambda.*transform\(sample, rng\)",
        ),
        (lambda: aug.Compose(aug.Flip(), record=1), "Compose: record is 1, expected True or False"),
        (lambda: aug.pointcept(shuffle=1), "pointcept: shuffle is 1, expected True or False"),
        (
            lambda: aug.fragments(make_sample(), 0),
            "fragments: size is 0, expected a number from 1e-06",
        ),
        (
            lambda: aug.instance_masks(np.zeros(3, int), -1),
            "instance_masks: count is -1, expected a whole number",
        ),
        (lambda: aug.mix([]), "mix: there are no scenes, expected at least one"),
    ],
)
def test_wrong_argument_is_refused_by_the_constructor(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_hint_of_a_wrong_argument_is_the_call_with_its_defaults() -> None:
    with pytest.raises(UsageError) as caught:
        aug.Scale((0.9, 1.1))

    assert caught.value.hint == "Scale(smallest=0.9, largest=1.1, anisotropic=False)"


def test_lists_and_arrays_as_arguments_equal_tuples() -> None:
    assert aug.RandomRotate([-1, 1]) == aug.RandomRotate((-1, 1))
    assert aug.CropPoints(9, classes=np.array([3, 70])) == aug.CropPoints(9, classes=(3, 70))
    assert hash(aug.ElasticDistortion([[0.2, 0.4]])) == hash(aug.ElasticDistortion(((0.2, 0.4),)))


@pytest.mark.parametrize(
    "make_step", [lambda: print, lambda: partial(max, key=len), lambda: aug.Flip().__call__]
)
def test_callables_of_other_kinds_are_accepted_as_steps(make_step: Any) -> None:
    assert len(aug.Compose(make_step()).steps) == 1


@pytest.mark.parametrize("transform", ALL)
def test_transform_called_without_rng_shows_the_signature(transform: Any) -> None:
    name = type(transform).__name__
    expected = r"expected transform\(sample, rng\) with a numpy.random.Generator"
    problem = f"^{name}: called without rng, {expected}"
    with pytest.raises(UsageError, match=problem) as caught:
        transform(make_sample())

    assert caught.value.hint == "transform(sample, numpy.random.default_rng(0))"


@pytest.mark.parametrize("wrong", [0, np.random.RandomState(0), "seed"])
def test_transform_called_with_another_rng_names_it(wrong: Any) -> None:
    message = re.escape(f"Flip: called with rng={wrong!r}, expected")
    with pytest.raises(UsageError, match=message):
        aug.Flip()(make_sample(), wrong)


@pytest.mark.parametrize("wrong", [None, [1, 2], np.zeros((4, 3))])
def test_sample_that_is_not_a_dict_is_refused_by_its_type(wrong: Any) -> None:
    message = rf"Flip: the sample is a {type(wrong).__name__}, expected a dict of arrays"
    with pytest.raises(UsageError, match=message):
        aug.Flip()(wrong, rng())


@pytest.mark.parametrize(
    ("transform", "key"),
    [
        (aug.ColorJitter(), "colors"),
        (aug.RandomDropNormal(), "normals"),
        (aug.RotateZ(), "points"),
        (aug.InstanceTargets(SCANNET200), "instances"),
        (aug.CropPoints(3, classes=(3,), label_set=SCANNET20), "labels"),
    ],
)
def test_missing_array_is_named_with_the_transform(transform: Any, key: str) -> None:
    sample = make_sample()
    # Without points, the number of vertices of other arrays is unknown.
    if key == "points":
        sample = {"normals": sample["normals"]}
    sample.pop(key, None)

    with pytest.raises(UsageError, match=f"^{type(transform).__name__}: the sample has no '{key}'"):
        transform(sample, rng())
