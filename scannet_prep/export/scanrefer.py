"""ScanRefer, Scan2Cap, 3DVLP and others: points with normals, and boxes, in both frames.

    <folder>/<scene>_{vert,sem_label,ins_label,bbox}.npy    in the frame of the scan
    <folder>/<scene>_aligned_{vert,bbox}.npy                axis-aligned: the files that are read

The folder is ScanRefer's `data/scannet/scannet_data`. `detection` describes the arrays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.export.detection import DetectionFormat, stack_columns
from scannet_prep.export.format import convert_scene
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.scene import Split

# By nyu40 id: all but wall (1), floor (2) and ceiling (22).
_CLASSES = frozenset(range(3, 41)) - {22}


class ScanRefer(DetectionFormat):
    """Six arrays for each scene, also of test, where labels and the only box are zeros."""

    name = "scanrefer"
    uses_frame = False
    box_classes = _CLASSES

    def make_arrays(
        self, scene: ProcessedScene, chosen: NDArray[np.intp]
    ) -> dict[str, NDArray[Any]]:
        """Make the arrays of a scene, by suffix."""
        arrays = self.label_vertices(scene, chosen)
        for prefix, is_aligned in (("", False), ("aligned_", True)):
            in_frame = convert_scene(scene, replace(self.options, is_aligned=is_aligned))
            arrays[f"{prefix}vert"] = stack_columns(in_frame, chosen, has_normals=True)
            arrays[f"{prefix}bbox"] = self._make_boxes(in_frame)
        return arrays

    def _make_boxes(self, scene: ProcessedScene) -> NDArray[Any]:
        """Make the array of the boxes of a scene, in the frame of its points, float64 (K, 8)."""
        if scene.meta.split is Split.TEST:
            return np.zeros((1, 8))
        boxes = [
            [*box.center_and_size, box.raw_id, box.object_id] for box in self.find_boxes(scene)
        ]
        return np.array(boxes, np.float64).reshape(-1, 8)
