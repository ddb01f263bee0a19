"""Points and normals, with numba and with NumPy alone, against sums that are written as loops."""

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
with_and_without_numba = pytest.mark.parametrize(
    "compute",
    [
        pytest.param(compute_in_numpy, id="NumPy"),
        pytest.param(compute_with_numba, id="numba", marks=needs_numba),
    ],
)


def normals_of(compute: Any, positions: Any, faces: Any, matrix: Any = None) -> np.ndarray:
    position_rows = np.array(positions, np.float32).reshape(-1, 3)
    face_rows = np.array(faces, np.int32).reshape(-1, 3)
    _, normals = compute(position_rows, face_rows, matrix)
    assert normals.dtype == np.float64
    return normals


@with_and_without_numba
@pytest.mark.parametrize("scale", [1, 1e-44, 1e-20, 1e-4, 1e10, 1e38])
def test_normals_of_tiny_scene_are_those_computed_by_hand(compute: Any, scale: float) -> None:
    normals = normals_of(compute, np.array(tiny.POSITIONS) * scale, tiny.FACES)

    np.testing.assert_allclose(normals, tiny.NORMALS, rtol=0, atol=1e-12)


@with_and_without_numba
def test_normals_ignore_faces_without_area(compute: Any) -> None:
    positions = [*tiny.POSITIONS, (9, 9, 9)]
    faces = [*tiny.FACES, (0, 0, 1), (2, 2, 2)]

    normals = normals_of(compute, positions, faces)

    np.testing.assert_allclose(normals, [*tiny.NORMALS, (0, 0, 0)], rtol=0, atol=1e-15)


@with_and_without_numba
@pytest.mark.parametrize(
    ("positions", "faces"),
    [
        ([(1, 2, 3)], []),
        ([(0, 0, 0), (1, 0, 0)], [(0, 0, 0), (0, 1, 1), (0, 0, 1)]),
        ([(0, 0, 0), (1, 1, 1), (2, 2, 2)], [(0, 1, 2)]),
        ([(0.1, 0.1, 0.1)] * 3, [(0, 1, 2)]),
        (tiny.POSITIONS, [(0, 1, 2), (0, 2, 1)]),
    ],
    ids=["no face", "repeated vertex", "line", "point", "opposite faces"],
)
def test_normals_without_area_are_zero(compute: Any, positions: Any, faces: Any) -> None:
    normals = normals_of(compute, positions, faces)

    assert normals.tolist() == [[0, 0, 0]] * len(positions)


@with_and_without_numba
def test_vertices_on_a_line_have_zero_normals_after_alignment(compute: Any) -> None:
    matrix = np.eye(4)
    matrix[:2, :2] = [[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]]
    matrix[:3, 3] = [-5.384390, -2.871780, -0.064350]
    # Vertices (600, 3): 200 directions, each times 1, 2 and 4. Multiples by powers of two are
    # exact, so that only the rotation can move the third vertex away from the line.
    directions = np.random.default_rng(5).uniform(0.1, 1, (200, 1, 3)).astype(np.float32)
    lines = (directions * np.array([1, 2, 4], np.float32)[:, None]).reshape(-1, 3)

    normals = normals_of(compute, lines, np.arange(600), matrix)

    # Most of the rotated triangles have some area.
    corners = np.array(oracles.aligned_points(lines, matrix)).reshape(-1, 3, 3)
    products = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    assert products.any(axis=1).mean() > 0.5
    assert not normals.any()


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
def test_normals_of_any_mesh_have_unit_length_or_are_zero(mesh: Any) -> None:
    normals = normals_of(compute_in_numpy, *mesh)

    lengths = np.sqrt((normals**2).sum(axis=1))
    assert np.all((np.abs(lengths - 1) < 1e-12) | (lengths == 0))


@given(mesh=MESHES)
@settings(max_examples=60)
def test_normals_of_any_mesh_on_a_grid_agree_with_loops(mesh: Any) -> None:
    positions, faces = mesh
    # On this grid, the loops are exact enough.
    grid = np.clip(np.rint(positions), -8, 8) / 8

    normals = normals_of(compute_in_numpy, grid, faces)

    expected = oracles.vertex_normals(grid, faces)
    np.testing.assert_allclose(normals, expected, rtol=0, atol=1e-6)


@needs_numba
@given(mesh=MESHES)
@settings(max_examples=60)
def test_normals_of_any_mesh_have_the_same_bits_with_numba(mesh: Any) -> None:
    normals = normals_of(compute_with_numba, *mesh)

    assert normals.tobytes() == normals_of(compute_in_numpy, *mesh).tobytes()


@needs_numba
@pytest.mark.parametrize("is_aligned", [False, True])
def test_large_noisy_mesh_has_the_same_bits_with_numba(is_aligned: bool) -> None:
    rng = np.random.default_rng(7)
    positions = rng.normal(size=(50_000, 3)).astype(np.float32)
    positions[100:200] = positions[100]
    positions[0] = -0.0
    faces = rng.integers(0, 50_000, (90_000, 3)).astype(np.int32)
    # Degenerate faces.
    faces[::50, 1] = faces[::50, 0]
    # Arrays of a mapped file are read-only.
    positions.flags.writeable = False
    faces.flags.writeable = False
    matrix = None
    if is_aligned:
        matrix = np.reshape(tiny.ALIGNMENT, (4, 4)) + np.array([[1e-3], [0], [0], [0]])

    points, normals = compute_with_numba(positions, faces, matrix)

    expected_points, expected_normals = compute_in_numpy(positions, faces, matrix)
    assert points.tobytes() == expected_points.tobytes()
    assert normals.tobytes() == expected_normals.tobytes()


def test_compile_loop_returns_none_if_numba_cannot_compile() -> None:
    assert compile_loop(lambda values: values.nonsense(), "void(int64[::1])") is None


@with_and_without_numba
@given(
    rows=st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=1, max_size=8),
    matrix=st.lists(
        st.floats(-100, 100).map(lambda value: round(value, 6)), min_size=12, max_size=12
    ),
)
@settings(max_examples=60)
def test_points_of_any_alignment_have_the_same_bits_as_in_loops(
    compute: Any, rows: Any, matrix: Any
) -> None:
    positions = np.array(rows, np.float32)
    aligned_from_scan = np.array([*matrix, 0, 0, 0, 1], np.float64).reshape(4, 4)

    points, _ = compute(positions, np.zeros((0, 3), np.int32), aligned_from_scan)

    # In double precision, rounded once.
    expected = np.float32(oracles.aligned_points(positions, aligned_from_scan))
    assert points.tobytes() == expected.tobytes()
