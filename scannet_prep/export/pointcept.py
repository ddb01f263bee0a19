"""Pointcept: `<root>/{train,val,test}/<scene>/<asset>.npy`.

The root is Pointcept's `data/scannet`, for both label sets. Points are in the frame of the scan.
`segment20` and `segment200` hold classes; `instance` holds the id of any group, also of walls and
floors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scannet_prep.export.arrays import SceneFiles
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scenes import Split


def export_pointcept(scene: ProcessedScene, _: LabelSet) -> SceneFiles:
    """Make the arrays; test scenes have none of the annotation."""
    assets: dict[str, Any] = {
        "coord": scene.points,
        "color": scene.colors,
        "normal": scene.normals.astype(np.float32),
    }
    if scene.meta.split is not Split.TEST:
        assets["segment20"] = SCANNET20.train_ids_from_raw_ids(scene.nyu40_ids, -1)
        assets["segment200"] = SCANNET200.train_ids_from_raw_ids(scene.scannet_ids, -1)
        assets["instance"] = scene.instances.astype(np.int64)

    folder = f"{scene.meta.split}/{scene.meta.scene_id}"
    return {f"{folder}/{name}.npy": content for name, content in assets.items()}, {}
