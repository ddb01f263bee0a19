"""VoteNet: axis-aligned points and boxes, `<scene>_{vert,sem_label,ins_label,bbox}.npy`.

The folder is VoteNet's `scannet/scannet_train_detection_data`, which GroupFree3D, 3DETR and others
read, too. `detection` describes the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.export.detection import DetectionFormat, stack_columns
from scannet_prep.export.format import ExportOptions, convert_scene
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

    def make_arrays(
        self, scene: ProcessedScene, chosen: NDArray[np.intp]
    ) -> dict[str, NDArray[Any]]:
        """Make the arrays of a scene, by suffix."""
        scene = convert_scene(scene, self.options)
        boxes = [[*box.center_and_size, box.raw_id] for box in self.find_boxes(scene)]
        return {
            "vert": stack_columns(scene, chosen, has_normals=False),
            **self.label_vertices(scene, chosen),
            "bbox": np.array(boxes, np.float64).reshape(-1, 7),
        }
