"""Mask3D: one float32 matrix per scene, databases in YAML, and the instances of its evaluation.

    <folder>/{train,validation,test}/0000_00.npy
    <folder>/{train,validation,test,train_validation}_database.yaml
    <folder>/label_database.yaml, color_mean_std.yaml
    <folder>/instance_gt/{train,validation}/scene0000_00.txt

The databases name files by their paths in Mask3D's own folder, as its configurations do: the
export, or a link to it, must be at `data/processed/scannet` or `data/processed/scannet200` there.
"""

from __future__ import annotations

import json
from operator import itemgetter
from statistics import fmean
from typing import Any

import numpy as np

from scannet_prep.export.arrays import (
    Records,
    SceneFiles,
    encode_instances,
    segments_of,
    vertex_raw_ids,
)
from scannet_prep.processed.annotate import table_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS, SPLIT_DIRS
from scannet_prep.release.label_sets import SCANNET20, LabelSet
from scannet_prep.release.scenes import SceneId, Split

_MODES = {Split.TRAIN: "train", Split.VAL: "validation", Split.TEST: "test"}
# Moments of the colours of the train split: the default of Mask3D (datasets/semseg.py,
# color_mean_std).
_DEFAULT_MOMENTS = {
    "mean": [0.47793125906962, 0.4303257521323044, 0.3749598901421883],
    "std": [0.2834475483823543, 0.27566157565723015, 0.27018971370874995],
}


def export_mask3d(
    scene: ProcessedScene,
    label_set: LabelSet,
) -> SceneFiles:
    """Make the matrix of a scene, and the text of its instances; its record is its database entry.

    Raw labels are nyu40 ids, or ScanNet ids for ScanNet200. The text has raw id * 1000 + group + 1
    of each vertex, 0 for no group.
    """
    meta = scene.meta
    scene_id = SceneId(meta.scene_id)
    mode = _MODES[meta.split]
    folder = f"data/processed/{label_set.name.lower().removesuffix('20')}"
    # Own scenes have no numbers. Without `scene`, the names of two of them could be equal.
    number = scene_id if scene_id.space is None else scene_id.removeprefix("scene")
    matrix_name = f"{mode}/{number}.npy"
    raw = f"{SPLIT_DIRS[meta.split]}/{scene_id}/{scene_id}"
    entry = {
        "filepath": f"{folder}/{matrix_name}",
        "scene": scene_id.space or 0,
        "sub_scene": scene_id.scan or 0,
        # Mask3D names its results after the folder of this file.
        "raw_filepath": raw + MESH.suffix,
        "file_len": len(scene.points),
    }
    # Position, colour, normal and segment of each vertex, then raw id and group, (V, 10 or 12).
    segments = segments_of(scene).astype(np.float32)
    columns: list[Any] = [scene.points, scene.colors, scene.normals, segments]
    files: dict[str, Any] = {}
    if meta.split is not Split.TEST:
        columns.append(vertex_raw_ids(scene, label_set).astype(np.float32))
        columns.append(scene.instances)
        numbers = table_by_group({group.id: group.id + 1 for group in meta.groups}, none=0)
        truth_name = f"instance_gt/{mode}/{scene_id}.txt"
        files[truth_name] = encode_instances(scene, label_set, numbers)
        # (3, V). Their squares fit into 16 bits, too, and sums of integers are exact.
        channels = scene.colors.T.astype(np.uint16, order="C")
        means = channels.sum(axis=1) / 255 / len(scene.points)
        mean_squares = (channels**2).sum(axis=1) / 255**2 / len(scene.points)
        entry |= {
            "scene_type": meta.scene_type,
            "raw_description_filepath": raw + INFO.suffix,
            "raw_instance_filepath": raw + AGGREGATION.suffix,
            "raw_segmentation_filepath": raw + SEGMENTS.suffix,
            "raw_label_filepath": raw + LABELS_MESH.suffix,
            "instance_gt_filepath": f"{folder}/{truth_name}",
            # In 0..1. Mask3D uses the second name for the mean of the squares.
            "color_mean": means.tolist(),
            "color_std": mean_squares.tolist(),
        }
    files[matrix_name] = np.column_stack(columns)
    return files, entry


def share_mask3d(
    records: Records,
    label_set: LabelSet,
) -> dict[str, bytes]:
    """Make the databases, and the mean and deviation of colours over the train scenes.

    Without train scenes, mean and deviation are the defaults of Mask3D.
    """
    databases = {_MODES[split]: [*scenes.values()] for split, scenes in records.items()}
    train = databases["train"]
    annotated = train + databases["validation"]
    databases["train_validation"] = sorted(annotated, key=itemgetter("filepath"))
    files = {}
    for name, entries in databases.items():
        if entries:
            lines = [_encode_mapping(entry, "- ", "  ") for entry in entries]
            files[f"{name}_database.yaml"] = b"".join(lines)
    # Without this file, Mask3D's loader fails with an UnboundLocalError.
    moments = _DEFAULT_MOMENTS
    if train:
        # All scenes have the same weight.
        pairs = [(entry["color_mean"], entry["color_std"]) for entry in train]
        means, mean_squares = np.apply_along_axis(fmean, 0, pairs)
        deviations = np.sqrt(np.maximum(mean_squares - means**2, 0))
        moments = {"mean": means.tolist(), "std": deviations.tolist()}
    files["color_mean_std.yaml"] = _encode_mapping(moments)
    # Classes by raw id. Mask3D takes the train ids from their order.
    blank = "_" if label_set == SCANNET20 else " "
    text = b""
    for label_class in label_set:
        values = {
            "color": label_class.color,
            "name": label_class.name.replace(" ", blank),
            "validation": True,
        }
        text += _encode_mapping(values, f"{label_class.raw_id}:\n  ", "  ")
    files["label_database.yaml"] = text
    return files


def _encode_mapping(values: dict[str, Any], first: str = "", indent: str = "") -> bytes:
    """Encode keys and values as YAML, one per line. JSON is YAML, too."""
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in values.items()]
    text = first + indent.join(lines)
    return text.encode("ascii")
