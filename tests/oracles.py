"""Expected results, computed by slow loops that follow the definitions, without the program.

The label map and the class tables are read from the files of the package, with `csv` alone.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

Vector = tuple[float, float, float]

NYU40_OF_SCANNET20 = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 24, 28, 33, 34, 36, 39)


def read_asset(name: str, delimiter: str) -> list[dict[str, str]]:
    """Read the rows of a table of the package, each a dict by column."""
    asset = resources.files("scannet_prep").joinpath(f"assets/{name}")
    with asset.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE))


def label_map_rows() -> dict[str, tuple[int, int]]:
    """Read ScanNet id and nyu40 id by raw category."""
    return {
        row["raw_category"]: (int(row["id"]), int(row["nyu40id"]))
        for row in read_asset("label_map.tsv", "\t")
    }


def scannet200_ids() -> list[int]:
    """Read the ids of the 200 classes, ascending; the index is the train id."""
    return sorted(int(row["scannet_id"]) for row in read_asset("scannet200.csv", ","))


def ids_of_vertices(
    segment_ids: Sequence[int], groups: Sequence[Mapping[str, Any]]
) -> tuple[list[int], list[int], list[int]]:
    """Find nyu40 id, ScanNet id and instance of each vertex.

    The last group of the file with the segment of the vertex counts. Groups that repeat an earlier
    one are ignored.
    """
    rows = label_map_rows()
    contents = [(group["label"], set(group["segments"])) for group in groups]
    unique_groups = []
    for index, group in enumerate(groups):
        if contents[index] not in contents[:index]:
            unique_groups.append(group)

    nyu40_ids = []
    scannet_ids = []
    instances = []
    for segment_id in segment_ids:
        scannet_id = 0
        nyu40_id = 0
        instance = -1
        for group in unique_groups:
            if segment_id in group["segments"]:
                instance = group["id"]
                scannet_id, nyu40_id = rows.get(group["label"], (0, 0))
        nyu40_ids.append(nyu40_id)
        scannet_ids.append(scannet_id)
        instances.append(instance)
    return nyu40_ids, scannet_ids, instances


def labels20(nyu40_ids: Sequence[int]) -> list[int]:
    """Find the stored labels of ScanNet20: train id + 1, or 0 for unlabeled."""
    return _stored_labels(nyu40_ids, NYU40_OF_SCANNET20)


def labels200(scannet_ids: Sequence[int]) -> list[int]:
    """Find the stored labels of ScanNet200: train id + 1, or 0 for unlabeled."""
    return _stored_labels(scannet_ids, scannet200_ids())


def _stored_labels(raw_ids: Sequence[int], class_ids: Sequence[int]) -> list[int]:
    return [class_ids.index(raw_id) + 1 if raw_id in class_ids else 0 for raw_id in raw_ids]


def aligned_points(positions: Any, matrix: Any) -> list[Vector]:
    """Rotate and shift points into the aligned frame, in double precision."""
    rows = [[float(value) for value in row] for row in matrix]
    return [
        tuple(a * float(x) + b * float(y) + c * float(z) + d for a, b, c, d in rows[:3])
        for x, y, z in positions
    ]


def cross(a: Vector, b: Vector) -> Vector:
    """Compute the cross product of two vectors."""
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def vertex_normals(points: Sequence[Any], faces: Sequence[Sequence[int]]) -> list[Vector]:
    """Compute the normal of each vertex.

    It is the sum of the cross products of the faces around the vertex, scaled to unit length; zero
    if the sum is zero.
    """
    products: list[list[Vector]] = [[] for _ in points]
    for face in faces:
        p, q, r = ([float(value) for value in points[corner]] for corner in face)
        product = cross(
            (q[0] - p[0], q[1] - p[1], q[2] - p[2]),
            (r[0] - p[0], r[1] - p[1], r[2] - p[2]),
        )
        for corner in face:
            products[corner].append(product)

    normals = []
    for around in products:
        x, y, z = (math.fsum(product[axis] for product in around) for axis in range(3))
        length = math.sqrt(x * x + y * y + z * z)
        if length > 0:
            normals.append((x / length, y / length, z / length))
        else:
            normals.append((0.0, 0.0, 0.0))
    return normals
