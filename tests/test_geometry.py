"""Axis alignment bit for bit, and normals against sums written as loops."""

import math

import numpy as np
import oracles
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from scannet_prep import geometry
from scannet_prep.compiled import compile_loop
from scannet_prep.geometry import align, has_compiled_loop, points_and_normals, vertex_normals

needs_numba = pytest.mark.skipif(not has_compiled_loop(), reason="numba is not installed")


def vertex_normals_numpy(positions: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """The same without the compiled loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "compile_normals", lambda: None)
        return vertex_normals(positions, faces)


IMPLEMENTATIONS = [vertex_normals_numpy, pytest.param(vertex_normals, marks=needs_numba)]


def positions_of(rows) -> np.ndarray:
    return np.array(rows, np.float64).reshape(-1, 3)


def faces_of(rows) -> np.ndarray:
    return np.array(rows, np.int32).reshape(-1, 3)


def assert_unit_or_zero(normals: np.ndarray) -> None:
    assert not np.isnan(normals).any()
    lengths = np.sqrt((normals**2).sum(axis=1))
    assert np.all((np.abs(lengths - 1) < 1e-12) | (lengths == 0))


@pytest.mark.parametrize("compute", IMPLEMENTATIONS)
def test_the_normals_of_the_tiny_scene_are_as_by_hand(compute) -> None:
    normals = compute(positions_of(tiny.POSITIONS), faces_of(tiny.FACES))
    assert normals.dtype == np.float64
    np.testing.assert_allclose(normals, tiny.NORMALS, rtol=0, atol=1e-15)


@pytest.mark.parametrize("compute", IMPLEMENTATIONS)
def test_a_face_counts_by_its_area_and_points_where_its_corners_turn_counter_clockwise(compute) -> None:
    # At vertex 0: an area of 3 facing up, and one of 1/2 facing -y.
    positions = positions_of([(0, 0, 0), (2, 0, 0), (0, 3, 0), (1, 0, 0), (0, 0, 1)])
    normals = compute(positions, faces_of([(0, 1, 2), (0, 3, 4)]))
    np.testing.assert_allclose(normals[0], np.array([0, -1, 6]) / math.sqrt(37), atol=1e-15)
    turned = compute(positions, faces_of([(0, 2, 1), (0, 4, 3)]))
    np.testing.assert_array_equal(turned, -normals)


@pytest.mark.parametrize("compute", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("positions", "faces"),
    [
        ([(1, 2, 3)], []),
        ([(0, 0, 0), (1, 0, 0), (0, 1, 0)], []),
        ([(0, 0, 0)], [(0, 0, 0)]),
        ([(0, 0, 0), (1, 0, 0)], [(0, 1, 1), (0, 0, 1)]),
        ([(0, 0, 0), (1, 1, 1), (2, 2, 2)], [(0, 1, 2)]),
        ([(0.1, 0.1, 0.1)] * 3, [(0, 1, 2)]),
    ],
    ids=["one vertex", "no faces", "one corner thrice", "two corners", "three on a line", "three in one place"],
)
def test_without_a_face_that_has_area_the_normal_is_zero(compute, positions, faces) -> None:
    normals = compute(positions_of(positions), faces_of(faces))
    assert normals.tolist() == [[0, 0, 0]] * len(positions)


@pytest.mark.parametrize("compute", IMPLEMENTATIONS)
def test_an_isolated_vertex_and_a_face_without_area_leave_the_others_as_they_are(compute) -> None:
    positions = positions_of([*tiny.POSITIONS, (9, 9, 9)])
    normals = compute(positions, faces_of([*tiny.FACES, (0, 0, 1), (2, 2, 2)]))
    np.testing.assert_allclose(normals[:6], tiny.NORMALS, rtol=0, atol=1e-15)
    assert normals[6].tolist() == [0, 0, 0]


@pytest.mark.parametrize("compute", IMPLEMENTATIONS)
def test_two_faces_that_cancel_leave_zero(compute) -> None:
    normals = compute(positions_of(tiny.POSITIONS), faces_of([(0, 1, 2), (0, 2, 1)]))
    assert not normals.any()


@pytest.mark.parametrize("compute", IMPLEMENTATIONS)
@pytest.mark.parametrize("scale", [1e-44, 1e-20, 1e-4, 1e10, 1e38])
def test_normals_of_tiny_and_huge_triangles_are_of_unit_length(compute, scale: float) -> None:
    positions = positions_of(tiny.POSITIONS) * scale
    normals = compute(positions, faces_of(tiny.FACES))
    np.testing.assert_allclose(normals, tiny.NORMALS, rtol=0, atol=1e-12)


@pytest.mark.parametrize("compute", IMPLEMENTATIONS)
def test_three_vertices_on_a_line_have_no_normal_in_the_aligned_frame_either(compute) -> None:
    angle = 0.3
    matrix = np.eye(4)
    matrix[:2, :2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    matrix[:3, 3] = [-5.384390, -2.871780, -0.064350]
    # Multiples by powers of two are exact, so that the rotation alone puts the third vertex beside the line.
    directions = np.random.default_rng(5).uniform(0.1, 1, (200, 1, 3)).astype(np.float32)
    lines = (directions * np.array([1, 2, 4], np.float32)[:, None]).reshape(-1, 3)
    aligned = align(lines, matrix)
    corners = aligned.reshape(-1, 3, 3)
    assert np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]).any(axis=1).mean() > 0.5
    assert not compute(aligned, faces_of(np.arange(600))).any()


GRID = st.integers(-8, 8)
MESHES = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        st.lists(st.tuples(GRID, GRID, GRID), min_size=count, max_size=count),
        st.lists(st.tuples(*[st.integers(0, count - 1)] * 3), max_size=20),
    )
)
FLOATS = st.floats(-1e6, 1e6, width=32)


@given(mesh=MESHES)
@settings(max_examples=150, deadline=None)
def test_normals_agree_with_the_loops(mesh) -> None:
    positions, faces = positions_of(mesh[0]) / 8, faces_of(mesh[1])
    found = vertex_normals_numpy(positions, faces)
    np.testing.assert_allclose(found, oracles.vertex_normals(positions, mesh[1]), rtol=0, atol=1e-6)
    assert_unit_or_zero(found)


@given(data=st.data(), count=st.integers(1, 10))
@settings(max_examples=150, deadline=None)
def test_normals_of_any_coordinates_are_of_unit_length_or_zero(data: st.DataObject, count: int) -> None:
    rows = st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=count, max_size=count)
    corners = st.tuples(*[st.integers(0, count - 1)] * 3)
    positions, faces = positions_of(data.draw(rows)), faces_of(data.draw(st.lists(corners, max_size=20)))
    assert_unit_or_zero(vertex_normals_numpy(positions, faces))


@needs_numba
@given(data=st.data(), count=st.integers(1, 10))
@settings(max_examples=150, deadline=None)
def test_both_implementations_give_the_same_bits(data: st.DataObject, count: int) -> None:
    rows = st.lists(
        st.one_of(st.tuples(FLOATS, FLOATS, FLOATS), st.tuples(GRID, GRID, GRID)), min_size=count, max_size=count
    )
    corners = st.tuples(*[st.integers(0, count - 1)] * 3)
    positions, faces = positions_of(data.draw(rows)), faces_of(data.draw(st.lists(corners, max_size=20)))
    assert vertex_normals(positions, faces).tobytes() == vertex_normals_numpy(positions, faces).tobytes()


@needs_numba
def test_both_implementations_give_the_same_bits_on_a_large_noisy_mesh_with_degenerate_faces() -> None:
    rng = np.random.default_rng(7)
    positions = rng.normal(size=(5000, 3)).astype(np.float32).astype(np.float64)
    positions[100:200] = positions[100]
    faces = rng.integers(0, 5000, (20_000, 3)).astype(np.int32)
    faces[::50, 1] = faces[::50, 0]
    assert vertex_normals(positions, faces).tobytes() == vertex_normals_numpy(positions, faces).tobytes()


def test_what_numba_cannot_compile_is_done_without() -> None:
    assert compile_loop(lambda values: values.nonsense(), "void(int64[::1])") is None


def test_what_is_saved_is_the_exact_result_rounded_once() -> None:
    positions = np.random.default_rng(3).normal(size=(500, 3)).astype(np.float32)
    faces = np.random.default_rng(4).integers(0, 500, (900, 3)).astype(np.int32)
    matrix = np.reshape(tiny.ALIGNMENT, (4, 4)) + np.array([[1e-3], [0], [0], [0]])
    points, normals = points_and_normals(positions, faces, matrix)
    exact = align(positions, matrix)
    assert points.tobytes() == exact.astype(np.float32).tobytes()
    assert normals.tobytes() == vertex_normals(exact, faces).astype(np.float16).tobytes()


def test_the_tiny_scene_is_aligned_as_by_hand() -> None:
    found = align(np.array(tiny.POSITIONS, np.float32), np.array(tiny.ALIGNMENT).reshape(4, 4))
    assert found.dtype == np.float64
    assert found.tolist() == [
        [3, -2, -0.5], [3, -1, -0.5], [2, -1, -0.5], [2, -2, -0.5], [2, -2, 0.5], [2, -1, 0.5],
    ]  # fmt: skip


@given(
    rows=st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=1, max_size=8),
    matrix=st.lists(st.floats(-100, 100).map(lambda value: round(value, 6)), min_size=12, max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_aligned_points_agree_with_the_loops_bit_for_bit(rows, matrix) -> None:
    positions = np.array(rows, np.float32)
    aligned_from_scan = np.array([*matrix, 0, 0, 0, 1], np.float64).reshape(4, 4)
    expected = oracles.to_float32(oracles.aligned_points(positions, aligned_from_scan))
    assert align(positions, aligned_from_scan).astype(np.float32).tobytes() == expected.tobytes()


def test_alignment_is_computed_in_double_precision() -> None:
    rng = np.random.default_rng(1)
    positions = rng.uniform(-8, 8, (2000, 3)).astype(np.float32)
    matrix = np.eye(4)
    matrix[:3] = [[0.945519, 0.325568, 0, -5.38439], [-0.325568, 0.945519, 0, -2.87178], [0, 0, 1, -0.06435]]
    single = positions @ matrix[:3, :3].T.astype(np.float32) + matrix[:3, 3].astype(np.float32)
    exact = oracles.to_float32(oracles.aligned_points(positions, matrix))
    assert (single != exact).any()
    assert align(positions, matrix).astype(np.float32).tobytes() == exact.tobytes()
