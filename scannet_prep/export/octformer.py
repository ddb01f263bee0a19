"""OctFormer: the root that its unmodified `seg_scannet.yaml` and `seg_scannet200.yaml` read.

    <root>/                     OctFormer's names: data/scannet.npz, or data/scannet200.npz
        train/<scene>.npz       scenes of train and val
        train/<scene>.txt       one raw id per line, scenes of train and val
        test/<scene>.npz
        scannetv2_train_npz.txt scannetv2_val_npz.txt scannetv2_test_npz.txt scannetv2_test.txt

Its `labels` equal those of a processed file: 0 unlabeled, else train id + 1. Points are in the
frame of the scan for 20 classes, and axis-aligned for 200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.export.format import (
    PROCESSED_FILE,
    ExportedScene,
    ExportFormat,
    ExportOptions,
    FileContent,
    convert_scene,
    encode_lines,
)
from scannet_prep.processed.npz import encode_npz
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET200
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes


class OctFormer(ExportFormat):
    """One `.npz` per scene: the processed file itself, if it has the chosen label set and frame."""

    name = "octformer"
    # All options: the files may be the processed ones, which depend on each of them.
    inherited_options = ("scannet200", "align_axis", "faces", "labels_from")

    def __init__(self, options: ExportOptions) -> None:
        # The README of OctFormer aligns points for 200 classes only.
        if options.is_aligned is None:
            options = replace(options, is_aligned=options.label_set == SCANNET200)
        super().__init__(options)

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the `.npz`, and the raw ids of scenes of train and val."""
        is_test = scene.meta.split is Split.TEST
        folder = "test" if is_test else "train"
        stem = f"{folder}/{scene.meta.scene_id}"
        files: dict[str, FileContent] = {f"{stem}.npz": self._encode_arrays(scene)}
        if not is_test:
            files[f"{stem}.txt"] = [encode_lines(self._find_raw_ids(scene))]
        return ExportedScene(files)

    def _encode_arrays(self, scene: ProcessedScene) -> FileContent:
        """Make the `.npz` of a scene, unless its processed file can be used as it is."""
        converted = convert_scene(scene, self.options)
        if converted.meta.options == scene.meta.options:
            return PROCESSED_FILE
        arrays: dict[str, NDArray[Any]] = {
            "points": converted.points,
            "normals": converted.normals.astype(np.float16),
            "colors": converted.colors,
            "labels": converted.stored_labels,
        }
        return encode_npz(arrays, deflated=frozenset({"labels"}))

    def _find_raw_ids(self, scene: ProcessedScene) -> NDArray[np.integer[Any]]:
        """Return the raw id of each vertex, (V,).

        Of ScanNet ids, only those of the 200 classes are kept, as OctFormer's own program does.
        """
        if self.label_set != SCANNET200:
            return scene.nyu40_ids
        is_class = SCANNET200.labels_from_raw_ids(scene.scannet_ids) > 0
        return np.where(is_class, scene.scannet_ids, 0)

    def encode_shared(
        self, records: Mapping[str, tuple[Split, Mapping[str, Any]]]
    ) -> Mapping[str, bytes]:
        """Make the lists of file names, without folders, which OctFormer's configurations name."""
        scene_ids_by_split: dict[Split, set[str]] = {split: set() for split in Split}
        for scene_id, (split, _) in records.items():
            scene_ids_by_split[split].add(scene_id)

        lists = {}
        for split, present in scene_ids_by_split.items():
            # Official order first, then scenes that belong to no official list.
            ordered: list[str] = []
            ordered += [scene_id for scene_id in official_scenes(split) if scene_id in present]
            ordered += sorted(present.difference(ordered))
            text = "".join(f"{scene_id}.npz\n" for scene_id in ordered)
            lists[f"scannetv2_{split}_npz.txt"] = text.encode()
        lists["scannetv2_test.txt"] = lists["scannetv2_test_npz.txt"]
        return lists
