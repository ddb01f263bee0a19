"""Synthetic scenes: a furnished room as a scanner would see it, over-segmented and annotated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from scannet_prep.errors import UsageError
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import find_official_split
from scannet_prep.synthetic.room import FIRST_WALL, FLOOR, LAST_WALL, Room, furnish
from scannet_prep.synthetic.segments import cut_segments, number_contiguously
from scannet_prep.synthetic.surfaces import Grid, fit_grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_VERTICES = 500

_NOISE = 0.003
_COLOR_SPREADS = {"piece": 12.0, "segment": 6.0, "vertex": 5.0}
_UNANNOTATED_PROBABILITY = 0.3

# Measured on meshes of the release: vertices come in chunks of about a metre, within them in runs of two or three.
_CHUNK_EDGES = 24.0
_BLOCK_EDGES = 2.0

_SCENE_TYPES = ("Apartment", "Bathroom", "Bedroom / Hotel", "Classroom", "Living room / Lounge", "Office")


@dataclass(frozen=True, slots=True)
class SyntheticGroup:
    """One annotated object, an entry of `segGroups`.

    Attributes:
        id: Position among the groups, from 0.
        object_id: The annotation program's own number; differs from `id` after an object that was removed.
        raw_category: The annotator's text, key of the label map.
        segments: Raw segment ids.
    """

    id: int
    object_id: int
    raw_category: str
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticScene:
    """One synthetic scan.

    Attributes:
        scene_id: Its name.
        positions: float32 (V, 3), metres, scan frame: z up, turned and shifted against the walls.
        colors: uint8 (V, 3), red, green, blue, 0..255.
        faces: int32 (F, 3), vertex indices, counter-clockwise as seen from inside the room.
        segment_ids: int32 (V,), raw segment ids: sparse, and `segment_ids[id] == id` for each of them.
        groups: Annotated objects in file order, where the last wins; empty for test scenes.
        axis_alignment: float64 (4, 4), aligned <- scan, metres, six decimals; None for test scenes.
        scene_type: Free text; None for test scenes.
    """

    scene_id: SceneId
    positions: NDArray[np.float32]
    colors: NDArray[np.uint8]
    faces: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    groups: tuple[SyntheticGroup, ...]
    axis_alignment: NDArray[np.float64] | None
    scene_type: str | None


def make_scene(scene_id: str, *, vertices: int = 4000, seed: int = 0) -> SyntheticScene:
    """Make a scene; the same arguments give the same scene.

    Rooms grow with the number of vertices until a scan's usual density is reached, then the density stays. Raw
    categories are all in the built-in label map. Scenes of the official test split are made without annotation.

    Args:
        scene_id: Its name, for example `scene0000_00`.
        vertices: The exact number of vertices, at least 500.
        seed: Another seed gives another room; at least 0.

    Raises:
        UnknownSceneError: `scene_id` is no scene id.
        UsageError: `vertices` or `seed` is too small.
    """
    name = SceneId(scene_id)
    if vertices < MIN_VERTICES or seed < 0:
        raise UsageError(
            f"cannot make a scene of {vertices} vertices from seed {seed}",
            f"vertices must be at least {MIN_VERTICES}, seed at least 0",
        )
    rng = np.random.default_rng([name.space, name.scan, vertices, seed])
    room = furnish(vertices, rng)
    surfaces = room.surfaces
    grid = Grid.from_shapes(fit_grid(surfaces.lengths, vertices))
    points = grid.positions(surfaces)
    segments = cut_segments(grid, surfaces.boxes, rng)
    axis_alignment = _draw_alignment(room.size, rng)

    kept = _leave_hole(points, vertices, room.size, rng)
    chosen = grid.rectangles[kept]
    noise = rng.normal(0.0, _NOISE, len(kept))
    scanned = _scan_from_aligned(points[kept] + surfaces.normals[chosen] * noise[:, None], axis_alignment)
    order = _order_like_release(scanned, _edge_length(points, grid))

    kept = kept[order]
    pieces = surfaces.pieces[grid.rectangles[kept]]
    segments = number_contiguously(segments[kept])
    segment_ids = _draw_segment_ids(segments, rng)
    has_annotation = find_official_split(name) is not Split.TEST
    return SyntheticScene(
        scene_id=name,
        positions=scanned[order].astype(np.float32),
        colors=_paint(room, pieces, segments, rng),
        faces=_renumber_faces(grid.triangles(), kept, len(points)),
        segment_ids=segment_ids,
        groups=_annotate(room, pieces, segments, segment_ids, points[kept], rng) if has_annotation else (),
        axis_alignment=axis_alignment if has_annotation else None,
        scene_type=str(rng.choice(_SCENE_TYPES)) if has_annotation else None,
    )


def with_known_irregularity(scene: SyntheticScene) -> SyntheticScene:
    """List every group twice, as the release's scene0217_00 does; the repeats have new ids and object ids."""
    next_id = max((group.id for group in scene.groups), default=-1) + 1
    next_object_id = max((group.object_id for group in scene.groups), default=-1) + 1
    repeats = (
        replace(group, id=next_id + index, object_id=next_object_id + index) for index, group in enumerate(scene.groups)
    )
    return replace(scene, groups=(*scene.groups, *repeats))


def _draw_alignment(size: tuple[float, float, float], rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw an axis alignment that turns by 10 to 60 degrees; in the scan frame, coordinates start near 0."""
    angle = math.radians(rng.uniform(10.0, 60.0) * (1 if rng.random() < 0.5 else -1))
    cosine, sine = round(math.cos(angle), 6), round(math.sin(angle), 6)
    corners = [(x, y) for x in (0.0, size[0]) for y in (0.0, size[1])]
    low_x = min(cosine * x + sine * y for x, y in corners)
    low_y = min(cosine * y - sine * x for x, y in corners)
    shift_x = round(cosine * low_x - sine * low_y, 6)
    shift_y = round(sine * low_x + cosine * low_y, 6)
    shift_z = -round(rng.uniform(0.02, 0.12), 6)
    return np.array(
        [[cosine, -sine, 0.0, shift_x], [sine, cosine, 0.0, shift_y], [0.0, 0.0, 1.0, shift_z], [0.0, 0.0, 0.0, 1.0]]
    )


def _scan_from_aligned(points: NDArray[np.float64], axis_alignment: NDArray[np.float64]) -> NDArray[np.float64]:
    """Undo an alignment; written out, because the order of sums in a matrix product differs between processors."""
    cosine, sine = axis_alignment[0, 0], axis_alignment[1, 0]
    x, y, z = (points - axis_alignment[:3, 3]).T
    return np.stack([cosine * x + sine * y, cosine * y - sine * x, z], axis=1)


def _leave_hole(
    points: NDArray[np.float64], vertices: int, size: tuple[float, float, float], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Choose so many points that what is missing is one hole in the ceiling, as scans have."""
    center = (rng.uniform(0.3, 0.7) * size[0], rng.uniform(0.3, 0.7) * size[1], size[2])
    distances = ((points - center) ** 2).sum(1)
    nearest = np.argsort(distances, kind="stable")[: len(points) - vertices]
    return np.delete(np.arange(len(points)), nearest)


def _edge_length(points: NDArray[np.float64], grid: Grid) -> float:
    """Typical distance of neighbouring points, metres, measured on the floor."""
    rows, columns = grid.shapes[FLOOR]
    width, depth = points[rows * columns - 1, :2] - points[0, :2]
    return math.sqrt(width * depth / (rows * columns))


def _order_like_release(positions: NDArray[np.float64], edge_length: float) -> NDArray[np.int64]:
    """Order vertices as the release's meshes do: chunk after chunk, within a chunk by the hash of a small block.

    The hash is the one of voxel hashing (Teschner et al. 2003), which is what fused the scans.
    """
    chunks = (positions / (edge_length * _CHUNK_EDGES)).astype(np.int64)
    chunks -= chunks.min(0)
    extent = chunks.max(0) + 1
    blocks = np.floor(positions / (edge_length * _BLOCK_EDGES)).astype(np.int64)
    hashes = (blocks[:, 0] * 73_856_093) ^ (blocks[:, 1] * 19_349_669) ^ (blocks[:, 2] * 83_492_791)
    chunk_keys = (chunks[:, 0] * extent[1] + chunks[:, 1]) * extent[2] + chunks[:, 2]
    return np.argsort((chunk_keys << 20) | (hashes & 0xFFFFF), kind="stable")


def _renumber_faces(triangles: NDArray[np.int64], kept: NDArray[np.int64], count: int) -> NDArray[np.int32]:
    """Give triangles the new numbers of their vertices, drop those that lost one, and order them by vertex."""
    numbers = np.full(count, -1, np.int32)
    numbers[kept] = np.arange(len(kept), dtype=np.int32)
    faces = numbers[triangles]
    lowest = faces.min(1)
    order = np.argsort(lowest, kind="stable")
    return faces[order[int((lowest < 0).sum()) :]]


def _draw_segment_ids(segments: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int32]:
    """Name each segment after one of its vertices."""
    shuffled = rng.permutation(len(segments)).astype(np.int32)
    names = np.empty(int(segments.max()) + 1, np.int32)
    names[segments[shuffled]] = shuffled
    return names[segments]


def _paint(
    room: Room, pieces: NDArray[np.int64], segments: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.uint8]:
    base = np.array([piece.color for piece in room.pieces], np.float32)
    base += rng.normal(0.0, _COLOR_SPREADS["piece"], base.shape).astype(np.float32)
    tints = rng.normal(0.0, _COLOR_SPREADS["segment"], (int(segments.max()) + 1, 1)).astype(np.float32)
    noise = rng.standard_normal((len(pieces), 1), np.float32) * np.float32(_COLOR_SPREADS["vertex"])
    return np.clip(base[pieces] + tints[segments] + noise, 0, 255).astype(np.uint8)


def _annotate(
    room: Room,
    pieces: NDArray[np.int64],
    segments: NDArray[np.int64],
    segment_ids: NDArray[np.int32],
    points: NDArray[np.float64],
    rng: np.random.Generator,
) -> tuple[SyntheticGroup, ...]:
    """Group segments to objects; leave out some of floor, ceiling and walls, let walls and floor share segments."""
    counts = np.bincount(segments)
    ids, piece_of_segment = np.empty(len(counts), np.int32), np.empty(len(counts), np.int64)
    ids[segments], piece_of_segment[segments] = segment_ids, pieces
    is_left_out = (piece_of_segment <= LAST_WALL) & (rng.random(len(counts)) < _UNANNOTATED_PROBABILITY)
    members: list[list[int]] = [[] for _ in room.pieces]
    # From large to small, so that the largest segment of each piece is never left out.
    for segment in np.argsort(-counts, kind="stable").tolist():
        group = members[piece_of_segment[segment]]
        if not (is_left_out[segment] and group):
            group.append(int(ids[segment]))
    for wall in range(FIRST_WALL, LAST_WALL + 1):
        skirting = int(ids[_find_skirting(room, wall, pieces, segments, counts, points)])
        for owner in (FLOOR, wall):
            if skirting not in members[owner]:
                members[owner].append(skirting)
    objects = [
        (piece.raw_category, tuple(members[index]))
        for index, piece in enumerate(room.pieces)
        if piece.raw_category is not None and members[index]
    ]
    order = rng.permutation(len(objects)).tolist()
    removed = len(objects) // 2
    return tuple(
        SyntheticGroup(index, index + (index >= removed), *objects[chosen]) for index, chosen in enumerate(order)
    )


def _find_skirting(
    room: Room,
    wall: int,
    pieces: NDArray[np.int64],
    segments: NDArray[np.int64],
    counts: NDArray[np.int64],
    points: NDArray[np.float64],
) -> int:
    """The smallest segment of the floor that touches a wall."""
    axis, place = ((1, 0.0), (0, room.size[0]), (1, room.size[1]), (0, 0.0))[wall - FIRST_WALL]
    on_floor = np.flatnonzero(pieces == FLOOR)
    distances = np.abs(points[on_floor, axis] - place)
    touching = np.unique(segments[on_floor[distances <= distances.min() + 1e-6]])
    return int(touching[np.argmin(counts[touching])])
