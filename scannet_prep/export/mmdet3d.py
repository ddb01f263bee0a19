"""mmdetection3d and OneFormer3D: arrays as plain bytes, and `infos` that name them and hold boxes.

    <folder>/points/<scene>.bin         float32 (V, 6): x y z, red green blue 0..255
    <folder>/instance_mask/<scene>.bin  int64 (V,): `objectId` + 1, 0 none
    <folder>/semantic_mask/<scene>.bin  int64 (V,): nyu40 ids; ScanNet ids for ScanNet200
    <folder>/super_points/<scene>.bin   int64 (V,): segments; OneFormer3D only
    <folder>/scannet_infos_{train,val,test}.pkl
    <folder>/seg_info/{train,val}_{resampled_scene_idxs,label_weight}.npy

Infos are of version 2, which mmdetection3d reads from 1.1 on: plain values, pickled.
"""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np

from scannet_prep.export.arrays import (
    Records,
    SceneFiles,
    alignment_of,
    box_classes,
    find_boxes,
    number_objects,
    segments_of,
)
from scannet_prep.processed.annotate import raw_ids_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET20, LabelSet
from scannet_prep.release.scenes import Split

_POINTS_PER_SAMPLE = 8192
# Python 3.8, with which the programs run, reads this protocol.
_PICKLE_PROTOCOL = 4


def export_mmdet3d(scene: ProcessedScene, label_set: LabelSet) -> SceneFiles:
    """Make the arrays of a scene, and find its boxes."""
    name = f"{scene.meta.scene_id}.bin"
    points = np.hstack([scene.points, scene.colors], dtype=np.float32)
    files: dict[str, Any] = {f"points/{name}": points}
    if scene.meta.split is Split.TEST:
        return files, {}
    objects = number_objects(scene, copy=0)
    # Vertices of no group have no label: OneFormer3D would take them for one more instance.
    raw_ids = raw_ids_by_group(scene.meta.groups, label_set).take(scene.instances)
    files[f"instance_mask/{name}"] = objects.take(scene.instances) + 1
    files[f"semantic_mask/{name}"] = raw_ids
    # Boxes are always in the axis-aligned frame.
    matrix = np.eye(4) if scene.meta.options.align_axis else alignment_of(scene)
    classes = [*box_classes(label_set)]
    boxes = find_boxes(scene, label_set, classes, objects, matrix[:3])
    # The first count is that of unlabeled vertices.
    counts = np.bincount(label_set.labels_from_raw_ids(raw_ids), minlength=len(label_set) + 1)
    return files, {
        "axis_align_matrix": matrix.tolist(),
        "boxes": [(classes.index(raw_id), box) for *box, raw_id, _ in boxes.tolist()],
        "counts": counts.tolist(),
    }


def export_oneformer3d(scene: ProcessedScene, label_set: LabelSet) -> SceneFiles:
    """Make the same as for mmdetection3d, and the segments."""
    files, record = export_mmdet3d(scene, label_set)
    files[f"super_points/{scene.meta.scene_id}.bin"] = segments_of(scene)
    return files, record


def share_mmdet3d(
    records: Records,
    label_set: LabelSet,
    *,
    has_segments: bool = False,
) -> dict[str, Any]:
    """Make the infos of each split.

    For the 20 classes, also make the files that semantic training reads: how often it draws each
    scene, and the weight of each class.
    """
    dataset = label_set.name.lower().removesuffix("20")
    prefix = f"{dataset}_oneformer3d" if has_segments else dataset
    categories = {name: number for number, name in enumerate(box_classes(label_set).values())}
    metainfo = {"categories": categories, "dataset": dataset, "info_version": "1.1"}
    files: dict[str, Any] = {}
    for split, scenes in records.items():
        if not scenes:
            continue
        infos = []
        for scene_id, record in scenes.items():
            path = f"{scene_id}.bin"
            # Its dicts are made here: if the pickle shared objects with the record, its bytes would
            # depend on whether the record was just made or read from a file.
            info: dict[str, Any] = {
                "lidar_points": {"num_pts_feats": 6, "lidar_path": path},
                "instances": [
                    {"bbox_3d": box, "bbox_label_3d": number}
                    for number, box in record.get("boxes", ())
                ],
            }
            if has_segments:
                info["super_pts_path"] = path
            if record:
                info["pts_semantic_mask_path"] = path
                info["pts_instance_mask_path"] = path
                info["axis_align_matrix"] = record["axis_align_matrix"]
            infos.append(info)
        content = {"metainfo": metainfo, "data_list": infos}
        files[f"{prefix}_infos_{split}.pkl"] = pickle.dumps(content, _PICKLE_PROTOCOL)
        if split is not Split.TEST and label_set == SCANNET20:
            # Vertices by scene and class, the first of which is unlabeled.
            counts = np.array([record["counts"] for record in scenes.values()])
            # The number of each scene, repeated in proportion to its vertices.
            total = counts.sum()
            samples = counts.sum(axis=1) / total * (total // _POINTS_PER_SAMPLE)
            numbers = np.arange(len(samples), dtype=np.int32)
            repeated = np.repeat(numbers, np.rint(samples).astype(int))
            # The weight of each class, as mmdetection3d computes it.
            totals = counts[:, 1:].sum(axis=0).astype(np.float32)
            shares = totals / max(totals.sum(), np.float32(1))
            weights = 1 / np.log(np.float32(1.2) + shares)
            files[f"seg_info/{split}_resampled_scene_idxs.npy"] = repeated
            files[f"seg_info/{split}_label_weight.npy"] = weights
    return files


share_oneformer3d = partial(share_mmdet3d, has_segments=True)
