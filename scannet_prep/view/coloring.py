"""What can be shown of a scene: its vertices, and the colours of each way to look at them.

Pages, pictures and coloured meshes show the same `ViewedScene`, so that they agree. Nothing of the scene is changed:
vertices, their order and the frame are those of the processed scene or of the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import UsageError
from scannet_prep.evaluation.instance import NO_INSTANCES, InstancePrediction
from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import Split

UNLABELED = "unlabeled"
UNLABELED_COLOR = (100, 100, 100)
RIGHT_COLOR, WRONG_COLOR = (60, 160, 75), (215, 40, 40)
COLORINGS = (
    "rgb",
    "scannet20",
    "scannet200",
    "instances",
    "segments",
    "normals",
    "prediction",
    "error",
)
"""Names of all colourings, in the order in which they are offered."""

Color = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Category:
    """What a colour stands for: a class, an instance, a segment, a verdict.

    Attributes:
        name: For people, such as `wall`, `chair 12 (office chair)`, `segment 17`, `wrong`; may hold any character, so
            that pages have to escape it.
        color: Red, green, blue, 0..255.
        count: How many vertices have it; at least one.
        raw_category: Of an annotated instance, the annotator's text; else empty. The same holds for its characters.
    """

    name: str
    color: Color
    count: int
    raw_category: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Coloring:
    """One way to colour the vertices of a scene.

    Attributes:
        name: One of `COLORINGS`.
        title: For people.
        colors: uint8 (V, 3), red, green, blue; (R, G, B) of `categories[indices]` where there are categories.
        categories: What the colours stand for, the largest first, `unlabeled` last; those that occur. Empty for `rgb`
            and `normals`.
        indices: uint16 or, for more than 65,536 categories, uint32 (V,), into `categories`; None where there are none.
    """

    name: str
    title: str
    colors: NDArray[np.uint8]
    categories: tuple[Category, ...] = ()
    indices: NDArray[np.unsignedinteger[Any]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What a program says of a scene, as `stages.predictions.Predictions.read` gives it.

    Attributes:
        label_set: Its classes.
        found: int64 (V,), train ids, -1 for none; or masks with classes and confidences, as arrays.
    """

    label_set: LabelSet
    found: NDArray[np.int64] | InstancePrediction


@dataclass(frozen=True, slots=True, eq=False)
class ViewedScene:
    """One scene as it is shown.

    Attributes:
        scene_id: Its name.
        split: The split; empty where nobody knows.
        frame: `axis-aligned` or `frame of the scan`; empty where nobody knows.
        points: float32 (V, 3), metres, finite; z is up.
        normals: float32 or float16 (V, 3), unit length, pointing to the side from which the surface was seen; (0, 0, 0)
            where undefined; None where there are none.
        faces: int32 (F, 3), indices of vertices; None where they were not kept.
        colorings: Those that the scene has, by name, in the order of `COLORINGS`. Test scenes: `rgb` and `normals`,
            and `prediction` where there is one.
    """

    scene_id: str
    split: str
    frame: str
    points: NDArray[np.float32]
    normals: NDArray[np.floating[Any]] | None
    faces: NDArray[np.int32] | None
    colorings: Mapping[str, Coloring]

    def coloring(self, name: str) -> Coloring:
        """One of the colourings.

        Raises:
            UsageError: The scene has none of that name.
        """
        if name not in self.colorings:
            problem = f"{self.scene_id or 'the scene'}: cannot be coloured by {name!r}"
            raise UsageError(problem, f"it can be by: {', '.join(self.colorings)}")
        return self.colorings[name]


def view_scene(
    scene: ProcessedScene, *, prediction: Prediction | None = None, only: str | None = None
) -> ViewedScene:
    """Give a processed scene all the colours that it can have.

    Args:
        scene: The scene; its points are finite and its faces are of its vertices, as `find_problems` checks.
        prediction: What a program says of it, of the same number of vertices.
        only: Make this colouring and no other, if the scene can have it; the others cost time. If it cannot, all are
            made, so that `coloring` can name them.
    """
    meta, is_annotated = scene.meta, scene.meta.split != Split.TEST

    def truth_of(label_set: LabelSet) -> NDArray[np.int64]:
        return label_set.train_ids_from_raw_ids(getattr(scene, label_set.raw_ids_key), -1)

    makers: dict[str, Callable[[], Coloring]] = {
        "rgb": lambda: Coloring("rgb", "colours of the scan", scene.colors),
        "normals": lambda: color_normals(scene.normals),
    }
    if is_annotated:
        makers |= {
            "scannet20": lambda: color_labels(truth_of(SCANNET20), SCANNET20),
            "scannet200": lambda: color_labels(truth_of(SCANNET200), SCANNET200),
            "instances": lambda: color_instances(
                scene.instances, meta.groups, meta.options.label_set
            ),
        }
    if (segments := scene.segments) is not None:
        makers["segments"] = lambda: color_segments(segments)
    if prediction is not None:
        makers["prediction"] = lambda: color_prediction(prediction)
        if is_annotated:
            makers["error"] = lambda: color_error(prediction, truth_of(prediction.label_set))
    wanted = (only,) if only in makers else COLORINGS
    return ViewedScene(
        scene_id=meta.scene_id,
        split=str(meta.split),
        frame="axis-aligned" if meta.options.align_axis else "frame of the scan",
        points=scene.points,
        normals=scene.normals,
        faces=scene.faces,
        colorings={name: makers[name]() for name in wanted if name in makers},
    )


def color_labels(train_ids: NDArray[np.integer[Any]], label_set: LabelSet) -> Coloring:
    """Colour vertices by the official colour of their class; what is not a train id is unlabeled."""
    return _color_classes(label_set.name.lower(), label_set.name, train_ids, label_set)


def color_instances(
    instances: NDArray[np.integer[Any]],
    groups: Sequence[AnnotatedGroup] = (),
    label_set: LabelSet = SCANNET20,
) -> Coloring:
    """Colour vertices by instance, negative for none; groups have the names of their classes."""
    names = {group.id: _name_group(group, label_set) for group in groups}
    raw = {group.id: group.raw_category for group in groups}
    return _categorize(
        "instances",
        "instances",
        instances,
        lambda item: names.get(item, f"instance {item}"),
        None,
        raw,
    )


def color_segments(segments: NDArray[np.integer[Any]]) -> Coloring:
    """Colour vertices by segment."""
    return _categorize("segments", "segments", segments, "segment {}".format)


def color_normals(normals: NDArray[np.floating[Any]]) -> Coloring:
    """Colour vertices by the direction of their normal: -1..1 of x, y, z as 0..255 of red, green, blue."""
    scaled = normals.astype(np.float32) * np.float32(127.5) + np.float32(128)
    return Coloring("normals", "normals", scaled.clip(0, 255).astype(np.uint8))


def color_prediction(prediction: Prediction) -> Coloring:
    """Colour vertices by the class that is predicted, or by instance.

    Of masks that overlap, the most confident is shown, of equal ones the first.
    """
    label_set, found = prediction.label_set, prediction.found
    if not isinstance(found, InstancePrediction):
        return _color_classes("prediction", f"prediction, {label_set.name}", found, label_set)
    classes, scores = np.asarray(found.labels).tolist(), np.asarray(found.scores).tolist()
    names = [
        f"{label_set.name_of(train_id)} {number} ({score:.2f})"
        for number, (train_id, score) in enumerate(zip(classes, scores, strict=True))
    ]
    return _categorize(
        "prediction", "predicted instances", _find_top_masks(found), names.__getitem__
    )


def color_error(prediction: Prediction, truth: NDArray[np.int64]) -> Coloring:
    """Colour vertices by whether the class that is predicted is right.

    Vertices without a class are unlabeled: nobody knows. For instances, those of wall and floor are, too: the benchmark
    has no instances of these.

    Args:
        prediction: The prediction; of instances, those that `color_prediction` shows.
        truth: int64 (V,), train ids of the same label set, -1 where unlabeled.
    """
    label_set, found = prediction.label_set, prediction.found
    if isinstance(found, InstancePrediction):
        found = np.append(np.asarray(found.labels, np.int64), -1)[_find_top_masks(found)]
        without_instances = [
            item.train_id for item in label_set.classes if item.name in NO_INSTANCES
        ]
        truth = np.where(np.isin(truth, without_instances), -1, truth)
    verdicts = np.where(truth < 0, -1, truth != found)
    names, colors = ["right", "wrong"], np.array([RIGHT_COLOR, WRONG_COLOR], np.uint8)
    return _categorize("error", "right or wrong", verdicts, names.__getitem__, colors)


def color_numbers(numbers: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """Give each number from 0 a bright colour, neighbours very different ones; black for -1."""
    count = min(int(numbers.max(initial=0)) + 1, 1 << 16)  # beyond, they come again
    table = np.random.default_rng(0).integers(64, 256, (count + 1, 3), np.uint8)
    table[-1] = 0
    return table[np.where(numbers < 0, -1, numbers % count)]


def _color_classes(
    name: str, title: str, train_ids: NDArray[np.integer[Any]], label_set: LabelSet
) -> Coloring:
    is_class = (train_ids >= 0) & (train_ids < len(label_set))
    colors = np.array(label_set.colors, np.uint8)
    return _categorize(
        name, title, np.where(is_class, train_ids, -1), label_set.names.__getitem__, colors
    )


def _categorize(
    name: str,
    title: str,
    numbers: NDArray[np.integer[Any]],
    name_of: Callable[[int], str],
    colors: NDArray[np.uint8] | None = None,
    raw_categories: Mapping[int, str] | None = None,
) -> Coloring:
    """Make a category of each number that occurs, and one of all that are negative.

    Args:
        name: Of the colouring.
        title: Of the colouring.
        numbers: (V,).
        name_of: Gives the name of a number.
        colors: uint8 (numbers, 3), the colour of each number; those of `color_numbers` by default.
        raw_categories: Of those numbers that have one.
    """
    numbers = np.maximum(numbers.astype(np.int64), -1)  # all that are negative are one category
    values, indices, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    order = np.lexsort([-counts, values < 0])
    values, counts = values[order], counts[order]
    found = color_numbers(values) if colors is None else colors[values]
    found[values < 0] = UNLABELED_COLOR
    names = [UNLABELED if value < 0 else name_of(value) for value in values.tolist()]
    raw = [(raw_categories or {}).get(value, "") for value in values.tolist()]
    categories = (
        Category(*item)
        for item in zip(names, map(tuple, found.tolist()), counts.tolist(), raw, strict=True)
    )
    kind = np.uint16 if len(order) <= 1 << 16 else np.uint32
    places = np.argsort(order).astype(kind)[indices.reshape(-1)]
    return Coloring(name, title, found[places], tuple(categories), places)


def _find_top_masks(prediction: InstancePrediction) -> NDArray[np.int64]:
    """The most confident mask of each vertex, of equal ones the first; -1 where there is none."""
    masks, order = (
        np.asarray(prediction.masks, np.bool_),
        np.argsort(-np.asarray(prediction.scores), kind="stable"),
    )
    top = np.full(masks.shape[1], -1, np.int64)
    for number in order[::-1].tolist():
        top[masks[number]] = number
    return top


def _name_group(group: AnnotatedGroup, label_set: LabelSet) -> str:
    """Such as `chair 12 (office chair)`; the raw category alone where it has no class, or is its name."""
    raw_id = group.nyu40_id if label_set.raw_ids_key == "nyu40_ids" else group.scannet_id
    train_id = int(label_set.train_ids_from_raw_ids(np.array(raw_id), -1))
    if train_id < 0 or label_set.names[train_id] == group.raw_category:
        return f"{group.raw_category} {group.id}"
    return f"{label_set.names[train_id]} {group.id} ({group.raw_category})"
