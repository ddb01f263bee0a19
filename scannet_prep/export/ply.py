"""Coloured meshes or points for MeshLab and other viewers: `<split>/<scene>.ply`, binary.

Each vertex has a position, a colour, and `label`: the raw id (nyu40 id, or ScanNet id for 200
classes), as in the release's `_vh_clean_2.labels.ply`. Scenes that were processed with `--faces`
have triangles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scannet_prep.base.files import Buffer
from scannet_prep.export.arrays import SceneFiles
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import LabelSet

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


def export_ply(scene: ProcessedScene, label_set: LabelSet) -> SceneFiles:
    """Make the file."""
    comment = f"{scene.meta.scene_id}, coloured by rgb"
    labels = getattr(scene, label_set.raw_ids_key)
    content = encode_ply(comment, scene.points, scene.colors, scene.faces, labels)
    return {f"{scene.meta.split}/{scene.meta.scene_id}.ply": content}, {}


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
    columns: list[NDArray[Any]] = [points, colors]
    types = "3<f4, 3u1"
    if labels is not None:
        header += _LABEL_HEADER
        columns.append(labels)
        types += ", <u2"
    body = [_pack(len(points), types, *columns)]
    if faces is not None:
        header += _FACE_HEADER.format(faces=len(faces))
        body.append(_pack(len(faces), "u1, 3<i4", 3, faces))
    return [f"{header}end_header\n".encode(), *body]


def _pack(count: int, types: str, *columns: ArrayLike) -> Buffer:
    """Pack columns into records."""
    records: Any = np.empty(count, types)
    for name, column in zip(records.dtype.names, columns, strict=True):
        records[name] = column
    data: Buffer = records.view(np.uint8).data
    return data
