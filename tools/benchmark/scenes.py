"""Synthetic scenes to measure with, whose vertices are ordered as in the release.

The order decides how fast normals are computed and how well segment indices compress.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from usage import run_ours

from scannet_prep.release.scenes import Split, official_scenes
from scannet_prep.synthetic import SyntheticScene, make_scene, write_label_map, write_scene

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Measured on meshes of the release: vertices come in chunks of about a metre, and within a chunk
# in runs of two or three. In edges of the mesh.
_CHUNK_EDGES = 24.0
_BLOCK_EDGES = 2.0


def make_scenes(raw_dir: Path, count: int, vertex_count: int) -> list[str]:
    """Write scenes of the train split, unless they are there, and return their ids."""
    scene_ids = [str(scene_id) for scene_id in official_scenes(Split.TRAIN)[:count]]
    for scene_id in scene_ids:
        if not (raw_dir / "scans" / scene_id).exists():
            write_scene(order_like_release(make_scene(scene_id, vertices=vertex_count)), raw_dir)
    write_label_map(raw_dir)
    return scene_ids


def make_processed(folder: Path, count: int, vertex_count: int, *options: str) -> list[str]:
    """Process scenes into `folder/processed`, aligned and with ScanNet200; return their ids."""
    scene_ids = make_scenes(folder / "raw", count, vertex_count)
    words = ["process", folder / "raw", "-o", folder / "processed", "--scannet200", "--align-axis"]
    run_ours(*words, *options)
    return scene_ids


def order_like_release(scene: SyntheticScene) -> SyntheticScene:
    """Reorder vertices and faces of a scene as in the release."""
    edges = scene.positions[scene.faces[:, 0]] - scene.positions[scene.faces[:, 1]]
    # A short edge, in metres: three quarters of the edges are longer.
    edge_length = float(np.percentile(np.sqrt((edges**2).sum(axis=1)), 25))
    order = _find_order(scene.positions, edge_length)
    new_indices = np.empty(len(order), np.int32)
    new_indices[order] = np.arange(len(order), dtype=np.int32)

    faces = new_indices[scene.faces]
    return replace(
        scene,
        positions=scene.positions[order],
        colors=scene.colors[order],
        faces=faces[np.argsort(faces.min(axis=1), kind="stable")],
        segment_ids=scene.segment_ids[order],
    )


def _find_order(positions: NDArray[np.float32], edge_length: float) -> NDArray[np.int64]:
    """Find the order of vertices: chunk after chunk, within a chunk by the hash of a small block.

    The hash is that of voxel hashing (Teschner et al. 2003), with which the scans were fused.
    """
    chunk_size = edge_length * _CHUNK_EDGES
    chunks = np.floor((positions - positions.min(axis=0)) / chunk_size).astype(np.int64)
    blocks = np.floor(positions / (edge_length * _BLOCK_EDGES)).astype(np.int64)
    hashes = (blocks[:, 0] * 73_856_093) ^ (blocks[:, 1] * 19_349_669) ^ (blocks[:, 2] * 83_492_791)
    return np.lexsort((hashes & 0xFFFFF, chunks[:, 2], chunks[:, 1], chunks[:, 0]))
