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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.export.format import (
    ExportedScene,
    ExportFormat,
    ExportOptions,
    convert_scene,
    encode_bytes,
    encode_npy,
)
from scannet_prep.export.groups import TEST_SEGMENTS_NEEDED, segments_of, vertex_raw_ids
from scannet_prep.export.objects import (
    VOTENET_CLASSES,
    find_object_boxes,
    mask_objects,
    number_objects,
)
from scannet_prep.processed.geometry import move_columns
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import Split

# By ScanNet id.
_WALL_AND_FLOOR_200 = {1, 3}
_POINTS_PER_SAMPLE = 8192
# Python 3.8, with which the programs run, reads this protocol.
_PICKLE_PROTOCOL = 4


class MMDet3D(ExportFormat):
    """The output of mmdetection3d's converter or, with variant `oneformer3d`, of OneFormer3D's."""

    name = "mmdet3d"
    variants = ("oneformer3d",)
    uses_test_segments = True

    def __init__(self, options: ExportOptions) -> None:
        super().__init__(options)
        if not options.variant:
            if options.label_set == SCANNET200:
                raise UsageError(
                    "mmdetection3d does not support ScanNet200, but OneFormer3D does",
                    "--for oneformer3d",
                )
            if options.test_segments is not None:
                raise UsageError(
                    "mmdetection3d does not read segments, but OneFormer3D does",
                    "--for oneformer3d",
                )
        self._box_classes = VOTENET_CLASSES
        if options.label_set == SCANNET200:
            self._box_classes = _box_classes_200()

    def default_label_set(self, stored: LabelSet) -> LabelSet:
        """Return the stored label set for OneFormer3D, and ScanNet20 for mmdetection3d."""
        return stored if self.options.variant else SCANNET20

    def exclusion_reason(self, split: Split, stored: ProcessOptions) -> str:
        """Exclude test scenes for OneFormer3D, unless their segments are computed or given."""
        needs_segments = bool(self.options.variant)
        has_segments = stored.compute_segments or self.options.test_segments is not None
        if split is Split.TEST and needs_segments and not has_segments:
            return TEST_SEGMENTS_NEEDED
        return ""

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the arrays of a scene, and find its boxes."""
        scene = convert_scene(scene, self.options)
        arrays: dict[str, NDArray[Any]] = {
            "points": np.hstack([scene.points, scene.colors], dtype=np.float32)
        }
        if self.options.variant:
            segments = segments_of(scene, self.options.test_segments)
            arrays["super_points"] = segments.astype(np.int64)
        record: dict[str, Any] = {}
        if scene.meta.split is not Split.TEST:
            masks, record = self._annotate(scene)
            arrays |= masks
        name = f"{scene.meta.scene_id}.bin"
        files = {f"{folder}/{name}": [encode_bytes(array)] for folder, array in arrays.items()}
        return ExportedScene(files, record)

    def _annotate(self, scene: ProcessedScene) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Make the masks of a scene by folder, each int64 (V,), and its record."""
        # Masks.
        object_ids = number_objects(scene.meta.groups)
        raw_ids = vertex_raw_ids(scene, self.label_set)
        masks: dict[str, NDArray[Any]] = {
            "instance_mask": mask_objects(scene.instances, object_ids),
            "semantic_mask": raw_ids,
        }

        # Boxes are always in the axis-aligned frame, so points in the frame of the scan are aligned
        # first.
        matrix = np.eye(4) if self.options.is_aligned else scene.axis_alignment
        columns = move_columns(np.ascontiguousarray(scene.points.T, np.float64), matrix[:3])
        class_by_raw_id = {raw_id: number for number, raw_id in enumerate(self._box_classes)}
        boxes = [
            (class_by_raw_id[box.raw_id], box.center_and_size)
            for box in find_object_boxes(
                scene, columns, self.label_set, self._box_classes, object_ids
            )
        ]

        # Vertices by class. The first count is that of unlabeled vertices, and is dropped.
        labels = self.label_set.labels_from_raw_ids(raw_ids)
        counts = np.bincount(labels, minlength=len(self.label_set) + 1)
        record = {
            "axis_align_matrix": matrix.tolist(),
            "boxes": boxes,
            "vertices": len(scene.points),
            "counts": counts[1:].tolist(),
        }
        return masks, record

    def encode_shared(
        self, records: Mapping[str, tuple[Split, Mapping[str, Any]]]
    ) -> Mapping[str, bytes]:
        """Make the infos of each split.

        For the 20 classes, also make the files that semantic training reads: how often it draws
        each scene, and the weight of each class.
        """
        records_by_split: dict[Split, dict[str, Mapping[str, Any]]] = {split: {} for split in Split}
        for scene_id, (split, record) in records.items():
            records_by_split[split][scene_id] = record

        dataset = self.label_set.name.lower().removesuffix("20")
        prefix = f"{dataset}_oneformer3d" if self.options.variant else dataset
        categories = {name: number for number, name in enumerate(self._box_classes.values())}
        metainfo = {"categories": categories, "dataset": dataset, "info_version": "1.1"}
        files = {}
        for split, scenes in records_by_split.items():
            if not scenes:
                continue
            infos = [self._make_info(scene_id, record) for scene_id, record in scenes.items()]
            content = {"metainfo": metainfo, "data_list": infos}
            files[f"{prefix}_infos_{split}.pkl"] = pickle.dumps(content, _PICKLE_PROTOCOL)
            if split is not Split.TEST and self.label_set == SCANNET20:
                scene_numbers = _resample([record["vertices"] for record in scenes.values()])
                weights = _weigh([record["counts"] for record in scenes.values()])
                start = f"seg_info/{split}"
                files[f"{start}_resampled_scene_idxs.npy"] = b"".join(encode_npy(scene_numbers))
                files[f"{start}_label_weight.npy"] = b"".join(encode_npy(weights))
        return files

    def _make_info(self, scene_id: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """Make the entry of a scene.

        Its dicts are made here: if the pickle shared objects with the record, its bytes would
        depend on whether the record was just made or read from a file.
        """
        path = f"{scene_id}.bin"
        info: dict[str, Any] = {
            "lidar_points": {"num_pts_feats": 6, "lidar_path": path},
            "instances": [],
        }
        if self.options.variant:
            info["super_pts_path"] = path
        if "boxes" in record:
            info["instances"] = [
                {"bbox_3d": box, "bbox_label_3d": number} for number, box in record["boxes"]
            ]
            info["pts_semantic_mask_path"] = path
            info["pts_instance_mask_path"] = path
            info["axis_align_matrix"] = record["axis_align_matrix"]
        return info


def _box_classes_200() -> dict[int, str]:
    """Return the classes of ScanNet200 that have boxes: all but wall and floor, by ScanNet id."""
    classes = {}
    for label_class in SCANNET200.classes:
        if label_class.raw_id not in _WALL_AND_FLOOR_200:
            classes[label_class.raw_id] = label_class.name
    return classes


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
