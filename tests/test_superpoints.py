"""Superpoints against a loop in the order of the official Segmentator, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracles
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from scannet_prep.errors import UsageError
from scannet_prep.superpoints import segment_mesh
from scannet_prep.synthetic import make_scene

# Of the tiny scene, the floor has the vertices 0 to 3 and the wall 2 to 5. The normals of 0 and 1
# are (0, 0, 1), those of 4 and 5 (0, -1, 0). Vertex 2 has (0, -1/3, 2/3), the mean of two faces of
# the floor and one of the wall, and vertex 3 has (0, -2/3, 1/3). The edges 0-1 and 4-5 weigh 0. The
# edges from 2 to the floor and from 3 to the wall weigh 1/3, and 2-3 weighs 5/9. The remaining
# edges, 0-3 and 2-5, weigh 2/3.
APART = [0, 0, 1, 2, 3, 3]
FLOOR_AND_WALL = [0, 0, 0, 1, 1, 1]
TOGETHER = [0, 0, 0, 0, 0, 0]
# The same scene seen from the other side, with edges 0-1, 0-2 and 1-2 of the first face, and so on.
FACES_FROM_OUTSIDE = [(i, k, j) for i, j, k in tiny.FACES]


def segment(points: Any, faces: Any, threshold: float = 0.01, min_vertices: int = 0) -> list[int]:
    """Segment a mesh that is given as lists."""
    point_rows = np.array(points, np.float32).reshape(-1, 3)
    face_rows = np.array(faces, np.int32).reshape(-1, 3)
    return segment_mesh(point_rows, face_rows, threshold, min_vertices).tolist()


def test_segments_are_int32() -> None:
    segments = segment_mesh(np.array(tiny.POSITIONS, np.float32), np.array(tiny.FACES))

    assert segments.dtype == np.int32


def test_vertices_with_equal_normals_are_joined() -> None:
    assert segment(tiny.POSITIONS, tiny.FACES) == APART


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.55, APART),
        # Vertices 2 and 3 are joined by their edge of 5/9, as both thresholds are this number. That
        # of {0, 1} is half of it, less than 1/3.
        (0.66, [0, 0, 1, 1, 2, 2]),
        # The threshold of {0, 1} reaches 1/3, so that vertex 2 is joined. That of {0, 1, 2} is then
        # 1/3 plus a third of this number, and reaches 5/9.
        (0.67, TOGETHER),
    ],
)
def test_threshold_decreases_with_size_of_segment(threshold: float, expected: list[int]) -> None:
    assert segment(tiny.POSITIONS, tiny.FACES, threshold) == expected


def test_edges_that_lead_over_a_convex_fold_have_less_weight() -> None:
    # From outside, the normal of vertex 2 points away from 0 and 1. The weights of 0-2 and 1-2 are
    # then squared, and less than half of the threshold.
    assert segment(tiny.POSITIONS, tiny.FACES, 0.4) == APART
    assert segment(tiny.POSITIONS, FACES_FROM_OUTSIDE, 0.4) == [0, 0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("min_vertices", "expected"),
    [
        (0, APART),
        (1, APART),
        (2, FLOOR_AND_WALL),
        (3, FLOOR_AND_WALL),
        (4, TOGETHER),
        (20, TOGETHER),
    ],
)
def test_small_segments_are_joined_in_order_of_weights(
    min_vertices: int, expected: list[int]
) -> None:
    assert segment(tiny.POSITIONS, tiny.FACES, min_vertices=min_vertices) == expected


def test_vertex_without_faces_is_a_segment_by_itself() -> None:
    points = [(9, 9, 9), *tiny.POSITIONS, (9, 9, 9)]
    faces = np.array(tiny.FACES) + 1

    segments = segment(points, faces, min_vertices=20)

    assert segments == [0, 1, 1, 1, 1, 1, 1, 2]


def test_mesh_without_faces_has_a_segment_per_vertex() -> None:
    assert segment(tiny.POSITIONS, [], min_vertices=20) == [0, 1, 2, 3, 4, 5]


def test_mesh_without_vertices_has_no_segments() -> None:
    assert segment([], []) == []


def test_separate_part_of_mesh_remains_a_small_segment() -> None:
    points = [*tiny.POSITIONS, (9, 9, 9), (9, 8, 9), (8, 9, 9)]
    faces = [*tiny.FACES, (6, 7, 8)]

    segments = segment(points, faces, min_vertices=20)

    assert segments == [*TOGETHER, 1, 1, 1]


# Vertices 4 to 7 are on a line.
LINE = [*tiny.POSITIONS, (2, 1, 1), (3, 1, 1)]
WITHOUT_AREA = [(5, 6, 6), (5, 5, 6), (6, 5, 6), (5, 6, 7)]


@pytest.mark.parametrize("face", WITHOUT_AREA)
def test_vertices_of_face_without_area_are_apart(face: Any) -> None:
    segments = segment(LINE, [*tiny.FACES, face])

    assert segments == [0, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("face", "expected"),
    [
        ((5, 6, 6), [*FLOOR_AND_WALL, 1, 2]),
        ((5, 5, 6), [*FLOOR_AND_WALL, 1, 2]),
        ((5, 6, 7), [*FLOOR_AND_WALL, 1, 1]),
    ],
)
def test_vertices_of_face_without_area_are_joined_if_small(face: Any, expected: list[int]) -> None:
    segments = segment(LINE, [*tiny.FACES, face], min_vertices=2)

    assert segments == expected


def test_edges_without_weight_come_last() -> None:
    # The first face has no area, so all edges of 0 and 5 have no weight. If they came first, they
    # would join all vertices.
    faces = [(0, 5, 5), *tiny.FACES]

    segments = segment(tiny.POSITIONS, faces, min_vertices=2)

    # Edges 1-2 and 3-4 have weights. Then, 0-5 joins the two vertices that remain.
    assert segments == [0, 1, 1, 2, 2, 0]


@pytest.mark.parametrize(
    ("line", "expected"), [((6, 2, 3), [0, 0, 0, 1, 1, 1, 0]), ((6, 3, 2), [0, 0, 0, 1, 1, 1, 1])]
)
def test_first_edge_of_face_without_area_comes_first(line: Any, expected: list[int]) -> None:
    # Two triangles, and vertex 6 on the line between their corners 2 and 3.
    left = [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    right = [(3, 0, 0), (4, 1, 0), (4, 0, 0)]
    faces = [(0, 1, 2), (3, 4, 5), line]

    assert segment([*left, *right, (2, 0, 0)], faces, min_vertices=2) == expected


def test_duplicate_face_counts_twice_in_normals() -> None:
    # With the wall twice, the normal of vertex 2 is the mean of two faces of each, (0, -1/2, 1/2),
    # so that its edges weigh 1/2 instead of 1/3: more than half of the threshold.
    faces = [*tiny.FACES, tiny.FACES[2]]

    assert segment(tiny.POSITIONS, tiny.FACES, 0.7) == TOGETHER
    assert segment(tiny.POSITIONS, faces, 0.7)[:3] == [0, 0, 1]


def test_segments_are_numbered_by_first_vertex() -> None:
    order = [4, 2, 0, 5, 3, 1]
    faces = [[order.index(vertex) for vertex in face] for face in tiny.FACES]

    segments = segment(np.array(tiny.POSITIONS)[order], faces)

    assert segments == [0, 1, 2, 0, 3, 2]


@pytest.mark.parametrize("noise", [0.0, 0.002, 0.01])
@pytest.mark.parametrize("parameters", [(0.01, 20), (0.1, 50), (0.001, 0)])
def test_segments_of_synthetic_room_are_those_of_the_oracle(
    noise: float, parameters: tuple[float, int]
) -> None:
    scene = make_scene("scene0000_00", vertices=3000)
    shifts = np.random.default_rng(0).normal(0, noise, scene.positions.shape)
    points = (scene.positions + shifts).astype(np.float32)

    segments = segment_mesh(points, scene.faces, *parameters)

    expected = oracles.mesh_segments(points, scene.faces.tolist(), *parameters)
    assert segments.tolist() == expected


GRID = st.integers(-2, 2)
FLOATS = st.floats(-10, 10, width=32)
POINTS = st.lists(
    st.one_of(st.tuples(FLOATS, FLOATS, FLOATS), st.tuples(GRID, GRID, GRID)),
    min_size=1,
    max_size=12,
)
MESHES = POINTS.flatmap(
    lambda points: st.tuples(
        st.just(points), st.lists(st.tuples(*[st.integers(0, len(points) - 1)] * 3), max_size=24)
    )
)
# Weights are between 0 and 4.
THRESHOLDS = st.sampled_from([1e-37, 1e-4, 0.01, 0.5, 1.0, 2.0, 5.0, 1e37])
SIZES = st.integers(0, 8)


@given(mesh=MESHES, threshold=THRESHOLDS, min_vertices=SIZES)
@settings(max_examples=200)
def test_segments_of_any_mesh_are_those_of_the_oracle(
    mesh: Any, threshold: float, min_vertices: int
) -> None:
    segments = segment(*mesh, threshold, min_vertices)

    assert segments == oracles.mesh_segments(*mesh, threshold, min_vertices)


@pytest.mark.parametrize("scale", [1e-44, 1e-25, 1e-18, 1e15, 1e30, 3e37])
@given(mesh=MESHES, threshold=THRESHOLDS)
@settings(max_examples=30)
def test_segments_of_tiny_and_huge_meshes_are_those_of_the_oracle(
    scale: float, mesh: Any, threshold: float
) -> None:
    points = np.array(mesh[0]) * scale

    segments = segment(points, mesh[1], threshold)

    assert segments == oracles.mesh_segments(points, mesh[1], threshold, 0)


def make_random_mesh(seed: int, face_count: int) -> Any:
    """Make a mesh of 8 vertices, and list its different weights in ascending order."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(8, 3)).astype(np.float32)
    faces = [rng.permutation(8)[:3].tolist() for _ in range(face_count)]
    edges = oracles.weighted_edges(points, faces)
    return points, faces, sorted({float(weight) for weight, _, _ in edges})


@pytest.mark.parametrize("seed", range(8))
def test_thresholds_equal_to_weights_give_the_segments_of_the_oracle(seed: int) -> None:
    # The last bit of a weight decides.
    points, faces, weights = make_random_mesh(seed, face_count=10)

    for threshold in weights:
        segments = segment(points, faces, threshold)
        assert segments == oracles.mesh_segments(points, faces, threshold, 0)


# With these seeds, some result depends on the rounding of thresholds or of their shares.
@pytest.mark.parametrize("seed", [8, 12, 28, 59])
def test_rounded_thresholds_give_the_segments_of_the_oracle(seed: int) -> None:
    points, faces, weights = make_random_mesh(seed, face_count=5)
    # With the threshold 2 (w - v) or 3 (w - v), a set of two or three vertices that were joined by
    # an edge of weight v has the threshold w, except for rounding.
    thresholds = [
        count * (w - v)
        for index, w in enumerate(weights)
        for v in weights[:index]
        for count in (2, 3)
    ]

    for threshold in thresholds:
        segments = segment(points, faces, threshold)
        assert segments == oracles.mesh_segments(points, faces, threshold, 0)


@given(mesh=MESHES, threshold=THRESHOLDS, min_vertices=SIZES, data=st.data())
@settings(max_examples=60)
def test_order_of_vertices_changes_only_the_numbers(
    mesh: Any, threshold: float, min_vertices: int, data: st.DataObject
) -> None:
    points, faces = mesh
    order = data.draw(st.permutations(range(len(points))))
    new_faces = [[order.index(vertex) for vertex in face] for face in faces]

    segments = segment(np.array(points)[order], new_faces, threshold, min_vertices)

    expected = np.array(segment(points, faces, threshold, min_vertices))[order]
    # Each segment has one number in the one result, and one in the other.
    pairs = set(zip(segments, expected.tolist(), strict=True))
    assert len(pairs) == len(set(segments)) == len(set(expected.tolist()))


POINTS32 = np.array(tiny.POSITIONS, np.float32)
FACES32 = np.array(tiny.FACES, np.int32)


@pytest.mark.parametrize(
    "points",
    [
        POINTS32.astype(np.float64),
        POINTS32.astype(np.float16),
        POINTS32.astype(">f4"),
        np.asfortranarray(POINTS32),
        np.repeat(POINTS32, 2, axis=0)[::2],
    ],
    ids=["float64", "float16", "big-endian", "columns", "strided"],
)
def test_floats_of_any_form_give_the_same_segments(points: Any) -> None:
    assert segment_mesh(points, FACES32, min_vertices=0).tolist() == APART


@pytest.mark.parametrize("dtype", ["i1", "u1", "<i8", ">i4", "u4", "u8"])
def test_integers_of_any_type_give_the_same_segments(dtype: str) -> None:
    assert segment_mesh(POINTS32, FACES32.astype(dtype), min_vertices=0).tolist() == APART


def test_arguments_may_be_read_only() -> None:
    points = POINTS32.copy()
    faces = FACES32.astype(np.intp)
    points.flags.writeable = False
    faces.flags.writeable = False

    assert segment_mesh(points, faces, min_vertices=0).tolist() == APART


NAN = POINTS32.copy()
NAN[4, 1] = np.nan
INFINITE = POINTS32.copy()
INFINITE[0, 2] = -np.inf
BEYOND_FLOAT32 = POINTS32.astype(np.float64)
BEYOND_FLOAT32[5, 0] = 1e39


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((POINTS32[:, :2], FACES32), r"points: found \(6, 2\), expected \(V, 3\)$"),
        ((POINTS32[0], FACES32), r"points: found \(3,\), expected"),
        ((NAN, FACES32), r"points: found \[0.0, nan, 1.0\] at vertex 4, expected .* finite"),
        ((INFINITE, FACES32), r"points: found \[0.0, 0.0, -inf\] at vertex 0, expected .* finite"),
        ((BEYOND_FLOAT32, FACES32), r"points: found \[1e\+39, 1.0, 1.0\] at vertex 5"),
        ((POINTS32, FACES32.reshape(3, 4)), r"faces: found int32 \(3, 4\), expected integers"),
        ((POINTS32, FACES32.reshape(-1)), r"faces: found int32 \(12,\), expected integers"),
        ((POINTS32, FACES32.astype(float)), r"faces: found float64 \(4, 3\), expected integers"),
        ((POINTS32, FACES32 - 1), "faces: found indices from -1 to 4, expected at least 0"),
        ((POINTS32, FACES32 + 1), "faces: found indices from 1 to 6, expected .* less than 6"),
        ((POINTS32[:0], FACES32), "faces: found indices from 0 to 5, expected .* less than 0"),
        ((POINTS32, FACES32, 0), "threshold is 0, expected a number above 0"),
        ((POINTS32, FACES32, np.nan), "threshold is nan, expected a number above 0"),
    ],
)
def test_arguments_that_would_give_wrong_segments_are_refused(arguments, problem):
    with pytest.raises(UsageError, match=f"^{problem}"):
        segment_mesh(*arguments)
