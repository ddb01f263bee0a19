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
from msgspec.structs import replace
from numpy.typing import NDArray

from scannet_prep.errors import UnknownSceneError, UsageError
from scannet_prep.raw.segments import Group
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split
from scannet_prep.synthetic.room import (
    SHELL,
    Float64s,
    Int64s,
    Piece,
    cosine_and_sine,
    furnish_room,
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

# The release's scene0217_00 numbers its repeated groups anew; this is the first of the new ids.
_FIRST_REPEATED_ID = 1000


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
        axis_alignment: float64 (4, 4), aligned <- scan, metres, six decimals; None for test scenes.
    """

    scene_id: SceneId
    positions: NDArray[np.float32]
    colors: NDArray[np.uint8]
    faces: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    groups: tuple[Group, ...]
    axis_alignment: NDArray[np.float64] | None


def make_scene(
    scene_id: str, *, vertices: int = 4000, seed: int = 0, repeats_groups: bool = False
) -> SyntheticScene:
    """Make a scene; the same arguments give the same scene.

    Rooms grow with the number of vertices until a scan's usual density is reached; from then on,
    the density stays. All raw categories are in the built-in label map. Scenes of the official test
    split are made without annotation.

    Args:
        scene_id: Its name, for example `scene0000_00`.
        vertices: The exact number of vertices, at least 500.
        seed: Another seed gives another room; at least 0.
        repeats_groups: Whether every group is listed twice, as in the release's scene0217_00; the
            repeats have new ids and object ids.

    Raises:
        UsageError: `scene_id` is not a scene id, or `vertices` or `seed` is too small.
    """
    name = SceneId(scene_id)
    if vertices < MIN_VERTICES or seed < 0:
        raise UsageError(
            f"cannot make a scene of {vertices} vertices from seed {seed}",
            f"vertices={MIN_VERTICES}, seed=0",
        )
    if name.space is None or name.scan is None:
        raise UnknownSceneError(f"{scene_id!r} is not a scene id of the release", "scene0000_00")
    seeds = [name.space, name.scan, vertices, seed]
    rng = np.random.default_rng(seeds)
    room = furnish_room(vertices, rng)
    mesh = _mesh_sides(room.sides, vertices, rng)
    axis_alignment = _draw_alignment(rng)

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
    faces = _renumber_faces(mesh.triangles, kept, len(mesh.points))

    noise = rng.normal(0.0, _POSITION_NOISE, (vertices, 3))
    scanned_points = mesh.points[kept] + noise
    positions = _to_scan_frame(scanned_points, axis_alignment)
    segment_ids = _name_segments(mesh.segments[kept], rng)
    vertex_pieces = room.side_pieces[mesh.point_sides[kept]]
    colors = _draw_colors(room.pieces, vertex_pieces, rng)

    has_annotation = find_official_split(name) is not Split.TEST
    groups: tuple[Group, ...] = ()
    if has_annotation:
        groups = _annotate(room.pieces, vertex_pieces, segment_ids, rng)
    if repeats_groups:
        groups += _repeat(groups)
    return SyntheticScene(
        scene_id=name,
        positions=positions.astype(np.float32),
        colors=colors,
        faces=faces,
        segment_ids=segment_ids,
        groups=groups,
        axis_alignment=axis_alignment if has_annotation else None,
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
        points: float64 (N, 3), metres, in the frame of the room.
        point_sides: int64 (N,), the index of the side that each point lies on.
        segments: int64 (N,), the segment of each point, from 0. A segment is on one side only. Not
            every number is used.
        triangles: int64 (T, 3), counter-clockwise as seen from inside the room.
    """

    points: Float64s
    point_sides: Int64s
    segments: Int64s
    triangles: Int64s


def _mesh_sides(sides: Float64s, vertices: int, rng: np.random.Generator) -> _Mesh:
    """Cover each side, (S, 3, 3), with a grid: at least `vertices` points in all, and few more."""
    shapes = _find_grid_shapes(sides, vertices)
    points = []
    segments = []
    triangles = []
    point_count = 0
    segment_count = 0
    for side, shape in zip(sides, shapes.tolist(), strict=True):
        rows, columns = shape
        origin, along_u, along_v = side
        numbers = np.arange(rows * columns)
        row, column = np.divmod(numbers, columns)
        step_u = along_u / (rows - 1)
        step_v = along_v / (columns - 1)
        # From the corner of the side, (N, 3).
        down = row[:, None] * step_u
        across = column[:, None] * step_v
        points.append(origin + down + across)

        # The index of the first corner of each square, which is cut into two triangles.
        is_above = row < rows - 1
        is_left = column < columns - 1
        is_corner = is_above & is_left
        corner = point_count + np.flatnonzero(is_corner)
        below = corner + columns
        squares = np.stack(
            [
                corner,
                below,
                below + 1,
                corner,
                below + 1,
                corner + 1,
            ],
            axis=1,
        )
        triangles.append(squares.reshape(-1, 3))

        segments.append(segment_count + _cut_grid(row, column, rng))
        point_count += len(row)
        last_segment = int(segments[-1].max())
        segment_count = last_segment + 1
    side_numbers = np.arange(len(sides))
    return _Mesh(
        points=np.concatenate(points),
        point_sides=np.repeat(side_numbers, shapes.prod(axis=1)),
        segments=np.concatenate(segments),
        triangles=np.concatenate(triangles),
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


def _renumber_faces(
    triangles: Int64s,
    kept: Int64s,
    point_count: int,
) -> NDArray[np.int32]:
    """Number triangles by the points that are kept, without those that lost a point."""
    new_indices = np.full(point_count, -1, np.int32)
    numbers = np.arange(len(kept), dtype=np.int32)
    new_indices[kept] = numbers
    faces = new_indices[triangles]
    is_whole = faces.min(axis=1) >= 0
    return faces.compress(is_whole, axis=0)


def _draw_alignment(rng: np.random.Generator) -> Float64s:
    """Draw an axis alignment that turns by 10 to 60 degrees, and shifts."""
    degrees = rng.uniform(10.0, 60.0)
    if rng.random() >= 0.5:
        degrees = -degrees
    cosine, sine = cosine_and_sine(degrees)
    lowest = [-5.0, -5.0, -0.12]
    highest = [5.0, 5.0, -0.02]
    alignment = np.eye(4)
    alignment[0, :2] = (cosine, -sine)
    alignment[1, :2] = (sine, cosine)
    shift = rng.uniform(lowest, highest)
    alignment[:3, 3] = shift.round(6)
    return alignment


def _to_scan_frame(points: Float64s, axis_alignment: Float64s) -> Float64s:
    """Apply the inverse of an axis alignment to points, (V, 3)."""
    # Written out, because the order of sums in a matrix product differs between processors.
    cosine = axis_alignment[0, 0]
    sine = axis_alignment[1, 0]
    shift = axis_alignment[:3, 3]
    x, y, z = (points - shift).T
    along = cosine * x + sine * y
    across = cosine * y - sine * x
    return np.stack([along, across, z], axis=1)


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
    pieces: Sequence[Piece], vertex_pieces: Int64s, rng: np.random.Generator
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


def _repeat(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Return the groups again, with new ids and object ids."""
    repeated = []
    for index, group in enumerate(groups):
        new_id = _FIRST_REPEATED_ID + index
        object_id = len(groups) + index
        repeated.append(replace(group, id=new_id, object_id=object_id))
    return tuple(repeated)
