"""Colourings: a colour for each vertex, and the categories that the colours stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.release.label_sets import LabelSet
from scannet_prep.view.shading import AMBIENT, find_ambients

UNLABELED = "unlabeled"
UNLABELED_COLOR = (100, 100, 100)

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
        note: A short remark to show beside the name, such as `IoU 62.1`; empty for none.
        ambient: Brightness of its surfaces that face away from the light; 1 is that of `color`.
    """

    name: str
    color: Color
    count: int
    raw_category: str = ""
    object_id: int | None = None
    note: str = ""
    ambient: float = AMBIENT


@dataclass(frozen=True, slots=True)
class Explanation:
    """A table that explains a colouring or a category, such as the scores of the classes.

    Attributes:
        title: Title to show.
        columns: Title of each column.
        rows: Texts by row and column. They may contain any character.
        category: Name of the category that the table explains; empty if it is the whole colouring.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    category: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Coloring:
    """One way to colour the vertices of a scene.

    Attributes:
        name: One of `coloring.COLORINGS`.
        title: Title to show.
        colors: uint8 (V, 3), red, green, blue. If there are categories, those of
            `categories[indices]`.
        categories: The categories that occur, the largest first, `unlabeled` last. Empty for `rgb`
            and `normals`.
        indices: uint16 (V,), or uint32 for more than 65,536 categories; indices of `categories`.
            None if there are none.
        tables: Tables that explain the colouring and its categories.
        is_per_scene: Whether a name means something else in another scene: instances and segments,
            but not classes.
    """

    name: str
    title: str
    colors: NDArray[np.uint8]
    categories: tuple[Category, ...] = ()
    indices: NDArray[np.unsignedinteger[Any]] | None = None
    tables: tuple[Explanation, ...] = ()
    is_per_scene: bool = False


def color_numbers(numbers: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """Return a bright random colour for each number from 0, and black for -1."""
    # Above _MAX_COLORS, the colours repeat.
    count = min(int(numbers.max(initial=0)) + 1, _MAX_COLORS)
    # A row for each colour, and a last one for -1.
    table = np.random.default_rng(0).integers(64, 256, (count + 1, 3), np.uint8)
    table[-1] = 0
    return table[np.where(numbers < 0, -1, numbers % count)]


def color_classes(
    name: str,
    train_ids: NDArray[np.integer[Any]],
    label_set: LabelSet,
    *,
    title: str,
    notes: Mapping[int, str] | None = None,
) -> Coloring:
    """Colour vertices by the official colour of their class; other numbers are unlabeled."""
    colors = label_set.colors
    is_class = (train_ids >= 0) & (train_ids < len(label_set))
    return categorize(
        name,
        np.where(is_class, train_ids, -1),
        title=title,
        name_of=label_set.names.__getitem__,
        color_of=colors.__getitem__,
        notes=notes,
        # The last one is that of -1.
        ambients=find_ambients((*colors, UNLABELED_COLOR)),
    )


def categorize(
    name: str,
    numbers: NDArray[np.integer[Any]],
    *,
    title: str,
    name_of: Callable[[int], str],
    color_of: Callable[[int], Color] | None = None,
    groups: Mapping[int, AnnotatedGroup] | None = None,
    notes: Mapping[int, str] | None = None,
    tables: tuple[Explanation, ...] = (),
    ambients: Sequence[float] = (),
    is_per_scene: bool = False,
) -> Coloring:
    """Make a category of each number that occurs, and one of all negative numbers.

    Args:
        name: Name of the colouring.
        numbers: (V,), the number of each vertex.
        title: Title of the colouring.
        name_of: Returns the name of a number.
        color_of: Returns the colour of a number; by default that of `color_numbers`.
        groups: The annotated groups of those numbers that have one.
        notes: The notes of those numbers that have one.
        tables: The tables of the colouring.
        ambients: The ambient of each number, and that of -1 at the end; by default `AMBIENT`.
        is_per_scene: As in `Coloring`.
    """
    groups = groups or {}
    notes = notes or {}
    # The numbers that occur, (C,): the most frequent first, negative ones last, as one.
    numbers = np.maximum(numbers.astype(np.int64), -1)
    values, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    order = np.lexsort([-counts, values < 0])
    values = values[order]
    counts = counts[order]

    # Their colours, (C, 3).
    value_colors = color_numbers(values)
    if color_of is not None:
        for index in np.flatnonzero(values >= 0).tolist():
            value_colors[index] = color_of(int(values[index]))
    value_colors[values < 0] = UNLABELED_COLOR

    categories = []
    rows = zip(values.tolist(), value_colors.tolist(), counts.tolist(), strict=True)
    for value, (red, green, blue), count in rows:
        group = groups.get(value)
        categories.append(
            Category(
                name=UNLABELED if value < 0 else name_of(value),
                color=(red, green, blue),
                count=count,
                raw_category=group.raw_category if group else "",
                object_id=group.object_id if group else None,
                note=notes.get(value, ""),
                ambient=ambients[value] if ambients else AMBIENT,
            )
        )

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
        tables,
        is_per_scene=is_per_scene,
    )
