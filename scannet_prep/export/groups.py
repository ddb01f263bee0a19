"""What formats with one label an instance share: values of groups at their vertices, and segments of test scenes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import RawFileError, ScanNetPrepError
from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.raw.segments import read_segments
from scannet_prep.release.files import SEGMENTS
from scannet_prep.release.label_sets import LabelSet

TEST_SEGMENTS_NEEDED = (
    "the release has no segments of test scenes; make them with ScanNet's Segmentator and give its folder of "
    f"*{SEGMENTS.suffix} files as test segments"
)


def table_by_group(values: Mapping[int, int], *, none: int) -> NDArray[np.int64]:
    """Make a table that the array `instances` is an index into.

    Args:
        values: Of each group, by its id in `instances`.
        none: The value where there is no group.

    Returns:
        int64 (largest id + 2,); the last entry, reached by -1, is `none`.
    """
    table = np.full(max(values, default=-1) + 2, none, np.int64)
    table[list(values)] = list(values.values())
    return table


def raw_ids_of_groups(groups: Iterable[AnnotatedGroup], label_set: LabelSet) -> dict[int, int]:
    """The raw id of each group, by the id in `instances`; 0 where the label map does not know it."""
    key = label_set.raw_ids_key.removesuffix("s")
    return {group.id: getattr(group, key) for group in groups}


def raw_ids_by_group(scene: ProcessedScene, label_set: LabelSet) -> NDArray[np.int64]:
    """Raw ids with one for all vertices of a group: that of the group, where `labels.ply` says something else.

    Returns:
        int64 (V,), 0 unannotated.
    """
    found = table_by_group(raw_ids_of_groups(scene.meta.groups, label_set), none=-1).take(
        scene.instances
    )
    return np.where(found < 0, getattr(scene, label_set.raw_ids_key), found)


def segments_of(scene: ProcessedScene, test_segments: Path | None) -> NDArray[Any]:
    """Find the segment of each vertex.

    Args:
        scene: The scene.
        test_segments: Folder with the segments of scenes that have none, named as in the release.

    Returns:
        Unsigned or signed integers (V,), contiguous from 0, in the order of the raw segment ids.

    Raises:
        ScanNetPrepError: The scene has no segments, and no folder is given.
        FileError: Its segments cannot be read, or are of another mesh.
    """
    if scene.segments is not None:
        return scene.segments
    if test_segments is None:
        scene_id = scene.meta.scene_id
        hint = f"scannet-prep download --types {SEGMENTS.suffix} --scenes {scene_id}, then scannet-prep process"
        raise ScanNetPrepError(f"{scene_id} has no segments, which this format needs", hint)
    path = test_segments / f"{scene.meta.scene_id}{SEGMENTS.suffix}"
    found, expected = read_segments(path).indices, len(scene.points)
    if len(found) != expected:
        problem = f"has {len(found):,} vertices, but the scene has {expected:,}"
        raise RawFileError(
            path, problem, f"run the Segmentator on {scene.meta.scene_id}_vh_clean_2.ply"
        )
    return found
