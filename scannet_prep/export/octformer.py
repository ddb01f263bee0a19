"""OctFormer: the root that its unmodified `configs/seg_scannet.yaml` and `seg_scannet200.yaml` train and test from.

    <root>/                     its own names: data/scannet.npz for 20 classes, data/scannet200.npz for 200
        train/<scene>.npz       of train and val
        train/<scene>.txt       raw ids, one a line, of train and val
        test/<scene>.npz
        scannetv2_train_npz.txt scannetv2_val_npz.txt scannetv2_test_npz.txt scannetv2_test.txt

Its `labels` are ours: 0 unlabeled, 1..K = train id + 1. Points are as scanned for 20 classes, axis-aligned for 200.
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
    """One `.npz` a scene, the processed one itself where it is as OctFormer wants it."""

    name = "octformer"
    # All of them, because a file may be the processed one, and depends on all of them.
    inherited_options = ("scannet200", "align_axis", "faces", "labels_from")

    def __init__(self, options: ExportOptions) -> None:
        is_200 = options.label_set == SCANNET200  # which its README aligns
        super().__init__(
            replace(
                options, is_aligned=is_200 if options.is_aligned is None else options.is_aligned
            )
        )

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the `.npz`, and the raw ids of train and val."""
        is_test = scene.meta.split is Split.TEST
        start = f"{'test' if is_test else 'train'}/{scene.meta.scene_id}"
        wanted, files = convert_scene(scene, self.options), dict[str, FileContent]()
        if wanted.meta.options == scene.meta.options:
            files[f"{start}.npz"] = PROCESSED_FILE
        else:
            arrays: dict[str, NDArray[Any]] = {
                "points": wanted.points,
                "normals": wanted.normals.astype(np.float16),
            }
            arrays |= {"colors": wanted.colors, "labels": wanted.stored_labels}
            files[f"{start}.npz"] = encode_npz(arrays, frozenset({"labels"}))
        if not is_test:
            raw_ids: NDArray[np.integer[Any]] = scene.nyu40_ids
            if (
                self.label_set == SCANNET200
            ):  # only where they are classes, as its own program writes them
                raw_ids = np.where(
                    SCANNET200.labels_from_raw_ids(scene.scannet_ids) > 0, scene.scannet_ids, 0
                )
            files[f"{start}.txt"] = [encode_lines(raw_ids)]
        return ExportedScene(files)

    def encode_shared(
        self, records: Mapping[str, tuple[Split, Mapping[str, Any]]]
    ) -> Mapping[str, bytes]:
        """Make the lists: bare file names, because its configurations name the folder apart."""
        lists = {}
        for split in Split:
            present = {scene_id for scene_id, (found, _) in records.items() if found is split}
            ordered: list[str] = [name for name in official_scenes(split) if name in present]
            ordered += sorted(present.difference(ordered))
            lists[f"scannetv2_{split}_npz.txt"] = "".join(
                f"{scene_id}.npz\n" for scene_id in ordered
            ).encode()
        return lists | {"scannetv2_test.txt": lists["scannetv2_test_npz.txt"]}
