"""Annotated objects as other programs read them: object ids, masks of vertices, and boxes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.evaluation.overlaps import NO_INSTANCES
from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.processed.groups import raw_ids_of_groups, table_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET20, LabelSet

# Names in the programs that are not those of ScanNet20.
_SPELLINGS_20 = {"shower curtain": "showercurtrain", "otherfurniture": "garbagebin"}
# The programs store the number plus one as uint32.
_MAX_OBJECT_ID = 2**32 - 2


class ObjectBox(NamedTuple):
    """The box of an object.

    Attributes:
        object_id: Its number, from `number_objects`.
        raw_id: The raw id of its class.
        center_and_size: Centre x, y, z and size x, y, z, in metres, in the frame of the points.
    """

    object_id: int
    raw_id: int
    center_and_size: list[float]


def box_classes(label_set: LabelSet) -> dict[int, str]:
    """Return the classes that have boxes, all but wall and floor, by raw id.

    Those of ScanNet20 are the 18 classes of VoteNet, in the spelling of the programs.
    """
    spellings = _SPELLINGS_20 if label_set == SCANNET20 else {}
    classes = {}
    for label_class in label_set.classes:
        if label_class.name not in NO_INSTANCES:
            classes[label_class.raw_id] = spellings.get(label_class.name, label_class.name)
    return classes


def vertex_raw_ids(scene: ProcessedScene, label_set: LabelSet) -> NDArray[np.int64]:
    """Return the raw id of each vertex: that of its group, or its own if it belongs to no group.

    With labels from `labels.ply`, the vertices of a group may have other raw ids than the group.

    Returns:
        int64 (V,), 0 unannotated.
    """
    raw_id_of_group = table_by_group(raw_ids_of_groups(scene.meta.groups, label_set), none=-1)
    # -1 at vertices of no group.
    group_raw_ids = raw_id_of_group.take(scene.instances)
    own_raw_ids = getattr(scene, label_set.raw_ids_key)
    return np.where(group_raw_ids < 0, own_raw_ids, group_raw_ids)


def number_objects(
    groups: Sequence[AnnotatedGroup], *, uses_last_copies: bool = False
) -> dict[int, int]:
    """Return the `objectId` of each group, by its id.

    A group without one has its own id; so do all groups, if the numbers are not distinct and
    usable.

    Args:
        groups: The groups of a scene.
        uses_last_copies: Whether a group that the release repeats has the `objectId` of its last
            copy, as in programs in which later groups replace earlier ones. Otherwise, it has that
            of the first.
    """
    object_ids = {}
    for group in groups:
        object_id = group.id if group.object_id is None else group.object_id
        if uses_last_copies and group.aliases:
            object_id = group.aliases[-1]
        object_ids[group.id] = object_id
    is_distinct = len(set(object_ids.values())) == len(groups)
    is_usable = all(0 <= object_id <= _MAX_OBJECT_ID for object_id in object_ids.values())
    if is_distinct and is_usable:
        return object_ids
    return {group.id: group.id for group in groups}


def mask_objects(instances: NDArray[np.int16], object_ids: Mapping[int, int]) -> NDArray[np.int64]:
    """Make the mask of the objects: their number plus one at each of their vertices, 0 for none.

    Args:
        instances: int16 (V,), ids of groups, -1 for none.
        object_ids: From `number_objects`.

    Returns:
        int64 (V,).
    """
    mask_values = {group_id: object_id + 1 for group_id, object_id in object_ids.items()}
    return table_by_group(mask_values, none=0).take(instances)


def find_boxes(
    scene: ProcessedScene,
    columns: NDArray[np.floating[Any]],
    label_set: LabelSet,
    classes: Collection[int],
    object_ids: Mapping[int, int],
) -> list[ObjectBox]:
    """Find the boxes of the objects that have vertices and one of these classes.

    The class of an object is that of its group, also if its vertices have other labels.

    Args:
        scene: The scene.
        columns: (3, V), its coordinates in the frame of the boxes. Boxes are computed with their
            dtype.
        label_set: The label set of the raw ids.
        classes: The raw ids of the classes that have boxes.
        object_ids: From `number_objects`.

    Returns:
        The boxes, by ascending object id.
    """
    # Vertices sorted by group; each id is a range that begins at one of `starts`.
    order = np.argsort(scene.instances, kind="stable")
    ids, starts = np.unique(scene.instances.take(order), return_index=True)
    # Smallest and largest coordinates by axis and id, (3, ids); then centre and size, (ids, 6).
    ranges = [axis.take(order) for axis in columns]
    low = np.stack([np.minimum.reduceat(axis, starts) for axis in ranges])
    high = np.stack([np.maximum.reduceat(axis, starts) for axis in ranges])
    centers_and_sizes = np.concatenate([(low + high) / 2, high - low]).T.tolist()

    raw_ids = raw_ids_of_groups(scene.meta.groups, label_set)
    boxes = []
    for group_id, center_and_size in zip(ids.tolist(), centers_and_sizes, strict=True):
        # The vertices of no group, -1, have no box.
        if raw_ids.get(group_id) in classes:
            box = ObjectBox(object_ids[group_id], raw_ids[group_id], center_and_size)
            boxes.append(box)
    return sorted(boxes)
