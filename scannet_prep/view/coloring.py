"""A scene to show: its vertices, and the colours of each of its colourings.

Pages, pictures and coloured meshes are made from the same `ViewedScene`, so they agree. Vertices,
their order and their frame are those of the processed scene or of the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
RIGHT_COLOR = (60, 160, 75)
WRONG_COLOR = (215, 40, 40)
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
"""Names of all colourings, in the order in which pages list them."""

_MAX_COLORS = 1 << 16

Color = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Category:
    """The meaning of a colour: a class, an instance, a segment, a verdict.

    Attributes:
        name: Name to show, such as `wall`, `chair 12 (office chair)`, `segment 17`, `wrong`. A
            name may contain any character, so pages have to escape it.
        color: Red, green, blue, 0..255.
        count: Number of vertices; at least one.
        raw_category: The annotator's text for an annotated instance; otherwise empty. This text
            may contain any character, too.
        object_id: The `objectId` of an annotated instance in the file of the release; None if there
            is none.
    """

    name: str
    color: Color
    count: int
    raw_category: str = ""
    object_id: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Coloring:
    """One way to colour the vertices of a scene.

    Attributes:
        name: One of `COLORINGS`.
        title: Title to show.
        colors: uint8 (V, 3), red, green, blue. If there are categories, those of
            `categories[indices]`.
        categories: The categories that occur, the largest first, `unlabeled` last. Empty for `rgb`
            and `normals`.
        indices: uint16 (V,), or uint32 for more than 65,536 categories; indices of `categories`.
            None if there are none.
        is_per_scene: Whether a name means something else in another scene: instances and segments,
            but not classes.
    """

    name: str
    title: str
    colors: NDArray[np.uint8]
    categories: tuple[Category, ...] = ()
    indices: NDArray[np.unsignedinteger[Any]] | None = None
    is_per_scene: bool = False


class Colorings(Mapping[str, Coloring]):
    """The colourings of a scene by name; each is made on its first use.

    Args:
        makers: A function for each colouring, in any order.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Coloring]]) -> None:
        self._makers = {name: makers[name] for name in COLORINGS if name in makers}
        self._made: dict[str, Coloring] = {}

    def __getitem__(self, name: str) -> Coloring:
        """Return a colouring."""
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in the order of `COLORINGS`."""
        return iter(self._makers)

    def __len__(self) -> int:
        """Return the number of colourings."""
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        """Whether there is a colouring of that name. Does not make it."""
        return name in self._makers


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The prediction of a program for a scene, as `stages.predictions.Predictions.read` returns it.

    Attributes:
        label_set: Its classes.
        values: int64 (V,), train ids, -1 for none; or masks with classes and confidences, as
            arrays.
    """

    label_set: LabelSet
    values: NDArray[np.int64] | InstancePrediction


@dataclass(frozen=True, slots=True, eq=False)
class ViewedScene:
    """A scene to show.

    Attributes:
        scene_id: The scene; may be empty for a sample.
        split: The split; empty if it is unknown.
        frame: `axis-aligned` or `frame of the scan`; empty if it is unknown.
        points: float32 (V, 3), metres, finite; z is up.
        normals: float32 or float16 (V, 3), unit length, pointing to the side from which the surface
            was seen; (0, 0, 0) where undefined. None if there are none.
        faces: int32 (F, 3), indices of vertices; None if they were not kept.
        colorings: Its colourings by name, in the order of `COLORINGS`. Test scenes have only `rgb`
            and `normals`, and `prediction` if there is one.
    """

    scene_id: str
    split: str
    frame: str
    points: NDArray[np.float32]
    normals: NDArray[np.floating[Any]] | None
    faces: NDArray[np.int32] | None
    colorings: Mapping[str, Coloring]

    def check_coloring(self, name: str) -> None:
        """Check that the scene has a colouring.

        Raises:
            UsageError: It does not.
        """
        if name not in self.colorings:
            raise UsageError(
                f"{self.scene_id or 'the scene'}: cannot be coloured by {name!r}",
                f"it can be by: {', '.join(self.colorings)}",
            )

    def coloring(self, name: str) -> Coloring:
        """Return one of the colourings.

        Raises:
            UsageError: The scene has no colouring of that name.
        """
        self.check_coloring(name)
        return self.colorings[name]


def view_scene(scene: ProcessedScene, *, prediction: Prediction | None = None) -> ViewedScene:
    """Make all colourings of a processed scene.

    Args:
        scene: The scene. Its points are finite and its faces refer to its vertices, as
            `find_problems` checks.
        prediction: The prediction of a program, for the same number of vertices.
    """
    meta = scene.meta

    def train_ids(label_set: LabelSet) -> NDArray[np.int64]:
        raw_ids = getattr(scene, label_set.raw_ids_key)
        return label_set.train_ids_from_raw_ids(raw_ids, -1)

    makers: dict[str, Callable[[], Coloring]] = {
        "rgb": lambda: Coloring("rgb", "colours of the scan", scene.colors),
        "normals": lambda: color_normals(scene.normals),
    }
    if meta.split != Split.TEST:
        makers["scannet20"] = lambda: color_labels(train_ids(SCANNET20), SCANNET20)
        makers["scannet200"] = lambda: color_labels(train_ids(SCANNET200), SCANNET200)
        makers["instances"] = lambda: color_instances(
            scene.instances, meta.groups, meta.options.label_set
        )
    segments = scene.segments
    if segments is not None:
        is_computed = meta.segments_source == "computed"
        makers["segments"] = lambda: color_segments(segments, is_computed=is_computed)
    if prediction is not None:
        makers["prediction"] = lambda: color_prediction(prediction)
        if meta.split != Split.TEST:
            makers["error"] = lambda: color_error(prediction, train_ids(prediction.label_set))
    return ViewedScene(
        scene_id=meta.scene_id,
        split=str(meta.split),
        frame="axis-aligned" if meta.options.align_axis else "frame of the scan",
        points=scene.points,
        normals=scene.normals,
        faces=scene.faces,
        colorings=Colorings(makers),
    )


def color_labels(train_ids: NDArray[np.integer[Any]], label_set: LabelSet) -> Coloring:
    """Colour vertices by the official colour of their class; other numbers are unlabeled."""
    return _color_classes(label_set.name.lower(), train_ids, label_set, title=label_set.name)


def color_instances(
    instances: NDArray[np.integer[Any]],
    groups: Sequence[AnnotatedGroup] = (),
    label_set: LabelSet = SCANNET20,
) -> Coloring:
    """Colour vertices by instance, negative for none; groups are named after their classes."""
    names = _name_groups(groups, label_set)

    def name_of(instance: int) -> str:
        return names.get(instance, f"instance {instance}")

    return _categorize(
        "instances",
        instances,
        title="instances",
        name_of=name_of,
        groups={group.id: group for group in groups},
        is_per_scene=True,
    )


def color_segments(segments: NDArray[np.integer[Any]], *, is_computed: bool = False) -> Coloring:
    """Colour vertices by segment; the title shows if the segments are not from the release."""
    title = "computed segments" if is_computed else "segments"
    return _categorize(
        "segments", segments, title=title, name_of="segment {}".format, is_per_scene=True
    )


def color_normals(normals: NDArray[np.floating[Any]]) -> Coloring:
    """Colour vertices by their normal: -1..1 of x, y, z as 0..255 of red, green, blue."""
    scaled = normals.astype(np.float32) * np.float32(127.5) + np.float32(128)
    return Coloring("normals", "normals", scaled.clip(0, 255).astype(np.uint8))


def color_prediction(prediction: Prediction) -> Coloring:
    """Colour vertices by predicted class, or by predicted instance.

    Where masks overlap, the most confident one is shown; of equal ones, the first.
    """
    label_set = prediction.label_set
    values = prediction.values
    if not isinstance(values, InstancePrediction):
        title = f"prediction, {label_set.name}"
        return _color_classes("prediction", values, label_set, title=title)
    classes = np.asarray(values.labels).tolist()
    scores = np.asarray(values.scores).tolist()
    names = []
    for number, (train_id, score) in enumerate(zip(classes, scores, strict=True)):
        names.append(f"{label_set.name_of(train_id)} {number} ({score:.2f})")
    return _categorize(
        "prediction",
        _find_top_masks(values),
        title="predicted instances",
        name_of=names.__getitem__,
        is_per_scene=True,
    )


def color_error(prediction: Prediction, truth: NDArray[np.int64]) -> Coloring:
    """Colour vertices by whether the predicted class is right.

    Vertices whose true class is unknown are unlabeled. With instances, vertices of wall and floor
    are unlabeled, too: the benchmark has no instances of these classes.

    Args:
        prediction: The prediction; of overlapping masks, the same ones as in `color_prediction`.
        truth: int64 (V,), train ids of the same label set, -1 where unlabeled.
    """
    label_set = prediction.label_set
    values = prediction.values
    if isinstance(values, InstancePrediction):
        # Index -1, for no mask, leads to the train id -1 at the end.
        classes = np.append(np.asarray(values.labels, np.int64), -1)
        values = classes[_find_top_masks(values)]
        without_instances = [
            label_class.train_id
            for label_class in label_set.classes
            if label_class.name in NO_INSTANCES
        ]
        truth = np.where(np.isin(truth, without_instances), -1, truth)
    # -1 for unlabeled, 0 for right, 1 for wrong.
    verdicts = np.where(truth < 0, -1, truth != values)
    return _categorize(
        "error",
        verdicts,
        title="right or wrong",
        name_of=["right", "wrong"].__getitem__,
        colors=np.array([RIGHT_COLOR, WRONG_COLOR], np.uint8),
    )


def color_numbers(numbers: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """Return a bright random colour for each number from 0, and black for -1."""
    # Above _MAX_COLORS, the colours repeat.
    count = min(int(numbers.max(initial=0)) + 1, _MAX_COLORS)
    # A row for each colour, and a last one for -1.
    table = np.random.default_rng(0).integers(64, 256, (count + 1, 3), np.uint8)
    table[-1] = 0
    return table[np.where(numbers < 0, -1, numbers % count)]


def _color_classes(
    name: str, train_ids: NDArray[np.integer[Any]], label_set: LabelSet, *, title: str
) -> Coloring:
    """Colour vertices by the official colour of their class."""
    is_class = (train_ids >= 0) & (train_ids < len(label_set))
    return _categorize(
        name,
        np.where(is_class, train_ids, -1),
        title=title,
        name_of=label_set.names.__getitem__,
        colors=np.array(label_set.colors, np.uint8),
    )


def _categorize(
    name: str,
    numbers: NDArray[np.integer[Any]],
    *,
    title: str,
    name_of: Callable[[int], str],
    colors: NDArray[np.uint8] | None = None,
    groups: Mapping[int, AnnotatedGroup] | None = None,
    is_per_scene: bool = False,
) -> Coloring:
    """Make a category of each number that occurs, and one of all negative numbers.

    Args:
        name: Name of the colouring.
        numbers: (V,), the number of each vertex.
        title: Title of the colouring.
        name_of: Returns the name of a number.
        colors: uint8 (numbers, 3), the colour of each number; by default those of `color_numbers`.
        groups: The annotated groups of those numbers that have one.
        is_per_scene: As in `Coloring`.
    """
    groups = groups or {}
    # The numbers that occur, (C,): the most frequent first, negative ones last, as one.
    numbers = np.maximum(numbers.astype(np.int64), -1)
    values, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    order = np.lexsort([-counts, values < 0])
    values = values[order]
    counts = counts[order]

    # Their colours, (C, 3). -1 takes the last colour of `colors` before it gets its own.
    value_colors = color_numbers(values) if colors is None else colors[values]
    value_colors[values < 0] = UNLABELED_COLOR

    categories = []
    rows = zip(values.tolist(), value_colors.tolist(), counts.tolist(), strict=True)
    for value, (red, green, blue), count in rows:
        category_name = UNLABELED if value < 0 else name_of(value)
        category = Category(category_name, (red, green, blue), count)
        group = groups.get(value)
        if group is not None:
            category = replace(category, raw_category=group.raw_category, object_id=group.object_id)
        categories.append(category)

    # The category of each vertex, (V,): `argsort` inverts the order, and so gives the new position
    # of each value.
    dtype = np.uint16 if len(order) <= 1 << 16 else np.uint32
    indices = np.argsort(order).astype(dtype)[inverse.reshape(-1)]
    return Coloring(
        name,
        title,
        value_colors[indices],
        tuple(categories),
        indices,
        is_per_scene=is_per_scene,
    )


def _find_top_masks(prediction: InstancePrediction) -> NDArray[np.int64]:
    """Find the most confident mask of each vertex, (V,); the first of equal ones, -1 for none."""
    masks = np.asarray(prediction.masks, np.bool_)
    order = np.argsort(-np.asarray(prediction.scores), kind="stable")
    top = np.full(masks.shape[1], -1, np.int64)
    # The most confident mask comes last, and overwrites all others.
    for number in order[::-1].tolist():
        top[masks[number]] = number
    return top


def _name_groups(groups: Sequence[AnnotatedGroup], label_set: LabelSet) -> dict[int, str]:
    """Name groups after class and raw category, such as `chair 12 (office chair)`.

    A group without a class, or whose raw category is its class, has one name only: `chair 12`.
    """
    has_nyu40_ids = label_set.raw_ids_key == "nyu40_ids"
    raw_ids = [group.nyu40_id if has_nyu40_ids else group.scannet_id for group in groups]
    train_ids = label_set.train_ids_from_raw_ids(np.array(raw_ids, np.int64), -1)
    class_names = label_set.names
    names = {}
    for group, train_id in zip(groups, train_ids.tolist(), strict=True):
        if train_id < 0 or class_names[train_id] == group.raw_category:
            names[group.id] = f"{group.raw_category} {group.id}"
        else:
            names[group.id] = f"{class_names[train_id]} {group.id} ({group.raw_category})"
    return names
