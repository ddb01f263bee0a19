"""Turns segments, groups and the label map into ids per vertex."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import AnnotationError
from scannet_prep.raw.segments import Aggregation, Group, Segmentation
from scannet_prep.release.label_map import MAX_NYU40_ID, LabelMap, RawIds, builtin_label_map
from scannet_prep.release.scene_warnings import SceneWarning, WarningKind

MAX_GROUPS = np.iinfo(np.int16).max

_MOST_SUGGESTIONS = 10  # they take 3 ms each
_UNLABELED = RawIds(0, 0)
_find_close = lru_cache(maxsize=1024)(
    difflib.get_close_matches
)  # the same few names are unknown in many scenes


@dataclass(frozen=True, slots=True)
class AnnotatedGroup:
    """One annotated group, as it is stored with the scene.

    Attributes:
        id: What stands in the array `instances`: the group's id.
        object_id: The file's `objectId`; None where it is null or missing.
        raw_category: The annotator's text.
        scannet_id: ScanNet id of the raw category; 0 where the label map does not know it.
        nyu40_id: nyu40 id of the raw category; 0 where the label map does not know it.
        aliases: The `objectId` of groups that repeat this one exactly and were left out; other data sets join by them.
        vertex_count: How many vertices `instances` gives it; those that a later group takes do not count.
        segment_count: How many segments these are.
        box: Smallest x, y, z and largest x, y, z of these vertices, in metres with four decimals, in the frame of
            `points`; None where there are none.
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
        instances: int16 (V,), -1 where there is no group.
        groups: The groups behind `instances`, in file order, exact repetitions left out.
        warnings: What was odd.
    """

    nyu40_ids: NDArray[np.uint8]
    scannet_ids: NDArray[np.uint16]
    instances: NDArray[np.int16]
    groups: tuple[AnnotatedGroup, ...] = ()
    warnings: tuple[SceneWarning, ...] = ()


def annotate(
    segmentation: Segmentation, aggregation: Aggregation, label_map: LabelMap
) -> Annotation:
    """Give every vertex the ids of the group that its segment belongs to.

    Groups count in file order, and where they overlap the last one wins, even where its class is evaluated nowhere.
    Both ids come from the same row of the label map. Exact repetitions of an earlier group are left out (scene0217_00
    lists every group twice).

    Raises:
        AnnotationError: There are more groups than `instances` can number.
    """
    null_count = sum(group.segment_ids.count(None) for group in aggregation.groups)
    warnings = [SceneWarning(WarningKind.NULL_SEGMENTS, count=null_count)] if null_count else []
    kept: dict[
        tuple[str, frozenset[int | None]], list[Group]
    ] = {}  # each followed by those that repeat it exactly
    for group in aggregation.groups:
        kept.setdefault((group.raw_category, frozenset(group.segment_ids) - {None}), []).append(
            group
        )
    if repeated_count := len(aggregation.groups) - len(kept):
        warnings.append(SceneWarning(WarningKind.REPEATED_GROUPS, count=repeated_count))
    groups = [group for group, *_ in kept.values()]
    if len(groups) > MAX_GROUPS:
        raise AnnotationError(f"has {len(groups):,} groups, expected at most {MAX_GROUPS:,}")
    rows = _look_up(groups, label_map, warnings)
    instance_ids = _number_instances(groups, warnings)

    # One entry more than there are groups: the last one, reached by -1, stands for "no group".
    group_of_segment = _assign_segments(segmentation, groups, warnings)
    segment_counts = np.bincount(group_of_segment + 1, minlength=len(groups) + 1)[1:].tolist()
    nyu40_of_group = np.array([*(row.nyu40_id for row in rows), 0], np.uint8)
    scannet_of_group = np.array([*(row.scannet_id for row in rows), 0], np.uint16)
    instance_of_group = np.array([*instance_ids, -1], np.int16)
    return Annotation(
        nyu40_ids=nyu40_of_group[group_of_segment].take(segmentation.indices),
        scannet_ids=scannet_of_group[group_of_segment].take(segmentation.indices),
        instances=instance_of_group[group_of_segment].take(segmentation.indices),
        groups=tuple(
            AnnotatedGroup(
                id=number,
                object_id=group.object_id,
                raw_category=group.raw_category,
                scannet_id=row.scannet_id,
                nyu40_id=row.nyu40_id,
                aliases=tuple(
                    item.object_id
                    for item in others
                    if item.object_id not in (None, group.object_id)
                ),
                segment_count=count,
            )
            for number, row, count, (group, *others) in zip(
                instance_ids, rows, segment_counts, kept.values(), strict=True
            )
        ),
        warnings=tuple(warnings),
    )


def find_contradictions(
    labels: NDArray[np.integer], segmentation: Segmentation, aggregation: Aggregation
) -> NDArray[np.bool_]:
    """Find the vertices whose label in `labels.ply` cannot come from the groups.

    The release made both from the same annotation, so that a label is the nyu40 id of a group that claims the segment
    of the vertex, or 0 where no group does. Where groups overlap, the id of each of them is right. Where a group's
    category is not in the release's label map, every label is. Labels beyond nyu40 are not compared.

    Args:
        labels: (V,), non-negative; the labels of a `labels.ply`.
        segmentation: The segments of the same mesh.
        aggregation: The groups.

    Returns:
        bool (V,).
    """
    release_rows = builtin_label_map().rows
    position_of = {
        raw_id: position for position, raw_id in enumerate(segmentation.raw_ids.tolist())
    }
    # Which nyu40 ids (columns) fit each segment (rows); bool (S, 41).
    fits = np.zeros((len(position_of), MAX_NYU40_ID + 1), np.bool_)
    for group in aggregation.groups:
        positions = [position_of[raw_id] for raw_id in group.segment_ids if raw_id in position_of]
        row = release_rows.get(group.raw_category)
        if row is None:
            fits[positions] = True
        else:
            fits[positions, row.nyu40_id] = True
    is_claimed = fits.any(axis=1)
    fits[~is_claimed, 0] = True

    is_nyu40 = labels <= MAX_NYU40_ID
    columns = np.where(is_nyu40, labels, 0)
    is_contradiction: NDArray[np.bool_] = is_nyu40 & ~fits[segmentation.indices, columns]
    return is_contradiction


def measure_groups(
    groups: Sequence[AnnotatedGroup], instances: NDArray[np.int16], points: NDArray[np.float32]
) -> tuple[AnnotatedGroup, ...]:
    """Count the vertices of each group, and find its box.

    Args:
        groups: The groups.
        instances: int16 (V,), ids of groups, -1 where there is none.
        points: float32 (V, 3), metres.
    """
    if not groups:
        return ()
    ids = [group.id for group in groups]
    # Small numbers are sorted fast: 1 for the first group; the last entry, reached by -1, stands for "no group".
    numbers = np.zeros(max(ids) + 2, np.uint8 if len(ids) < 255 else np.uint16)
    numbers[ids] = np.arange(1, len(ids) + 1)
    number_of_vertex = numbers.take(instances)
    counts = np.bincount(number_of_vertex, minlength=len(ids) + 1)
    starts = counts.cumsum()[:-1][counts[1:] > 0]
    order = np.argsort(number_of_vertex, kind="stable")
    axes = [axis.take(order) for axis in np.ascontiguousarray(points.T)] if len(starts) else []
    corners = [find.reduceat(axis, starts) for find in (np.minimum, np.maximum) for axis in axes]
    boxes: Any = zip(
        *(corner.astype(np.float64).round(4).tolist() for corner in corners), strict=True
    )
    return tuple(
        replace(group, vertex_count=count, box=next(boxes) if count else None)
        for group, count in zip(groups, counts[1:].tolist(), strict=True)
    )


def _look_up(
    groups: list[Group], label_map: LabelMap, warnings: list[SceneWarning]
) -> list[RawIds]:
    builtin = builtin_label_map()
    for name, count in Counter(group.raw_category for group in groups).items():
        found, expected = label_map.rows.get(name), builtin.rows.get(name)
        if found is None:
            close = (
                _find_close(name, tuple(label_map.rows), 1)
                if len(warnings) < _MOST_SUGGESTIONS
                else []
            )
            subject = f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name)
            warnings.append(SceneWarning(WarningKind.UNKNOWN_CATEGORY, subject, count))
        # Rows that the release does not have are no contradiction: they are there on purpose.
        if expected is not None and found != expected and label_map.digest != builtin.digest:
            theirs, ours = (ids or "missing" for ids in (found, expected))
            subject = f"{name!r} is {theirs} in the label map, but {ours} in the built-in one"
            warnings.append(SceneWarning(WarningKind.LABEL_MAP_DIFFERS, subject, count))
    return [label_map.rows.get(group.raw_category, _UNLABELED) for group in groups]


def _number_instances(groups: list[Group], warnings: list[SceneWarning]) -> list[int]:
    """The groups' own ids; their order in the file where those do not tell the groups apart or do not fit."""
    ids = [group.id for group in groups if group.id is not None and 0 <= group.id <= MAX_GROUPS]
    if len(set(ids)) == len(groups):
        return ids
    fault = f"null, not unique, or beyond 0..{MAX_GROUPS}"
    warnings.append(SceneWarning(WarningKind.RENUMBERED_GROUPS, fault, len(groups)))
    return list(range(len(groups)))


def _assign_segments(
    segmentation: Segmentation, groups: list[Group], warnings: list[SceneWarning]
) -> NDArray[np.intp]:
    """The position of the group of each segment; -1 where it has none."""
    position_of = {
        raw_id: position for position, raw_id in enumerate(segmentation.raw_ids.tolist())
    }
    group_of_segment = np.full(len(position_of), -1, np.intp)
    unknown_count = 0
    for number, group in enumerate(groups):
        positions = [position_of[raw_id] for raw_id in group.segment_ids if raw_id in position_of]
        unknown_count += len(group.segment_ids) - group.segment_ids.count(None) - len(positions)
        group_of_segment[positions] = number
    if unknown_count:
        warnings.append(SceneWarning(WarningKind.UNKNOWN_SEGMENTS, count=unknown_count))
    return group_of_segment
