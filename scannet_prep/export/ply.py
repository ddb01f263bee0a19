"""Coloured meshes or points for MeshLab and other viewers: `<split>/<scene>.ply`, binary.

Each vertex has a position, a colour, and `label`: the raw id (nyu40 id, or ScanNet id for 200
classes), as in the release's `_vh_clean_2.labels.ply`. Scenes that were processed with `--faces`
have triangles.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.files import Buffer
from scannet_prep.errors import ScanNetPrepError
from scannet_prep.export.format import (
    ExportedScene,
    ExportFormat,
    ExportOptions,
    convert_scene,
    encode_bytes,
)
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.release.scene import Split
from scannet_prep.view.categories import color_numbers

_HEADER = """\
ply
format binary_little_endian 1.0
comment {comment}; derived from ScanNet, under its terms of use
element vertex {vertices}
property float x
property float y
property float z
property uchar red
property uchar green
property uchar blue
"""
_LABEL_HEADER = "property ushort label\n"
_FACE_HEADER = "element face {faces}\nproperty list uchar int vertex_indices\n"
_VERTEX = np.dtype([("position", "<f4", 3), ("color", "u1", 3)])
_LABELED_VERTEX = np.dtype([("position", "<f4", 3), ("color", "u1", 3), ("label", "<u2")])
_FACE = np.dtype([("count", "u1"), ("vertices", "<i4", 3)])


class Ply(ExportFormat):
    """One `.ply` per scene; the variant chooses the colours."""

    name = "ply"
    variants = ("rgb", "label", "instance", "segment")
    is_aligned = None
    inherited_options = ("align_axis", "faces", "labels_from")

    def __init__(self, options: ExportOptions) -> None:
        super().__init__(replace(options, variant=options.variant or "rgb"))

    def exclusion_reason(self, split: Split, stored: ProcessOptions) -> str:
        """Exclude test scenes if the colours come from data that these scenes do not have."""
        variant = self.options.variant
        has_colors = variant == "rgb" or (variant == "segment" and stored.compute_segments)
        if split is Split.TEST and not has_colors:
            return f"test scenes have no {variant}s"
        return ""

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the file.

        Raises:
            ScanNetPrepError: The scene is to be coloured by segments, but has none.
        """
        raw_ids = getattr(scene, self.label_set.raw_ids_key)
        content = encode_ply(
            comment=f"{scene.meta.scene_id}, coloured by {self.options.variant}",
            points=convert_scene(scene, self.options).points,
            colors=self._colors(scene, raw_ids),
            faces=scene.faces,
            labels=raw_ids,
        )
        return ExportedScene({f"{scene.meta.split}/{scene.meta.scene_id}.ply": content})

    def _colors(
        self, scene: ProcessedScene, raw_ids: NDArray[np.unsignedinteger]
    ) -> NDArray[np.uint8]:
        """Return the colour of each vertex, uint8 (V, 3)."""
        if self.options.variant == "label":
            train_ids = self.label_set.train_ids_from_raw_ids(raw_ids, -1)
            return self.label_set.colorize(train_ids)
        if self.options.variant == "instance":
            return color_numbers(scene.instances)
        if self.options.variant == "segment":
            if scene.segments is None:
                raise ScanNetPrepError(
                    f"{scene.meta.scene_id}: has no segments to colour it by", "--color rgb"
                )
            return color_numbers(scene.segments)
        return scene.colors


def encode_ply(
    comment: str,
    points: NDArray[np.float32],
    colors: NDArray[np.uint8],
    faces: NDArray[np.int32] | None,
    labels: NDArray[np.unsignedinteger] | None = None,
) -> list[Buffer]:
    """Encode coloured points or a mesh as a binary PLY file.

    Args:
        comment: One line of ASCII text.
        points: float32 (V, 3).
        colors: uint8 (V, 3).
        faces: int32 (F, 3), indices of vertices; None for points alone.
        labels: (V,), up to 65,535, for the property `label`; None for no such property.
    """
    header = _HEADER.format(comment=comment, vertices=len(points))
    vertex_type = _VERTEX
    if labels is not None:
        header += _LABEL_HEADER
        vertex_type = _LABELED_VERTEX
    vertices = np.empty(len(points), vertex_type)
    vertices["position"] = points
    vertices["color"] = colors
    if labels is not None:
        vertices["label"] = labels
    body = [encode_bytes(vertices)]

    if faces is not None:
        header += _FACE_HEADER.format(faces=len(faces))
        triangles = np.empty(len(faces), _FACE)
        triangles["count"] = 3
        triangles["vertices"] = faces
        body.append(encode_bytes(triangles))
    return [f"{header}end_header\n".encode(), *body]
