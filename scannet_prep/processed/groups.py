"""The annotated groups of a scene, by vertex: raw ids and classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.release.label_sets import LabelSet


def table_by_group(
    values: Mapping[int, int],
    *,
    none: int,
) -> NDArray[np.int64]:
    """Make a table of the value of each group, to be indexed by the array `instances`.

    Args:
        values: The value of each group, by its id in `instances`.
        none: The value for "no group".

    Returns:
        int64 (largest id + 2,). The last entry, which -1 reaches, is `none`.
    """
    table = np.full(max(values, default=-1) + 2, none, np.int64)
    table[list(values)] = list(values.values())
    return table


def raw_ids_of_groups(
    groups: Iterable[AnnotatedGroup],
    label_set: LabelSet,
) -> dict[int, int]:
    """Return the raw id of each group, by its id in `instances`; 0 if the label map lacks it."""
    # The array of the vertices is `nyu40_ids` or `scannet_ids`; a group has a single id.
    key = label_set.raw_ids_key.removesuffix("s")
    return {group.id: getattr(group, key) for group in groups}


def classes_of_instances(
    instances: NDArray[np.integer],
    groups: Iterable[AnnotatedGroup],
    label_set: LabelSet,
) -> NDArray[np.int64]:
    """Return the class of the instance of each vertex: that of its group.

    With labels from `labels.ply`, the vertices of an instance may have several classes of their
    own, but instances are scored by that of the group.

    Args:
        instances: Integers (V,), group of each vertex, -1 for none.
        groups: The groups.
        label_set: The label set of the classes.

    Returns:
        int64 (V,), train ids, -1 for none.
    """
    # The raw id of each group; the last entry is 0, for vertices without a group (-1).
    raw_ids = table_by_group(raw_ids_of_groups(groups, label_set), none=0)
    train_ids = label_set.train_ids_from_raw_ids(raw_ids, ignore_index=-1)
    return train_ids.take(instances)
