"""Tests of `render` and `show`: pictures and pages of samples, in notebooks and elsewhere."""

import base64
import html
import pickle
import re

import numpy as np
import pytest
from commands import VAL

from scannet_prep import SCANNET20, SCANNET200, ScanNet, read_processed, render
from scannet_prep import show as show_sample
from scannet_prep.base.images import encode_png
from scannet_prep.errors import ContentError, UsageError
from scannet_prep.evaluation.overlaps import InstancePrediction
from scannet_prep.view.coloring import view_scene
from scannet_prep.view.picture import PictureOptions, draw_scene

VERTICES = 600


@pytest.fixture
def sample(whole_dir):
    return ScanNet(whole_dir / "processed", split="val", labels=SCANNET20)[0]


def make_masks(labels=(3, 4)):
    masks = np.arange(VERTICES) // 250 == np.arange(2)[:, np.newaxis]
    return InstancePrediction(masks, labels, [0.5, 0.9])


def list_colorings(page):
    return re.findall(r'"name":"(\w+)","title"', page.html.decode())


def test_picture_of_a_sample_is_that_of_its_scene(sample, whole_dir):
    viewed = view_scene(read_processed(whole_dir / f"processed/val/{VAL}.npz"))
    size = (160, 120)
    options = PictureOptions(size=size)
    for color, name in {"rgb": "rgb", "segments": "segments", "labels": "scannet20"}.items():
        image = render(sample, color, size=size)
        assert image.dtype == np.uint8
        assert np.array_equal(image, draw_scene(viewed, name, options)), color

    sample = dict(ScanNet(whole_dir / "processed", split="val", labels=SCANNET200)[0])
    assert np.array_equal(render(sample, size=size), draw_scene(viewed, "scannet200", options))
    assert render(sample, view="top", size=(90, 60), legend=False).shape == (60, 90, 3)


@pytest.mark.parametrize("draw", [render, show_sample])
def test_label_set_is_that_of_the_sample_or_the_named_one(sample, draw):
    with pytest.raises(UsageError, match="sample are of ScanNet20, but labels is another"):
        draw(sample, labels=SCANNET200)
    with pytest.raises(UsageError, match="'20' is not a label set"):
        draw(sample, labels="20")
    del sample["label_set"]
    with pytest.raises(UsageError, match="label set of the sample is not known"):
        draw(dict(sample))
    draw(dict(sample), labels="scannet20")


def test_sample_that_transforms_have_changed_is_drawn(sample):
    sample["points"] = sample["points"].astype(np.float64) + 1
    sample["colors"] = sample["colors"] / 255
    sample["faces"] = np.zeros((0, 3), int)
    sample["instances"] = (sample["instances"] > 0) * 2**40

    assert list_colorings(show_sample(sample))[0] == "scannet20"
    render(sample, "instances")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"points": None}, "the sample has no points, or no array to colour them by"),
        ({"points": np.zeros((0, 3))}, "points: empty"),
        ({"points": np.full((VERTICES, 3), np.nan)}, "points: empty, or not all"),
        (
            {"points": np.zeros((VERTICES, 2))},
            r"points: found float64 \(600, 2\), expected floats \(600, 3\)",
        ),
        ({"colors": np.zeros((VERTICES, 3), np.uint16)}, "colors: found uint16"),
        ({"labels": np.zeros(5, int)}, r"labels: found int64 \(5,\), expected integers \(600\)"),
        ({"faces": np.array([[0, 1, VERTICES]])}, "faces: refer to vertex 600"),
        ({"faces": np.full((1, 3), -1)}, "faces: refer to vertex -1"),
    ],
)
def test_sample_that_cannot_be_drawn_is_refused_with_the_reason(sample, changes, problem):
    changed = {key: value for key, value in (sample | changes).items() if value is not None}
    with pytest.raises(UsageError, match=problem):
        render(changed)


def test_notebook_shows_a_sample_as_text_and_picture(whole_dir):
    for split, color in (("train", "labels"), ("test", "rgb")):
        sample = ScanNet(whole_dir / "processed", split=split)[0]
        sample["scene_id"] = "<script>"
        png = base64.b64encode(encode_png(render(sample, color, size=(640, 480)))).decode()
        shown = pickle.loads(pickle.dumps(sample))._repr_html_()
        assert shown.startswith(f"<pre>{html.escape(repr(sample))}</pre><img alt=")
        assert png in shown
        assert "<script>" not in shown
        sample["points"][0, 0] = np.nan
        assert sample._repr_html_() == f"<pre>{html.escape(repr(sample))}</pre>"


def test_page_has_the_colourings_of_the_sample_and_of_predictions_and_saves_itself(
    sample, tmp_path
):
    page = show_sample(sample)
    assert list_colorings(page) == ["rgb", "scannet20", "instances", "segments", "normals"]
    assert repr(page).startswith(f"<page of {VAL}, 0.")
    page.save(tmp_path / "new/page.html")
    assert (tmp_path / "new/page.html").read_bytes() == page.html
    assert show_sample(sample, color="rgb").picture == encode_png(render(sample, "rgb"))
    with pytest.raises(UsageError, match="cannot be coloured by 'error'"):
        show_sample(sample, color="error")

    # An ignore index of other programs.
    sample["labels"][:9] = 255
    masks = make_masks((3, -100))
    for predictions in (np.full(VERTICES, -100), masks, masks._asdict()):
        page = show_sample(sample, predictions)
        assert list_colorings(page)[-2:] == ["prediction", "error"]
        assert '"color":"prediction"' in page.html.decode()
    unlabeled = dict(sample, labels=np.full(VERTICES, -1))
    for key in ("instances", "labels"):
        del sample[key]
        for partial in (sample, unlabeled):
            assert list_colorings(show_sample(partial, masks))[-1] == "prediction"


@pytest.mark.extra("torch")
def test_tensors_are_shown(sample):
    import torch

    expected = show_sample(sample, sample["labels"]).html
    for key, value in sample.items():
        if isinstance(value, np.ndarray):
            sample[key] = torch.from_numpy(value)

    assert show_sample(sample, sample["labels"]).html == expected


@pytest.mark.parametrize(
    ("predictions", "problem"),
    [
        (np.zeros(5, int), "predictions: found 5 vertices, expected 600"),
        (np.full(VERTICES, 20), r"predictions: found train id 20, expected -1\.\.19"),
        (make_masks(labels=(3, 20)), r"predictions: found train id 20, expected -1\.\.19"),
        ({"masks": np.zeros((1, VERTICES))}, "missing 2 required positional arguments: 'labels'"),
    ],
)
def test_predictions_that_do_not_match_are_refused(sample, predictions, problem):
    with pytest.raises((UsageError, ContentError, TypeError), match=problem):
        show_sample(sample, predictions)


@pytest.mark.extra("chromium", "playwright")
def test_notebook_shows_the_page_in_a_frame_and_without_scripts_a_picture(show, sample, tmp_path):
    sample["scene_id"] = '"><script>alert(1)</script>'
    output = show_sample(sample, sample["labels"])._repr_html_()
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><body hidden>{output}")

    page = show(path)
    page.frames[1].wait_for_function("() => window.viewer")
    page.evaluate("document.body.hidden = false")
    frame = page.frame_locator("iframe")
    canvas = frame.locator("canvas[aria-busy=false]").first
    assert canvas.evaluate("() => viewer.drawing.camera.distance") > 1
    assert frame.locator("h1").inner_text() == sample["scene_id"]

    path.write_text(output.partition("<iframe")[0])
    assert show(path, java_script_enabled=False).locator("img").bounding_box()["width"] > 400
