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

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.export.format import (
    ExportSettings,
    FileContents,
    Format,
    Record,
    convert_scene,
    encode_npy,
)
from scannet_prep.export.objects import (
    box_classes,
    find_boxes,
    mask_objects,
    number_objects,
)
from scannet_prep.processed.groups import raw_ids_of_groups, table_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.release.scene import Split

# By nyu40 id: all but wall (1), floor (2) and ceiling (22).
_SCANREFER_CLASSES = frozenset(range(3, 41)) - {22}


def encode_votenet(scene: ProcessedScene, settings: ExportSettings) -> tuple[FileContents, Record]:
    """Make four arrays."""
    chosen = choose_vertices(scene, settings.points)
    scene = convert_scene(scene, settings)
    arrays = {
        "vert": np.hstack([scene.points[chosen], scene.colors[chosen]], dtype=np.float32),
        **_label_vertices(scene, chosen),
        "bbox": _make_boxes(scene, box_classes(SCANNET20))[:, :7],
    }
    return _encode_arrays(scene, arrays), {}


def encode_scanrefer(
    scene: ProcessedScene, settings: ExportSettings
) -> tuple[FileContents, Record]:
    """Make six arrays, also of a test scene, whose labels and only box are zeros."""
    chosen = choose_vertices(scene, settings.points)
    arrays = _label_vertices(scene, chosen)
    for prefix, is_aligned in (("", False), ("aligned_", True)):
        in_frame = convert_scene(scene, replace(settings, is_aligned=is_aligned))
        columns: list[NDArray[Any]] = [in_frame.points, in_frame.colors, in_frame.normals]
        arrays[f"{prefix}vert"] = np.hstack(
            [column[chosen] for column in columns], dtype=np.float32
        )
        boxes = np.zeros((1, 8))
        if scene.meta.split is not Split.TEST:
            boxes = _make_boxes(in_frame, _SCANREFER_CLASSES)
        arrays[f"{prefix}bbox"] = boxes
    return _encode_arrays(scene, arrays), {}


def choose_vertices(scene: ProcessedScene, count: int | None) -> NDArray[np.intp]:
    """Choose the vertices of a scene that become its points.

    The choice depends only on the scene id and the number of vertices. It uses the raw output of a
    bit generator, which is the same in all versions of NumPy.

    Args:
        scene: The scene.
        count: Largest number of points; None for all.

    Returns:
        intp (N,), ascending.
    """
    vertex_count = len(scene.points)
    if count is None or count >= vertex_count:
        return np.arange(vertex_count)
    # One random number of 64 bits per vertex, (V,). The vertices with the smallest are chosen.
    generator = np.random.PCG64([0, *scene.meta.scene_id.encode()])
    numbers = generator.random_raw(vertex_count)
    largest_chosen = np.partition(numbers, count - 1)[count - 1]
    # Without the slice, there would be too many if several vertices had the largest number.
    return np.flatnonzero(numbers <= largest_chosen)[:count]


def _label_vertices(scene: ProcessedScene, chosen: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    """Return the nyu40 ids and the objects of chosen vertices, each uint32 (N,), by suffix.

    The nyu40 id of a vertex is that of its group, and 0 without a group, also if the labels of the
    scene are from `labels.ply`. The programs take the points without an object for one more object:
    if the first of them had a class with boxes, all of them would get votes.
    """
    instances = scene.instances[chosen]
    nyu40_id_of_group = table_by_group(raw_ids_of_groups(scene.meta.groups, SCANNET20), none=0)
    return {
        "sem_label": nyu40_id_of_group.take(instances).astype(np.uint32),
        "ins_label": mask_objects(instances, _number_objects(scene)).astype(np.uint32),
    }


def _make_boxes(scene: ProcessedScene, classes: Collection[int]) -> NDArray[np.float64]:
    """Make the array of the boxes of a scene, in the frame of its points, float64 (K, 8).

    They are computed in float32, as in the programs.
    """
    columns = np.ascontiguousarray(scene.points.T)
    boxes = find_boxes(scene, columns, SCANNET20, classes, _number_objects(scene))
    rows = [[*box.center_and_size, box.raw_id, box.object_id] for box in boxes]
    return np.array(rows, np.float64).reshape(-1, 8)


def _number_objects(scene: ProcessedScene) -> dict[int, int]:
    """Return the `objectId` of each group, by the id of the group.

    In the programs, later groups replace earlier ones, and descriptions name objects by these
    numbers.
    """
    return number_objects(scene.meta.groups, uses_last_copies=True)


def _encode_arrays(scene: ProcessedScene, arrays: Mapping[str, NDArray[Any]]) -> FileContents:
    """Make the files of a scene from its arrays by suffix."""
    scene_id = scene.meta.scene_id
    return {f"{scene_id}_{suffix}.npy": encode_npy(array) for suffix, array in arrays.items()}


VOTENET = Format(
    encode_votenet,
    uses=("points",),
    aligned_with=(SCANNET20, SCANNET200),
    needs="annotation",
)
SCANREFER = Format(encode_scanrefer, uses=("points",))
