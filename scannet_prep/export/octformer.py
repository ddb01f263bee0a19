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

import numpy as np

from scannet_prep.export.arrays import Records, SceneFiles, encode_lines
from scannet_prep.processed.npz import encode_npz
from scannet_prep.processed.scene import ProcessedScene, encode_processed
from scannet_prep.release.label_sets import SCANNET200, LabelSet
from scannet_prep.release.scenes import Split, official_scenes


def export_octformer(scene: ProcessedScene, label_set: LabelSet) -> SceneFiles:
    """Make the `.npz`, and the raw ids of scenes of train and val.

    The `.npz` is the processed file itself, if that has the chosen label set and frame.
    """
    scene_id = scene.meta.scene_id
    raw_ids = getattr(scene, label_set.raw_ids_key)
    labels = label_set.labels_from_raw_ids(raw_ids)
    # Stored normals are float16, those in another frame are not.
    if scene.normals.dtype == np.float16 and label_set == scene.meta.options.label_set:
        content = encode_processed(scene)
    else:
        content = encode_npz(
            {
                "points": scene.points,
                "normals": scene.normals.astype(np.float16),
                "colors": scene.colors,
                "labels": labels,
            },
            deflated=frozenset({"labels"}),
        )
    if scene.meta.split is Split.TEST:
        return {f"test/{scene_id}.npz": content}, {}
    if label_set == SCANNET200:
        # Keep only the ids of the 200 classes, as OctFormer's own program does.
        raw_ids = np.where(labels > 0, raw_ids, 0)
    return {
        f"train/{scene_id}.npz": content,
        f"train/{scene_id}.txt": encode_lines(raw_ids),
    }, {}


def share_octformer(records: Records, _: LabelSet) -> dict[str, bytes]:
    """Make the lists of file names, without folders, which OctFormer's configurations name."""
    lists = {}
    for split, present in records.items():
        # Official order first, then scenes that belong to no official list.
        ordered = dict.fromkeys([*official_scenes(split), *present])
        text = "".join(f"{scene_id}.npz\n" for scene_id in ordered if scene_id in present)
        lists[f"scannetv2_{split}_npz.txt"] = text.encode()
    lists["scannetv2_test.txt"] = lists["scannetv2_test_npz.txt"]
    return lists
