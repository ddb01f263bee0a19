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

from scannet_prep.base.errors import UsageError
from scannet_prep.export.format import (
    ExportedScene,
    ExportFormat,
    ExportOptions,
    convert_scene,
    encode_bytes,
    encode_npy,
)
from scannet_prep.export.groups import (
    TEST_SEGMENTS_NEEDED,
    raw_ids_by_group,
    raw_ids_of_groups,
    segments_of,
    table_by_group,
)
from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import Split

# The 18 classes of VoteNet, by nyu40 id; two are spelt as the programs do.
_BOX_CLASSES = {
    3: "cabinet", 4: "bed", 5: "chair", 6: "sofa", 7: "table", 8: "door", 9: "window", 10: "bookshelf", 11: "picture",
    12: "counter", 14: "desk", 16: "curtain", 24: "refrigerator", 28: "showercurtrain", 33: "toilet", 34: "sink",
    36: "bathtub", 39: "garbagebin",
}  # fmt: skip
_WALL_AND_FLOOR_200 = {1, 3}
_POINTS_A_SAMPLE = 8192
_PICKLE_PROTOCOL = 4  # Python 3.8 reads it


class MMDet3D(ExportFormat):
    """What mmdetection3d's own converter makes, and with the variant `oneformer3d`, that of OneFormer3D."""

    name = "mmdet3d"
    variants = ("oneformer3d",)
    uses_test_segments = True

    def __init__(self, options: ExportOptions) -> None:
        super().__init__(options)
        if not options.variant and options.label_set == SCANNET200:
            raise UsageError(
                "mmdetection3d has no ScanNet200; OneFormer3D has", "--for oneformer3d"
            )
        if not options.variant and options.test_segments is not None:
            raise UsageError(
                "mmdetection3d reads no segments; OneFormer3D does", "--for oneformer3d"
            )
        self._box_classes = _BOX_CLASSES
        if options.label_set == SCANNET200:
            self._box_classes = {
                i.raw_id: i.name for i in SCANNET200.classes if i.raw_id not in _WALL_AND_FLOOR_200
            }

    def default_label_set(self, stored: LabelSet) -> LabelSet:
        """ScanNet20 for mmdetection3d, which has no other; OneFormer3D has both."""
        return stored if self.options.variant else SCANNET20

    def exclusion_reason(self, split: Split) -> str:
        """OneFormer3D needs segments of test scenes."""
        needed = self.options.variant and self.options.test_segments is None
        return TEST_SEGMENTS_NEEDED if split is Split.TEST and needed else ""

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the arrays of a scene, and find its boxes."""
        scene = convert_scene(scene, self.options)
        points = scene.points
        arrays: dict[str, NDArray[Any]] = {
            "points": np.hstack([points, scene.colors], dtype=np.float32)
        }
        if self.options.variant:
            arrays["super_points"] = segments_of(scene, self.options.test_segments).astype(np.int64)
        record: dict[str, Any] = {}
        if scene.meta.split is not Split.TEST:
            label_set, objects = self.label_set, _number_objects(scene.meta.groups)
            numbers = table_by_group(
                {group: number + 1 for group, number in objects.items()}, none=0
            )
            raw_ids = raw_ids_by_group(scene, label_set)
            arrays |= {"instance_mask": numbers.take(scene.instances), "semantic_mask": raw_ids}
            matrix = np.eye(4) if self.options.is_aligned else scene.axis_alignment
            boxes = _find_boxes(points, matrix, scene.instances)
            raw_id_of = raw_ids_of_groups(scene.meta.groups, label_set)
            class_of = {raw_id: number for number, raw_id in enumerate(self._box_classes)}
            ordered = [
                (raw_id_of[group], boxes[group]) for group in sorted(boxes, key=objects.__getitem__)
            ]
            counts = np.bincount(
                label_set.labels_from_raw_ids(raw_ids), minlength=len(label_set) + 1
            )
            record = {
                "axis_align_matrix": matrix.tolist(),
                "boxes": [(class_of[raw_id], box) for raw_id, box in ordered if raw_id in class_of],
                "vertices": len(points),
                "counts": counts[1:].tolist(),
            }
        name = f"{scene.meta.scene_id}.bin"
        return ExportedScene(
            {f"{folder}/{name}": [encode_bytes(item)] for folder, item in arrays.items()}, record
        )

    def encode_shared(
        self, records: Mapping[str, tuple[Split, Mapping[str, Any]]]
    ) -> Mapping[str, bytes]:
        """Make the infos of each split, and for the 20 classes how semantic training samples and weighs scenes."""
        dataset = self.label_set.name.lower().removesuffix("20")
        prefix = f"{dataset}_oneformer3d" if self.options.variant else dataset
        categories = {name: number for number, name in enumerate(self._box_classes.values())}
        metainfo = {"categories": categories, "dataset": dataset, "info_version": "1.1"}
        files = {}
        for split in Split:
            scenes = {
                scene_id: record for scene_id, (found, record) in records.items() if found is split
            }
            if not scenes:
                continue
            infos = [self._make_info(scene_id, record) for scene_id, record in scenes.items()]
            content = {"metainfo": metainfo, "data_list": infos}
            files[f"{prefix}_infos_{split}.pkl"] = pickle.dumps(content, _PICKLE_PROTOCOL)
            if split is not Split.TEST and self.label_set == SCANNET20:
                vertices = [record["vertices"] for record in scenes.values()]
                counts = [record["counts"] for record in scenes.values()]
                for name, array in (
                    ("resampled_scene_idxs", _resample(vertices)),
                    ("label_weight", _weigh(counts)),
                ):
                    files[f"seg_info/{split}_{name}.npy"] = b"".join(encode_npy(array))
        return files

    def _make_info(self, scene_id: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """The entry of a scene; every dict is made here, so that the pickle's bytes do not depend on the record's."""
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
            info["pts_semantic_mask_path"] = info["pts_instance_mask_path"] = path
            info["axis_align_matrix"] = record["axis_align_matrix"]
        return info


def _number_objects(groups: Sequence[AnnotatedGroup]) -> dict[int, int]:
    """The `objectId` of each group, by its id; the id where that is null, and for all where they are not distinct."""
    numbers = {
        group.id: group.id if group.object_id is None else group.object_id for group in groups
    }
    is_usable = len(set(numbers.values())) == len(groups) and all(
        0 <= item < 2**62 for item in numbers.values()
    )
    return numbers if is_usable else {group.id: group.id for group in groups}


def _find_boxes(
    points: NDArray[np.float32],
    aligned_from_points: NDArray[np.float64],
    instances: NDArray[np.int16],
) -> dict[int, list[float]]:
    """Centre and size of the aligned box of each group that has vertices, computed in float64; by its id."""
    order = np.argsort(instances, kind="stable")
    ids, starts = np.unique(instances.take(order), return_index=True)
    x, y, z = np.ascontiguousarray(points.take(order, axis=0).T, np.float64)
    aligned = [x * a + y * b + z * c + shift for a, b, c, shift in aligned_from_points[:3]]
    low, high = (
        np.stack([find.reduceat(axis, starts) for axis in aligned])
        for find in (np.minimum, np.maximum)
    )
    boxes = np.concatenate([(low + high) / 2, high - low]).T.tolist()
    return {group: box for group, box in zip(ids.tolist(), boxes, strict=True) if group >= 0}


def _resample(vertices: Sequence[int]) -> NDArray[np.int32]:
    """Numbers of scenes, each as often as its share of all vertices is worth in samples; (N,)."""
    total = sum(vertices)
    samples = total // _POINTS_A_SAMPLE
    return np.repeat(
        np.arange(len(vertices)), [round(count / total * samples) for count in vertices]
    ).astype(np.int32)


def _weigh(counts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Weights of the 20 classes, (20,), from vertices by scene and class; in float32, as mmdetection3d computes."""
    totals = np.sum(counts, axis=0).astype(np.float32)
    weights: NDArray[np.float32] = 1 / np.log(
        np.float32(1.2) + totals / max(totals.sum(), np.float32(1))
    )
    return weights
