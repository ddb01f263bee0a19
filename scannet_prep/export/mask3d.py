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
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ScanNetPrepError
from scannet_prep.export.format import (
    ExportSettings,
    FileContents,
    Format,
    Record,
    Records,
    convert_scene,
    encode_lines,
    encode_npy,
    segments_of,
)
from scannet_prep.export.objects import vertex_raw_ids
from scannet_prep.processed.groups import raw_ids_of_groups, table_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS, SPLIT_DIRS
from scannet_prep.release.label_sets import SCANNET20, LabelSet
from scannet_prep.release.scene import SceneId, Split

_MODES = {Split.TRAIN: "train", Split.VAL: "validation", Split.TEST: "test"}
# The ground truth is raw id * 1000 + group + 1. A larger group would reach the next raw id.
_MAX_GROUP_ID = 998
# Moments of the colours of the train split: the default of Mask3D (datasets/semseg.py,
# color_mean_std).
_DEFAULT_MOMENTS = {
    "mean": [0.47793125906962, 0.4303257521323044, 0.3749598901421883],
    "std": [0.2834475483823543, 0.27566157565723015, 0.27018971370874995],
}


def encode(scene: ProcessedScene, settings: ExportSettings) -> tuple[FileContents, Record]:
    """Make the matrix of a scene, and the text of its instances.

    Raw labels are nyu40 ids, or ScanNet ids for ScanNet200.

    Raises:
        ScanNetPrepError: The scene has no segments, or a group has too large a number.
    """
    scene = convert_scene(scene, settings)
    scene_id = scene.meta.scene_id
    split = scene.meta.split
    # Position, colour, normal and segment of each vertex, then raw id and group, (V, 10 or 12).
    columns: list[NDArray[Any]] = [scene.points, scene.colors, scene.normals, segments_of(scene)]
    files: FileContents = {}
    record: dict[str, Any] = {"file_len": len(scene.points)}
    if split is not Split.TEST:
        columns += [vertex_raw_ids(scene, settings.label_set), scene.instances]
        content = _encode_ground_truth(scene, settings.label_set)
        files[_ground_truth_name(scene_id, split)] = [content]
        record["scene_type"] = scene.meta.scene_type
        # Mask3D uses the second name for the mean of the squares.
        record["color_mean"], record["color_std"] = _color_moments(scene.colors)
    matrix = np.column_stack(columns).astype(np.float32)
    files[_matrix_name(scene_id, split)] = encode_npy(matrix)
    return files, record


def _encode_ground_truth(scene: ProcessedScene, label_set: LabelSet) -> bytes:
    """Encode raw id * 1000 + group + 1 of each vertex, one per line; 0 for no group.

    Raises:
        ScanNetPrepError: A group has too large a number.
    """
    values = {}
    for group_id, raw_id in raw_ids_of_groups(scene.meta.groups, label_set).items():
        if group_id > _MAX_GROUP_ID:
            raise ScanNetPrepError(
                f"{scene.meta.scene_id} has a group {group_id}, "
                f"but Mask3D's ground truth has room for 0 to {_MAX_GROUP_ID}"
            )
        values[group_id] = raw_id * 1000 + group_id + 1
    return encode_lines(scene.instances, table_by_group(values, none=0))


def share(records: Records, settings: ExportSettings) -> Mapping[str, bytes]:
    """Make the databases, and the mean and deviation of colours over the train scenes.

    Without train scenes, mean and deviation are the defaults of Mask3D.
    """
    folder = f"data/processed/{settings.label_set.name.lower().removesuffix('20')}"
    entries: dict[str, list[dict[str, Any]]] = {}
    for split, scenes in records.items():
        for scene_id, record in scenes.items():
            entry = _make_entry(folder, SceneId(scene_id), split, record)
            entries.setdefault(_MODES[split], []).append(entry)
            if split is not Split.TEST:
                entries.setdefault("train_validation", []).append(entry)
    # Sorted by path, scenes of `train` come before those of `validation`.
    entries.get("train_validation", []).sort(key=itemgetter("filepath"))
    train_records = list(records.get(Split.TRAIN, {}).values())

    files = {}
    for mode, mode_entries in entries.items():
        files[f"{mode}_database.yaml"] = "".join(map(_yaml_item, mode_entries))
    # Without this file, Mask3D's loader fails with an UnboundLocalError.
    moments = _join_moments(train_records) if train_records else _DEFAULT_MOMENTS
    files["color_mean_std.yaml"] = _yaml_mapping(moments)
    files["label_database.yaml"] = _encode_labels(settings.label_set)
    return {name: text.encode("ascii") for name, text in files.items()}


def _make_entry(folder: str, scene_id: SceneId, split: Split, record: Record) -> dict[str, Any]:
    """Make the entry of a scene in the databases.

    Args:
        folder: The folder of the export, relative to Mask3D's own folder.
        scene_id: The scene.
        split: Its split.
        record: Its record.
    """
    raw = f"{SPLIT_DIRS[split]}/{scene_id}/{scene_id}"
    entry = {
        "filepath": f"{folder}/{_matrix_name(scene_id, split)}",
        # Own scans have no numbers.
        "scene": scene_id.space or 0,
        "sub_scene": scene_id.scan or 0,
        # Mask3D names its results after the folder of this file.
        "raw_filepath": raw + MESH.suffix,
        "file_len": record["file_len"],
    }
    if split is Split.TEST:
        return entry
    return entry | {
        "scene_type": record["scene_type"],
        "raw_description_filepath": raw + INFO.suffix,
        "raw_instance_filepath": raw + AGGREGATION.suffix,
        "raw_segmentation_filepath": raw + SEGMENTS.suffix,
        "raw_label_filepath": raw + LABELS_MESH.suffix,
        "instance_gt_filepath": f"{folder}/{_ground_truth_name(scene_id, split)}",
        "color_mean": record["color_mean"],
        "color_std": record["color_std"],
    }


def _encode_labels(label_set: LabelSet) -> str:
    """Encode the classes by raw id. Mask3D takes the train ids from their order."""
    blank = "_" if label_set == SCANNET20 else " "
    text = ""
    for label_class in label_set.classes:
        values = {
            "color": label_class.color,
            "name": label_class.name.replace(" ", blank),
            "validation": True,
        }
        text += f"{label_class.raw_id}:\n{_yaml_mapping(values, indent='  ')}"
    return text


def _matrix_name(scene_id: SceneId, split: Split) -> str:
    """Return the name that Mask3D expects: `0000_00` for `scene0000_00`."""
    name = str(scene_id)
    # Without `scene`, the names of two own scenes could be equal.
    if SceneId.is_of_release(name):
        name = name.removeprefix("scene")
    return f"{_MODES[split]}/{name}.npy"


def _ground_truth_name(scene_id: str, split: Split) -> str:
    return f"instance_gt/{_MODES[split]}/{scene_id}.txt"


def _color_moments(colors: NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    """Compute the means of red, green and blue in 0..1, and the means of their squares."""
    # Exact, because the sums are of integers.
    values = colors.astype(np.int64)
    means = values.sum(axis=0) / 255 / len(colors)
    mean_squares = (values**2).sum(axis=0) / 255**2 / len(colors)
    return means.tolist(), mean_squares.tolist()


def _join_moments(records: Sequence[Record]) -> dict[str, list[float]]:
    """Compute mean and standard deviation over scenes, all with the same weight."""
    moments: dict[str, list[float]] = {"mean": [], "std": []}
    for channel in range(3):
        # `color_std` has the means of the squares, as in Mask3D.
        mean = math.fsum(record["color_mean"][channel] for record in records) / len(records)
        squares = [record["color_std"][channel] for record in records]
        moments["mean"].append(mean)
        moments["std"].append(math.sqrt(max(0.0, math.fsum(squares) / len(squares) - mean**2)))
    return moments


def _yaml_item(values: Mapping[str, Any]) -> str:
    """Encode an entry of a list."""
    return "- " + _yaml_mapping(values, indent="  ").removeprefix("  ")


def _yaml_mapping(values: Mapping[str, Any], indent: str = "") -> str:
    """Encode keys and values, one per line."""
    return "".join(f"{indent}{key}: {_yaml_value(value)}\n" for key, value in values.items())


def _yaml_value(value: Any) -> str:  # noqa: ANN401 - a plain value, or a list of them
    """Encode a value as JSON, which is YAML, except for floats such as 1e-05.

    YAML 1.1 would read those as text.
    """
    if isinstance(value, Iterable) and not isinstance(value, str):
        return f"[{', '.join(map(_yaml_value, value))}]"
    text = json.dumps(value)
    if isinstance(value, float) and "." not in text:
        return text.replace("e", ".0e", 1)
    return text


MASK3D = Format(
    encode,
    uses=("label_set", "is_aligned"),
    share=share,
    needs="segments",
)
