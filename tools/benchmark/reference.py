"""Reference for `process`: correct, straightforward and slow, as the scripts of this field.

It uses plyfile with its defaults, `np.stack` of its faces, a Python loop over the faces for
normals, `np.isin` for each group, and `np.savez` of 32-bit numbers. Unlike some of those scripts,
it reads the label map only once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import plyfile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

Ids: TypeAlias = "tuple[int, int]"


def make_scene(
    directory: Path,
    target_path: Path,
    ids_by_category: Mapping[str, Ids],
    class_ids: tuple[int, ...],
) -> dict[str, NDArray[Any]]:
    """Process a scene, aligned, with labels of ScanNet200.

    Args:
        directory: Folder of the raw scene.
        target_path: The file to be written.
        ids_by_category: ScanNet id and nyu40 id by raw category.
        class_ids: ScanNet ids by train id.

    Returns:
        The arrays that were written.
    """
    start = directory / directory.name
    mesh = plyfile.PlyData.read(f"{start}_vh_clean_2.ply")
    vertices = mesh["vertex"]
    points = np.stack([vertices["x"], vertices["y"], vertices["z"]], axis=1).astype(np.float64)
    colors = np.stack([vertices["red"], vertices["green"], vertices["blue"]], axis=1)
    faces = np.stack(mesh["face"]["vertex_indices"])

    matrix = _read_axis_alignment(start)
    points = (np.concatenate([points, np.ones((len(points), 1))], axis=1) @ matrix.T)[:, :3]
    normals = _vertex_normals(points, faces)

    with open(f"{start}_vh_clean_2.0.010000.segs.json", encoding="utf-8") as file:  # noqa: PTH123 - as scripts do
        segments = np.array(json.load(file)["segIndices"])
    with open(f"{start}.aggregation.json", encoding="utf-8") as file:  # noqa: PTH123 - as scripts do
        groups = json.load(file)["segGroups"]
    scannet_ids = np.zeros(len(points), np.int32)
    nyu40_ids = np.zeros(len(points), np.int32)
    instances = np.full(len(points), -1, np.int32)
    for group in groups:
        is_inside = np.isin(segments, group["segments"])
        scannet_ids[is_inside], nyu40_ids[is_inside] = ids_by_category.get(group["label"], (0, 0))
        instances[is_inside] = group["id"]
    labels = np.zeros(len(points), np.int32)
    for train_id, class_id in enumerate(class_ids):
        labels[scannet_ids == class_id] = train_id + 1

    arrays: dict[str, NDArray[Any]] = {
        "points": points.astype(np.float32),
        "normals": normals.astype(np.float32),
        "colors": colors.astype(np.float32),
        "labels": labels,
        "nyu40_ids": nyu40_ids,
        "scannet_ids": scannet_ids,
        "instances": instances,
        "segments": np.unique(segments, return_inverse=True)[1].astype(np.int32),
        "axis_alignment": matrix,
    }
    np.savez(target_path, **arrays)  # type: ignore[arg-type]  # numpy has a parameter allow_pickle: bool
    return arrays


def _read_axis_alignment(start: Path) -> NDArray[np.float64]:
    with open(f"{start}.txt", encoding="utf-8") as file:  # noqa: PTH123 - as scripts do
        for line in file:
            if line.startswith("axisAlignment"):
                return np.array([float(word) for word in line.split("=")[1].split()]).reshape(4, 4)
    return np.eye(4)


def _vertex_normals(points: NDArray[np.float64], faces: NDArray[np.int32]) -> NDArray[np.float64]:
    a, b, c = (points[faces[:, corner]] for corner in range(3))
    face_normals = np.cross(b - a, c - a)
    normals = np.zeros_like(points)
    for face, normal in zip(faces, face_normals, strict=True):
        normals[face] += normal
    length = np.linalg.norm(normals, axis=1, keepdims=True)
    length[length == 0] = 1
    normals /= length
    return normals
