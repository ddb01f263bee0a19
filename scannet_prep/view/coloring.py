"""A scene to show: its vertices, and the colours of each of its colourings.

Pages, pictures and coloured meshes are made from the same `ViewedScene`, so they agree. Vertices,
their order and their frame are those of the processed scene or of the sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.processed.annotate import AnnotatedGroup, raw_ids_by_group
from scannet_prep.processed.scene import ProcessedScene, read_train_ids
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scenes import Split

UNLABELED = "unlabeled"
UNLABELED_COLOR = (100, 100, 100)
# Colours of instances by their number: red, green, blue. They differ from each other, from white
# and black, and from unlabeled by at least 17 (CIEDE2000).
_INSTANCE_COLORS = bytes.fromhex(
    "246edd 24b824 fa6edd fa6e24 ddb824 24b8b8 932493 b82424 246e24 b8b8fa "
    "936e24 fab8b8 24fab8 fa496e 49b8fa 2424fa 936e93 6e936e 93fa24 ddb893"
)

# Width of the cells that measure the area of surfaces.
_CELL_M = 0.1
# More than the number of cells along any axis.
_CELLS = 1 << 20

Color: TypeAlias = tuple[int, int, int]
ColorArray: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Category:
    """The meaning of a colour: a class, an instance, a segment, a verdict.

    Attributes:
        name: Name to show, such as `wall`, `chair 12 (office chair)`, `segment 17`, `wrong`. A
            name may contain any character, so pages have to escape it.
        color: Red, green, blue, 0..255.
        count: Number of vertices; at least one in a colouring.
        note: A short remark to show beside the name, such as `IoU 62.1 %`; empty for none.
        line: Title of its line in the legend of two colourings, if that is not its name. An
            instance and the masks that match it share a line.
    """

    name: str
    color: Color
    count: int = 0
    note: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A table that explains a colouring or a category, such as the scores of the classes.

    Attributes:
        title: Title to show; that of a category is its name.
        columns: Title of each column.
        rows: Texts by row and column. They may contain any character.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Coloring:
    """One way to colour the vertices of a scene.

    Attributes:
        title: Title to show.
        colors: uint8 (V, 3), red, green, blue. If there are categories, those of
            `categories[indices]`.
        categories: The categories that occur, the largest first, `unlabeled` last. Empty for `rgb`
            and `normals`.
        indices: uint8, uint16 or uint32 (V,), indices of `categories`. None if there are none.
        tables: Tables that explain the colouring and its categories.
        is_per_scene: Whether a name means something else in another scene: instances and segments,
            but not classes.
    """

    title: str
    colors: ColorArray
    categories: tuple[Category, ...] = ()
    indices: NDArray[np.unsignedinteger[Any]] | None = None
    tables: tuple[Explanation, ...] = ()
    is_per_scene: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ViewedScene:
    """A scene to show.

    Attributes:
        scene_id: The scene; may be empty for a sample.
        points: float32 (V, 3), metres, finite; z is up.
        normals: float32 or float16 (V, 3), unit length, pointing to the side from which the surface
            was seen; (0, 0, 0) where undefined. None if there are none.
        faces: int32 (F, 3), indices of vertices; None if they were not kept.
        colorings: Its colourings by name, in the order in which a page lists them. Test scenes
            have no `scannet20`, `scannet200`, `instances` and `error`.
    """

    scene_id: str
    points: NDArray[np.float32]
    normals: NDArray[np.floating[Any]] | None
    faces: NDArray[np.int32] | None
    colorings: dict[str, Coloring]

    def choose(self, color: str, label_set: LabelSet) -> str:
        """Return the name of a colouring.

        Args:
            color: Its name; `labels` for the classes of the label set. If empty, the first that the
                scene has of the prediction, its labels, and the colours of the scan.
            label_set: The label set that `labels` stands for.

        Raises:
            UsageError: The scene has no such colouring.
        """
        labels = label_set.name.lower()
        if not color:
            preferred = ("prediction", labels, "rgb", *self.colorings)
            return next(name for name in preferred if name in self.colorings)
        name = labels if color == "labels" else color
        if name not in self.colorings:
            raise UsageError(
                f"{self.scene_id or 'the scene'}: cannot be coloured by {color!r}",
                f"it can be coloured by: {', '.join(self.colorings)}",
            )
        return name


def estimate_spacing(points: NDArray[np.floating[Any]]) -> float:
    """Estimate the distance between neighbours on a surface, in metres, from points (V, 3).

    A surface has about the area of the cells of a grid that contain points.
    """
    offsets = points.astype(np.float64) - points.min(axis=0)
    cells = (offsets / _CELL_M).astype(np.int64)
    numbers = cells @ (1, _CELLS, _CELLS**2)
    share = len(np.unique(numbers)) / len(points)
    return _CELL_M * math.sqrt(share)


def view_scene(scene: ProcessedScene) -> ViewedScene:
    """Make the colourings of a processed scene."""
    meta = scene.meta
    colorings = {"rgb": Coloring("colours of the scan", scene.colors)}
    if meta.split != Split.TEST:
        for label_set in (SCANNET20, SCANNET200):
            train_ids = read_train_ids(scene, label_set)
            colorings[label_set.name.lower()] = color_labels(train_ids, label_set)
        colorings["instances"] = color_instances(
            scene.instances, meta.groups, meta.options.label_set
        )
    if scene.segments is not None:
        is_computed = meta.segments_source == "computed"
        colorings["segments"] = color_segments(scene.segments, is_computed=is_computed)
    colorings["normals"] = color_normals(scene.normals)
    return ViewedScene(
        scene_id=meta.scene_id,
        points=scene.points,
        normals=scene.normals,
        faces=scene.faces,
        colorings=colorings,
    )


def color_labels(
    train_ids: Integers,
    label_set: LabelSet,
    *,
    title: str = "",
    notes: Mapping[int, str] | None = None,
) -> Coloring:
    """Colour vertices by the official colour of their class; other numbers are unlabeled.

    Args:
        train_ids: Integers (V,).
        label_set: The label set of the train ids.
        title: Title of the colouring; by default the name of the label set.
        notes: The notes of those classes that have one, by train id.
    """
    notes = notes or {}
    is_class = (train_ids >= 0) & (train_ids < len(label_set))
    known_ids = np.where(is_class, train_ids, -1)

    def describe(train_id: int) -> Category:
        note = notes.get(train_id, "")
        return Category(label_set.names[train_id], label_set.colors[train_id], note=note)

    return categorize(known_ids, describe, title=title or label_set.name)


def color_instances(
    instances: Integers,
    groups: Sequence[AnnotatedGroup] = (),
    label_set: LabelSet = SCANNET20,
) -> Coloring:
    """Colour vertices by instance.

    Args:
        instances: Integers (V,), negative for none.
        groups: The annotated groups, by which instances are named.
        label_set: The label set of the names.
    """
    names = name_groups(groups, label_set)

    def describe(instance: int) -> Category:
        name = names.get(instance, f"instance {instance}")
        return Category(name, color_instance(instance))

    return categorize(instances, describe, title="instances", is_per_scene=True)


def color_instance(number: int) -> Color:
    """Return the colour of an instance; after the last colour, the first one follows."""
    start = 3 * number % len(_INSTANCE_COLORS)
    red, green, blue = _INSTANCE_COLORS[start : start + 3]
    return red, green, blue


def color_segments(segments: Integers, *, is_computed: bool = False) -> Coloring:
    """Colour vertices by segment; the title shows if the segments are not from the release."""
    title = "computed segments" if is_computed else "segments"
    return categorize(segments, _describe_segment, title=title, is_per_scene=True)


def _describe_segment(number: int) -> Category:
    """Name a segment. Its colour differs from those of similar numbers."""
    # Multiplicative hashing (Knuth): the upper bits of the product are well mixed.
    mixed = number * 2_654_435_769 % (1 << 32)
    red, green, blue, _ = mixed.to_bytes(4, "big")
    color = (
        64 + red * 3 // 4,
        64 + green * 3 // 4,
        64 + blue * 3 // 4,
    )
    return Category(f"segment {number}", color)


def color_normals(normals: NDArray[np.floating[Any]]) -> Coloring:
    """Colour vertices by their normal: -1..1 of x, y, z as 0..255 of red, green, blue."""
    scaled = normals.astype(np.float32) * np.float32(127.5) + np.float32(128)
    colors = scaled.clip(0, 255).astype(np.uint8)
    return Coloring("normals", colors)


def categorize(
    numbers: Integers,
    describe: Callable[[int], Category],
    *,
    title: str,
    tables: tuple[Explanation, ...] = (),
    is_per_scene: bool = False,
) -> Coloring:
    """Make a category of each number that occurs, and one of all negative numbers.

    Args:
        numbers: (V,), the number of each vertex.
        describe: Returns the category of a number, without the count.
        title: Title of the colouring.
        tables: The tables of the colouring.
        is_per_scene: As in `Coloring`.
    """
    # The numbers that occur, (C,): the most frequent first, negative ones last, as one.
    numbers = np.maximum(numbers.astype(np.int64), -1)
    values, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    order = np.lexsort([-counts, values < 0])
    categories = []
    for position in order.tolist():
        category = Category(UNLABELED, UNLABELED_COLOR)
        if values[position] >= 0:
            category = describe(int(values[position]))
        categories.append(replace(category, count=int(counts[position])))

    # The category of each vertex, (V,): `argsort` inverts the order, and so gives the new position
    # of each value.
    dtype = np.min_scalar_type(len(order))
    positions = np.argsort(order).astype(dtype)
    indices = positions[inverse.reshape(-1)]
    palette = np.array([category.color for category in categories], np.uint8)
    colors = palette[indices]
    return Coloring(title, colors, tuple(categories), indices, tables, is_per_scene=is_per_scene)


def name_groups(groups: Sequence[AnnotatedGroup], label_set: LabelSet) -> dict[int, str]:
    """Name groups after class and raw category, such as `chair 12 (office chair)`.

    A group without a class, or whose raw category is its class, has one of the two: `chair 12`.
    """
    raw_ids = raw_ids_by_group(groups, label_set)
    train_ids = label_set.train_ids_from_raw_ids(raw_ids, -1).tolist()
    names = {}
    for group in groups:
        train_id = train_ids[group.id]
        class_name = label_set.name_of(train_id)
        category = group.raw_category
        name = f"{class_name} {group.id} ({category})"
        if train_id < 0 or class_name == category:
            name = f"{category} {group.id}"
        names[group.id] = name
    return names
