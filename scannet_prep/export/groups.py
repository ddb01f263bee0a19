"""Values of groups at their vertices, and segments of test scenes, for several formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import FileError, ScanNetPrepError
from scannet_prep.processed.groups import raw_ids_of_groups, table_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.raw.segments import read_segments
from scannet_prep.release.files import SEGMENTS
from scannet_prep.release.label_sets import LabelSet

TEST_SEGMENTS_NEEDED = (
    "the release has no segments of test scenes; process the scenes with --compute-segments, or "
    f"give a folder of *{SEGMENTS.suffix} files of ScanNet's Segmentator with --test-segments DIR"
)


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


def segments_of(scene: ProcessedScene, test_segments: Path | None) -> NDArray[Any]:
    """Find the segment of each vertex: of the release, else of a folder, else computed.

    Args:
        scene: The scene.
        test_segments: A folder with the segments of scenes that have none in the release, in files
            with the names of the release; None for no folder.

    Returns:
        Unsigned or signed integers (V,), contiguous from 0, in the order of the raw segment ids.

    Raises:
        ScanNetPrepError: The scene has no segments, and no folder is given.
        FileError: Its segments cannot be read, or belong to another mesh.
    """
    is_computed = scene.meta.segments_source == "computed"
    is_replaced = is_computed and test_segments is not None
    if scene.segments is not None and not is_replaced:
        return scene.segments
    scene_id = scene.meta.scene_id
    if test_segments is None:
        # A train or val scene: test scenes are refused before, with `TEST_SEGMENTS_NEEDED`.
        raise ScanNetPrepError(
            f"{scene_id} has no segments, which this format needs",
            "download its segments, then process the scene again",
        )

    path = test_segments / f"{scene_id}{SEGMENTS.suffix}"
    segments = read_segments(path).indices
    if len(segments) != len(scene.points):
        raise FileError(
            path,
            f"has {len(segments):,} vertices, but the scene has {len(scene.points):,}",
            f"run the Segmentator on {scene_id}_vh_clean_2.ply",
        )
    return segments
