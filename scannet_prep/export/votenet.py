"""VoteNet: axis-aligned points and boxes, `<scene>_{vert,sem_label,ins_label,bbox}.npy`.

The folder is VoteNet's `scannet/scannet_train_detection_data`, which GroupFree3D, 3DETR and others
read, too. `detection` describes the arrays.
"""

from __future__ import annotations

import numpy as np

from scannet_prep.base.errors import UsageError
from scannet_prep.export.detection import (
    DetectionFormat,
    check_is_annotated,
    encode_arrays,
    stack_columns,
)
from scannet_prep.export.format import ExportedScene, ExportOptions, convert_scene
from scannet_prep.export.objects import VOTENET_CLASSES
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.release.scene import Split


class VoteNet(DetectionFormat):
    """Four arrays for each scene of train and val."""

    name = "votenet"
    is_aligned = True
    box_classes = VOTENET_CLASSES

    def __init__(self, options: ExportOptions) -> None:
        if options.is_aligned is False:
            raise UsageError(
                "VoteNet has axis-aligned boxes, and needs points in the same frame",
                "leave out --unaligned",
            )
        super().__init__(options)

    def exclusion_reason(self, split: Split, stored: ProcessOptions) -> str:  # noqa: ARG002
        """Exclude test scenes, as VoteNet's script does."""
        return "test scenes have no annotation" if split is Split.TEST else ""

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the arrays of a scene.

        Raises:
            ScanNetPrepError: It has no groups or no axis alignment because a file was missing.
        """
        check_is_annotated(scene)
        scene = convert_scene(scene, self.options)
        chosen = self.choose_vertices(scene)
        boxes = [[*box.center_and_size, box.raw_id] for box in self.find_boxes(scene)]
        arrays = {
            "vert": stack_columns(scene, chosen, has_normals=False),
            **self.label_vertices(scene, chosen),
            "bbox": np.array(boxes, np.float64).reshape(-1, 7),
        }
        return encode_arrays(scene.meta.scene_id, arrays)
