"""Pictures of dataset samples: for notebooks, and to see the effect of a transform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet, parse_label_set
from scannet_prep.view.camera import Camera
from scannet_prep.view.categories import UNLABELED, Coloring
from scannet_prep.view.coloring import (
    COLORINGS,
    ViewedScene,
    color_instances,
    color_labels,
    color_normals,
    color_segments,
)
from scannet_prep.view.markup import element, embed_png, to_html
from scannet_prep.view.png import encode_png
from scannet_prep.view.renderer import PictureOptions, render_scene

_HINT_NO_TRANSFORMS = "draw the sample as it is before its transforms"
_LABEL_SETS = {label_set.name: label_set for label_set in (SCANNET20, SCANNET200)}
_NOTEBOOK_OPTIONS = PictureOptions(width=640, height=480)
# The types that an array may have, as letters of NumPy's `dtype.kind`, with their names for
# messages. Here, "u" alone stands for uint8, the type of colours.
_KIND_NAMES = {"u": "uint8", "iu": "integers", "f": "floats"}


class _Array(NamedTuple):
    """The array of a sample that a colouring shows.

    Attributes:
        key: Its key.
        kinds: Its type, one of `_KIND_NAMES`.
        row_shape: The shape of a row; empty if a row is a single number.
        make: Makes the colouring from the points, the array and the label set.
    """

    key: str
    kinds: str
    row_shape: tuple[int, ...]
    make: Callable[[NDArray[Any], NDArray[Any], LabelSet], Coloring]


_ARRAYS = {
    "rgb": _Array(
        "colors",
        "u",
        (3,),
        lambda _points, values, _: Coloring("rgb", "colours of the scan", values),
    ),
    "labels": _Array(
        "labels", "iu", (), lambda _, values, label_set: color_labels(values, label_set)
    ),
    "instances": _Array(
        "instances", "iu", (), lambda points, values, _: color_instances(points, values)
    ),
    "segments": _Array("segments", "iu", (), lambda _points, values, _: color_segments(values)),
    "normals": _Array("normals", "f", (3,), lambda _points, values, _: color_normals(values)),
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

    Surfaces are not drawn from behind: the picture shows the inside of a room through its nearer
    walls and its ceiling.

    Args:
        sample: A sample of `ScanNet`, with or without transforms.
        color: `labels`, `rgb`, `instances`, `segments` or `normals`.
        labels: The label set of the labels: SCANNET20, SCANNET200, or its name, such as
            `"scannet200"`. By default `sample["label_set"]`; if both are given, they must be equal.
            To colour by `labels`, one of them is required.
        view: `orbit` (from a corner), `top`, or azimuth and elevation in degrees, such as `-60,40`.
        size: Width and height, in pixels.
        legend: Whether to list the classes, with their share of the vertices.

    Returns:
        uint8 (height, width, 3), red, green, blue.

    Raises:
        UsageError: The sample cannot be drawn; the message gives the reason.
    """
    label_set = None if labels is None else parse_label_set(labels)
    width, height = size
    options = PictureOptions(width, height, Camera.parse(view), legend)
    return render_scene(_view_sample(sample, color, label_set), color, options)


def draw_sample(sample: Mapping[str, Any]) -> bytes | None:
    """Draw a sample for a notebook as PNG; return None if it has nothing to show."""
    for color in ("labels", "rgb", "normals"):
        try:
            viewed = _view_sample(sample, color, label_set=None)
        except UsageError:
            continue
        if color == "labels":
            # Unlabeled is listed last: it comes first only if no vertex has a label.
            first = viewed.colorings[color].categories[0]
            if first.name == UNLABELED:
                continue
        return encode_png(render_scene(viewed, color, _NOTEBOOK_OPTIONS))
    return None


def describe_sample(sample: Mapping[str, Any]) -> str:
    """Return the text and the picture of a sample for a notebook, as HTML."""
    parts = [element("pre", repr(sample))]
    picture = draw_sample(sample)
    if picture is not None:
        name = str(sample.get("scene_id", "sample"))
        parts.append(element("img", alt=name, src=embed_png(picture)))
    return b"".join(map(to_html, parts)).decode()


def view_sample(sample: Mapping[str, Any], label_set: LabelSet | None) -> ViewedScene:
    """Check a sample, and make each colouring for which it has an array.

    Args:
        sample: A sample of `ScanNet`, with or without transforms.
        label_set: The label set of the labels; None for that of the sample.

    Raises:
        UsageError: It has no such array, or its points cannot be drawn; the message gives the
            reason of the first colouring.
    """
    scene = None
    colorings: dict[str, Coloring] = {}
    errors = []
    for color in _ARRAYS:
        try:
            scene = _view_sample(sample, color, label_set)
        except UsageError as error:
            errors.append(error)
            continue
        coloring = scene.colorings[color]
        colorings[coloring.name] = coloring
    if scene is None:
        raise errors[0]
    in_order = {name: colorings[name] for name in COLORINGS if name in colorings}
    return replace(scene, colorings=in_order)


def _view_sample(sample: Mapping[str, Any], color: str, label_set: LabelSet | None) -> ViewedScene:
    """Check a sample, and make one colouring of it.

    Raises:
        UsageError: It cannot be drawn in this colouring.
    """
    if color not in _ARRAYS:
        known = ", ".join(_ARRAYS)
        raise UsageError(f"a sample cannot be coloured by {color!r}", f"it can be by: {known}")
    points = _read_array(sample, "points", "f", (3,))
    array = _ARRAYS[color]
    values = _read_array(sample, array.key, array.kinds, array.row_shape, length=len(points))
    label_set = choose_label_set(sample, label_set, is_needed=color == "labels")

    normals = None
    if "normals" in sample:
        normals = _read_array(sample, "normals", "f", (3,), length=len(points))
    faces = None
    if "faces" in sample:
        faces = _read_array(sample, "faces", "iu", (3,))
    _check_geometry(points, normals, faces)
    return ViewedScene(
        scene_id=str(sample.get("scene_id", "")),
        split="",
        frame="",
        points=points.astype(np.float32, copy=False),
        normals=normals,
        faces=faces,
        colorings={color: array.make(points, values, label_set)},
    )


def choose_label_set(
    sample: Mapping[str, Any], label_set: LabelSet | None, *, is_needed: bool
) -> LabelSet:
    """Choose the label set of a sample: the requested one, or its own.

    Raises:
        UsageError: They differ, or a label set is needed and there is none.
    """
    own_label_set = _LABEL_SETS.get(str(sample.get("label_set", "")))
    if label_set is not None and own_label_set is not None and label_set != own_label_set:
        raise UsageError(
            f"labels is {label_set.name}, but the labels of the sample are of {own_label_set.name}",
            "leave out labels=..., "
            f"or read the sample with ScanNet(..., labels={label_set.name.upper()})",
        )
    known = label_set or own_label_set
    if known is not None:
        return known
    if is_needed:
        raise UsageError(
            "the label set of the labels is not known", "render(..., labels=SCANNET20)"
        )
    # The colouring does not use the label set, so any one will do.
    return SCANNET20


def _check_geometry(
    points: NDArray[Any], normals: NDArray[Any] | None, faces: NDArray[Any] | None
) -> None:
    """Check that there are points, that all are finite, and that faces refer to them.

    Raises:
        UsageError: They cannot be drawn.
    """
    if not len(points):
        raise UsageError("points: there are none", "draw another sample")
    for name, array in (("points", points), ("normals", normals)):
        if array is not None and not np.isfinite(array).all():
            raise UsageError(f"{name}: not all are finite", _HINT_NO_TRANSFORMS)
    if faces is None or not faces.size:
        return
    lowest = faces.min()
    highest = faces.max()
    if lowest < 0 or highest >= len(points):
        raise UsageError(
            f"faces: refer to vertices {lowest}..{highest}, but there are {len(points):,}",
            "leave out the faces",
        )


def _read_array(
    sample: Mapping[str, Any],
    key: str,
    kinds: str,
    row_shape: tuple[int, ...],
    *,
    length: int | None = None,
) -> NDArray[Any]:
    """Return an array or tensor of a sample as an array, and check its type and shape.

    Args:
        sample: The sample.
        key: The key of the array.
        kinds: Its type, one of `_KIND_NAMES`.
        row_shape: The shape of a row; empty if a row is a single number.
        length: Number of rows; any by default.

    Raises:
        UsageError: The sample has no such array, or one of another type or shape.
    """
    if key not in sample:
        raise UsageError(f"the sample has no {key!r}", f"it has: {', '.join(map(str, sample))}")
    array = np.asarray(sample[key])
    has_row_shape = array.ndim > 0 and array.shape[1:] == row_shape
    has_length = length is None or array.shape[:1] == (length,)
    if kinds == "u":
        has_kind = array.dtype == np.uint8
    else:
        has_kind = array.dtype.kind in kinds
    if not (has_row_shape and has_length and has_kind):
        rows = "any number" if length is None else str(length)
        shape = ", ".join([rows, *map(str, row_shape)])
        if not row_shape:
            # As Python writes a tuple of one number.
            shape += ","
        raise UsageError(
            f"{key}: found {array.dtype} {array.shape}, expected {_KIND_NAMES[kinds]} ({shape})"
        )
    return array
