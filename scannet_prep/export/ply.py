"""Coloured meshes or points for MeshLab and other viewers: `<split>/<scene>.ply`, binary.

Each vertex has a position, a colour, and `label`: the raw id (nyu40 id, or ScanNet id for 200
classes), as in the release's `_vh_clean_2.labels.ply`. Scenes that were processed with `--faces`
have triangles.
"""

from __future__ import annotations

import numpy as np

from scannet_prep.base.ply import encode_ply
from scannet_prep.export.arrays import SceneFiles
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import LabelSet


def export_ply(scene: ProcessedScene, label_set: LabelSet) -> SceneFiles:
    """Make the file."""
    comment = (
        f"{scene.meta.scene_id}, coloured by rgb; derived from ScanNet, under its terms of use"
    )
    labels = getattr(scene, label_set.raw_ids_key).astype(np.uint16)
    content = encode_ply(comment, scene.points, scene.colors, scene.faces, label=labels)
    return {f"{scene.meta.split}/{scene.meta.scene_id}.ply": content}, {}
