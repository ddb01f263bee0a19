"""Axis alignment bit for bit, and normals against sums written as loops, both compiled and in NumPy alone."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import oracles
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from scannet_prep.base.compiled import compile_geometry, compile_loop
from scannet_prep.processed.geometry import points_and_normals

needs_numba = pytest.mark.skipif(not compile_geometry(), reason="numba is not installed")


def compute_in_numpy(positions: Any, faces: Any, aligned_from_scan: Any = None) -> Any:
    return points_and_normals(positions, faces, aligned_from_scan)


compute_with_numba = partial(points_and_normals, uses_numba=True)
IMPLEMENTATIONS = [compute_in_numpy, pytest.param(compute_with_numba, marks=needs_numba)]
both_ways = pytest.mark.parametrize("compute", IMPLEMENTATIONS)


def normals_of(compute: Any, positions: Any, faces: Any, matrix: Any = None) -> np.ndarray:
    rows = np.array(positions, np.float32).reshape(-1, 3)
    _, normals = compute(rows, np.array(faces, np.int32).reshape(-1, 3), matrix)
    assert normals.dtype == np.float64
    return normals


@both_ways
def test_the_normals_of_the_tiny_scene_are_as_by_hand_at_any_scale_zero_where_no_face_has_area(
    compute: Any,
) -> None:
    for scale in (1, 1e-44, 1e-20, 1e-4, 1e10, 1e38):
        positions = np.array(tiny.POSITIONS) * scale
        np.testing.assert_allclose(
            normals_of(compute, positions, tiny.FACES), tiny.NORMALS, rtol=0, atol=1e-12
        )
    normals = normals_of(compute, [*tiny.POSITIONS, (9, 9, 9)], [*tiny.FACES, (0, 0, 1), (2, 2, 2)])
    np.testing.assert_allclose(normals, [*tiny.NORMALS, (0, 0, 0)], rtol=0, atol=1e-15)

    for positions, faces in (
        ([(1, 2, 3)], []),
        ([(0, 0, 0), (1, 0, 0)], [(0, 0, 0), (0, 1, 1), (0, 0, 1)]),
        ([(0, 0, 0), (1, 1, 1), (2, 2, 2)], [(0, 1, 2)]),
        ([(0.1, 0.1, 0.1)] * 3, [(0, 1, 2)]),
        (tiny.POSITIONS, [(0, 1, 2), (0, 2, 1)]),  # they cancel
    ):
        assert normals_of(compute, positions, faces).tolist() == [[0, 0, 0]] * len(positions), faces


@both_ways
def test_three_vertices_on_a_line_have_no_normal_in_the_aligned_frame_either(compute: Any) -> None:
    matrix = np.eye(4)
    matrix[:2, :2] = [[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]]
    matrix[:3, 3] = [-5.384390, -2.871780, -0.064350]
    # Multiples by powers of two are exact, so that the rotation alone puts the third vertex beside the line.
    directions = np.random.default_rng(5).uniform(0.1, 1, (200, 1, 3)).astype(np.float32)
    lines = (directions * np.array([1, 2, 4], np.float32)[:, None]).reshape(-1, 3)
    corners = np.array(oracles.aligned_points(lines, matrix)).reshape(-1, 3, 3)
    assert (
        np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]).any(axis=1).mean()
        > 0.5
    )
    assert not normals_of(compute, lines, np.arange(600), matrix).any()


GRID = st.integers(-8, 8)
FLOATS = st.floats(-1e6, 1e6, width=32)
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


@given(mesh=MESHES)
@settings(max_examples=60)
def test_normals_of_any_mesh_are_those_of_the_loops_of_unit_length_or_zero_and_have_the_same_bits_both_ways(
    mesh: Any,
) -> None:
    normals = normals_of(compute_in_numpy, *mesh)
    lengths = np.sqrt((normals**2).sum(axis=1))
    assert np.all((np.abs(lengths - 1) < 1e-12) | (lengths == 0))
    assert normals_of(compute_with_numba, *mesh).tobytes() == normals.tobytes()
    grid = np.clip(np.rint(mesh[0]), -8, 8) / 8  # where the loops are exact enough
    expected = oracles.vertex_normals(grid, mesh[1])
    np.testing.assert_allclose(
        normals_of(compute_in_numpy, grid, mesh[1]), expected, rtol=0, atol=1e-6
    )


@needs_numba
def test_both_ways_give_the_same_bits_on_a_large_noisy_mesh_with_degenerate_faces() -> None:
    rng = np.random.default_rng(7)
    positions = rng.normal(size=(50_000, 3)).astype(np.float32)
    positions[100:200] = positions[100]
    positions[0] = -0.0
    faces = rng.integers(0, 50_000, (90_000, 3)).astype(np.int32)
    faces[::50, 1] = faces[::50, 0]
    positions.flags.writeable = faces.flags.writeable = False  # as a mapped file gives them
    for matrix in (None, np.reshape(tiny.ALIGNMENT, (4, 4)) + np.array([[1e-3], [0], [0], [0]])):
        found = compute_with_numba(positions, faces, matrix)
        expected = compute_in_numpy(positions, faces, matrix)
        assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]


def test_what_numba_cannot_compile_is_done_without() -> None:
    assert compile_loop(lambda values: values.nonsense(), "void(int64[::1])") is None


@both_ways
@given(
    rows=st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=1, max_size=8),
    matrix=st.lists(
        st.floats(-100, 100).map(lambda value: round(value, 6)), min_size=12, max_size=12
    ),
)
@settings(max_examples=60)
def test_points_of_any_alignment_agree_with_the_loops_bit_for_bit(
    compute: Any, rows: Any, matrix: Any
) -> None:
    positions = np.array(rows, np.float32)
    aligned_from_scan = np.array([*matrix, 0, 0, 0, 1], np.float64).reshape(4, 4)
    expected = np.float32(oracles.aligned_points(positions, aligned_from_scan))
    found, _ = compute(
        positions, np.zeros((0, 3), np.int32), aligned_from_scan
    )  # in double precision
    assert found.tobytes() == expected.tobytes()
