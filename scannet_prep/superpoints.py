"""Superpoints of a mesh: the over-segmentation, computed from points and faces.

    points, faces --> vertex normals --> edges, sorted by weight --> sets of vertices --> segments

The method is the graph segmentation of Felzenszwalb and Huttenlocher (Efficient Graph-Based Image
Segmentation, IJCV 2004) on the edges of a mesh, as the official Segmentator of ScanNet implements
it (https://github.com/ScanNet/ScanNet, Segmentator/segmentator.cpp). All steps are computed in
float32, and in the order of that program, because rounding decides which vertices are joined.

The segments of the release differ slightly from those that the Segmentator computes today, so
computed and released segments of a scene cannot be exchanged.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError

_Floats: TypeAlias = NDArray[np.float32]
_Indices: TypeAlias = NDArray[np.intp]

_ONE = np.float32(1)
# Edges become Python numbers in this many parts. More parts take less memory, but before each one,
# all vertices look up their segments.
_PARTS = 8


def segment_mesh(
    points: NDArray[np.floating[Any]],
    faces: NDArray[np.integer[Any]],
    threshold: float = 0.01,
    min_vertices: int = 20,
) -> NDArray[np.int32]:
    """Divide a mesh into segments, between which the direction of the surface changes.

    The partition is that of the official Segmentator with the same parameters. The Segmentator
    names each segment after any of its vertices; here, segments are numbered.

    - A vertex without faces is a segment by itself, because only edges of faces join vertices. In
      a mesh without faces, every vertex is a segment. Such segments may have fewer than
      `min_vertices` vertices, and so may a separate part of the mesh.
    - A face that occurs twice counts twice, in the normals of its vertices and as edges.
    - The vertices of a face without area have no normal. They are joined to others only if a
      segment has fewer than `min_vertices` vertices, and after all other vertices. The Segmentator
      has no defined result for such meshes, as it sorts NaN.
    - Here, the order of the faces decides between edges of equal weight. The Segmentator sorts them
      unstably. On scans, the partitions are the same. Meshes with many equal weights, such as voxel
      surfaces and stairs, are divided differently by its binary.

    Args:
        points: Floats (V, 3), metres, finite; rounded to float32. The Segmentator uses the frame of
            the scan. In another frame, coordinates are rounded differently, so that a few vertices
            may change their segment.
        faces: Integers (F, 3), indices into `points`. Their order matters, because normals are
            summed in this order.
        threshold: Larger values make larger segments, `kThresh` of the Segmentator. The release has
            0.01.
        min_vertices: Segments with fewer vertices are joined to a neighbour, `segMinVerts` of the
            Segmentator. The release has 20. 0 and 1 join none.

    Returns:
        int32 (V,), the segment of each vertex. Segments are numbered from 0 in the order of their
        first vertices.

    Raises:
        UsageError: An array has another shape, `points` are not finite, `faces` are not indices of
            them, or `threshold` is not above 0.
    """
    if not threshold > 0:
        raise UsageError(f"threshold is {threshold}, expected a number above 0")
    positions = _check_points(points)
    corners = _check_faces(faces, len(positions))

    edges = _sort_edges(positions, corners)
    sets = _VertexSets(len(positions))
    _join_similar(sets, edges, np.float32(threshold))
    _join_small(sets, edges, min_vertices)
    return sets.number()


def _check_points(points: NDArray[np.floating[Any]]) -> _Floats:
    """Return finite points as float32 (V, 3)."""
    if points.shape[1:] != (3,):
        raise UsageError(f"points: found {points.shape}, expected (V, 3)")
    # Numbers beyond float32 become infinite.
    with np.errstate(over="ignore"):
        positions = points.astype(np.float32)
    are_finite = np.isfinite(positions)
    is_finite = are_finite.all(axis=1)
    if not is_finite.all():
        vertex = int(np.argmin(is_finite))
        found = points[vertex].tolist()
        raise UsageError(
            f"points: found {found} at vertex {vertex:,}, "
            "expected coordinates that are finite in float32"
        )
    return positions


def _check_faces(
    faces: NDArray[np.integer[Any]],
    vertex_count: int,
) -> _Indices:
    """Return faces whose indices are in range as intp (F, 3)."""
    dtype = faces.dtype
    shape = faces.shape
    if shape[1:] != (3,) or dtype.kind not in "iu":
        raise UsageError(f"faces: found {dtype} {shape}, expected integers (F, 3)")
    if faces.size:
        lowest = faces.min()
        highest = faces.max()
        if lowest < 0 or highest >= vertex_count:
            raise UsageError(
                f"faces: found indices from {lowest} to {highest}, "
                f"expected at least 0 and less than {vertex_count}, the number of points"
            )
    return faces.astype(np.intp)


class _Edges(NamedTuple):
    """Edges in ascending order of their weights, NaN last; E = 3 F.

    Attributes:
        starts: int32 (E,), the vertex that an edge starts from.
        ends: int32 (E,), the vertex that it leads to.
        weights: float32 (E,), about 0 in a plane; see `_weigh_edges`.
    """

    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    weights: _Floats


def _sort_edges(positions: _Floats, corners: _Indices) -> _Edges:
    """List the edges of all faces, sorted by weight.

    An edge between two faces occurs twice. Its two weights may differ, because they depend on its
    direction.
    """
    # One array per axis, (3, V), and per corner, (3, F), as in `processed.geometry`.
    columns = np.ascontiguousarray(positions.T)
    by_corner = np.ascontiguousarray(corners.T)
    first, second, third = by_corner
    normals = _average_normals(columns, corners)

    # The order of the edges of a face is that of the Segmentator.
    starts = np.empty(corners.shape, np.int32)
    ends = np.empty(corners.shape, np.int32)
    weights = np.empty(corners.shape, np.float32)
    pairs = (
        (first, second),
        (first, third),
        (third, second),
    )
    for index, (start, end) in enumerate(pairs):
        starts[:, index] = start
        ends[:, index] = end
        weights[:, index] = _weigh_edges(columns, normals, start, end)

    order = np.argsort(weights, axis=None, kind="stable")
    return _Edges(
        starts=starts.ravel()[order],
        ends=ends.ravel()[order],
        weights=weights.ravel()[order],
    )


def _average_normals(columns: _Floats, corners: _Indices) -> _Floats:
    """Compute vertex normals: the mean of the unit normals of the faces around each vertex.

    It is a running mean in the order of the faces, which rounds after each one.

    Returns:
        float32 (3, V), shorter than a unit vector where the surface bends; (0, 0, 0) for a vertex
        without faces, NaN for one that has a face without area.
    """
    face_normals = _face_normals(columns, corners)

    # `around` lists the faces of the first vertex, then those of the second, and so on, each in
    # ascending order, (3 F,). Those of vertex v begin at `bounds[v]`, and their number is
    # `face_counts[v]`.
    around = np.argsort(corners, axis=None, kind="stable")
    around //= 3
    vertex_count = columns.shape[1]
    face_counts = np.bincount(corners.ravel(), minlength=vertex_count)
    bounds = np.cumsum(face_counts) - face_counts

    # Add the first face of each vertex, then the second one of each vertex that has it, and so on.
    normals = np.zeros_like(columns)
    vertices = np.flatnonzero(face_counts)
    added_count = 0
    while len(vertices):
        count = np.float32(added_count + 1)
        share = _ONE / count
        faces = around[bounds[vertices] + added_count]
        added = share * face_normals[:, faces]
        with np.errstate(invalid="ignore"):
            kept = normals[:, vertices]
            kept *= _ONE - share
            normals[:, vertices] = added + kept
        added_count += 1
        vertices = vertices[face_counts[vertices] > added_count]
    return normals


def _face_normals(columns: _Floats, corners: _Indices) -> _Floats:
    """Compute the unit normal of each face, float32 (3, F); not finite for faces without area."""
    # Numbers that are not finite are results like others, so they cause no warnings.
    with np.errstate(all="ignore"):
        first, second, third = corners.T
        origins = columns[:, first]
        to_second = columns[:, second] - origins
        to_third = columns[:, third] - origins
        ax, ay, az = to_second
        bx, by, bz = to_third
        products = np.empty_like(origins)
        products[0] = ay * bz - az * by
        products[1] = az * bx - ax * bz
        products[2] = ax * by - ay * bx
        lengths = np.sqrt(_dot(products, products))
        products /= lengths
    return products


def _weigh_edges(
    columns: _Floats,
    normals: _Floats,
    starts: _Indices,
    ends: _Indices,
) -> _Floats:
    """Weigh edges by the angle between the normals of their vertices.

    The weight of an edge from a to b is w = 1 - N[a] . N[b]. If the surface is convex there, that
    is, if N[b] points away from a, it is w * w, which is less.

    Args:
        columns: float32 (3, V), positions.
        normals: float32 (3, V), of `_average_normals`.
        starts: (E,), the vertex a of each edge.
        ends: (E,), the vertex b of each edge.

    Returns:
        float32 (E,), NaN if a vertex has no normal.
    """
    with np.errstate(all="ignore"):
        start_normals = normals[:, starts]
        end_normals = normals[:, ends]
        weights = _ONE - _dot(start_normals, end_normals)
        directions = columns[:, ends]
        directions -= columns[:, starts]
        lengths = np.sqrt(_dot(directions, directions))
        directions /= lengths
        cosines = _dot(end_normals, directions)
        is_convex = cosines > 0
        np.multiply(weights, weights, out=weights, where=is_convex)
    return weights


def _dot(a: _Floats, b: _Floats) -> _Floats:
    """Return the dot products of vectors, (3, N). The order of the additions is x, y, z."""
    ax, ay, az = a
    bx, by, bz = b
    products: _Floats = ax * bx
    products += ay * by
    products += az * bz
    return products


class _VertexSets:
    """Sets of vertices that can be joined; at first, each vertex is a set.

    Each vertex has a parent in its set, which comes before it. The first vertex of a set is its own
    parent, and represents the set.

    Attributes:
        sizes: The number of vertices of the set that a vertex represents. For other vertices, the
            number has no meaning.
    """

    def __init__(self, vertex_count: int) -> None:
        self._parents = list(range(vertex_count))
        self.sizes = [1] * vertex_count

    def find(self, vertex: int) -> int:
        """Return the first vertex of the set of a vertex."""
        parents = self._parents
        while parents[vertex] != vertex:
            # Skip the parent, now and in later searches.
            grandparent = parents[parents[vertex]]
            parents[vertex] = grandparent
            vertex = grandparent
        return vertex

    def join(self, a: int, b: int) -> int:
        """Join the sets that two vertices represent, and return the first vertex of the result."""
        first = min(a, b)
        other = max(a, b)
        self._parents[other] = first
        self.sizes[first] += self.sizes[other]
        return first

    def find_all(self) -> _Indices:
        """Return the first vertex of the set of each vertex, (V,)."""
        parents = np.array(self._parents, np.intp)
        while True:
            grandparents = parents[parents]
            if np.array_equal(grandparents, parents):
                return parents
            parents = grandparents

    def number(self) -> NDArray[np.int32]:
        """Number the sets in the order of their first vertices; int32 (V,)."""
        first_vertices = self.find_all()
        vertices = np.arange(len(first_vertices))
        is_first = first_vertices == vertices
        numbers = np.cumsum(is_first, dtype=np.int32)
        numbers -= 1
        return numbers[first_vertices]

    def iter_between(self, edges: _Edges) -> Iterator[tuple[int, int, float]]:
        """Iterate over the edges that lead from one set to another when their turn comes.

        Yields:
            The representatives of the two sets, and the weight of the edge.
        """
        edge_count = len(edges.weights)
        parts = np.array_split(np.arange(edge_count), _PARTS)
        for part in parts:
            # Most edges lie within a set by now. NumPy leaves them out faster than a loop.
            first_vertices = self.find_all()
            part_starts = edges.starts[part]
            part_ends = edges.ends[part]
            starts = first_vertices[part_starts]
            ends = first_vertices[part_ends]
            weights = edges.weights[part]
            is_between = starts != ends
            for start, end, weight in zip(
                starts[is_between].tolist(),
                ends[is_between].tolist(),
                weights[is_between].tolist(),
                strict=True,
            ):
                a = self.find(start)
                b = self.find(end)
                if a != b:
                    yield a, b, weight


def _join_similar(
    sets: _VertexSets,
    edges: _Edges,
    first_threshold: np.float32,
) -> None:
    """Join sets along edges of low weight, compared with the weights within both sets.

    The threshold of a set is the weight of the last edge in it, plus a share that decreases as the
    set grows.
    """
    vertex_count = len(sets.sizes)
    # The share of a set by its number of vertices. No set has 0, so that entry has no meaning.
    set_sizes = np.arange(vertex_count + 1, dtype=np.float32)
    set_sizes[0] = 1
    shares = (first_threshold / set_sizes).tolist()
    # The thresholds of the sets by their representatives. The array rounds to float32: a sum of two
    # float32, computed in double precision and rounded, is their sum in float32.
    thresholds = array("f", [float(first_threshold)])
    thresholds *= vertex_count
    for a, b, weight in sets.iter_between(edges):
        # False for NaN.
        if weight <= thresholds[a] and weight <= thresholds[b]:
            joined = sets.join(a, b)
            size = sets.sizes[joined]
            thresholds[joined] = weight + shares[size]


def _join_small(
    sets: _VertexSets,
    edges: _Edges,
    min_vertices: int,
) -> None:
    """Join each set of fewer than `min_vertices` vertices along its edge of the lowest weight."""
    for a, b, _ in sets.iter_between(edges):
        size_a = sets.sizes[a]
        size_b = sets.sizes[b]
        if size_a < min_vertices or size_b < min_vertices:
            sets.join(a, b)
