"""Turn segments, groups and the label map into ids per vertex; look up what each group is."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import FileError
from scannet_prep.raw.tree import repair_hint
from scannet_prep.release.irregularities import SceneWarning, WarningKind
from scannet_prep.release.label_map import LabelMap, RawIds
from scannet_prep.release.label_sets import LabelSet

if TYPE_CHECKING:  # training needs groups, but no raw files
    from scannet_prep.raw.files import Aggregation, Group, Segmentation

MAX_GROUPS = np.iinfo(np.int16).max

_UNLABELED = RawIds(0, 0)
# Cached, because the same few names are unknown in many scenes.
_find_close = lru_cache(maxsize=1024)(difflib.get_close_matches)


@dataclass(frozen=True, slots=True)
class AnnotatedGroup:
    """One annotated group, as it is stored with the scene.

    Attributes:
        id: Its value in the array `instances`.
        object_id: The file's `objectId`; None if it is null or missing.
        raw_category: The annotator's text.
        scannet_id: ScanNet id of the raw category; 0 if the label map lacks it.
        nyu40_id: nyu40 id of the raw category; 0 if the label map lacks it.
        aliases: The `objectId` of groups that repeat this one exactly and were left out. Other data
            sets join by them.
        vertex_count: Number of its vertices in `instances`, without those that a later group takes.
        segment_count: Number of its segments, likewise.
        box: Smallest x, y, z and largest x, y, z of its vertices, in metres with four decimals, in
            the frame of `points`; None if it has no vertices.
    """

    id: int
    object_id: int | None
    raw_category: str
    scannet_id: int
    nyu40_id: int
    aliases: tuple[int, ...] = ()
    vertex_count: int = 0
    segment_count: int = 0
    box: tuple[float, float, float, float, float, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Annotation:
    """Ids per vertex, in mesh order.

    Attributes:
        nyu40_ids: uint8 (V,), 0 unannotated.
        scannet_ids: uint16 (V,), 0 unannotated.
        instances: int16 (V,), -1 for no group.
        groups: The groups, in file order, without exact repetitions.
        warnings: Oddities of the groups.
    """

    nyu40_ids: NDArray[np.uint8]
    scannet_ids: NDArray[np.uint16]
    instances: NDArray[np.int16]
    groups: tuple[AnnotatedGroup, ...] = ()
    warnings: tuple[SceneWarning, ...] = ()


def annotate(
    segmentation: Segmentation,
    aggregation: Aggregation,
    label_map: LabelMap,
    path: Path,
) -> Annotation:
    """Give every vertex the ids of the group that its segment belongs to.

    Groups are applied in file order. Where they overlap, the last one wins, even if its class is
    evaluated nowhere. Both ids come from the same row of the label map. Exact repetitions of an
    earlier group are left out (scene0217_00 lists every group twice).

    Args:
        segmentation: The segments.
        aggregation: The groups.
        label_map: Ids by raw category.
        path: The file of the groups, for messages.

    Raises:
        FileError: There are more groups than `instances` can number.
    """
    warnings: list[SceneWarning] = []
    null_count = sum(group.segment_ids.count(None) for group in aggregation.groups)
    if null_count:
        warnings.append(SceneWarning(WarningKind.NULL_SEGMENTS, count=null_count))

    # G distinct groups, each followed by its repetitions.
    distinct = _find_distinct(aggregation)
    groups = [group for group, *_ in distinct]
    repeated_count = len(aggregation.groups) - len(groups)
    if repeated_count:
        warnings.append(SceneWarning(WarningKind.REPEATED_GROUPS, count=repeated_count))
    if len(groups) > MAX_GROUPS:
        problem = f"has {len(groups):,} groups, expected at most {MAX_GROUPS:,}"
        raise FileError(path, problem, repair_hint(path))

    rows = _look_up(groups, label_map, warnings)
    instance_ids = _number_instances(groups, warnings)
    # The group of each segment, (S,), and the number of segments of each group.
    group_of_segment = _assign_segments(segmentation, groups, warnings)
    segment_counts = Counter(group_of_segment.tolist())

    annotated_groups = []
    for index, (group, *repetitions) in enumerate(distinct):
        row = rows[index]
        object_ids = [repetition.object_id for repetition in repetitions]
        aliases = [one for one in object_ids if one not in (None, group.object_id)]
        annotated_groups.append(
            AnnotatedGroup(
                id=instance_ids[index],
                object_id=group.object_id,
                raw_category=group.raw_category,
                scannet_id=row.scannet_id,
                nyu40_id=row.nyu40_id,
                aliases=tuple(aliases),
                segment_count=segment_counts[index],
            )
        )
    # The ids of each group and, last, of no group, which index -1 reaches, (G + 1, 3); then those
    # of each segment, (S, 3).
    ids = [(group.nyu40_id, group.scannet_id, group.id) for group in annotated_groups]
    ids.append((0, 0, -1))
    ids_of_segments = np.array(ids)[group_of_segment]
    nyu40_ids, scannet_ids, instances = ids_of_segments.T
    return Annotation(
        nyu40_ids=nyu40_ids.astype(np.uint8).take(segmentation.indices),
        scannet_ids=scannet_ids.astype(np.uint16).take(segmentation.indices),
        instances=instances.astype(np.int16).take(segmentation.indices),
        groups=tuple(annotated_groups),
        warnings=tuple(warnings),
    )


def _find_distinct(aggregation: Aggregation) -> list[list[Group]]:
    """Find the groups that differ, in file order, each with the later ones that equal it."""
    distinct: dict[object, list[Group]] = {}
    for group in aggregation.groups:
        key = (group.raw_category, frozenset(group.segment_ids) - {None})
        distinct.setdefault(key, []).append(group)
    return list(distinct.values())


def measure_groups(
    groups: Sequence[AnnotatedGroup],
    instances: NDArray[np.int16],
    points: NDArray[np.float32],
) -> tuple[AnnotatedGroup, ...]:
    """Count the vertices of each group, and find its box.

    Args:
        groups: The groups.
        instances: int16 (V,), ids of groups, -1 for none.
        points: float32 (V, 3), metres.
    """
    points_of = split_by_group(points.T, instances)
    measured = []
    for group in groups:
        columns = points_of.get(group.id)
        if columns is not None:
            lowest = columns.min(axis=1)
            highest = columns.max(axis=1)
            corners = np.concatenate([lowest, highest])
            box = tuple(corners.astype(np.float64).round(4).tolist())
            group = replace(group, vertex_count=columns.shape[1], box=box)
        measured.append(group)
    return tuple(measured)


def split_by_group(
    columns: NDArray[Any],
    instances: NDArray[np.int16],
) -> dict[int, NDArray[Any]]:
    """Split coordinates, (3, V), by group.

    Args:
        columns: The coordinates.
        instances: int16 (V,), ids of groups, -1 for none.

    Returns:
        The coordinates of the vertices of each group that has any, in mesh order, by ascending id;
        those of the vertices of no group by -1.
    """
    order = np.argsort(instances, kind="stable")
    ids, starts = np.unique(instances.take(order), return_index=True)
    parts = np.split(columns.take(order, axis=1), starts[1:], axis=1)
    return dict(zip(ids.tolist(), parts, strict=True))


def _look_up(
    groups: Sequence[Group],
    label_map: LabelMap,
    warnings: list[SceneWarning],
) -> list[RawIds]:
    """Find the ids of each group's category; 0 and 0, with a warning, for an unknown category."""
    for name, count in Counter(group.raw_category for group in groups).items():
        if name not in label_map.rows:
            subject = f"{name!r:.200}"
            for close in _find_close(name, tuple(label_map.rows), 1):
                subject += f" (did you mean {close!r}?)"
            warnings.append(SceneWarning(WarningKind.UNKNOWN_CATEGORY, subject, count))
    return [label_map.rows.get(group.raw_category, _UNLABELED) for group in groups]


def _number_instances(
    groups: Sequence[Group],
    warnings: list[SceneWarning],
) -> list[int]:
    """Return the id of each group: its own, or its index if the groups' own ids cannot be used."""
    own_ids = [group.id for group in groups if group.id is not None and 0 <= group.id <= MAX_GROUPS]
    if len(set(own_ids)) == len(groups):
        return own_ids
    fault = f"null, not unique, or beyond 0..{MAX_GROUPS}"
    warnings.append(SceneWarning(WarningKind.RENUMBERED_GROUPS, fault, len(groups)))
    return list(range(len(groups)))


def _assign_segments(
    segmentation: Segmentation,
    groups: Sequence[Group],
    warnings: list[SceneWarning],
) -> NDArray[np.intp]:
    """Return the index of the group of each segment, intp (S,); -1 for none."""
    group_of_segment = np.full(len(segmentation.raw_ids), -1, np.intp)
    unknown_count = 0
    for group_index, indices in enumerate(index_segments(segmentation, groups)):
        # Replaces an earlier group, so that the last one wins.
        group_of_segment[indices] = group_index
        raw_ids = groups[group_index].segment_ids
        null_count = raw_ids.count(None)
        unknown_count += len(raw_ids) - null_count - len(indices)
    if unknown_count:
        warnings.append(SceneWarning(WarningKind.UNKNOWN_SEGMENTS, count=unknown_count))
    return group_of_segment


def index_segments(
    segmentation: Segmentation,
    groups: Iterable[Group],
) -> list[list[int]]:
    """Return the indices of the segments of each group, without ids that no vertex has."""
    index_of = {raw_id: index for index, raw_id in enumerate(segmentation.raw_ids.tolist())}
    return [
        [index_of[raw_id] for raw_id in group.segment_ids if raw_id in index_of] for group in groups
    ]


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


def raw_ids_by_group(
    groups: Iterable[AnnotatedGroup],
    label_set: LabelSet,
) -> NDArray[np.int64]:
    """Make a table of the raw id of each group, 0 if the label map lacks it and for "no group"."""
    # The array of the vertices is `nyu40_ids` or `scannet_ids`; a group has a single id.
    key = label_set.raw_ids_key.removesuffix("s")
    return table_by_group({group.id: getattr(group, key) for group in groups}, none=0)


def classes_of_instances(
    instances: NDArray[np.integer],
    groups: Iterable[AnnotatedGroup],
    label_set: LabelSet,
) -> NDArray[np.int64]:
    """Return the class of the instance of each vertex: that of its group.

    With labels from `labels.ply`, the vertices of an instance may have several classes of their
    own, but instances are scored by the class of the group.

    Args:
        instances: Integers (V,), group of each vertex, -1 for none.
        groups: The groups.
        label_set: The label set of the classes.

    Returns:
        int64 (V,), train ids, -1 for none.
    """
    raw_ids = raw_ids_by_group(groups, label_set)
    train_ids = label_set.train_ids_from_raw_ids(raw_ids, ignore_index=-1)
    return train_ids.take(instances)
