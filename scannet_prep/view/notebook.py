"""Pictures and pages of samples: in notebooks, and to see the effect of a transform."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.base.files import write_atomically
from scannet_prep.base.images import encode_png
from scannet_prep.errors import UsageError
from scannet_prep.evaluation.overlaps import InstancePrediction, check_prediction
from scannet_prep.evaluation.scores import IntArray, check_integers, describe_array
from scannet_prep.release.label_sets import LabelSet, parse_label_set
from scannet_prep.view.coloring import (
    ColorArray,
    Coloring,
    ViewedScene,
    color_instances,
    color_labels,
    color_normals,
    color_segments,
)
from scannet_prep.view.page import make_scene_page
from scannet_prep.view.picture import PictureOptions, View, draw_scene
from scannet_prep.view.predictions import Prediction, Truth, color_predictions

Predicted: TypeAlias = "ArrayLike | InstancePrediction | Mapping[str, ArrayLike]"

_NOTEBOOK_SIZE = (640, 480)
# The type of each array of a sample, as letters of NumPy's `dtype.kind`, and the shape of a row.
_ARRAYS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "points": ("f", (3,)),
    "colors": ("u", (3,)),
    "labels": ("iu", ()),
    "instances": ("iu", ()),
    "segments": ("iu", ()),
    "normals": ("f", (3,)),
    "faces": ("iu", (3,)),
}
_KIND_NAMES = {"f": "floats", "u": "uint8", "iu": "integers"}


@dataclass(frozen=True, repr=False)
class NotebookPage:
    """A page that a notebook displays: Jupyter, VS Code, Colab.

    Attributes:
        name: The name of the scene.
        html: The page, UTF-8, as `scannet-prep view` writes it.
        picture: Its initial view, PNG.
        height: Height in pixels.
    """

    name: str
    html: bytes
    picture: bytes
    height: int

    def __repr__(self) -> str:
        """Describe the page, for terminals."""
        megabytes = f"{len(self.html) / 1e6:.1f} MB"
        return f"<page of {self.name}, {megabytes}: shown in notebooks; save(path) writes it>"

    def save(self, path: Path | str) -> None:
        """Write the page to a file, which every browser opens.

        Raises:
            OutputError: The file cannot be written.
        """
        path = Path(path)
        write_atomically(path, [self.html])

    def _repr_html_(self) -> str:
        """Return the page in a frame, which covers a picture.

        Programs that remove frames, such as GitHub and untrusted notebooks, leave the picture.
        """
        picture = _embed_picture(self.picture, self.name)
        return (
            f'<div style="position: relative; width: 100%; height: {self.height}px">{picture}'
            f'<iframe title="{escape(self.name)}" srcdoc="{escape(self.html.decode())}" '
            'allow="clipboard-write; fullscreen" '
            'style="position: absolute; inset: 0; width: 100%; height: 100%; border: 0">'
            "</iframe></div>"
        )


def render(
    sample: Mapping[str, Any],
    color: str = "labels",
    *,
    labels: LabelSet | str | None = None,
    view: str = "orbit",
    size: tuple[int, int] = (800, 600),
    legend: bool = True,
) -> ColorArray:
    """Draw a sample, without a display and without a graphics library.

    Surfaces are not drawn from behind: the picture shows the inside of a room through its nearer
    walls and its ceiling.

    Args:
        sample: A sample of `ScanNet`, with or without transforms.
        color: `labels`, `rgb`, `instances`, `segments` or `normals`.
        labels: The label set of the labels: SCANNET20, SCANNET200, or its name, such as
            `"scannet200"`. By default `sample["label_set"]`; if both are given, they must be equal.
        view: `orbit` (from a corner), `top`, or azimuth and elevation in degrees, such as `-60,40`.
        size: Width and height, in pixels.
        legend: Whether to list the classes, with their share of the vertices.

    Returns:
        uint8 (height, width, 3), red, green, blue.

    Raises:
        UsageError: The sample cannot be drawn; the message gives the reason.
    """
    label_set = _choose_label_set(sample, labels)
    scene = _view_sample(sample, label_set)
    options = PictureOptions(view=View.parse(view), size=size, has_legend=legend)
    return draw_scene(scene, scene.choose(color, label_set), options)


def show(
    sample: Mapping[str, Any],
    predictions: Predicted | None = None,
    *,
    labels: LabelSet | str | None = None,
    color: str = "",
    height: int = 600,
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
    label_set = _choose_label_set(sample, labels)
    scene = _view_sample(sample, label_set)
    if predictions is not None:
        values = _read_predictions(predictions, len(scene.points), label_set)
        truth = _read_truth(sample, label_set, values)
        scene.colorings.update(color_predictions([Prediction(label_set, values)], truth))
    color = scene.choose(color, label_set)
    picture = encode_png(draw_scene(scene, color))
    page = make_scene_page(scene, color=color)
    return NotebookPage(scene.scene_id or "a sample", page, picture, height)


def describe_sample(sample: Mapping[str, Any]) -> str:
    """Return the text of a sample for a notebook, and its picture if it can be drawn, as HTML."""
    text = f"<pre>{escape(repr(sample))}</pre>"
    try:
        label_set = _choose_label_set(sample, None)
        scene = _view_sample(sample, label_set)
    except UsageError:
        return text
    color = scene.choose("", label_set)
    picture = encode_png(draw_scene(scene, color, PictureOptions(size=_NOTEBOOK_SIZE)))
    return text + _embed_picture(picture, scene.scene_id)


def _embed_picture(png: bytes, name: str) -> str:
    """Return an element that contains a picture."""
    data = base64.b64encode(png).decode()
    style = "max-width: 100%; max-height: 100%"
    return f'<img alt="{escape(name)}" src="data:image/png;base64,{data}" style="{style}">'


def _choose_label_set(sample: Mapping[str, Any], labels: LabelSet | str | None) -> LabelSet:
    """Choose the label set of a sample: the requested one, or its own.

    Raises:
        UsageError: There is neither, or they differ.
    """
    own = sample.get("label_set", labels)
    if own is None:
        raise UsageError(
            "the label set of the sample is not known",
            "name it: labels=SCANNET20 or labels=SCANNET200",
        )
    label_set = parse_label_set(own)
    if labels is not None and parse_label_set(labels) != label_set:
        raise UsageError(
            f"the labels of the sample are of {label_set.name}, but labels is another label set",
            "leave out labels=..., or read the sample with ScanNet(..., labels=...)",
        )
    return label_set


def _view_sample(sample: Mapping[str, Any], label_set: LabelSet) -> ViewedScene:
    """Check a sample, and make its colourings.

    Raises:
        UsageError: An array has another type or shape or invalid values, or there is nothing to
            draw.
    """
    arrays = _read_arrays(sample)
    colorings: dict[str, Coloring] = {}
    if "colors" in arrays:
        colorings["rgb"] = Coloring("colours of the scan", arrays["colors"])
    if "labels" in arrays:
        labels = arrays["labels"]
        # Samples of test scenes have labels, too.
        if ((labels >= 0) & (labels < len(label_set))).any():
            colorings[label_set.name.lower()] = color_labels(labels, label_set)
    if "instances" in arrays:
        colorings["instances"] = color_instances(arrays["instances"])
    if "segments" in arrays:
        colorings["segments"] = color_segments(arrays["segments"])
    if "normals" in arrays:
        colorings["normals"] = color_normals(arrays["normals"])
    if "points" not in arrays or not colorings:
        raise UsageError(
            "the sample has no points, or no array to colour them by",
            f"it has: {', '.join(map(str, sample))}",
        )
    return ViewedScene(
        scene_id=str(sample.get("scene_id", "")),
        points=arrays["points"].astype(np.float32, copy=False),
        normals=arrays.get("normals"),
        faces=arrays.get("faces"),
        colorings=colorings,
    )


def _read_arrays(sample: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays or tensors of a sample that a page shows, and check them.

    Colours that a transform has converted to floats are left out.

    Raises:
        UsageError: One has another type or shape, or invalid values.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for key, (kinds, row_shape) in _ARRAYS.items():
        if key not in sample:
            continue
        array = np.asarray(sample[key])
        if key == "colors" and array.dtype.kind == "f":
            continue
        row_count = array.shape[0] if array.ndim else 0
        if "points" in arrays and key != "faces":
            row_count = len(arrays["points"])
        has_kind = array.dtype.kind in kinds
        if kinds == "u":
            has_kind = array.dtype == np.uint8
        if not has_kind or array.shape != (row_count, *row_shape):
            lengths = (row_count or "any number", *row_shape)
            shape = ", ".join(map(str, lengths))
            found = describe_array(array)
            expected = f"{_KIND_NAMES[kinds]} ({shape})"
            raise UsageError(f"{key}: found {found}, expected {expected}")
        is_finite = kinds != "f" or np.isfinite(array).all()
        if (len(array) == 0 and key != "faces") or not is_finite:
            raise UsageError(f"{key}: empty, or not all values are finite")
        arrays[key] = array
    faces = arrays.get("faces", np.zeros(0, np.int32))
    vertex_count = len(arrays.get("points", ()))
    is_known = (faces >= 0) & (faces < vertex_count)
    if not is_known.all():
        vertex = faces[~is_known][0]
        raise UsageError(f"faces: refer to vertex {vertex}, which the sample does not have")
    return arrays


def _read_predictions(
    predictions: Predicted, vertex_count: int, label_set: LabelSet
) -> IntArray | InstancePrediction:
    """Check predictions, and make all negative ids -1.

    Raises:
        ContentError: They have another shape or type.
        UsageError: Ids are outside the label set.
    """
    if isinstance(predictions, Mapping):
        predictions = InstancePrediction(**predictions)
    values: IntArray | InstancePrediction
    if isinstance(predictions, InstancePrediction):
        masks, ids, scores = check_prediction(predictions, vertex_count)
        ids = ids.clip(-1)
        values = InstancePrediction(masks, ids, scores)
    else:
        ids = check_integers(predictions, "predictions", vertex_count)
        ids = ids.clip(-1)
        values = ids
    if ids.max(initial=-1) >= len(label_set):
        raise UsageError(
            f"predictions: found train id {ids.max()}, expected -1..{len(label_set) - 1}",
            "train ids count from 0, negative for none; the label set is that of labels=...",
        )
    return values


def _read_truth(
    sample: Mapping[str, Any],
    label_set: LabelSet,
    values: IntArray | InstancePrediction,
) -> Truth | None:
    """Return the annotation of a sample, which `_view_sample` has checked; None if it has none."""
    labels = np.asarray(sample.get("labels", -1)).astype(np.int64)
    is_class = (labels >= 0) & (labels < len(label_set))
    is_instance = isinstance(values, InstancePrediction)
    # Samples of test scenes have labels, too.
    if not is_class.any() or (is_instance and "instances" not in sample):
        return None
    labels = np.where(is_class, labels, -1)
    # Without instances, only the classes can be compared.
    none = np.full(len(labels), -1)
    instances = np.asarray(sample.get("instances", none))
    # A sample has no groups: the class of an instance is that of its vertices.
    return Truth(labels, instances, instance_labels=labels)
