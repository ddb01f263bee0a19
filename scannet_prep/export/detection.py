"""Arrays in the layout of VoteNet's script, and of those that ScanRefer and others made from it.

    <folder>/<scene>_vert.npy          float32 (N, 6 or 9): x y z, red green blue 0..255, normal
    <folder>/<scene>_sem_label.npy     uint32 (N,): nyu40 ids, 0 unannotated
    <folder>/<scene>_ins_label.npy     uint32 (N,): `objectId` + 1, 0 none
    <folder>/<scene>_bbox.npy          float64 (K, 7 or 8): centre, size, nyu40 id, `objectId`

VoteNet's folder is `scannet/scannet_train_detection_data`, which GroupFree3D, 3DETR and others
read, too: train and val, axis-aligned, without normals and `objectId`. ScanRefer's is
`data/scannet/scannet_data`, for Scan2Cap, 3DVLP and others: these files in the frame of the scan,
and `<scene>_aligned_{vert,bbox}.npy`.

N is the number of vertices, or 50,000 if a scene has more: then so many are drawn at random. The
box of an object always encloses all its vertices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from scannet_prep.errors import ScanNetPrepError
from scannet_prep.export.arrays import (
    SceneFiles,
    box_classes,
    find_boxes,
    in_frame,
    number_objects,
)
from scannet_prep.processed.annotate import raw_ids_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET20, LabelSet
from scannet_prep.release.scenes import Split

# By nyu40 id: all but wall (1), floor (2) and ceiling (22).
_CLASSES = {*range(3, 41)} - {22}
_MAX_POINTS = 50_000


def export_votenet(scene: ProcessedScene, _: LabelSet) -> SceneFiles:
    """Make four arrays, without normals and `objectId`. Only VoteNet's 18 classes have boxes."""
    columns = ("points", "colors")
    return _make_files(scene, {"": True}, columns, box_classes(SCANNET20), box_width=7), {}


def export_scanrefer(scene: ProcessedScene, _: LabelSet) -> SceneFiles:
    """Make six arrays, also of a test scene, whose labels and only box are zeros.

    Raises:
        ScanNetPrepError: The names of the files could be those of another scene.
    """
    if scene.meta.scene_id.endswith("_aligned"):
        raise ScanNetPrepError(
            f"{scene.meta.scene_id} could have the names of the aligned files of another scene",
            "give the scene another name, and process it again",
        )
    columns = ("points", "colors", "normals")
    frames = {"": False, "_aligned": True}
    return _make_files(scene, frames, columns, _CLASSES, box_width=8), {}


def _make_files(
    scene: ProcessedScene,
    frames: Mapping[str, bool],
    columns: Sequence[str],
    classes: Collection[int],
    box_width: int,
) -> dict[str, Any]:
    """Make the labels, and the points and boxes in each frame.

    Args:
        scene: The scene.
        frames: Whether a frame is the axis-aligned one, by the suffix of its files.
        columns: The arrays of the scene that make the columns of a point.
        classes: The nyu40 ids of the classes that have boxes.
        box_width: 7, or 8 with the `objectId`.
    """
    stem = scene.meta.scene_id
    # In the programs, later groups replace earlier ones, and descriptions name objects by these
    # numbers.
    objects = number_objects(scene, copy=-1)
    # The nyu40 id of a vertex is that of its group, and 0 without a group, also if the labels are
    # from `labels.ply`. The programs take the points without an object for one more object: if the
    # first of them had a class with boxes, all of them would get votes.
    nyu40_ids = raw_ids_by_group(scene.meta.groups, SCANNET20)
    # The points are the vertices with the smallest numbers, which depend only on the scene id. The
    # raw output of a bit generator is the same in all versions of NumPy.
    numbers = np.random.PCG64([0, *stem.encode()]).random_raw(len(scene.points))
    count = min(len(numbers), _MAX_POINTS)
    smallest = np.argpartition(numbers, count - 1)[:count]
    chosen = np.sort(smallest)
    instances = scene.instances[chosen]
    files: dict[str, Any] = {
        f"{stem}_sem_label.npy": nyu40_ids.take(instances).astype(np.uint32),
        f"{stem}_ins_label.npy": (objects + 1).take(instances).astype(np.uint32),
    }
    for suffix, is_aligned in frames.items():
        moved = in_frame(scene, is_aligned=is_aligned)
        parts = [getattr(moved, key).take(chosen, axis=0) for key in columns]
        # Boxes are computed in float32, as in the programs.
        boxes = find_boxes(moved, SCANNET20, classes, objects)
        if scene.meta.split is Split.TEST:
            boxes = np.zeros((1, 8))
        files[f"{stem}{suffix}_vert.npy"] = np.hstack(parts, dtype=np.float32)
        files[f"{stem}{suffix}_bbox.npy"] = boxes[:, :box_width]
    return files
