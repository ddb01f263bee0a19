"""Oracles: slow loops that follow the definitions, and checks of scenes and samples.

The loops do without the program. They read the label map and the class tables from the files of the
package, with `csv` alone.
"""

import csv
import math
from importlib import resources

import numpy as np

from scannet_prep.processed.annotate import MAX_GROUPS, measure_groups
from scannet_prep.release.label_map import MAX_NYU40_ID

NYU40_OF_SCANNET20 = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 24, 28, 33, 34, 36, 39)


def read_asset(name, delimiter):
    """Read the rows of a table of the package, each a dict by column."""
    asset = resources.files("scannet_prep").joinpath(f"assets/{name}")
    with asset.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE))


def label_map_rows():
    """Read ScanNet id and nyu40 id by raw category."""
    return {
        row["raw_category"]: (int(row["id"]), int(row["nyu40id"]))
        for row in read_asset("label_map.tsv", "\t")
    }


def scannet200_ids():
    """Read the ids of the 200 classes, ascending; the index is the train id."""
    return sorted(int(row["scannet_id"]) for row in read_asset("scannet200.csv", ","))


def ids_of_vertices(segment_ids, groups):
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


def labels20(nyu40_ids):
    """Find the stored labels of ScanNet20: train id + 1, or 0 for unlabeled."""
    return _stored_labels(nyu40_ids, NYU40_OF_SCANNET20)


def labels200(scannet_ids):
    """Find the stored labels of ScanNet200: train id + 1, or 0 for unlabeled."""
    return _stored_labels(scannet_ids, scannet200_ids())


def _stored_labels(raw_ids, class_ids):
    return [class_ids.index(raw_id) + 1 if raw_id in class_ids else 0 for raw_id in raw_ids]


def aligned_points(positions, matrix):
    """Rotate and shift points into the aligned frame, in double precision."""
    rows = [[float(value) for value in row] for row in matrix]
    return [
        tuple(a * float(x) + b * float(y) + c * float(z) + d for a, b, c, d in rows[:3])
        for x, y, z in positions
    ]


def cross(a, b):
    """Compute the cross product of two vectors."""
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def vertex_normals(points, faces, matrix=None):
    """Compute the normal of each vertex, float64 (V, 3), in the aligned frame if there is a matrix.

    It is the sum of the cross products of the faces around the vertex, scaled to unit length; zero
    if the sum is zero. The sums are made corner by corner, and each number by the same operations
    as in the program, so that the bits can be compared.
    """
    rows = [tuple(map(float, point)) for point in points]
    sums = [[0.0, 0.0, 0.0] for _ in rows]
    for corner in range(3):
        for face in faces:
            p, q, r = (rows[vertex] for vertex in face)
            product = cross(subtract(q, p), subtract(r, p))
            for axis in range(3):
                sums[face[corner]][axis] += product[axis]
    if matrix is not None:
        p, q, r = np.array(matrix)[:3, :3].tolist()
        cofactors = (cross(q, r), cross(r, p), cross(p, q))
        sums = [[u * x + v * y + w * z for u, v, w in cofactors] for x, y, z in sums]
    lengths = [math.sqrt(x * x + y * y + z * z) or 1.0 for x, y, z in sums]
    return np.array(sums).reshape(-1, 3) / np.array(lengths)[:, None]


def mesh_segments(points, faces, threshold, min_vertices):
    """Compute superpoints, step by step in the order of the official Segmentator, in float32.

    Edges are sorted stably, with NaN last. Segments are numbered in the order of their first
    vertices.
    """
    # The set of each vertex. The first vertex of a list stands for the set.
    sets = [[vertex] for vertex in range(len(points))]

    def join(a, b):
        small, large = sorted((a, b), key=len)
        large += small
        for vertex in small:
            sets[vertex] = large
        return large

    with np.errstate(all="ignore"):
        edges = weighted_edges(points, faces)
        edges.sort(key=lambda edge: np.nan_to_num(edge[0], nan=np.inf))

        thresholds = [np.float32(threshold)] * len(points)
        for weight, start, end in edges:
            a, b = sets[start], sets[end]
            if a is not b and weight <= thresholds[a[0]] and weight <= thresholds[b[0]]:
                joined = join(a, b)
                share = np.float32(threshold) / np.float32(len(joined))
                thresholds[joined[0]] = weight + share

    for _, start, end in edges:
        a, b = sets[start], sets[end]
        if a is not b and min(len(a), len(b)) < min_vertices:
            join(a, b)

    numbers = {}
    return [numbers.setdefault(members[0], len(numbers)) for members in sets]


def weighted_edges(points, faces):
    """Compute the weight of each edge, and list it with its two vertices, face by face."""
    positions = [tuple(row) for row in np.asarray(points, np.float32)]
    one = np.float32(1)
    normals = [(np.float32(0),) * 3] * len(positions)
    counts = [0] * len(positions)
    for face in faces:
        p, q, r = (positions[corner] for corner in face)
        normal = unit32(cross(subtract(q, p), subtract(r, p)))
        for corner in face:
            share = one / np.float32(counts[corner] + 1)
            normals[corner] = tuple(
                share * new + (one - share) * old
                for new, old in zip(normal, normals[corner], strict=True)
            )
        for corner in face:
            counts[corner] += 1

    edges = []
    for i, j, k in faces:
        for a, b in ((i, j), (i, k), (k, j)):
            direction = unit32(subtract(positions[b], positions[a]))
            weight = one - dot(normals[a], normals[b])
            if dot(normals[b], direction) > 0:
                weight = weight * weight
            edges.append((weight, a, b))
    return edges


def subtract(a, b):
    """Subtract the second vector from the first one."""
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])


def dot(a, b):
    """Compute the dot product of two vectors."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def unit32(vector):
    """Divide a vector of float32 by its length, which may be zero."""
    length = np.sqrt(dot(vector, vector))
    return (vector[0] / length, vector[1] / length, vector[2] / length)


def find_problems(scene):
    """Find values that no correct scene has, and describe each."""
    vertex_count = len(scene.points)
    is_finite = bool(np.isfinite(scene.points).all())
    if not is_finite:
        yield "points are not all finite"
    yield from _find_group_problems(scene, is_finite=is_finite)

    # float16 has 11 significant bits. Rounding changes each component by less than 2**-11 of its
    # value, and so the squared length by less than 2**-10.
    normals = scene.normals.astype(np.float32)
    squared_lengths = np.square(normals).sum(axis=1)
    is_unit = np.abs(squared_lengths - 1) < 2**-10
    is_zero = squared_lengths == 0
    wrong_normals = len(normals) - np.count_nonzero(is_unit | is_zero)
    if wrong_normals:
        yield f"normals of {wrong_normals:,} vertices are neither of unit length nor zero"

    label_set = scene.meta.options.label_set
    expected_stored = label_set.labels_from_raw_ids(getattr(scene, label_set.raw_ids_key))
    wrong_labels = int(np.count_nonzero(scene.stored_labels != expected_stored))
    if wrong_labels:
        yield f"labels disagree with the raw ids at {wrong_labels:,} vertices"
    largest_id = scene.nyu40_ids.max()
    if largest_id > MAX_NYU40_ID:
        yield f"nyu40_ids hold {largest_id}, expected up to {MAX_NYU40_ID}"

    yield from _find_segment_problems(scene)
    if not np.isfinite(scene.axis_alignment).all():
        yield "axis_alignment is not finite"
    if scene.faces is not None:
        is_vertex = (scene.faces >= 0) & (scene.faces < vertex_count)
        if not is_vertex.all():
            yield f"faces refer to vertices that are not there: there are {vertex_count:,}"


def _find_group_problems(scene, *, is_finite):
    """Find wrong ids and measurements of groups. Boxes are compared only if points are finite."""
    groups = scene.meta.groups
    group_ids = [group.id for group in groups]
    if not all(0 <= group_id <= MAX_GROUPS for group_id in group_ids):
        yield f"group ids are not all within 0..{MAX_GROUPS}"
        return
    strangers = np.setdiff1d(scene.instances, [-1, *group_ids])
    if len(strangers):
        yield f"instances hold {max(strangers)}, which is not a group"
        return
    if is_finite and groups != measure_groups(groups, scene.instances, scene.points):
        yield "vertex counts or boxes of groups are not those of their vertices"


def _find_segment_problems(scene):
    """Find numbers of segments that are left out or, in the release, have no raw id."""
    numbers = []
    if scene.segments is not None:
        numbers = np.unique(scene.segments).tolist()
    count = len(scene.meta.segment_ids)
    if scene.meta.segments_source == "computed":
        count = max(1, len(numbers))
    if numbers != list(range(count)):
        yield (
            f"segments hold {len(numbers):,} numbers up to {max(numbers, default=0):,}, "
            f"expected {count:,} numbers from 0"
        )


def check_same(actual, expected):
    """Check keys, their order, types and values. Arrays may be NumPy's or PyTorch's."""
    assert list(actual) == list(expected)
    for key, expected_value in expected.items():
        if isinstance(expected_value, list):
            assert actual[key] == expected_value, key
        else:
            array, expected_array = np.asarray(actual[key]), np.asarray(expected_value)
            assert array.dtype == expected_array.dtype, key
            assert array.shape == expected_array.shape, key
            # Bytes, so that NaN equals NaN, and 0.0 differs from -0.0; objects compare themselves.
            is_same = array.tobytes() == expected_array.tobytes()
            assert is_same or (array.dtype.hasobject and np.array_equal(array, expected_array)), key
