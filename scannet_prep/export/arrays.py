"""What formats with our own array names share: the frame and the labels that were asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scannet_prep.annotate import measure_groups
from scannet_prep.export.format import ExportOptions, normals_in_frame, points_in_frame
from scannet_prep.labels import SCANNET200
from scannet_prep.processed.scene import ProcessedScene


def as_asked_for(scene: ProcessedScene, options: ExportOptions) -> ProcessedScene:
    """Turn a scene into the frame, and its labels into the label set, that are asked for; the types stay."""
    is_aligned = scene.meta.options.align_axis if options.is_aligned is None else options.is_aligned
    chosen = replace(scene.meta.options, scannet200=options.label_set == SCANNET200, align_axis=is_aligned)
    meta = replace(scene.meta, options=chosen)
    labels = options.label_set.labels_from_raw_ids(getattr(scene, options.label_set.raw_ids_key))
    if is_aligned == scene.meta.options.align_axis:
        return replace(scene, labels=labels, meta=meta)
    points = points_in_frame(scene, is_aligned=is_aligned)
    return replace(
        scene,
        points=points,
        normals=normals_in_frame(scene, is_aligned=is_aligned).astype(np.float16),
        labels=labels,
        meta=replace(meta, groups=measure_groups(scene.meta.groups, scene.instances, points)),
    )
