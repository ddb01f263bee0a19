"""Samples of the dataset as pictures: for notebooks, and for a look at what a transform does."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet, parse_label_set
from scannet_prep.view.camera import Camera
from scannet_prep.view.coloring import (
    UNLABELED,
    Coloring,
    ViewedScene,
    color_instances,
    color_labels,
    color_normals,
    color_segments,
)
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, render_scene

_LABEL_SETS = {item.name: item for item in (SCANNET20, SCANNET200)}
# By colouring: the array of a sample that it shows, the kinds of its numbers, its columns, and what makes it.
_ARRAYS: dict[str, tuple[str, str, tuple[int, ...], Callable[[Any, LabelSet], Coloring]]] = {
    "rgb": ("colors", "u", (3,), lambda values, _: Coloring("rgb", "colours of the scan", values)),
    "labels": ("labels", "iu", (), color_labels),
    "instances": ("instances", "iu", (), lambda values, _: color_instances(values)),
    "segments": ("segments", "iu", (), lambda values, _: color_segments(values)),
    "normals": ("normals", "f", (3,), lambda values, _: color_normals(values)),
}


def render(
    sample: Mapping[str, Any],
    color: str = "labels",
    *,
    labels: LabelSet | str | None = None,
    view: str = "orbit",
    size: tuple[int, int] = (800, 600),
    legend: bool = True,
) -> NDArray[np.uint8]:
    """Draw a sample, without a display and without a graphics library.

    Surfaces are not drawn from behind, so that one looks into a room through its nearer walls and its ceiling.

    Args:
        sample: Of `ScanNet`, as it comes or changed by transforms.
        color: `labels`, `rgb`, `instances`, `segments` or `normals`.
        labels: SCANNET20 or SCANNET200, or its name, such as `"scannet200"`. By default that of `sample["label_set"]`,
            which it must equal; required if the sample has no such key.
        view: `orbit` (from a corner), `top`, or azimuth and elevation in degrees, such as `-60,40`.
        size: Width and height, in pixels.
        legend: Whether the classes are listed, with their share of the vertices.

    Returns:
        uint8 (height, width, 3), red, green, blue.

    Raises:
        UsageError: The sample cannot be shown so; the message says why.
    """
    label_set = None if labels is None else parse_label_set(labels)
    options = PictureOptions(*size, Camera.parse(view), legend)
    return render_scene(_view_sample(sample, color, label_set), color, options)


def draw_sample(sample: Mapping[str, Any]) -> bytes | None:
    """Encode a picture of a sample for a notebook as PNG; None where it has nothing to show."""
    for color in ("labels", "rgb", "normals"):
        try:
            viewed = _view_sample(sample, color, None)
            if not (color == "labels" and viewed.colorings[color].categories[0].name == UNLABELED):
                return encode_png(render_scene(viewed, color, PictureOptions(640, 480)))
        except UsageError:
            continue
    return None


def describe_sample(sample: Mapping[str, Any]) -> str:
    """The text and the picture of a sample for a notebook, as HTML."""
    text, picture = f"<pre>{html.escape(repr(sample))}</pre>", draw_sample(sample)
    if picture is None:
        return text
    name = html.escape(str(sample.get("scene_id", "sample")))
    return (
        f'{text}<img alt="{name}" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
    )


def _view_sample(sample: Mapping[str, Any], color: str, label_set: LabelSet | None) -> ViewedScene:
    """Make what is shown of a sample, with one colouring."""
    if color not in _ARRAYS:
        raise UsageError(
            f"a sample cannot be coloured by {color!r}", f"it can be by: {', '.join(_ARRAYS)}"
        )
    points = _read_array(sample, "points", "f", (3,))
    key, kinds, columns, make = _ARRAYS[color]
    values = _read_array(sample, key, kinds, columns, len(points))
    own_label_set = _LABEL_SETS.get(str(sample.get("label_set", "")))
    known = label_set or own_label_set
    if label_set and own_label_set and label_set != own_label_set:
        raise UsageError(
            f"labels is {label_set.name}, but the labels of the sample are of {own_label_set.name}",
            f"leave out labels=..., or read the sample with ScanNet(..., labels={label_set.name.upper()})",
        )
    if known is None and color == "labels":
        raise UsageError(
            "it is not known which label set the labels are of", "render(..., labels=SCANNET20)"
        )
    has_normals, has_faces = "normals" in sample, "faces" in sample
    normals = _read_array(sample, "normals", "f", (3,), length=len(points)) if has_normals else None
    faces = _read_array(sample, "faces", "iu", (3,)) if has_faces else None
    if not len(points):
        raise UsageError("points: there are none", "draw another sample")
    for name, array in (("points", points), ("normals", normals)):
        if array is not None and not np.isfinite(array).all():
            raise UsageError(f"{name}: not all are finite", "draw the sample before it is changed")
    if faces is not None and faces.size and not 0 <= faces.min() <= faces.max() < len(points):
        problem = (
            f"faces: refer to vertices {faces.min()}..{faces.max()}, but there are {len(points):,}"
        )
        raise UsageError(problem, "leave out the faces")
    coloring, name = make(values, known or SCANNET20), str(sample.get("scene_id", ""))
    return ViewedScene(
        name, "", "", points.astype(np.float32, copy=False), normals, faces, {color: coloring}
    )


def _read_array(
    sample: Mapping[str, Any],
    key: str,
    kinds: str,
    columns: tuple[int, ...],
    length: int | None = None,
) -> NDArray[Any]:
    """Take an array, or a tensor, of a sample and check type and shape.

    Args:
        sample: The sample.
        key: Of the array.
        kinds: Of numbers: i, u, f; u alone means uint8.
        columns: Shape of a row.
        length: Number of rows; any by default.
    """
    if key not in sample:
        raise UsageError(f"the sample has no {key!r}", f"it has: {', '.join(map(str, sample))}")
    array = np.asarray(sample[key])
    expected = (length if length is not None else "any number", *columns)
    has_shape = (
        array.ndim == len(expected) and array.shape[1:] == columns and length in {None, len(array)}
    )
    if not has_shape or array.dtype.kind not in kinds or (kinds == "u" and array.dtype != np.uint8):
        wanted = {"u": "uint8", "iu": "integers", "f": "floats"}[kinds]
        shape = f"({', '.join(map(str, expected))}{',' * (not columns)})"
        raise UsageError(f"{key}: found {array.dtype} {array.shape}, expected {wanted} {shape}")
    return array
