"""Mask3D: one float32 matrix a scene, databases in YAML, and the instances that its evaluation compares with.

    <folder>/{train,validation,test}/0000_00.npy
    <folder>/{train,validation,test,train_validation}_database.yaml
    <folder>/label_database.yaml, color_mean_std.yaml
    <folder>/instance_gt/{train,validation}/scene0000_00.txt

The databases name files as Mask3D's configurations do, from its own folder: `data/processed/scannet`, or
`data/processed/scannet200`, is where the export belongs, or a link to it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.errors import ScanNetPrepError
from scannet_prep.export.format import (
    ExportedScene,
    ExportFormat,
    convert_scene,
    encode_lines,
    encode_npy,
)
from scannet_prep.export.groups import (
    TEST_SEGMENTS_NEEDED,
    raw_ids_by_group,
    raw_ids_of_groups,
    segments_of,
    table_by_group,
)
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.files import AGGREGATION, INFO, LABELS_MESH, MESH, SEGMENTS, SPLIT_DIRS
from scannet_prep.release.label_sets import SCANNET20
from scannet_prep.release.scene import SceneId, Split

_MODES = {Split.TRAIN: "train", Split.VAL: "validation", Split.TEST: "test"}
_MAX_GROUP_ID = 998
# Of the train split of ScanNet: the default values of Mask3D's data set (datasets/semseg.py, color_mean_std).
_DEFAULT_MOMENTS = {
    "mean": [0.47793125906962, 0.4303257521323044, 0.3749598901421883],
    "std": [0.2834475483823543, 0.27566157565723015, 0.27018971370874995],
}


class Mask3D(ExportFormat):
    """What Mask3D's own preprocessing makes; raw labels are nyu40 ids, or ScanNet ids for ScanNet200."""

    name = "mask3d"
    uses_test_segments = True

    def exclusion_reason(self, split: Split) -> str:
        """Test scenes need segments."""
        return (
            TEST_SEGMENTS_NEEDED
            if split is Split.TEST and self.options.test_segments is None
            else ""
        )

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the matrix of a scene, and the text of its instances."""
        scene_id, split = scene.meta.scene_id, scene.meta.split
        is_test = split is Split.TEST
        matrix = np.empty((len(scene.points), 10 if is_test else 12), np.float32)
        scene = convert_scene(scene, self.options)
        matrix[:, :3], matrix[:, 3:6], matrix[:, 6:9] = scene.points, scene.colors, scene.normals
        matrix[:, 9] = segments_of(scene, self.options.test_segments)
        record = {"file_len": len(matrix)}
        if is_test:
            return ExportedScene({_matrix_name(scene_id, split): encode_npy(matrix)}, record)
        matrix[:, 10] = raw_ids_by_group(scene, self.label_set)
        matrix[:, 11] = scene.instances
        largest = max((group.id for group in scene.meta.groups), default=0)
        if largest > _MAX_GROUP_ID:
            message = f"{scene_id} has a group {largest}, but Mask3D's ground truth has room for 0 to {_MAX_GROUP_ID}"
            raise ScanNetPrepError(message)
        raw_ids = raw_ids_of_groups(scene.meta.groups, self.label_set)
        table = table_by_group(
            {group: raw_id * 1000 + group + 1 for group, raw_id in raw_ids.items()}, none=0
        )
        mean, mean_square = _color_moments(scene.colors)
        return ExportedScene(
            {
                _matrix_name(scene_id, split): encode_npy(matrix),
                _ground_truth_name(scene_id, split): [encode_lines(scene.instances, table)],
            },
            record
            | {"scene_type": scene.meta.scene_type, "color_mean": mean, "color_std": mean_square},
        )

    def encode_shared(
        self, records: Mapping[str, tuple[Split, Mapping[str, Any]]]
    ) -> Mapping[str, bytes]:
        """Make the databases, and the mean and deviation of colours over the train scenes.

        Without train scenes, mean and deviation are those that Mask3D has as a default.
        """
        entries: dict[str, list[dict[str, Any]]] = {}
        for scene_id, (split, record) in records.items():
            modes = [_MODES[split]] if split is Split.TEST else [_MODES[split], "train_validation"]
            for mode in modes:
                entries.setdefault(mode, []).append(
                    self._make_entry(SceneId(scene_id), split, record)
                )
        joint = entries.get("train_validation", [])
        joint.sort(key=lambda entry: entry["filepath"])  # train before validation
        files = {
            f"{mode}_database.yaml": "".join(map(_yaml_item, found))
            for mode, found in entries.items()
        }
        train = [record for split, record in records.values() if split is Split.TRAIN]
        # Written in any case: where the file is missing, Mask3D's loader fails with an UnboundLocalError.
        files["color_mean_std.yaml"] = _yaml_mapping(
            _join_moments(train) if train else _DEFAULT_MOMENTS
        )
        files["label_database.yaml"] = self._encode_labels()
        return {name: text.encode("ascii") for name, text in files.items()}

    @property
    def _folder(self) -> str:
        return f"data/processed/{self.label_set.name.lower().removesuffix('20')}"

    def _make_entry(
        self, scene_id: SceneId, split: Split, record: Mapping[str, Any]
    ) -> dict[str, Any]:
        raw = f"{SPLIT_DIRS[split]}/{scene_id}/{scene_id}"
        entry = {
            "filepath": f"{self._folder}/{_matrix_name(scene_id, split)}",
            "scene": scene_id.space,
            "sub_scene": scene_id.scan,
            "raw_filepath": raw + MESH.suffix,  # results are named after its folder
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
        """The classes by raw id; Mask3D counts train ids in the order of the file."""
        blank = "_" if self.label_set == SCANNET20 else " "
        return "".join(
            f"{item.raw_id}:\n"
            + _yaml_mapping(
                {"color": item.color, "name": item.name.replace(" ", blank), "validation": True},
                "  ",
            )
            for item in self.label_set.classes
        )


def _matrix_name(scene_id: str, split: Split) -> str:
    return f"{_MODES[split]}/{scene_id.removeprefix('scene')}.npy"


def _ground_truth_name(scene_id: str, split: Split) -> str:
    return f"instance_gt/{_MODES[split]}/{scene_id}.txt"


def _color_moments(colors: NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    """Means of red, green and blue in 0..1, and of their squares, which Mask3D calls `color_std`."""
    values = np.arange(256)
    counts = [np.bincount(channel, minlength=256) for channel in colors.T]
    sums = [(int(count @ values), int(count @ values**2)) for count in counts]
    return [total / 255 / len(colors) for total, _ in sums], [
        total / 255**2 / len(colors) for _, total in sums
    ]


def _join_moments(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Mean and standard deviation over scenes, each of which counts the same."""
    means, squares = (
        [
            math.fsum(channel) / len(records)
            for channel in zip(*(r[key] for r in records), strict=True)
        ]
        for key in ("color_mean", "color_std")
    )
    deviations = [
        math.sqrt(max(0.0, square - mean**2)) for mean, square in zip(means, squares, strict=True)
    ]
    return {"mean": means, "std": deviations}


def _yaml_item(values: Mapping[str, Any]) -> str:
    """An entry of a list."""
    return "- " + _yaml_mapping(values, "  ")[2:]


def _yaml_mapping(values: Mapping[str, Any], indent: str = "") -> str:
    return "".join(f"{indent}{key}: {_yaml_value(value)}\n" for key, value in values.items())


def _yaml_value(value: Any) -> str:  # noqa: ANN401 - a plain value, or a list of them
    """Write as JSON, which is YAML, but for floats such as 1e-05: YAML 1.1 takes them for text."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return f"[{', '.join(map(_yaml_value, value))}]"
    text = json.dumps(value)
    return text.replace("e", ".0e", 1) if isinstance(value, float) and "." not in text else text
