"""Expected values, from loops that follow the definition of the format.

They are slow, and independent of the program.

Only the label map and the class tables are taken from files, and those are read here with nothing
but `csv`.
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
    """Read the rows of a table of the package, by column."""
    path = resources.files("scannet_prep").joinpath(f"assets/{name}")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE))


def label_map_rows() -> dict[str, tuple[int, int]]:
    """Return ScanNet id and nyu40 id by raw category."""
    return {
        row["raw_category"]: (int(row["id"]), int(row["nyu40id"]))
        for row in read_asset("label_map.tsv", "\t")
    }


def scannet200_ids() -> list[int]:
    """Return the ids of the 200 classes, ascending, so that the position is the train id."""
    return sorted(int(row["scannet_id"]) for row in read_asset("scannet200.csv", ","))


def ids_of_vertices(
    segment_ids: Sequence[int], groups: Sequence[Mapping[str, Any]]
) -> tuple[list[int], list[int], list[int]]:
    """Return nyu40 id, ScanNet id and instance of each vertex.

    They are those of the last group that has its segment. A repetition of an earlier group does not
    count.
    """
    rows = label_map_rows()
    contents = [(group["label"], set(group["segments"])) for group in groups]
    counting = [
        group
        for position, group in enumerate(groups)
        if contents[position] not in contents[:position]
    ]
    nyu40_ids = []
    scannet_ids = []
    instances = []
    for segment_id in segment_ids:
        scannet_id = 0
        nyu40_id = 0
        instance = -1
        for group in counting:
            if segment_id in group["segments"]:
                instance = group["id"]
                scannet_id, nyu40_id = rows.get(group["label"], (0, 0))
        nyu40_ids.append(nyu40_id)
        scannet_ids.append(scannet_id)
        instances.append(instance)
    return nyu40_ids, scannet_ids, instances


def labels20(nyu40_ids: Sequence[int]) -> list[int]:
    """Return the label of each vertex: 0 unlabeled, else train id + 1."""
    return [
        NYU40_OF_SCANNET20.index(number) + 1 if number in NYU40_OF_SCANNET20 else 0
        for number in nyu40_ids
    ]


def labels200(scannet_ids: Sequence[int]) -> list[int]:
    """Return the label of each vertex: 0 unlabeled, else train id + 1."""
    classes = scannet200_ids()
    return [classes.index(number) + 1 if number in classes else 0 for number in scannet_ids]


def aligned_points(positions: Any, matrix: Any) -> list[Vector]:
    """Align points in double precision."""
    rows = [[float(value) for value in row] for row in matrix]
    return [
        tuple(a * float(x) + b * float(y) + c * float(z) + d for a, b, c, d in rows[:3])
        for x, y, z in positions
    ]


def cross(a: Vector, b: Vector) -> Vector:
    """Return the cross product of two vectors."""
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def vertex_normals(points: Sequence[Any], faces: Sequence[Sequence[int]]) -> list[Vector]:
    """Return the unit normal of each vertex; zero if the products of its faces add up to 0."""
    terms: list[list[Vector]] = [[] for _ in points]
    for face in faces:
        p, q, r = ([float(value) for value in points[corner]] for corner in face)
        term = cross(
            (q[0] - p[0], q[1] - p[1], q[2] - p[2]), (r[0] - p[0], r[1] - p[1], r[2] - p[2])
        )
        for corner in face:
            terms[corner].append(term)
    normals = []
    for around in terms:
        x, y, z = (math.fsum(term[axis] for term in around) for axis in range(3))
        length = math.sqrt(x * x + y * y + z * z)
        normals.append((x / length, y / length, z / length) if length > 0 else (0.0, 0.0, 0.0))
    return normals
