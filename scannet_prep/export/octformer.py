"""OctFormer: the root that its unmodified `seg_scannet.yaml` and `seg_scannet200.yaml` read.

    <root>/                     OctFormer's names: data/scannet.npz, or data/scannet200.npz
        train/<scene>.npz       scenes of train and val
        train/<scene>.txt       one raw id per line, scenes of train and val
        test/<scene>.npz
        scannetv2_train_npz.txt scannetv2_val_npz.txt scannetv2_test_npz.txt scannetv2_test.txt

Its `labels` equal those of a processed file: 0 unlabeled, else train id + 1. Points are in the
frame of the scan for 20 classes, and axis-aligned for 200, as in the README of OctFormer.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    encode_lines,
)
from scannet_prep.processed.npz import encode_npz
from scannet_prep.processed.scene import ProcessedScene, encode_processed
from scannet_prep.release.label_sets import SCANNET200
from scannet_prep.release.scene import Split
from scannet_prep.release.splits import official_scenes


def encode(scene: ProcessedScene, settings: ExportSettings) -> tuple[FileContents, Record]:
    """Make the `.npz`, and the raw ids of scenes of train and val.

    The `.npz` is the processed file itself, if that has the chosen label set and frame.
    """
    converted = convert_scene(scene, settings)
    if converted.meta.options == scene.meta.options:
        content = encode_processed(scene)
    else:
        arrays: dict[str, NDArray[Any]] = {
            "points": converted.points,
            "normals": converted.normals.astype(np.float16),
            "colors": converted.colors,
            "labels": converted.stored_labels,
        }
        content = encode_npz(arrays, deflated=frozenset({"labels"}))
    if scene.meta.split is Split.TEST:
        return {f"test/{scene.meta.scene_id}.npz": content}, {}

    raw_ids: NDArray[Any] = scene.nyu40_ids
    if settings.label_set == SCANNET200:
        # Only those of the 200 classes, as OctFormer's own program keeps them.
        is_class = SCANNET200.labels_from_raw_ids(scene.scannet_ids) > 0
        raw_ids = np.where(is_class, scene.scannet_ids, 0)
    stem = f"train/{scene.meta.scene_id}"
    return {f"{stem}.npz": content, f"{stem}.txt": [encode_lines(raw_ids)]}, {}


def share(records: Records, settings: ExportSettings) -> Mapping[str, bytes]:  # noqa: ARG001 - as `Format.share`
    """Make the lists of file names, without folders, which OctFormer's configurations name."""
    lists = {}
    for split, present in records.items():
        # Official order first, then scenes that belong to no official list.
        ordered: list[str] = [
            scene_id for scene_id in official_scenes(split) if scene_id in present
        ]
        ordered += sorted(present.keys() - ordered)
        text = "".join(f"{scene_id}.npz\n" for scene_id in ordered)
        lists[f"scannetv2_{split}_npz.txt"] = text.encode()
    lists["scannetv2_test.txt"] = lists["scannetv2_test_npz.txt"]
    return lists


OCTFORMER = Format(
    encode,
    uses=("label_set", "is_aligned"),
    aligned_with=(SCANNET200,),
    share=share,
)
