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
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.export.format import (
    ExportSettings,
    FileContents,
    Format,
    Record,
    Records,
    convert_scene,
    encode_bytes,
    encode_npy,
    segments_of,
)
from scannet_prep.export.objects import (
    box_classes,
    find_boxes,
    mask_objects,
    number_objects,
    vertex_raw_ids,
)
from scannet_prep.processed.geometry import move_columns
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET20
from scannet_prep.release.scene import Split

_POINTS_PER_SAMPLE = 8192
# Python 3.8, with which the programs run, reads this protocol.
_PICKLE_PROTOCOL = 4


def encode(
    scene: ProcessedScene, settings: ExportSettings, *, has_segments: bool = False
) -> tuple[FileContents, Record]:
    """Make the arrays of a scene, and find its boxes.

    Args:
        scene: The scene.
        settings: The settings of the export.
        has_segments: Whether the export is for OneFormer3D, which reads segments.

    Raises:
        ScanNetPrepError: OneFormer3D needs segments, and the scene has none.
    """
    scene = convert_scene(scene, settings)
    arrays: dict[str, NDArray[Any]] = {
        "points": np.hstack([scene.points, scene.colors], dtype=np.float32)
    }
    if has_segments:
        arrays["super_points"] = segments_of(scene).astype(np.int64)
    record: dict[str, Any] = {}
    if scene.meta.split is not Split.TEST:
        arrays["instance_mask"] = mask_objects(scene.instances, number_objects(scene.meta.groups))
        arrays["semantic_mask"] = vertex_raw_ids(scene, settings.label_set)
        record = _make_record(scene, settings, arrays["semantic_mask"])
    name = f"{scene.meta.scene_id}.bin"
    return {f"{folder}/{name}": [encode_bytes(array)] for folder, array in arrays.items()}, record


def _make_record(
    scene: ProcessedScene, settings: ExportSettings, raw_ids: NDArray[np.int64]
) -> dict[str, Any]:
    """Make the record of an annotated scene.

    Args:
        scene: The scene, in the frame of its points.
        settings: The settings of the export.
        raw_ids: int64 (V,), the raw ids of its vertices.
    """
    # Boxes are always in the axis-aligned frame, so points in the frame of the scan are aligned
    # first.
    matrix = np.eye(4) if settings.is_aligned else scene.axis_alignment
    columns = move_columns(np.ascontiguousarray(scene.points.T, np.float64), matrix[:3])
    label_set = settings.label_set
    classes = list(box_classes(label_set))
    object_ids = number_objects(scene.meta.groups)
    boxes = [
        (classes.index(box.raw_id), box.center_and_size)
        for box in find_boxes(scene, columns, label_set, classes, object_ids)
    ]
    # Vertices by class. The first count is that of unlabeled vertices, and is dropped.
    labels = label_set.labels_from_raw_ids(raw_ids)
    counts = np.bincount(labels, minlength=len(label_set) + 1)
    return {
        "axis_align_matrix": matrix.tolist(),
        "boxes": boxes,
        "vertices": len(scene.points),
        "counts": counts[1:].tolist(),
    }


def share(
    records: Records, settings: ExportSettings, *, has_segments: bool = False
) -> Mapping[str, bytes]:
    """Make the infos of each split.

    For the 20 classes, also make the files that semantic training reads: how often it draws each
    scene, and the weight of each class.
    """
    label_set = settings.label_set
    dataset = label_set.name.lower().removesuffix("20")
    prefix = f"{dataset}_oneformer3d" if has_segments else dataset
    names = box_classes(label_set).values()
    categories = {name: number for number, name in enumerate(names)}
    metainfo = {"categories": categories, "dataset": dataset, "info_version": "1.1"}
    files = {}
    for split, scenes in records.items():
        if not scenes:
            continue
        infos = [
            _make_info(scene_id, record, has_segments=has_segments)
            for scene_id, record in scenes.items()
        ]
        content = {"metainfo": metainfo, "data_list": infos}
        files[f"{prefix}_infos_{split}.pkl"] = pickle.dumps(content, _PICKLE_PROTOCOL)
        if split is not Split.TEST and label_set == SCANNET20:
            scene_numbers = _resample([record["vertices"] for record in scenes.values()])
            weights = _weigh([record["counts"] for record in scenes.values()])
            start = f"seg_info/{split}"
            files[f"{start}_resampled_scene_idxs.npy"] = b"".join(encode_npy(scene_numbers))
            files[f"{start}_label_weight.npy"] = b"".join(encode_npy(weights))
    return files


def _make_info(scene_id: str, record: Record, *, has_segments: bool) -> dict[str, Any]:
    """Make the entry of a scene.

    Its dicts are made here: if the pickle shared objects with the record, its bytes would depend on
    whether the record was just made or read from a file.
    """
    path = f"{scene_id}.bin"
    info: dict[str, Any] = {
        "lidar_points": {"num_pts_feats": 6, "lidar_path": path},
        "instances": [],
    }
    if has_segments:
        info["super_pts_path"] = path
    if "boxes" in record:
        info["instances"] = [
            {"bbox_3d": box, "bbox_label_3d": number} for number, box in record["boxes"]
        ]
        info["pts_semantic_mask_path"] = path
        info["pts_instance_mask_path"] = path
        info["axis_align_matrix"] = record["axis_align_matrix"]
    return info


def _resample(vertex_counts: Sequence[int]) -> NDArray[np.int32]:
    """Repeat the number of each scene in proportion to its vertices, int32 (N,)."""
    total = sum(vertex_counts)
    sample_count = total // _POINTS_PER_SAMPLE
    repetitions = [round(count / total * sample_count) for count in vertex_counts]
    return np.repeat(np.arange(len(vertex_counts)), repetitions).astype(np.int32)


def _weigh(counts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Compute the weights of the 20 classes, float32 (20,), as mmdetection3d does.

    Args:
        counts: Vertices by scene and class.
    """
    totals = np.sum(counts, axis=0).astype(np.float32)
    shares = totals / max(totals.sum(), np.float32(1))
    weights: NDArray[np.float32] = 1 / np.log(np.float32(1.2) + shares)
    return weights


MMDET3D = Format(encode, uses=("is_aligned",), share=share)
ONEFORMER3D = Format(
    partial(encode, has_segments=True),
    uses=("label_set", "is_aligned"),
    share=partial(share, has_segments=True),
    needs="segments",
)
