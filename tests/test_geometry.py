"""Points and normals, against numbers computed by hand and sums that are written as loops."""

import math

import numpy as np
import oracles
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from scannet_prep.processed.geometry import points_and_normals

TURN = np.eye(4)
TURN[:2, :2] = [[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]]
TURN[:3, 3] = [-5.384390, -2.871780, -0.064350]


def compute(positions, faces, matrix=None):
    """Compute points and normals of lists."""
    rows = np.array(positions, float).reshape(-1, 3)
    return points_and_normals(rows, np.array(faces, np.int32).reshape(-1, 3), matrix)


def compute_in_loops(positions, faces, matrix=None):
    """Compute the same bits."""
    points = np.array(positions, float)
    normals = oracles.vertex_normals(points, faces, matrix)
    if matrix is not None:
        points = oracles.aligned_points(points, matrix)
    return np.float32(points).reshape(-1, 3), np.float16(normals)


@pytest.mark.parametrize("scale", [1, 1e-44, 1e-20, 1e-4, 1e10, 1e38])
def test_normals_are_those_computed_by_hand_whatever_the_scale_and_the_faces_without_area(scale):
    positions = np.array([*tiny.POSITIONS, (3, 3, 3)]) * scale
    _, normals = compute(positions, [*tiny.FACES, (0, 0, 1), (2, 2, 2)])

    np.testing.assert_allclose(normals, [*tiny.NORMALS, (0, 0, 0)], rtol=0, atol=1e-3)


@pytest.mark.parametrize("matrix", [None, TURN], ids=["scan", "aligned"])
def test_normals_without_area_are_zero(matrix):
    # 200 directions, each times 1, 2 and 4. Multiples by powers of two are exact, so that only the
    # rotation can move the third vertex away from the line: most rotated triangles have some area.
    directions = np.random.default_rng(5).uniform(0.1, 1, (200, 1, 3)).astype(np.float32)
    lines = directions * np.array([1, 2, 4], np.float32)[:, None]
    # The last two faces are opposite.
    faces = [*np.arange(600).reshape(-1, 3), (600, 601, 602), (600, 602, 601)]

    _, normals = compute([*lines.reshape(-1, 3), *tiny.POSITIONS], faces, matrix)

    assert not normals.any()


GRID = st.integers(-8, 8)
# Most of them have no exact float32.
FLOATS = st.floats(-1e6, 1e6, width=32).map(lambda value: value / 3)
POINTS = st.lists(
    st.one_of(st.tuples(FLOATS, FLOATS, FLOATS), st.tuples(GRID, GRID, GRID)),
    min_size=1,
    max_size=10,
)
MESHES = POINTS.flatmap(
    lambda points: st.tuples(
        st.just(points), st.lists(st.tuples(*[st.integers(0, len(points) - 1)] * 3), max_size=20)
    )
)
FACTORS = st.floats(-100, 100).map(lambda value: round(value, 6))
MATRICES = st.lists(FACTORS, min_size=12, max_size=12).map(
    lambda numbers: np.array([*numbers, 0, 0, 0, 1]).reshape(4, 4)
)


@given(mesh=MESHES, matrix=st.one_of(st.none(), st.just(TURN), MATRICES))
@settings(max_examples=200)
def test_any_mesh_under_any_alignment_has_the_bits_of_loops_and_unit_normals_or_none(mesh, matrix):
    points, normals = compute(*mesh, matrix)

    expected_points, expected_normals = compute_in_loops(*mesh, matrix)
    assert points.dtype == np.float32
    assert points.tobytes() == expected_points.tobytes()
    assert normals.dtype == np.float16
    assert normals.tobytes() == expected_normals.tobytes()
    lengths = np.sqrt((normals.astype(float) ** 2).sum(axis=1))
    assert np.all((np.abs(lengths - 1) < 2**-10) | (lengths == 0))


def test_mesh_of_several_parts_has_the_normals_of_loops():
    rng = np.random.default_rng(7)
    positions = rng.normal(size=(9_000, 3)).astype(np.float32)
    faces = rng.integers(0, len(positions), (20_000, 3)).astype(np.int32)
    # Arrays of a mapped file are read-only, and may be strided.
    positions = np.asfortranarray(positions)
    positions.flags.writeable = False
    faces.flags.writeable = False

    points, normals = points_and_normals(positions, faces, TURN)

    expected_points, expected_normals = compute_in_loops(positions, faces.tolist(), TURN)
    assert points.tobytes() == expected_points.tobytes()
    assert np.abs(normals.astype(float) - expected_normals.astype(float)).max() <= 2**-11
