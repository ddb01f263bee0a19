"""Tests of `render`, and of samples in notebooks."""

from __future__ import annotations

import html
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from commands import VAL
from test_renderer import decode_png

from scannet_prep import SCANNET20, SCANNET200, ScanNet, read_processed, render
from scannet_prep.errors import UsageError
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.view.coloring import ViewedScene, view_scene
from scannet_prep.view.renderer import PictureOptions, render_scene

VERTICES = 600
ADD_A_LARGE_NUMBER = 1 << 40


def read_sample(whole_dir: Path, **options: Any) -> Any:
    """Return the validation scene as a sample."""
    return ScanNet(whole_dir / "processed", split="val", **options)[0]


@pytest.fixture
def sample(whole_dir: Path) -> Any:
    return read_sample(whole_dir)


@pytest.fixture(scope="module")
def viewed(whole_dir: Path) -> ViewedScene:
    return view_scene(read_processed(whole_dir / f"processed/val/{VAL}.npz"))


# Pictures.


@pytest.mark.parametrize("color", ["rgb", "segments", "normals"])
def test_picture_of_a_sample_is_that_of_its_scene(
    sample: Any, viewed: ViewedScene, color: str
) -> None:
    image = render(sample, color, size=(160, 120))

    assert image.shape == (120, 160, 3)
    assert image.dtype == np.uint8
    assert np.array_equal(image, render_scene(viewed, color, PictureOptions(160, 120)))


@pytest.mark.parametrize("label_set", [SCANNET20, SCANNET200], ids=lambda it: it.name)
def test_picture_of_labels_has_the_label_set_of_the_sample(
    whole_dir: Path, viewed: ViewedScene, label_set: LabelSet
) -> None:
    sample = read_sample(whole_dir, labels=label_set)

    expected = render_scene(viewed, label_set.name.lower(), PictureOptions(160, 120))
    assert np.array_equal(render(sample, size=(160, 120)), expected)


def test_picture_of_a_plain_dict_has_the_given_options(whole_dir: Path) -> None:
    sample = dict(read_sample(whole_dir, labels=SCANNET200))
    image = render(sample, labels=SCANNET200, view="top", size=(90, 60), legend=False)

    assert image.shape == (60, 90, 3)


# Label sets.


@pytest.fixture
def sample_without_label_set(sample: Any) -> dict[str, Any]:
    return {key: value for key, value in sample.items() if key != "label_set"}


def test_plain_dict_with_its_label_set_is_drawn(sample: Any) -> None:
    assert render(dict(sample)).any()


def test_sample_without_label_set_is_refused_with_the_argument(
    sample_without_label_set: dict[str, Any],
) -> None:
    with pytest.raises(UsageError, match="label set of the labels is not known") as caught:
        render(sample_without_label_set)
    assert caught.value.hint == "render(..., labels=SCANNET20)"


def test_sample_without_label_set_is_drawn_with_the_given_one(
    sample_without_label_set: dict[str, Any],
) -> None:
    by_name = render(sample_without_label_set, labels="scannet20")
    by_object = render(sample_without_label_set, labels=SCANNET20)

    assert np.array_equal(by_name, by_object)


def test_unknown_name_of_a_label_set_is_refused() -> None:
    with pytest.raises(UsageError, match="'20' is not a label set"):
        render({}, labels="20")


def test_other_label_set_than_that_of_the_sample_is_refused(sample: Any) -> None:
    message = "labels is ScanNet200, but the labels of the sample are of ScanNet20"
    with pytest.raises(UsageError, match=message):
        render(sample, labels=SCANNET200)


# Notebooks.


@pytest.mark.parametrize(("split", "color"), [("train", "labels"), ("test", "rgb")])
def test_notebook_shows_a_sample_as_text_and_picture(
    whole_dir: Path, split: Literal["train", "test"], color: str
) -> None:
    sample = ScanNet(whole_dir / "processed", split=split)[0]

    data = sample._repr_png_()

    text = html.escape(repr(sample), quote=False)
    assert np.array_equal(decode_png(data), render(sample, color, size=(640, 480)))
    assert sample._repr_html_().startswith(f"<pre>{text}</pre><img alt=")


def test_notebook_shows_an_unpickled_sample_in_the_same_way(sample: Any) -> None:
    assert pickle.loads(pickle.dumps(sample))._repr_png_() == sample._repr_png_()


@pytest.mark.parametrize("keys", ["labels", ("colors", "labels"), ()], ids=str)
def test_notebook_shows_a_sample_without_points_as_text(whole_dir: Path, keys: Any) -> None:
    sample = read_sample(whole_dir, keys=keys)

    assert sample._repr_png_() is None
    assert sample._repr_html_() == f"<pre>{html.escape(repr(sample), quote=False)}</pre>"


# Samples that were changed by transforms.


def test_points_and_colours_of_other_types_are_drawn_in_notebooks(sample: Any) -> None:
    sample["points"] = sample["points"].astype(np.float64) + 1
    sample["colors"] = sample["colors"] / 255

    assert sample._repr_png_()


def test_scene_id_that_is_markup_is_escaped_in_notebooks(sample: Any) -> None:
    sample["scene_id"] = "<script>"

    assert sample._repr_png_()
    assert "<script>" not in sample._repr_html_()


def test_large_instance_ids_are_drawn_as_small_ones(sample: Any) -> None:
    expected = render(dict(sample), color="instances", legend=False)
    has_instance = sample["instances"] >= 0
    sample["instances"] = sample["instances"].astype(np.int64) + has_instance * ADD_A_LARGE_NUMBER

    assert np.array_equal(render(dict(sample), color="instances", legend=False), expected)


def test_notebook_shows_no_picture_without_an_array_to_colour(sample: Any) -> None:
    sample["labels"] = sample["labels"][:5]
    sample["colors"] = sample["colors"] / 255
    sample["normals"] = sample["normals"][:5]

    assert sample._repr_png_() is None


def test_notebook_shows_no_picture_of_points_that_are_not_finite(sample: Any) -> None:
    sample["points"][0, 0] = np.nan
    assert sample._repr_png_() is None


# Samples that cannot be drawn.


@pytest.mark.parametrize(
    ("changes", "color", "message"),
    [
        ({"points": None}, "labels", "the sample has no 'points'"),
        (
            {"points": np.zeros((0, 3)), "colors": np.zeros((0, 3), np.uint8)},
            "rgb",
            "points: there are none",
        ),
        ({"points": np.full((VERTICES, 3), np.nan)}, "rgb", "points: not all are finite"),
        (
            {"points": np.zeros((VERTICES, 2))},
            "rgb",
            r"points: found float64 \(600, 2\), expected floats \(any number, 3\)",
        ),
        (
            {"colors": np.zeros((VERTICES, 3))},
            "rgb",
            r"colors: found float64 \(600, 3\), expected uint8 \(600, 3\)",
        ),
        (
            {"labels": np.zeros(5, int)},
            "labels",
            r"labels: found int64 \(5,\), expected integers \(600,\)",
        ),
        (
            {"faces": np.array([[0, 1, VERTICES]])},
            "labels",
            "faces: refer to vertices 0..600, but there are 600",
        ),
        ({"normals": np.full((VERTICES, 3), np.inf)}, "labels", "normals: not all are finite"),
        ({}, "error", "a sample cannot be coloured by 'error'"),
    ],
    ids=[
        "no points",
        "empty points",
        "points that are NaN",
        "shape of points",
        "type of colors",
        "length of labels",
        "face indices",
        "infinite normals",
        "colouring",
    ],
)
def test_sample_that_cannot_be_drawn_is_refused_with_the_reason(
    whole_dir: Path, changes: dict[str, Any], color: str, message: str
) -> None:
    sample = read_sample(whole_dir, keys=("points", "colors", "labels")) | changes
    present = {key: value for key, value in sample.items() if value is not None}

    with pytest.raises(UsageError, match=message):
        render(present, color, labels=SCANNET20)


def test_importing_the_dataset_does_not_import_the_view() -> None:
    code = (
        "import sys, scannet_prep.training.dataset\n"
        "print([name for name in sys.modules if 'scannet_prep.view' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
