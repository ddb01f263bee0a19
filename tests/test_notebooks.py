"""Tests of `show`: pages of samples in notebooks, in a real browser and without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsers import SIZE, Shown, needs_browser
from commands import VAL
from test_renderer import decode_png

from scannet_prep import SCANNET20, SCANNET200, ScanNet
from scannet_prep import show as show_sample
from scannet_prep.errors import UsageError
from scannet_prep.evaluation.instance import InstancePrediction
from scannet_prep.view.renderer import PictureOptions, render_scene
from scannet_prep.view.sample import view_sample

VERTICES = 600


@pytest.fixture
def sample(whole_dir: Path) -> Any:
    return ScanNet(whole_dir / "processed", split="val", labels=SCANNET20)[0]


def make_masks(labels: Any = (3, 4)) -> InstancePrediction:
    masks = np.zeros((2, VERTICES), bool)
    masks[0, :300] = True
    masks[1, 300:500] = True
    return InstancePrediction(masks, np.array(labels), np.array([0.5, 0.9]))


def list_colorings(page: Any) -> list[str]:
    """Return the names of the colourings of a page."""
    names = ("rgb", "scannet20", "instances", "segments", "normals", "prediction", "error")
    return [name for name in names if f'"name":"{name}"' in page.html.decode()]


# The content of the page.


def test_page_of_a_sample_has_all_its_colourings(sample: Any) -> None:
    names = ["rgb", "scannet20", "instances", "segments", "normals"]
    assert list_colorings(show_sample(sample)) == names


def test_method_of_a_sample_makes_the_same_page(sample: Any) -> None:
    assert sample.show().html == show_sample(sample).html


def test_plain_dict_is_shown(sample: Any) -> None:
    assert show_sample(dict(sample)).html == show_sample(sample).html


@pytest.mark.parametrize("task", ["semantic", "instance", "dict"])
def test_predictions_add_two_colourings(sample: Any, task: str) -> None:
    predictions: Any = sample["labels"]
    if task != "semantic":
        predictions = make_masks()
    if task == "dict":
        predictions = predictions._asdict()

    assert list_colorings(show_sample(sample, predictions))[-2:] == ["prediction", "error"]


def test_prediction_for_a_sample_without_labels_has_no_errors(sample: Any) -> None:
    del sample["labels"]
    predictions = np.zeros(VERTICES, int)

    assert list_colorings(show_sample(sample, predictions))[-1] == "prediction"


@pytest.mark.extra("torch")
def test_tensors_are_shown(sample: Any) -> None:
    import torch

    tensors = {
        key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for key, value in sample.items()
    }

    page = show_sample(tensors, tensors["labels"])
    assert page.html == show_sample(sample, sample["labels"]).html


@pytest.mark.parametrize(
    ("color", "shown"),
    [("", "scannet20"), ("labels", "scannet20"), ("rgb", "rgb"), ("error", "error")],
)
def test_page_opens_with_the_given_colouring(sample: Any, color: str, shown: str) -> None:
    predictions = sample["labels"] if color == "error" else None
    assert f'"color":"{shown}"' in show_sample(sample, predictions, color=color).html.decode()


def test_page_with_predictions_opens_with_them(sample: Any) -> None:
    assert '"color":"prediction"' in show_sample(sample, sample["labels"]).html.decode()


def test_picture_is_the_initial_view(sample: Any) -> None:
    picture = decode_png(show_sample(sample, color="rgb").picture)

    expected = render_scene(
        view_sample(sample, None), "rgb", PictureOptions(samples=3, has_edges=True)
    )
    assert np.array_equal(picture, expected)


def test_saved_page_has_the_content_of_the_page(sample: Any, tmp_path: Path) -> None:
    page = show_sample(sample)
    page.save(tmp_path / "new/page.html")

    assert (tmp_path / "new/page.html").read_bytes() == page.html


def test_terminal_shows_the_name_and_the_size_of_the_page(sample: Any) -> None:
    assert repr(show_sample(sample)).startswith(f"<page of {VAL}, 0.")


# Samples and predictions that do not match.


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        (np.zeros(5, int), r"predictions: found int64 \(5,\), expected integers \(600,\)"),
        (np.zeros(VERTICES), "predictions: found float64, expected integers"),
        (np.full(VERTICES, 20), r"predictions: found train id 20, expected -1\.\.19"),
        (make_masks(labels=(3, 20)), r"predictions: found train id 20, expected -1\.\.19"),
        (make_masks(labels=(3,)), r"found labels \(1,\) and scores \(2,\), expected both \(2,\)"),
        (
            make_masks()._replace(masks=np.zeros((2, 5))),
            r"found masks \(2, 5\), expected \(any number, 600\)",
        ),
        ({"masks": np.zeros((1, VERTICES))}, "the predictions have no 'labels'"),
    ],
    ids=["length", "type", "train id", "mask class", "mask classes", "mask length", "keys"],
)
def test_predictions_that_do_not_match_are_refused(
    sample: Any, predictions: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        show_sample(sample, predictions)
    assert caught.value.hint


def test_other_label_set_than_that_of_the_sample_is_refused(sample: Any) -> None:
    with pytest.raises(UsageError, match="labels is ScanNet200"):
        show_sample(sample, labels=SCANNET200)


def test_sample_without_points_is_refused(sample: Any) -> None:
    del sample["points"]
    with pytest.raises(UsageError, match="the sample has no 'points'"):
        show_sample(sample)


def test_colouring_that_the_sample_does_not_have_is_refused(sample: Any) -> None:
    with pytest.raises(UsageError, match="cannot be coloured by 'error'"):
        show_sample(sample, color="error")


# In the browser.


@pytest.fixture
def notebook_path(sample: Any, tmp_path: Path) -> Path:
    """A file with the output of a cell, as Jupyter puts it into its page."""
    sample["scene_id"] = '"><script>alert(1)</script>'
    output = show_sample(sample, sample["labels"])._repr_html_()
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{output}")
    return path


@needs_browser
def test_notebook_shows_the_page_in_a_frame(
    show: Callable[..., Shown], notebook_path: Path
) -> None:
    page = show(notebook_path).page
    frame = page.frame_locator("iframe")
    frame.locator("canvas[aria-busy=false]").wait_for()

    assert frame.locator("h1").inner_text() == '"><script>alert(1)</script>'
    assert page.locator("iframe").bounding_box()["height"] == 600


@pytest.fixture
def page_without_scripts(browser: Any) -> Iterator[Any]:
    context = browser.new_context(java_script_enabled=False, viewport=SIZE)
    yield context.new_page()
    context.close()


@needs_browser
def test_notebook_without_scripts_shows_the_picture(
    page_without_scripts: Any, notebook_path: Path
) -> None:
    page_without_scripts.goto(notebook_path.as_uri())
    page_without_scripts.frame_locator("iframe").locator("noscript img").wait_for(state="visible")


@needs_browser
def test_notebook_that_removes_frames_shows_the_picture(
    page_without_scripts: Any, notebook_path: Path
) -> None:
    text = notebook_path.read_text()
    start = text.index("<iframe")
    end = text.index("</iframe>") + len("</iframe>")
    notebook_path.write_text(text[:start] + text[end:])
    page_without_scripts.goto(notebook_path.as_uri())

    box = page_without_scripts.locator("img").bounding_box()
    assert box["width"] > 400
