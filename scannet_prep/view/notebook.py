"""Pages of samples in notebooks: the page in a frame, and a picture where scripts are disabled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.base.files import make_directory, write_atomically
from scannet_prep.errors import UsageError
from scannet_prep.evaluation.instance import InstancePrediction
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.view.categories import UNLABELED
from scannet_prep.view.coloring import COLORINGS, ViewedScene
from scannet_prep.view.markup import element, embed_png, to_html
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.png import encode_png
from scannet_prep.view.predicted import Prediction, Truth, color_error, color_prediction
from scannet_prep.view.renderer import PictureOptions, choose_samples, render_scene
from scannet_prep.view.sample import choose_label_set, view_sample

Predicted: TypeAlias = "ArrayLike | InstancePrediction | Mapping[str, ArrayLike]"

_HEIGHT = 600
_PICTURE_WIDTH = 800
_PICTURE_HEIGHT = 600
_HINT_PREDICTIONS = (
    "pass train ids, integers (V,), or masks (M, V) with labels (M,) and scores (M,)"
)


class NotebookPage:
    """A page that a notebook displays: Jupyter, VS Code, Colab.

    Attributes:
        html: The page, UTF-8, as `scannet-prep view` writes it.
        picture: Its initial view, PNG.
    """

    def __init__(self, name: str, html: bytes, picture: bytes, height: int) -> None:
        self.html = html
        self.picture = picture
        self._name = name
        self._height = height

    def __repr__(self) -> str:
        """Describe the page, for terminals."""
        megabytes = f"{len(self.html) / 1e6:.1f} MB"
        return f"<page of {self._name}, {megabytes}: shown in notebooks; save(path) writes it>"

    def save(self, path: Path | str) -> None:
        """Write the page to a file, which every browser opens.

        Raises:
            OutputError: The file cannot be written.
        """
        path = Path(path)
        make_directory(path.parent)
        write_atomically(path, [self.html])

    def _repr_png_(self) -> bytes:
        """Return the picture, for notebooks that do not display HTML."""
        return self.picture

    def _repr_html_(self) -> str:
        """Return the page in a frame, which covers a picture.

        Programs that remove frames, such as GitHub and untrusted notebooks, leave the picture.
        """
        frame = element(
            "iframe",
            srcdoc=self.html.decode(),
            title=self._name,
            allow="clipboard-write; fullscreen",
            style="position: absolute; inset: 0; width: 100%; height: 100%; border: 0",
        )
        picture = element(
            "img",
            alt=self._name,
            src=embed_png(self.picture),
            style="max-width: 100%; max-height: 100%",
        )
        style = f"position: relative; width: 100%; height: {self._height}px"
        return to_html(element("div", picture, frame, style=style)).decode()


def show(
    sample: Mapping[str, Any],
    predictions: Predicted | None = None,
    *,
    labels: LabelSet | str | None = None,
    color: str = "",
    height: int = _HEIGHT,
) -> NotebookPage:
    """Show a sample in a notebook, as a page with all its colourings.

    The page needs no network. It is stored in the notebook, with about 2 MB for 124,000 vertices.

    Args:
        sample: A sample of `ScanNet`, with or without transforms.
        predictions: Predictions for the points of the sample: train ids, integers (V,), negative
            for none; or masks (M, V), labels (M,) and scores (M,), as an `InstancePrediction` or a
            dict. The page then shows them, and where they are wrong if the sample has labels.
        labels: The label set of labels and predictions: SCANNET20, SCANNET200, or its name. By
            default `sample["label_set"]`; if both are given, they must be equal.
        color: The initial colouring: a name such as `rgb`, `instances` or `error`, or `labels`. By
            default, the first that the sample has of prediction, labels and rgb.
        height: Height of the page, in pixels.

    Raises:
        UsageError: The sample cannot be shown, or the predictions do not match it; the message
            gives the reason.
    """
    label_set = None if labels is None else parse_label_set(labels)
    scene = view_sample(sample, label_set)
    if predictions is not None:
        label_set = choose_label_set(sample, label_set, is_needed=True)
        values = _read_predictions(predictions, len(scene.points), len(label_set))
        scene = _add_prediction(scene, sample, Prediction(label_set, values))
    color = _choose_color(scene, color)
    options = PictureOptions(
        _PICTURE_WIDTH,
        _PICTURE_HEIGHT,
        samples=choose_samples(_PICTURE_WIDTH, _PICTURE_HEIGHT),
        has_edges=True,
    )
    picture = encode_png(render_scene(scene, color, options))
    page = make_scene_page(scene, color=color, picture=picture)
    return NotebookPage(scene.scene_id or "a sample", page, picture, height)


def _choose_color(scene: ViewedScene, color: str) -> str:
    """Return the requested colouring, or the default one.

    Raises:
        UsageError: The scene has no such colouring.
    """
    class_colorings = [name for name in ("scannet20", "scannet200") if name in scene.colorings]
    if color == "labels" and class_colorings:
        return class_colorings[0]
    if color:
        scene.check_coloring(color)
        return color
    # Unlabeled is listed last: it comes first only if no vertex has a label.
    labeled = [
        name for name in class_colorings if scene.colorings[name].categories[0].name != UNLABELED
    ]
    preferred = ("prediction", *labeled, "rgb", *scene.colorings)
    return next(name for name in preferred if name in scene.colorings)


def _read_predictions(
    predictions: Predicted, vertex_count: int, class_count: int
) -> NDArray[np.int64] | InstancePrediction:
    """Check predictions.

    Raises:
        UsageError: They have another shape or type, or ids outside the label set.
    """
    if isinstance(predictions, Mapping):
        missing = [key for key in InstancePrediction._fields if key not in predictions]
        if missing:
            raise UsageError(f"the predictions have no {missing[0]!r}", _HINT_PREDICTIONS)
        fields = (predictions[key] for key in InstancePrediction._fields)
        predictions = InstancePrediction(*fields)
    if isinstance(predictions, InstancePrediction):
        masks = np.asarray(predictions.masks)
        ids = np.asarray(predictions.labels)
        scores = np.asarray(predictions.scores)
        if masks.ndim != 2 or masks.shape[1] != vertex_count:
            raise UsageError(
                f"predictions: found masks {masks.shape}, expected (any number, {vertex_count})",
                _HINT_PREDICTIONS,
            )
        if ids.shape != (len(masks),) or scores.shape != (len(masks),):
            raise UsageError(
                f"predictions: found labels {ids.shape} and scores {scores.shape}, "
                f"expected both ({len(masks)},)",
                _HINT_PREDICTIONS,
            )
        _check_ids(ids, class_count)
        return InstancePrediction(masks.astype(np.bool_), ids.astype(np.int64), scores)
    ids = np.asarray(predictions)
    if ids.shape != (vertex_count,):
        raise UsageError(
            f"predictions: found {ids.dtype} {ids.shape}, expected integers ({vertex_count},)",
            _HINT_PREDICTIONS,
        )
    _check_ids(ids, class_count)
    return ids.astype(np.int64)


def _check_ids(ids: NDArray[Any], class_count: int) -> None:
    """Check that ids are train ids, or negative.

    Raises:
        UsageError: They are not integers, or too large.
    """
    if ids.size and ids.dtype.kind not in "iu":
        raise UsageError(f"predictions: found {ids.dtype}, expected integers", _HINT_PREDICTIONS)
    if ids.size and ids.max() >= class_count:
        raise UsageError(
            f"predictions: found train id {ids.max()}, expected -1..{class_count - 1}",
            "subtract 1 if train ids count from 1, or name the label set: labels=...",
        )


def _add_prediction(
    scene: ViewedScene, sample: Mapping[str, Any], prediction: Prediction
) -> ViewedScene:
    """Add the colourings of a prediction, and those of its errors if the sample has labels."""
    colorings = {**scene.colorings, "prediction": color_prediction(prediction, scene.points)}
    label_set = prediction.label_set
    if label_set.name.lower() in colorings:
        labels = np.asarray(sample["labels"]).astype(np.int64)
        labels = np.where((labels >= 0) & (labels < len(label_set)), labels, -1)
        # Without instances, only the classes can be compared.
        instances = np.asarray(sample.get("instances", np.full(len(labels), -1)))
        is_comparable = "instances" in sample or not isinstance(
            prediction.values, InstancePrediction
        )
        if is_comparable:
            # A sample has no groups: the class of an instance is that of its vertices.
            truth = Truth(labels, instances, instance_labels=labels)
            colorings["error"] = color_error(prediction, truth)
    in_order = {name: colorings[name] for name in COLORINGS if name in colorings}
    return replace(scene, colorings=in_order)
