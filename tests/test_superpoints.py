"""Superpoints against a loop in the order of the official Segmentator, and by hand."""

import numpy as np
import oracles
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from scannet_prep.errors import UsageError
from scannet_prep.superpoints import segment_mesh
from scannet_prep.synthetic import make_scene

# In the tiny scene, the floor has the vertices 0 to 3 and the wall 2 to 5. The normals of 0 and 1
# are (0, 0, 1), those of 4 and 5 (0, -1, 0). Vertex 2 has (0, -1/3, 2/3), the mean of two faces of
# the floor and one of the wall, and vertex 3 has (0, -2/3, 1/3). The edges 0-1 and 4-5 weigh 0. The
# edges from 2 to the floor and from 3 to the wall weigh 1/3, and 2-3 weighs 5/9. The remaining
# edges, 0-3 and 2-5, weigh 2/3.
POINTS = np.array(tiny.POSITIONS, np.float32)
FACES = np.array(tiny.FACES, np.int32)
APART = [0, 0, 1, 2, 3, 3]
FLOOR_AND_WALL = [0, 0, 0, 1, 1, 1]
TOGETHER = [0, 0, 0, 0, 0, 0]


def segment(points, faces, threshold=0.01, min_vertices=0):
    """Segment a mesh that is given as lists."""
    point_rows = np.array(points, np.float32).reshape(-1, 3)
    face_rows = np.array(faces, np.int32).reshape(-1, 3)
    return segment_mesh(point_rows, face_rows, threshold, min_vertices).tolist()


@pytest.mark.parametrize(
    ("faces", "threshold", "min_vertices", "expected"),
    [
        (FACES, 0.55, 0, APART),
        # Vertices 2 and 3 are joined by their edge of 5/9, as both thresholds are this number. That
        # of {0, 1} is half of it, less than 1/3.
        (FACES, 0.66, 0, [0, 0, 1, 1, 2, 2]),
        # The threshold of {0, 1} reaches 1/3, so that vertex 2 is joined. That of {0, 1, 2} is then
        # 1/3 plus a third of this number, and reaches 5/9.
        (FACES, 0.67, 0, TOGETHER),
        # From outside, the normal of vertex 2 points away from 0 and 1. The weights of 0-2 and 1-2
        # are then squared, and less than half of the threshold.
        (FACES, 0.4, 0, APART),
        (FACES[:, [0, 2, 1]], 0.4, 0, [0, 0, 0, 1, 2, 2]),
        # With the wall twice, the normal of vertex 2 is the mean of two faces of each,
        # (0, -1/2, 1/2), so that its edges weigh 1/2: more than half of the threshold.
        ([*FACES, FACES[2]], 0.7, 0, [0, 0, 1, 2, 2, 2]),
        # Small segments are joined in the order of the weights.
        (FACES, 0.01, 1, APART),
        (FACES, 0.01, 2, FLOOR_AND_WALL),
        (FACES, 0.01, 4, TOGETHER),
    ],
)
def test_segments_of_six_vertices_are_those_by_hand(faces, threshold, min_vertices, expected):
    assert segment(POINTS, faces, threshold, min_vertices) == expected


# Vertices 4 to 7 are on a line, so faces of them have no area.
LINE = [*tiny.POSITIONS, (2, 1, 1), (3, 1, 1)]


@pytest.mark.parametrize(
    ("points", "faces", "min_vertices", "expected"),
    [
        ([], [], 20, []),
        (POINTS, [], 20, [0, 1, 2, 3, 4, 5]),
        (LINE, [*FACES, (5, 6, 6)], 2, [*FLOOR_AND_WALL, 1, 2]),
        # All edges of 0 and 5 have no weight, and come last: 1-2 and 3-4 are joined before.
        (POINTS, [(0, 5, 5), *FACES], 2, [0, 1, 1, 2, 2, 0]),
    ],
)
def test_vertices_without_a_normal_are_joined_last(points, faces, min_vertices, expected):
    assert segment(points, faces, min_vertices=min_vertices) == expected


@pytest.mark.parametrize("noise", [0.0, 0.002, 0.01])
@pytest.mark.parametrize("parameters", [(0.01, 20), (0.1, 50), (0.001, 0)])
def test_segments_of_synthetic_room_are_those_of_the_oracle(noise, parameters):
    scene = make_scene("scene0000_00", vertices=3000)
    shifts = np.random.default_rng(0).normal(0, noise, scene.positions.shape)
    points = (scene.positions + shifts).astype(np.float32)

    segments = segment_mesh(points, scene.faces, *parameters)

    assert segments.tolist() == oracles.mesh_segments(points, scene.faces.tolist(), *parameters)


GRID = st.integers(-2, 2)
FLOATS = st.floats(-10, 10, width=32)
POINT = st.tuples(FLOATS, FLOATS, FLOATS) | st.tuples(GRID, GRID, GRID)
# Weights are between 0 and 4.
THRESHOLDS = st.sampled_from([1e-37, 1e-4, 0.01, 0.5, 1.0, 2.0, 5.0, 1e37])


@st.composite
def meshes(draw):
    points = draw(st.lists(POINT, min_size=1, max_size=12))
    vertex = st.integers(0, len(points) - 1)
    return points, draw(st.lists(st.tuples(vertex, vertex, vertex), max_size=24))


@pytest.mark.parametrize("scale", [1, 1e-44, 1e-25, 1e-18, 1e15, 1e30, 3e37])
@given(mesh=meshes(), threshold=THRESHOLDS, min_vertices=st.integers(0, 8))
@settings(max_examples=60)
def test_segments_of_any_mesh_are_those_of_the_oracle(scale, mesh, threshold, min_vertices):
    points = np.array(mesh[0]) * scale

    segments = segment(points, mesh[1], threshold, min_vertices)

    assert segments == oracles.mesh_segments(points, mesh[1], threshold, min_vertices)


# With some of these seeds, a result depends on the rounding of thresholds or of their shares.
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 8, 12, 28, 59])
def test_rounded_thresholds_give_the_segments_of_the_oracle(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(8, 3)).astype(np.float32)
    faces = [rng.permutation(8)[:3].tolist() for _ in range(5)]
    edges = oracles.weighted_edges(points, faces)
    weights = sorted({float(weight) for weight, _, _ in edges})
    # With the threshold 2 (w - v) or 3 (w - v), a set of two or three vertices that were joined by
    # an edge of weight v has the threshold w, except for rounding.
    pairs = [(v, w) for w in weights for v in [0, *weights] if w > max(v, 0)]

    for threshold in (count * (w - v) for v, w in pairs for count in (1, 2, 3)):
        segments = segment(points, faces, threshold)
        assert segments == oracles.mesh_segments(points, faces, threshold, 0)


@pytest.mark.parametrize("dtype", ["f8", "f2", ">f4"])
@pytest.mark.parametrize("index_dtype", ["i1", ">i4", "u8"])
def test_read_only_arrays_of_any_form_give_the_same_int32_segments(dtype, index_dtype):
    points = np.repeat(POINTS, 2, axis=0).astype(dtype)[::2]
    faces = FACES.astype(index_dtype)
    points.flags.writeable = False
    faces.flags.writeable = False

    segments = segment_mesh(points, faces, min_vertices=0)

    assert segments.tolist() == APART
    assert segments.dtype == np.int32


def test_vertices_of_a_large_mesh_are_told_apart():
    points = np.resize(POINTS, (72_006, 3))

    segments = segment_mesh(points, FACES + 72_000, min_vertices=0)

    assert (segments[-6:] - 72_000).tolist() == APART


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((POINTS[:, :2], FACES), r"points: found \(6, 2\), expected \(V, 3\)$"),
        ((POINTS * np.nan, FACES), r"points: found \[nan, nan, nan\] at vertex 0, "),
        ((POINTS.astype(float) * 1e39, FACES), r"points: found \[1e\+39, 0.0, 0.0\] at vertex 1"),
        ((POINTS, FACES.reshape(3, 4)), r"faces: found int32 \(3, 4\), expected integers"),
        ((POINTS, FACES.astype(float)), r"faces: found float64 \(4, 3\), expected integers"),
        ((POINTS, FACES - 1), "faces: found indices from -1 to 4, expected at least 0"),
        ((POINTS, FACES + 1), "faces: found indices from 1 to 6, expected .* less than 6"),
        ((POINTS, FACES, 0), "threshold is 0, expected a number above 0"),
        ((POINTS, FACES, np.nan), "threshold is nan, expected a number above 0"),
    ],
)
def test_arguments_that_would_give_wrong_segments_are_refused(arguments, problem):
    with pytest.raises(UsageError, match=f"^{problem}"):
        segment_mesh(*arguments)
