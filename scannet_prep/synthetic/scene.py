"""Synthetic scenes: a furnished room as a scanner would see it, over-segmented and annotated.

`make_scene` furnishes a room, covers it with a mesh that is cut into segments, moves it into the
frame of a scan with noise and a hole, and groups the segments by the objects of the room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.raw.files import Group
from scannet_prep.release.scenes import SceneId, Split, official_splits
from scannet_prep.synthetic.room import (
    SHELL,
    Float64s,
    Int64s,
    Piece,
    furnish_room,
    turn_around_z,
)

MIN_VERTICES = 500

# Standard deviations of the noise: of coordinates in metres, of colours in their unit.
_POSITION_NOISE = 0.003
_PIECE_COLOR_NOISE = 12.0
_VERTEX_COLOR_NOISE = 8.0

# Each side of an object is cut into bricks, which are its segments; see `_cut_grid`. These values
# give about one segment per 120 vertices, as in the release: many small ones and a few large ones.
# Rows of the grid per course of bricks:
_COURSE_ROWS = 12
# Probability that a brick begins at a point of a course:
_FIRST_PROBABILITY = 0.08
# Probability that a brick belongs to the background, which is one large segment:
_BACKGROUND_PROBABILITY = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticScene:
    """One synthetic scan.

    Attributes:
        scene_id: Its name.
        positions: float32 (V, 3), metres, in the scan frame: z is up, and the walls are rotated
            about z and shifted.
        colors: uint8 (V, 3), red, green, blue, 0..255.
        faces: int32 (F, 3), vertex indices, counter-clockwise as seen from inside the room.
        segment_ids: int32 (V,), raw segment ids. Each is the index of one of the segment's
            vertices, so `segment_ids[id] == id`.
        groups: Annotated objects in file order; empty for test scenes. No two share a segment.
            Their ids have gaps where the annotator removed an object; their object ids have none.
            Their raw categories are in the built-in label map.
        axis_alignment: float64 (4, 4), aligned <- scan, metres, six decimals; None for test scenes.
    """

    scene_id: SceneId
    positions: NDArray[np.float32]
    colors: NDArray[np.uint8]
    faces: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    groups: tuple[Group, ...]
    axis_alignment: Float64s | None


def make_scene(scene_id: str, *, vertices: int = 4000, seed: int = 0) -> SyntheticScene:
    """Make a scene; the same arguments give the same scene.

    More vertices make the mesh of the smallest room denser, up to the usual density of a scan. From
    there on, they make the room larger. Scenes of the official test split are made without
    annotation.

    Args:
        scene_id: Its name, for example `scene0000_00`.
        vertices: The exact number of vertices, at least 500.
        seed: Another seed gives another room; at least 0.

    Raises:
        UsageError: `scene_id` is not a scene id of the release, or `vertices` or `seed` is too
            small.
    """
    name = SceneId(scene_id)
    is_too_small = vertices < MIN_VERTICES or seed < 0
    if is_too_small or name.space is None or name.scan is None:
        raise UsageError(
            f"cannot make the scene {scene_id!r} of {vertices} vertices from seed {seed}",
            f'make_scene("scene0000_00", vertices={MIN_VERTICES}, seed=0)',
        )
    seeds = [name.space, name.scan, vertices, seed]
    rng = np.random.default_rng(seeds)
    room = furnish_room(vertices, rng)
    mesh = _mesh_sides(room.sides, vertices, rng)
    degrees = rng.uniform(10.0, 60.0)
    if rng.random() >= 0.5:
        degrees = -degrees
    lowest = [-5.0, -5.0, -0.12]
    highest = [5.0, 5.0, -0.02]
    shift = rng.uniform(lowest, highest).round(6)

    # The mesh has a few points too many. Those nearest to a point of the ceiling are left out, so
    # that exactly `vertices` remain, and the scene has a hole, as real scans have.
    width, depth, height = room.size
    hole_x = rng.uniform(0.3, 0.7) * width
    hole_y = rng.uniform(0.3, 0.7) * depth
    offsets = mesh.points - (hole_x, hole_y, height)
    squared_distances = (offsets**2).sum(axis=1)
    farthest = np.argsort(-squared_distances, kind="stable")
    # int64 (V,): the farthest points, in the order of the mesh.
    kept = np.sort(farthest[:vertices])
    point_count = len(mesh.points)
    new_indices = np.full(point_count, -1, np.int32)
    new_indices[kept] = np.arange(vertices)
    faces = new_indices[mesh.triangles]
    is_whole = faces.min(axis=1) >= 0

    noise = rng.normal(0.0, _POSITION_NOISE, (vertices, 3))
    scanned_points = mesh.points[kept] + noise
    shifted_points = scanned_points - shift
    positions = turn_around_z(shifted_points, -degrees)
    segment_ids = _name_segments(mesh.segments[kept], rng)
    vertex_pieces = room.side_pieces[mesh.sides[kept]]
    colors = _draw_colors(room.pieces, vertex_pieces, rng)

    groups: tuple[Group, ...] = ()
    axis_alignment = None
    if official_splits().get(name) is not Split.TEST:
        groups = _annotate(room.pieces, vertex_pieces, segment_ids, rng)
        turned_axes = turn_around_z(np.eye(3), degrees)
        axis_alignment = np.eye(4)
        axis_alignment[:3, :3] = turned_axes.T
        axis_alignment[:3, 3] = shift
    return SyntheticScene(
        scene_id=name,
        positions=positions.astype(np.float32),
        colors=colors,
        faces=faces.compress(is_whole, axis=0),
        segment_ids=segment_ids,
        groups=groups,
        axis_alignment=axis_alignment,
    )


def spread_over_vertices(scene: SyntheticScene, values: Sequence[int]) -> Int64s:
    """Give each vertex the value of its last group, int64 (V,); 0 without one."""
    # Indexed by segment id, which is the index of a vertex.
    value_of_segment = np.zeros(len(scene.segment_ids), np.int64)
    for group, value in zip(scene.groups, values, strict=True):
        segment_ids = np.array(group.segment_ids)
        value_of_segment[segment_ids] = value
    return value_of_segment[scene.segment_ids]


class _Mesh(NamedTuple):
    """The sides of a room as a mesh.

    Attributes:
        points: float64 (N, 3), metres, in the frame of the room; side after side.
        segments: int64 (N,), the segment of each point, from 0. A segment is on one side only. Not
            every number is used.
        triangles: int64 (T, 3), counter-clockwise as seen from inside the room.
        sides: int64 (N,), the side of each point.
    """

    points: Float64s
    segments: Int64s
    triangles: Int64s
    sides: Int64s


def _mesh_sides(sides: Float64s, vertices: int, rng: np.random.Generator) -> _Mesh:
    """Cover each side, (S, 3, 3), with a grid: at least `vertices` points in all, and few more."""
    points = []
    segments = []
    triangles = []
    point_count = 0
    segment_count = 0
    shapes = _find_grid_shapes(sides, vertices)
    for side, shape in zip(sides, shapes.tolist(), strict=True):
        origin, along_u, along_v = side
        last_row, last_column = np.subtract(shape, 1)
        indices = np.indices(shape)
        row, column = indices.reshape(2, -1)
        # From the corner of the side, (N, 3).
        step_u = along_u / last_row
        step_v = along_v / last_column
        down = row[:, np.newaxis] * step_u
        across = column[:, np.newaxis] * step_v
        points.append(origin + down + across)

        numbers = np.arange(point_count, point_count + len(row))
        grid = numbers.reshape(shape)
        # The corners of each square, which is cut into two triangles.
        corner = grid[:-1, :-1]
        right = grid[:-1, 1:]
        below = grid[1:, :-1]
        opposite = grid[1:, 1:]
        squares = np.stack(
            [
                corner,
                below,
                opposite,
                corner,
                opposite,
                right,
            ],
            axis=-1,
        )
        triangles.append(squares.reshape(-1, 3))

        segments.append(segment_count + _cut_grid(row, column, rng))
        point_count += len(row)
        last_segment = int(segments[-1].max())
        segment_count = last_segment + 1
    return _Mesh(
        points=np.concatenate(points),
        segments=np.concatenate(segments),
        triangles=np.concatenate(triangles),
        sides=np.repeat(np.arange(len(sides)), shapes.prod(axis=1)),
    )


def _find_grid_shapes(sides: Float64s, vertices: int) -> Int64s:
    """Find the numbers of points along u and v of each side, int64 (S, 2), for a given total."""
    # The lengths of the edges u and v, (S, 2).
    edges = sides[:, 1:]
    lengths = np.sqrt((edges**2).sum(axis=2))
    area = lengths.prod(axis=1).sum()
    # Start with a spacing that gives too few points, and reduce it until there are enough.
    spacing = 1.5 * math.sqrt(area / vertices)
    while True:
        steps = (lengths / spacing).astype(np.int64)
        shapes: Int64s = np.maximum(2, steps + 1)
        point_count = shapes.prod(axis=1).sum()
        if point_count >= vertices:
            return shapes
        spacing *= 0.995


def _cut_grid(row: Int64s, column: Int64s, rng: np.random.Generator) -> Int64s:
    """Cut a grid into bricks, and join some of them to one background.

    A course is a strip of rows; bricks lie side by side in it.

    Args:
        row: int64 (N,), the row of each point of the grid.
        column: int64 (N,), its column.
        rng: Decides where bricks begin, and which are background.

    Returns:
        int64 (N,), the segment of each point: 0 for the background, otherwise its brick.
    """
    course = row // _COURSE_ROWS
    course_count = int(course[-1]) + 1
    column_count = int(column[-1]) + 1
    grid_shape = (course_count, column_count)
    is_first = rng.random(grid_shape) < _FIRST_PROBABILITY
    is_first[:, 0] = True
    # Number the bricks over all courses, and look up the brick of each point.
    numbers = is_first.cumsum() - 1
    bricks = numbers.reshape(grid_shape)[course, column]
    brick_count = int(bricks.max()) + 1
    is_background = rng.random(brick_count) < _BACKGROUND_PROBABILITY
    return np.where(is_background[bricks], 0, bricks + 1)


def _name_segments(
    segments: Int64s,
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    """Name each segment after one of its vertices, as the release does; int32 (V,)."""
    segment_count = int(segments.max()) + 1
    names = np.empty(segment_count, np.int32)
    shuffled = rng.permutation(len(segments))
    shuffled = shuffled.astype(np.int32)
    # Of the vertices of a segment, the last in this random order names it.
    names[segments[shuffled]] = shuffled
    return names[segments]


def _draw_colors(
    pieces: Sequence[Piece],
    vertex_pieces: Int64s,
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    """Draw colours that differ a little between objects, and between vertices; uint8 (V, 3)."""
    piece_colors = np.array([piece.color for piece in pieces], np.float64)
    piece_colors += rng.normal(0.0, _PIECE_COLOR_NOISE, piece_colors.shape)
    vertex_count = len(vertex_pieces)
    brightness = rng.standard_normal((vertex_count, 1), np.float32)
    colors = piece_colors.astype(np.float32)[vertex_pieces]
    colors += brightness * np.float32(_VERTEX_COLOR_NOISE)
    clipped = np.clip(colors, 0, 255)
    return clipped.astype(np.uint8)


def _annotate(
    pieces: Sequence[Piece],
    vertex_pieces: Int64s,
    segment_ids: NDArray[np.int32],
    rng: np.random.Generator,
) -> tuple[Group, ...]:
    """Group the segments of each object, in random order of the objects.

    A quarter of the segments of floor, ceiling and walls stays without annotation.
    """
    names, first_vertices = np.unique(segment_ids, return_index=True)
    # All vertices of a segment are on one object, so its first vertex decides.
    segment_pieces = vertex_pieces[first_vertices]
    # The raw category and the segment ids of each annotated object.
    objects = []
    for index, piece in enumerate(pieces):
        members = names[segment_pieces == index].tolist()
        if index < len(SHELL):
            members = members[len(members) // 4 :]
        if piece.raw_category is not None and members:
            objects.append((piece.raw_category, tuple(members)))

    # As if the object in the middle had been removed: the ids after it are one larger.
    removed_id = len(objects) // 2
    groups = []
    order = rng.permutation(len(objects))
    for object_id, index in enumerate(order):
        raw_category, members = objects[index]
        group_id = object_id if object_id < removed_id else object_id + 1
        groups.append(Group(raw_category, members, group_id, object_id))
    return tuple(groups)
