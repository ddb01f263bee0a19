"""Synthetic scenes: a furnished room as a scanner would see it, over-segmented and annotated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.raw.segments import Group
from scannet_prep.scene import SceneId, Split
from scannet_prep.splits import find_official_split
from scannet_prep.synthetic.room import SHELL, Room, furnish

Ids: TypeAlias = NDArray[np.integer[Any]]

MIN_VERTICES = 500

_NOISE = 0.003

# Measured on meshes of the release: vertices come in chunks of about a metre, within them in runs of two or three.
_CHUNK_EDGES = 24.0
_BLOCK_EDGES = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticScene:
    """One synthetic scan.

    Attributes:
        scene_id: Its name.
        positions: float32 (V, 3), metres, scan frame: z up, turned and shifted against the walls.
        colors: uint8 (V, 3), red, green, blue, 0..255.
        faces: int32 (F, 3), vertex indices, counter-clockwise as seen from inside the room.
        segment_ids: int32 (V,), raw segment ids: sparse, and `segment_ids[id] == id` for each of them.
        groups: Annotated objects in file order; empty for test scenes. No two have a segment in common. Their ids have
            gaps where the annotator removed an object; their object ids have none.
        axis_alignment: float64 (4, 4), aligned <- scan, metres, six decimals; None for test scenes.
    """

    scene_id: SceneId
    positions: NDArray[np.float32]
    colors: NDArray[np.uint8]
    faces: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    groups: tuple[Group, ...]
    axis_alignment: NDArray[np.float64] | None


def make_scene(scene_id: str, *, vertices: int = 4000, seed: int = 0, repeats_groups: bool = False) -> SyntheticScene:
    """Make a scene; the same arguments give the same scene.

    Rooms grow with the number of vertices until a scan's usual density is reached, then the density stays. Raw
    categories are all in the built-in label map. Scenes of the official test split are made without annotation.

    Args:
        scene_id: Its name, for example `scene0000_00`.
        vertices: The exact number of vertices, at least 500.
        seed: Another seed gives another room; at least 0.
        repeats_groups: Whether every group is listed twice, as in the release's scene0217_00; the repeats have new ids
            and object ids.
    """
    name = SceneId(scene_id)
    if vertices < MIN_VERTICES or seed < 0:
        raise UsageError(
            f"cannot make a scene of {vertices} vertices from seed {seed}", f"vertices={MIN_VERTICES}, seed=0"
        )
    rng = np.random.default_rng([name.space, name.scan, vertices, seed])
    room = furnish(vertices, rng)
    axis_alignment = _draw_alignment(rng)
    # What is missing of the room is one hole in the ceiling, as scans have.
    center = (rng.uniform(0.3, 0.7) * room.size[0], rng.uniform(0.3, 0.7) * room.size[1], room.size[2])
    kept = np.sort(np.argsort(-((room.points - center) ** 2).sum(1), kind="stable")[:vertices])
    scanned = _scan_from_aligned(room.points[kept] + rng.normal(0.0, _NOISE, (vertices, 3)), axis_alignment)
    order = _order_like_release(scanned, room.edge_length)

    kept = kept[order]
    owners, segments = room.owners[kept], room.segments[kept]
    names = np.empty(int(segments.max()) + 1, np.int32)  # each segment is named after one of its vertices
    shuffled = rng.permutation(vertices).astype(np.int32)
    names[segments[shuffled]] = shuffled
    segment_ids = names[segments]
    # Colours are a little different in each object and vertex.
    base = np.array([piece.color for piece in room.pieces]) + rng.normal(0.0, 12.0, (len(room.pieces), 3))
    noise = rng.standard_normal((vertices, 1), np.float32) * np.float32(8.0)
    has_annotation = find_official_split(name) is not Split.TEST
    groups = _annotate(room, owners, segment_ids, rng) if has_annotation else ()
    if repeats_groups:
        groups += tuple(replace(it, id=1000 + place, object_id=len(groups) + place) for place, it in enumerate(groups))
    return SyntheticScene(
        scene_id=name,
        positions=scanned[order].astype(np.float32),
        colors=np.clip(base.astype(np.float32)[owners] + noise, 0, 255).astype(np.uint8),
        faces=_renumber_faces(room, kept),
        segment_ids=segment_ids,
        groups=groups,
        axis_alignment=axis_alignment if has_annotation else None,
    )


def _draw_alignment(rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw an axis alignment that turns by 10 to 60 degrees, and shifts."""
    angle = math.radians(rng.uniform(10.0, 60.0) * (1 if rng.random() < 0.5 else -1))
    cosine, sine = round(math.cos(angle), 6), round(math.sin(angle), 6)
    x, y, z = rng.uniform([-5.0, -5.0, -0.12], [5.0, 5.0, -0.02]).round(6)
    return np.array([[cosine, -sine, 0, x], [sine, cosine, 0, y], [0, 0, 1, z], [0, 0, 0, 1]])


def _scan_from_aligned(points: NDArray[np.float64], axis_alignment: NDArray[np.float64]) -> NDArray[np.float64]:
    """Undo an alignment; written out, because the order of sums in a matrix product differs between processors."""
    cosine, sine = axis_alignment[0, 0], axis_alignment[1, 0]
    x, y, z = (points - axis_alignment[:3, 3]).T
    return np.stack([cosine * x + sine * y, cosine * y - sine * x, z], axis=1)


def _order_like_release(positions: NDArray[np.float64], edge_length: float) -> NDArray[np.int64]:
    """Order vertices as the release's meshes do: chunk after chunk, within a chunk by the hash of a small block.

    The hash is the one of voxel hashing (Teschner et al. 2003), which is what fused the scans.
    """
    chunks = np.floor((positions - positions.min(0)) / (edge_length * _CHUNK_EDGES)).astype(np.int64)
    blocks = np.floor(positions / (edge_length * _BLOCK_EDGES)).astype(np.int64)
    hashes = (blocks[:, 0] * 73_856_093) ^ (blocks[:, 1] * 19_349_669) ^ (blocks[:, 2] * 83_492_791)
    return np.lexsort((hashes & 0xFFFFF, chunks[:, 2], chunks[:, 1], chunks[:, 0]))


def _renumber_faces(room: Room, kept: NDArray[np.int64]) -> NDArray[np.int32]:
    """Give triangles the new numbers of their vertices, drop those that lost one, and order them by vertex."""
    numbers = np.full(len(room.points), -1, np.int32)
    numbers[kept] = np.arange(len(kept), dtype=np.int32)
    faces = numbers[room.triangles]
    faces = faces.compress(faces.min(1) >= 0, axis=0)
    return faces.take(np.argsort(faces.min(1), kind="stable"), axis=0)


def _annotate(room: Room, owners: Ids, segment_ids: Ids, rng: np.random.Generator) -> tuple[Group, ...]:
    """Group segments to objects in random order; a quarter of floor, ceiling and walls is left out."""
    names, first = np.unique(segment_ids, return_index=True)
    objects = []
    for index, piece in enumerate(room.pieces):
        members = names[owners[first] == index].tolist()
        if index < len(SHELL):
            members = members[len(members) // 4 :]
        if piece.raw_category is not None and members:
            objects.append((piece.raw_category, tuple(members)))
    order = [objects[index] for index in rng.permutation(len(objects))]
    removed = len(order) // 2
    return tuple(Group(name, ids, at + (at >= removed), at) for at, (name, ids) in enumerate(order))
