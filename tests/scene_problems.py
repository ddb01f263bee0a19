"""Values in a processed scene that no correct scene has, although its structure is right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scannet_prep.processed.annotate import MAX_GROUPS, measure_groups
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_map import MAX_NYU40_ID


def find_problems(scene: ProcessedScene) -> Iterator[str]:
    """Find values that no correct scene has, and describe each."""
    vertex_count = len(scene.points)
    is_finite = bool(np.isfinite(scene.points).all())
    if not is_finite:
        yield "points are not all finite"
    yield from _find_group_problems(scene, is_finite=is_finite)

    # float16 has 11 significant bits. Rounding changes each component by less than 2**-11 of its
    # value, and so the squared length by less than 2**-10.
    normals = scene.normals.astype(np.float32)
    squared_lengths = np.square(normals).sum(axis=1)
    is_unit = np.abs(squared_lengths - 1) < 2**-10
    is_zero = squared_lengths == 0
    wrong_normals = len(normals) - np.count_nonzero(is_unit | is_zero)
    if wrong_normals:
        yield f"normals of {wrong_normals:,} vertices are neither of unit length nor zero"

    label_set = scene.meta.options.label_set
    expected_stored = label_set.labels_from_raw_ids(getattr(scene, label_set.raw_ids_key))
    wrong_labels = int(np.count_nonzero(scene.stored_labels != expected_stored))
    if wrong_labels:
        yield f"labels disagree with the raw ids at {wrong_labels:,} vertices"
    largest_id = scene.nyu40_ids.max()
    if largest_id > MAX_NYU40_ID:
        yield f"nyu40_ids hold {largest_id}, expected up to {MAX_NYU40_ID}"

    yield from _find_segment_problems(scene)
    if not np.isfinite(scene.axis_alignment).all():
        yield "axis_alignment is not finite"
    if scene.faces is not None:
        is_vertex = (scene.faces >= 0) & (scene.faces < vertex_count)
        if not is_vertex.all():
            yield f"faces refer to vertices that are not there: there are {vertex_count:,}"


def _find_group_problems(
    scene: ProcessedScene,
    *,
    is_finite: bool,
) -> Iterator[str]:
    """Find wrong ids and measurements of groups. Boxes are compared only if points are finite."""
    groups = scene.meta.groups
    group_ids = [group.id for group in groups]
    if not all(0 <= group_id <= MAX_GROUPS for group_id in group_ids):
        yield f"group ids are not all within 0..{MAX_GROUPS}"
        return
    strangers = np.setdiff1d(scene.instances, [-1, *group_ids])
    if len(strangers):
        yield f"instances hold {max(strangers)}, which is not a group"
        return
    if is_finite and groups != measure_groups(groups, scene.instances, scene.points):
        yield "vertex counts or boxes of groups are not those of their vertices"


def _find_segment_problems(scene: ProcessedScene) -> Iterator[str]:
    """Find numbers of segments that are left out or, in the release, have no raw id."""
    numbers = []
    if scene.segments is not None:
        numbers = np.unique(scene.segments).tolist()
    count = len(scene.meta.segment_ids)
    if scene.meta.segments_source == "computed":
        count = max(1, len(numbers))
    if numbers != list(range(count)):
        yield (
            f"segments hold {len(numbers):,} numbers up to {max(numbers, default=0):,}, "
            f"expected {count:,} numbers from 0"
        )
