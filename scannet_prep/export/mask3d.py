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
    ExportedScene,
    ExportFormat,
    FileContent,
    convert_scene,
    encode_lines,
    encode_npy,
)
from scannet_prep.export.groups import (
    TEST_SEGMENTS_NEEDED,
    segments_of,
    vertex_raw_ids,
)
from scannet_prep.processed.groups import raw_ids_of_groups, table_by_group
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS, SPLIT_DIRS
from scannet_prep.release.label_sets import SCANNET20
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


class Mask3D(ExportFormat):
    """The output of Mask3D's preprocessing.

    Raw labels are nyu40 ids, or ScanNet ids for ScanNet200.
    """

    name = "mask3d"
    uses_test_segments = True

    def exclusion_reason(self, split: Split, stored: ProcessOptions) -> str:
        """Exclude test scenes, unless their segments are computed or given."""
        has_segments = stored.compute_segments or self.options.test_segments is not None
        if split is Split.TEST and not has_segments:
            return TEST_SEGMENTS_NEEDED
        return ""

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the matrix of a scene, and the text of its instances."""
        scene = convert_scene(scene, self.options)
        scene_id = scene.meta.scene_id
        split = scene.meta.split
        matrix_name = _matrix_name(scene_id, split)
        matrix = self._make_matrix(scene)
        record: dict[str, Any] = {"file_len": len(matrix)}
        if split is Split.TEST:
            return ExportedScene({matrix_name: encode_npy(matrix)}, record)

        largest_id = max((group.id for group in scene.meta.groups), default=0)
        if largest_id > _MAX_GROUP_ID:
            raise ScanNetPrepError(
                f"{scene_id} has a group {largest_id}, "
                f"but Mask3D's ground truth has room for 0 to {_MAX_GROUP_ID}"
            )
        mean, mean_square = _color_moments(scene.colors)
        record["scene_type"] = scene.meta.scene_type
        record["color_mean"] = mean
        # Mask3D uses this name for the mean of the squares.
        record["color_std"] = mean_square
        files: dict[str, FileContent] = {
            matrix_name: encode_npy(matrix),
            _ground_truth_name(scene_id, split): [self._encode_ground_truth(scene)],
        }
        return ExportedScene(files, record)

    def _make_matrix(self, scene: ProcessedScene) -> NDArray[np.float32]:
        """Make the matrix of a scene: float32 (V, 12), or (V, 10) for a test scene."""
        is_test = scene.meta.split is Split.TEST
        matrix = np.empty((len(scene.points), 10 if is_test else 12), np.float32)
        matrix[:, :3] = scene.points
        matrix[:, 3:6] = scene.colors
        matrix[:, 6:9] = scene.normals
        matrix[:, 9] = segments_of(scene, self.options.test_segments)
        if not is_test:
            matrix[:, 10] = vertex_raw_ids(scene, self.label_set)
            matrix[:, 11] = scene.instances
        return matrix

    def _encode_ground_truth(self, scene: ProcessedScene) -> bytes:
        """Encode raw id * 1000 + group + 1 of each vertex, one per line; 0 for no group."""
        values = {}
        for group_id, raw_id in raw_ids_of_groups(scene.meta.groups, self.label_set).items():
            values[group_id] = raw_id * 1000 + group_id + 1
        return encode_lines(scene.instances, table_by_group(values, none=0))

    def encode_shared(
        self, records: Mapping[str, tuple[Split, Mapping[str, Any]]]
    ) -> Mapping[str, bytes]:
        """Make the databases, and the mean and deviation of colours over the train scenes.

        Without train scenes, mean and deviation are the defaults of Mask3D.
        """
        entries: dict[str, list[dict[str, Any]]] = {}
        train_records = []
        for scene_id, (split, record) in records.items():
            modes = [_MODES[split]]
            if split is not Split.TEST:
                modes.append("train_validation")
            if split is Split.TRAIN:
                train_records.append(record)
            for mode in modes:
                entry = self._make_entry(SceneId(scene_id), split, record)
                entries.setdefault(mode, []).append(entry)
        # Sorted by path, scenes of `train` come before those of `validation`.
        entries.get("train_validation", []).sort(key=itemgetter("filepath"))

        files = {}
        for mode, mode_entries in entries.items():
            files[f"{mode}_database.yaml"] = "".join(map(_yaml_item, mode_entries))
        # Without this file, Mask3D's loader fails with an UnboundLocalError.
        moments = _join_moments(train_records) if train_records else _DEFAULT_MOMENTS
        files["color_mean_std.yaml"] = _yaml_mapping(moments)
        files["label_database.yaml"] = self._encode_labels()
        return {name: text.encode("ascii") for name, text in files.items()}

    @property
    def _folder(self) -> str:
        """The folder of the export, relative to Mask3D's own folder."""
        return f"data/processed/{self.label_set.name.lower().removesuffix('20')}"

    def _make_entry(
        self, scene_id: SceneId, split: Split, record: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Make the entry of a scene in the databases."""
        raw = f"{SPLIT_DIRS[split]}/{scene_id}/{scene_id}"
        entry = {
            "filepath": f"{self._folder}/{_matrix_name(scene_id, split)}",
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
            "instance_gt_filepath": f"{self._folder}/{_ground_truth_name(scene_id, split)}",
            "color_mean": record["color_mean"],
            "color_std": record["color_std"],
        }

    def _encode_labels(self) -> str:
        """Encode the classes by raw id. Mask3D takes the train ids from their order."""
        blank = "_" if self.label_set == SCANNET20 else " "
        text = ""
        for label_class in self.label_set.classes:
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
    values = np.arange(256)
    means = []
    mean_squares = []
    for channel in colors.T:
        # Exact, because the sums are of integers.
        counts = np.bincount(channel, minlength=256)
        means.append(int(counts @ values) / 255 / len(colors))
        mean_squares.append(int(counts @ values**2) / 255**2 / len(colors))
    return means, mean_squares


def _join_moments(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Compute mean and standard deviation over scenes, all with the same weight."""
    # `color_std` has the means of the squares, as in Mask3D.
    means = _average_channels([record["color_mean"] for record in records])
    mean_squares = _average_channels([record["color_std"] for record in records])
    deviations = []
    for mean, mean_square in zip(means, mean_squares, strict=True):
        deviations.append(math.sqrt(max(0.0, mean_square - mean**2)))
    return {"mean": means, "std": deviations}


def _average_channels(colors: Sequence[Sequence[float]]) -> list[float]:
    """Average each channel over scenes."""
    return [math.fsum(channel) / len(colors) for channel in zip(*colors, strict=True)]


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
